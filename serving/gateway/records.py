"""What became of each call and each compound request: queueing, first token, end, SLO met."""

from __future__ import annotations

import itertools
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from enum import StrEnum

from ramify.serving.policy.types import PendingView, RequestId
from ramify.serving.tags import SLOTags
from ramify.serving.types import Ledger

KEEP = 10_000  # calls and compounds remembered; the oldest go first


class Outcome(StrEnum):
    WAITING = "waiting"
    RUNNING = "running"
    DONE = "done"
    REFUSED = "refused"  # by the policy: it could not be done in time
    FAILED = "failed"  # the engine gave no whole answer
    GONE = "gone"  # the client left


@dataclass(slots=True)
class Compound:
    """One workflow run's calls as one unit. Its deadline counts from the first call seen, whoever repeats it."""

    id: str
    first_at: float
    deadline: float | None = None
    calls: int = 0
    open: int = 0
    done: int = 0
    ended_at: float | None = None  # when its last call so far ended
    last_seen: bool = False  # a call of the last stage has come

    def met(self) -> bool | None:
        """None while it runs or where it has no deadline; a compound is in time when its last stage was."""
        if self.deadline is None or self.ended_at is None or self.open or not self.last_seen:
            return None
        return self.ended_at <= self.deadline


@dataclass(slots=True)
class Call:
    """One call, on the gateway's clock."""

    id: RequestId
    path: str
    tags: SLOTags
    arrived: float
    arrived_unix: float
    deadline: float | None  # the earliest of its own and its compound's
    compound: Compound | None
    admitted: float | None = None
    first_token: float | None = None
    ended: float | None = None
    outcome: Outcome = Outcome.WAITING
    chunks: int = 0
    late_chunks: int = 0

    def view(self) -> PendingView:
        tags = self.tags
        kind = tags.slo_class or ("compound" if self.compound else "deadline" if self.deadline else None)
        due = self.deadline
        if due is None and tags.slo_ttft_s is not None:
            kind, due = kind or "latency", self.arrived + tags.slo_ttft_s
        admit_by = None if tags.slo_waiting_s is None else self.arrived + tags.slo_waiting_s
        return PendingView(
            self.id, self.arrived, due, admit_by, kind or "best_effort", tags.compound_id, tags.compound_stage
        )

    def token(self, now: float) -> None:
        """A piece of the answer went out. With `slo_tbt_s`, the n-th is due n steps after the first was."""
        if self.first_token is None:
            self.first_token = now
        if self.tags.slo_tbt_s is not None:
            base = self.first_token if self.tags.slo_ttft_s is None else self.arrived + self.tags.slo_ttft_s
            self.late_chunks += now > base + self.chunks * self.tags.slo_tbt_s
        self.chunks += 1

    def met(self) -> bool | None:
        """None while it runs and for best effort."""
        ttft, tbt = self.tags.slo_ttft_s, self.tags.slo_tbt_s
        if self.ended is None or (self.deadline is None and ttft is None and tbt is None):
            return None
        in_time = self.deadline is None or self.ended <= self.deadline
        begun = ttft is None or (self.first_token is not None and self.first_token <= self.arrived + ttft)
        return self.outcome is Outcome.DONE and in_time and begun and not self.late_chunks

    def ledger(self, now: float) -> Ledger:
        """Where the time went. A call that ended without a token saw its first one at its end."""
        end = now if self.ended is None else self.ended
        return Ledger(
            queue_s=(end if self.admitted is None else self.admitted) - self.arrived,
            first_token_s=(end if self.first_token is None else self.first_token) - self.arrived,
            total_s=end - self.arrived,
            deadline_s=None if self.deadline is None else self.deadline - self.arrived,
            met=self.met(),
        )


@dataclass
class Records:
    """All calls and compounds of late, in memory."""

    clock: Callable[[], float]
    wall: Callable[[], float]
    keep: int = KEEP
    _calls: deque[Call] = field(init=False)
    _compounds: OrderedDict[str, Compound] = field(default_factory=OrderedDict)
    _ids: itertools.count[int] = field(default_factory=itertools.count)

    def __post_init__(self) -> None:
        self._calls = deque(maxlen=self.keep)

    def open(self, path: str, tags: SLOTags) -> Call:
        """A call has come in."""
        now, wall = self.clock(), self.wall()
        compound = self._compound(tags, now, wall)
        own = None if tags.slo_deadline_s is None else now + tags.slo_deadline_s
        whole = compound.deadline if compound else None
        deadline = min((d for d in (own, whole, _on_clock(tags, now, wall)) if d is not None), default=None)
        call = Call(RequestId(next(self._ids)), path, tags, now, wall, deadline, compound)
        self._calls.append(call)
        return call

    def admit(self, call: Call) -> None:
        call.admitted = self.clock()
        call.outcome = Outcome.RUNNING

    def close(self, call: Call, outcome: Outcome) -> None:
        """A call has ended, one way or another. Only the first ending counts."""
        if call.ended is not None:
            return
        call.ended, call.outcome = self.clock(), outcome
        if call.compound:
            call.compound.open -= 1
            call.compound.done += outcome is Outcome.DONE
            call.compound.ended_at = call.ended

    def snapshot(self, compound_id: str | None = None) -> dict[str, object]:
        """As JSON: all of it, or one compound's."""
        now, offset = self.clock(), self.wall() - self.clock()
        calls = [c for c in self._calls if compound_id is None or c.tags.compound_id == compound_id]
        compounds = [c for c in self._compounds.values() if compound_id is None or c.id == compound_id]
        return {
            "requests": [
                {
                    "id": c.id,
                    "path": c.path,
                    "outcome": c.outcome.value,
                    "arrived_at": c.arrived_unix,
                    "tags": c.tags.to_xargs(),
                    **asdict(c.ledger(now)),
                }
                for c in calls
            ],
            "compounds": [
                {
                    "id": c.id,
                    "calls": c.calls,
                    "done": c.done,
                    "open": c.open,
                    "first_at": c.first_at + offset,
                    "total_s": None if c.ended_at is None else c.ended_at - c.first_at,
                    "deadline_s": None if c.deadline is None else c.deadline - c.first_at,
                    "met": c.met(),
                }
                for c in compounds
            ],
        }

    def _compound(self, tags: SLOTags, now: float, wall: float) -> Compound | None:
        if tags.compound_id is None:
            return None
        compound = self._compounds.get(tags.compound_id)
        if compound is None:
            compound = self._compounds[tags.compound_id] = Compound(tags.compound_id, now)
            while len(self._compounds) > self.keep:
                self._compounds.popitem(last=False)
        self._compounds.move_to_end(tags.compound_id)
        if compound.deadline is None:
            at = _on_clock(tags, now, wall)
            by = None if tags.compound_deadline_s is None else compound.first_at + tags.compound_deadline_s
            compound.deadline = min((d for d in (at, by) if d is not None), default=None)
        compound.calls += 1
        compound.open += 1
        compound.last_seen = compound.last_seen or tags.compound_last == 1
        return compound


def _on_clock(tags: SLOTags, now: float, wall: float) -> float | None:
    return None if tags.compound_deadline_at is None else now + tags.compound_deadline_at - wall
