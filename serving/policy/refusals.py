"""Which calls are refused: those past their limits, and, with exceptions, those that an estimate would refuse.

The limits of a call are its deadline and, before its first token, `ttft` and `admit_by`. All of them bind. A call
without limits is never late.

Refusals cut off the evidence that would correct the estimate behind them (docs/decisions/084). So a host with room
for a call asks a `RefusalProbe` before it performs a refusal that rests on an estimate. Now and then that admits a
call that the estimate would refuse, so that its answer can correct the estimate.
"""

from __future__ import annotations

from ramify.serving.policy.types import Refusal, RequestView


def late(call: RequestView, now: float) -> Refusal | None:
    """Return the refusal of a call that is past one of its limits; None if it is past none."""
    if call.deadline is not None and call.deadline <= now:
        return Refusal(call.id, f"its deadline passed {now - call.deadline:.3f} s ago")
    if call.generated:  # it was admitted, and its first token came
        return None
    if call.ttft is not None and call.ttft <= now:
        return Refusal(call.id, f"its deadline passed {now - call.ttft:.3f} s ago: its first token was due")
    if call.admit_by is not None and call.admit_by <= now:
        return not_admitted(call, call.admit_by)
    return None


def not_admitted(call: RequestView, admit_by: float, earliest_feasible_s: float | None = None) -> Refusal:
    return Refusal(call.id, f"it was not admitted within {admit_by - call.arrived:.3f} s", earliest_feasible_s)


def due(call: RequestView) -> float | None:
    """Return when its first token or its answer is due, whichever comes first; None: at no time."""
    times = (call.deadline, None if call.generated else call.ttft)
    return min((at for at in times if at is not None), default=None)


def next_limit(call: RequestView) -> float | None:
    """Return when a call that is not late will be, a time for `Verdict.wake_at`; None: never."""
    times = (due(call), None if call.generated else call.admit_by)
    return min((at for at in times if at is not None), default=None)


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
        # the first refusal starts the clock; a clock that was set back starts again
        if self._tested is None or now < self._tested:
            self._tested = now
            return False
        doublings = min(_MOST_DOUBLINGS, (now - self._tested) / _DOUBLES_S)
        if needs_s > _FACTOR * left_s * 2.0**doublings:
            return False
        self._tested = now
        return True
