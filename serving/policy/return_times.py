"""`ReturnTimes`: whether, and when, programs that wait for a tool come back, learnt from those of late.

The product-limit estimator (Kaplan and Meier 1958): a program that is away still counts as one that has not come back
yet, so those that never do lower the chance without ever being reported. A program that is said to be over does not
count. What engines are told about returns is only a hint: a client that announces returns that never happen soon has
little kept.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import OrderedDict

_LATEST = 512  # programs that left, of which this is learnt
_PRIOR = (2.5, 5.0, 10.0, 20.0, 40.0)  # seconds: programs that came back before any was seen
_RENEW_S = 1.0  # the estimate is that old at most,
_RENEW_LEFT = 16  # or so many programs have left since


class ReturnTimes:
    """For one thread. Times are on the caller's clock, in seconds."""

    def __init__(self) -> None:
        self._away: OrderedDict[str, float] = OrderedDict()  # when each left
        self._gaps: list[float] = []  # of those that came back, the latest last
        self._times: list[float] = []  # the estimate: at each of these times away,
        self._stay: list[float] = []  # so many stay away for longer
        self._made_at: float | None = None
        self._news = 0

    def left(self, program: str, at: float) -> None:
        """A program went away."""
        self._away[program] = at
        self._away.move_to_end(program)
        self._news += 1
        if len(self._away) > _LATEST:
            self._away.popitem(last=False)

    def returned(self, program: str, after_s: float) -> None:
        """It is back."""
        self._away.pop(program, None)
        self._gaps.append(after_s)
        self._news += 1
        if len(self._gaps) > _LATEST:
            del self._gaps[0]

    def over(self, program: str) -> None:
        """It will not come back, and said so."""
        self._away.pop(program, None)

    @property
    def share(self) -> float:
        """The share of programs that come back within the times seen."""
        return 1.0 - self._stay[-1] if self._stay else 1.0

    def remaining(self, elapsed: float, now: float) -> tuple[float, float]:
        """Return for a program that has been away for `elapsed` seconds: the median time until it returns, if it
        does, and the chance that it does within the times seen.
        """
        self._renew(now)
        at = bisect_right(self._times, elapsed)
        stay = self._stay[at - 1] if at else 1.0
        last = self._stay[-1]
        if at == len(self._times) or stay <= last:
            return max(_PRIOR[2], elapsed), 0.0
        half = (stay + last) / 2
        median = next(t for t, one in zip(self._times[at:], self._stay[at:], strict=True) if one <= half)
        return median - elapsed, (stay - last) / stay

    def _renew(self, now: float) -> None:
        fresh = self._made_at is not None and now - self._made_at < _RENEW_S
        if fresh and self._news < _RENEW_LEFT:
            return
        self._made_at, self._news = now, 0
        back = sorted((*_PRIOR, *self._gaps))
        away = sorted(max(0.0, now - at) for at in self._away.values())
        self._times, self._stay, stay = [], [], 1.0
        for number, gap in enumerate(back):
            at_risk = len(back) - number + len(away) - bisect_left(away, gap)
            stay *= 1 - 1 / at_risk
            self._times.append(gap)
            self._stay.append(stay)
