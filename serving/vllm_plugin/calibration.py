"""How fast this engine really is: the step model, scaled by the steps that were seen."""

from __future__ import annotations

from collections import deque
from typing import Any

from ramify.serving.policy.types import StepModel

_LEARN = 0.05  # weight of one step
_BAND = 1.2  # the model moves only when it is off by this factor: each move costs the policy its keys
_IDLE = 20.0  # so many times longer than the model says was no step but a pause of the machine's
_FIRST = 5  # steps to look at before the first correction


class Pace:
    """A step is timed from the landing of the one before it, or from where it was scheduled if that was later, to its
    own: which holds whether or not steps overlap. Times are added up before they are divided. The mean of single
    ratios would be far off where prompts make one step thirty times as long as the next (docs/decisions/049)."""

    def __init__(self, start: StepModel, calibrate: bool) -> None:
        self._start, self.model = start, start
        self._calibrate = calibrate
        self._used = 1.0  # so many times slower than the start is the model
        self._flying: deque[tuple[Any, float, float]] = deque()  # output, when it was scheduled, ms as the start says
        self._landed_at = float("-inf")
        self._seen_ms, self._said_ms = 0.0, 0.0  # of late, the newest weighing most
        self._steps = 0

    def scheduled(self, output: Any, now: float, context_tokens: int) -> None:
        """A step was scheduled, with what vLLM's output of it holds."""
        tokens, sequences = output.total_num_scheduled_tokens, len(output.num_scheduled_tokens)
        if self._calibrate:  # one with nothing in it too: it lands in its turn, and tells nothing
            said_ms = self._start.step_ms(sequences, context_tokens, max(0, tokens - sequences)) if sequences else 0.0
            self._flying.append((output, now, said_ms))

    def landed(self, output: Any, now: float) -> None:
        """Its tokens are there."""
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
