"""`RefusalProbe`: now and then admit a call that an estimate would refuse, so that its answer can correct the
estimate.

Refusals cut off the evidence that would correct the estimate behind them (docs/decisions/084). So a host with room
for a call asks here before it performs a refusal that rests on an estimate.
"""

from __future__ import annotations

_FACTOR = 2.0  # estimates are off by this much without being wrong: a call within it is admitted
_DOUBLES_S = 15.0  # the factor doubles each time this many seconds pass without a test,
_MOST_DOUBLINGS = 7.0  # up to 256


class RefusalProbe:
    """Decides for one engine which refusals to test. Deterministic: the time is passed in."""

    def __init__(self) -> None:
        self._tested: float | None = None

    def should_admit(self, needs_s: float, left_s: float, now: float) -> bool:
        """Should a call be admitted that has `left_s` seconds left and needs `needs_s` by the estimate?

        A call beyond the usual factor is a test. After a test the factor starts again.
        """
        if left_s <= 0.0:
            return False
        if needs_s <= _FACTOR * left_s:
            return True
        if (
            self._tested is None or now < self._tested
        ):  # the first refusal starts the clock; a clock that was set back starts again
            self._tested = now
            return False
        doublings = min(_MOST_DOUBLINGS, (now - self._tested) / _DOUBLES_S)
        if needs_s > _FACTOR * left_s * 2.0**doublings:
            return False
        self._tested = now
        return True
