"""`EarliestDeadlineFirst`: the request with the earliest deadline first, and best effort that ages."""

from __future__ import annotations

from dataclasses import dataclass

from ramify.serving.policy.refusals import due, late, next_limit
from ramify.serving.policy.types import Finished, RequestView, Verdict, View


@dataclass(frozen=True, slots=True)
class EarliestDeadlineFirst:
    """The policy `edf`. Ties go by arrival.

    A call of a workflow is due when its stage is by its share of the deadline (thesis §4.1), or if that is not known,
    when the workflow is. A call whose first token is due before its answer is due then, and a stream when its reader
    has read all that there is.
    Any other is due `best_effort_s` after its arrival. Only calls with an earlier deadline can pass it, and no new
    ones of those can arrive once its own time is near, so it never starves. It is never refused for being late.

    A call that is past one of its limits (`refusals.py`) is refused: starting it would only delay the others. Running
    calls are left alone.
    """

    best_effort_s: float = 120.0

    def __post_init__(self) -> None:
        if self.best_effort_s < 0:
            raise ValueError(f"best_effort_s is {self.best_effort_s:g}: it must not be below 0")

    def decide(self, view: View, now: float) -> Verdict:
        refused = {call.id: refusal for call in view.waiting if (refusal := late(call, now))}
        live = [call for call in view.waiting if call.id not in refused]
        live.sort(key=lambda call: (_sort_due(call, self.best_effort_s), call.arrived, call.id))
        order = tuple(call.id for call in live)
        return Verdict(
            admit=order[: view.capacity.free],
            order=order,
            drop=tuple(refused.values()),
            wake_at=min((at for at in map(next_limit, live) if at is not None), default=None),
        )

    def observe(self, done: Finished) -> None:
        """Do nothing: this policy learns nothing."""


def _sort_due(call: RequestView, best_effort_s: float) -> float:
    """Return the time that a call is sorted by. A stream's is when its reader has nothing left to read, and a stage's
    is its share of its workflow's deadline: no call is refused for missing that."""
    goal = None if call.compound is None else call.compound.due
    if dues := [at for at in (due(call), goal) if at is not None]:
        return min(dues)
    return call.arrived + best_effort_s if call.reading is None else call.reading.dry_at
