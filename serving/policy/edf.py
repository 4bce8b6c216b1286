"""`EarliestDeadlineFirst`: the request with the earliest deadline first, and best effort that ages."""

from __future__ import annotations

from dataclasses import dataclass

from ramify.serving.policy.types import Finished, Refusal, RequestView, Verdict, View


@dataclass(frozen=True, slots=True)
class EarliestDeadlineFirst:
    """The policy `edf`. Ties go by arrival.

    A call of a workflow is due when its stage is by its share of the deadline (thesis §4.1), or if that is not known,
    when the workflow is. A call without a deadline is due when its first token is, and a stream when its reader has
    read all that there is.
    Any other is due `best_effort_s` after its arrival. Only calls with an earlier deadline can pass it, and no new
    ones of those can arrive once its own time is near, so it never starves. It is never refused for being late.

    A call that is past its deadline, or past its `admit_by`, is refused: starting it would only delay the others.
    Once a call has answered something, only its deadline counts. Running calls are left alone.
    """

    best_effort_s: float = 120.0

    def decide(self, view: View, now: float) -> Verdict:
        drop, live, wakes = [], [], []
        for call in view.waiting:
            started = call.generated > 0
            limit = call.deadline if started else _due(call)
            admit_by = None if started else call.admit_by
            if limit is not None and limit <= now:
                drop.append(Refusal(call.id, f"its deadline passed {now - limit:.3f} s ago"))
            elif admit_by is not None and admit_by <= now:
                drop.append(Refusal(call.id, f"it was not admitted within {admit_by - call.arrived:.3f} s"))
            else:
                live.append((_sort_due(call, self.best_effort_s), call.arrived, call.id))
                wakes += [at for at in (limit, admit_by) if at is not None]
        live.sort()
        order = tuple(id_ for _, _, id_ in live)
        return Verdict(
            admit=order[: view.capacity.free], order=order, drop=tuple(drop), wake_at=min(wakes, default=None)
        )

    def observe(self, done: Finished) -> None:
        """Do nothing: this policy learns nothing."""


def _due(call: RequestView) -> float | None:
    return call.ttft if call.deadline is None else call.deadline


def _sort_due(call: RequestView, best_effort_s: float) -> float:
    """Return the time that a call is sorted by. A stream's is when its reader has nothing left to read, and a stage's
    is its share of its workflow's deadline: no call is refused for missing that."""
    goal = None if call.compound is None else call.compound.due
    if dues := [at for at in (_due(call), goal) if at is not None]:
        return min(dues)
    return call.arrived + best_effort_s if call.reading is None else call.reading.dry_at
