"""The limits of a call, for policies that refuse what is late: its deadline and, before its first token, `ttft` and
`admit_by`. All of them bind. A call without limits is never late."""

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
