"""How fast this engine really is: the step model, scaled by the steps that were seen."""

from __future__ import annotations

from collections.abc import Callable

from ramify.serving.policy.types import StepModel

_LEARN = 0.05  # weight of one step
_BAND = 1.2  # the model moves only when it is off by this factor: each move costs the policy its keys
_IDLE = 20.0  # a gap so many times longer than the model says was no step but a pause between requests
_FIRST = 5  # steps to look at before the first correction


class Pace:
    """Steps are timed from one call of `schedule` to the next, which is what a token takes under load."""

    def __init__(self, start: StepModel, calibrate: bool) -> None:
        self._start, self.model = start, start
        self._calibrate = calibrate
        self._at: float | None = None
        self._predicted_ms = 0.0
        self._factor: float | None = None
        self._steps = 0
        self._sequences, self._tokens = 0, 0
        self._context = 0

    def scheduled(self, tokens: int, sequences: int) -> None:
        """What the step that begins now holds."""
        self._tokens, self._sequences = tokens, sequences

    def step(self, now: float, running: int, context_tokens: Callable[[], int]) -> None:
        """A step begins: the one before it took until now."""
        if not self._calibrate:
            return
        if self._at is not None and self._sequences:
            prefill = max(0, self._tokens - self._sequences)
            predicted = self._start.step_ms(self._sequences, self._context, prefill)
            self._learn((now - self._at) * 1000 / predicted)
        self._at = now
        if self._steps % 16 == 0:
            self._context = context_tokens()
        self._steps += 1

    def _learn(self, ratio: float) -> None:
        if ratio <= 0:
            return
        if self._factor is None:
            self._factor = ratio
        elif self._steps <= _FIRST or ratio < self._factor * _IDLE:
            self._factor += (_LEARN if self._steps > _FIRST else 0.5) * (ratio - self._factor)
        used = self.model.base_ms / self._start.base_ms if self._start.base_ms else 1.0
        if self._steps >= _FIRST and not used / _BAND <= self._factor <= used * _BAND:
            self.model = self._start.scaled(self._factor)
