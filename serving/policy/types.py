"""What an admission policy sees and says. Plain data; all times are seconds on one clock that the host hands in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NewType, Protocol

RequestId = NewType("RequestId", int)


@dataclass(frozen=True, slots=True)
class PendingView:
    """A call that waits to be let into the engine."""

    id: RequestId
    arrived: float
    deadline: float | None = None  # when its answer is needed; None: best effort
    admit_by: float | None = None  # when it is no longer worth starting; None: never
    slo_class: str = "best_effort"
    compound_id: str | None = None
    stage: int | None = None


@dataclass(frozen=True, slots=True)
class Capacity:
    """The engine: how many calls it works on at once, and how many it has."""

    slots: int
    running: int

    @property
    def free(self) -> int:
        return max(0, self.slots - self.running)


@dataclass(frozen=True, slots=True)
class Refusal:
    """A call that is not worth starting. `earliest_feasible_s`: the least deadline, in seconds from now, that
    would have been accepted; None where the policy does not know."""

    id: RequestId
    reason: str
    earliest_feasible_s: float | None = None


@dataclass(frozen=True, slots=True)
class Verdict:
    """One decision over all that waits. No call stands in both lists."""

    admit: tuple[RequestId, ...] = ()  # best first; the host lets in the first `capacity.free` of them
    refuse: tuple[Refusal, ...] = ()
    wake_at: float | None = None  # decide again then, even where nothing has come or gone


class AdmissionPolicy(Protocol):
    """Decides which calls the engine gets next. Pure: equal arguments, equal verdict."""

    def decide(self, pending: tuple[PendingView, ...], capacity: Capacity, now: float) -> Verdict: ...
