"""Earliest deadline first, and best effort that ages."""

from __future__ import annotations

from dataclasses import dataclass

from ramify.serving.policy.types import Capacity, PendingView, Refusal, Verdict


@dataclass(frozen=True, slots=True)
class EarliestDeadlineFirst:
    """The call whose deadline comes first goes first; ties go by arrival.

    A call without a deadline is ordered as though it were due `best_effort_s` after its arrival: it stands behind
    everything that is due sooner, and ages. Only calls with an earlier deadline can pass it, and of those no new
    ones can come once its own time is near, so it never starves; and it is never refused for being late.
    A call that is past its deadline, or past the time by which it wanted to be admitted, is refused: starting it
    would only delay the others.
    """

    best_effort_s: float = 120.0

    def decide(self, pending: tuple[PendingView, ...], capacity: Capacity, now: float) -> Verdict:
        refuse, live, wakes = [], [], []
        for call in pending:
            if call.deadline is not None and call.deadline <= now:
                refuse.append(Refusal(call.id, f"its deadline passed {now - call.deadline:.3f} s ago"))
            elif call.admit_by is not None and call.admit_by <= now:
                refuse.append(Refusal(call.id, f"it was not admitted within {call.admit_by - call.arrived:.3f} s"))
            else:
                live.append(call)
                wakes += [at for at in (call.deadline, call.admit_by) if at is not None]
        live.sort(key=lambda call: (self._due(call), call.arrived, call.id))
        return Verdict(tuple(call.id for call in live), tuple(refuse), min(wakes, default=None))

    def _due(self, call: PendingView) -> float:
        return call.arrived + self.best_effort_s if call.deadline is None else call.deadline
