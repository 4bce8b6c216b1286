"""When an estimate is put to the test: a call that it would refuse is let in, so that its answer can correct it.

Refusals cut off the evidence that would correct the estimate behind them. So a host that has room for a call asks
here before it performs a refusal that rests on an estimate.
"""

from __future__ import annotations

_FACTOR = 2.0  # estimates are this far off without being wrong: a call that needs no more than this is let in
_DOUBLES_S = 15.0  # the factor doubles for each so many seconds without a test,
_MOST_DOUBLINGS = 7.0  # and stops at 256


class RefusalProbe:
    """How far the estimates of one engine are trusted against a call. Deterministic: the time is passed in."""

    def __init__(self) -> None:
        self._tested: float | None = None

    def should_admit(self, needs_s: float, left_s: float, now: float) -> bool:
        """Is a call to be let in that has `left_s` and, by the estimate, needs `needs_s`? One beyond the usual factor
        is a test, and the next one waits for its turn."""
        if left_s <= 0.0:
            return False
        if needs_s <= _FACTOR * left_s:
            return True
        if self._tested is None or now < self._tested:  # the first refusal starts the clock, and so does one set back
            self._tested = now
            return False
        doublings = min(_MOST_DOUBLINGS, (now - self._tested) / _DOUBLES_S)
        if needs_s > _FACTOR * left_s * 2.0**doublings:
            return False
        self._tested = now
        return True
