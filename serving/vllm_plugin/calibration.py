"""`StepCalibrator`: scales the step model by the time that the engine's steps really take."""

from __future__ import annotations

from collections import deque
from typing import Any

from ramify.serving.policy.types import StepModel

_LEARN = 0.05  # weight of one step
_BAND = 1.2  # the model changes only when it is off by this factor: each change costs the policy its sorted keys
_IDLE = 20.0  # a step this many times longer than the model says was a pause of the machine
_FIRST = 5  # steps before the first correction


class StepCalibrator:
    """Times steps and scales the step model `start`.

    A step is timed from the end of the one before it, or from its scheduling if that was later, to its own end.
    This holds whether or not steps overlap. Times are added up before they are divided: the mean of single ratios
    would be far off where prompts make one step thirty times as long as the next (docs/decisions/046).
    """

    def __init__(self, start: StepModel, calibrate: bool) -> None:
        self._start, self.model = start, start
        self._calibrate = calibrate
        self._used = 1.0  # how many times slower the model is than the start
        self._flying: deque[tuple[Any, float, float]] = (
            deque()
        )  # output, when it was scheduled, ms by the start model
        self._landed_at = float("-inf")
        self._seen_ms, self._said_ms = 0.0, 0.0  # decaying sums: the newest steps weigh most
        self._steps = 0

    def scheduled(self, output: Any, now: float, context_tokens: int) -> None:
        """Note a scheduled step. `output` is vLLM's, `context_tokens` the tokens in KV of the running requests."""
        tokens, sequences = output.total_num_scheduled_tokens, len(output.num_scheduled_tokens)
        if self._calibrate:  # also an empty step, so that the order of the ends is right
            said_ms = self._start.step_ms(sequences, context_tokens, max(0, tokens - sequences)) if sequences else 0.0
            self._flying.append((output, now, said_ms))

    def landed(self, output: Any, now: float) -> None:
        """Note that a step has ended: its tokens are there."""
        while self._flying:
            flown, since, said_ms = self._flying.popleft()
            if flown is output:
                self._learn((now - max(since, self._landed_at)) * 1000, said_ms)
                break
        self._landed_at = now

    def _learn(self, seen_ms: float, said_ms: float) -> None:
        known = self._steps >= _FIRST
        if seen_ms <= 0 or said_ms <= 0 or (known and seen_ms * self._said_ms > _IDLE * said_ms * self._seen_ms):
            return
        self._steps += 1
        keep = 1 - (_LEARN if known else 0.5)
        self._seen_ms = keep * self._seen_ms + seen_ms
        self._said_ms = keep * self._said_ms + said_ms
        factor = self._seen_ms / self._said_ms
        if self._steps >= _FIRST and not self._used / _BAND <= factor <= self._used * _BAND:
            self._used, self.model = factor, self._start.scaled(factor)
