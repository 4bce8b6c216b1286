"""The calls and workflow runs of late, in memory: arrival, outcome, ledger, whether the SLO was met.

Names of workflows, groups and apps are kept apart by the client that uses them. Several clients with keys of their
own share a gateway. None may join, cancel or see the runs of another, or teach the analyzer of its apps. So within
the gateway each name begins with its client's (`http_guard.Keys.owner`).
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace

from ramify.serving.errors import BadTags
from ramify.serving.gateway.records.calls import Call, Outcome
from ramify.serving.gateway.records.latest_of_each import LatestOfEach
from ramify.serving.gateway.records.slo_tracker import MOST_STAGES, Compound, Phase
from ramify.serving.policy.types import RequestId, StepModel
from ramify.serving.protocol.length_sketch import LengthSketch
from ramify.serving.protocol.tags import LONGEST_NAME, SLOTags

_NAMES = ("compound_id", "fork_group", "app_id")


def owned_name(name: str, client: str) -> str:
    """A client's name for something, as the gateway has it."""
    return f"{client}/{name}" if client else name


def owned(tags: SLOTags, client: str) -> SLOTags:
    """The tags with the gateway's names. Raises BadTags for a name that is then too long."""
    if not client:
        return tags

    said = {name: value for name in _NAMES if (value := getattr(tags, name)) is not None}
    most = LONGEST_NAME - len(owned_name("", client))
    for name, value in said.items():
        if len(value) > most:
            raise BadTags(name, f"must have at most {most} characters, got {len(value)}")
    return replace(tags, **{name: owned_name(value, client) for name, value in said.items()})  # type: ignore[arg-type]


def told(name: str, client: str) -> str:
    """The name as the client has it."""
    return name.removeprefix(f"{client}/") if client else name


def belongs(name: str, client: str) -> bool:
    """Is it a name of this client's?"""
    return not client or name.startswith(f"{client}/")


def told_tags(tags: SLOTags, client: str) -> dict[str, object]:
    """The tags as the client has them."""
    said: dict[str, object] = dict(tags.to_xargs())
    for name in _NAMES:
        if isinstance(value := said.get(name), str):
            said[name] = told(value, client)
    return said


KEEP = 10_000  # calls and compounds remembered; the oldest go first


@dataclass
class Records:
    """All recent calls and compounds, at most `keep` of each. A client with many loses its own oldest, not those of
    others: another client's workflow would lose its deadline."""

    clock: Callable[[], float]
    wall: Callable[[], float]
    keep: int = KEEP
    _calls: LatestOfEach[Call] = field(init=False)
    _open: dict[RequestId, Call] = field(default_factory=dict)  # calls in progress, which are never forgotten
    _compounds: LatestOfEach[Compound] = field(init=False)
    _ids: itertools.count[int] = field(default_factory=itertools.count)

    def __post_init__(self) -> None:
        self._calls = LatestOfEach(self.keep)
        self._compounds = LatestOfEach(self.keep)

    def open(
        self,
        path: str,
        tags: SLOTags,
        *,
        prompt_tokens: int = 0,
        sketch: LengthSketch | None = None,
        max_tokens: int | None = None,
        affinity: str | None = None,
        cached_as: str | None = None,
        resumable: bool = False,
        client: str = "",
    ) -> Call:
        """Record a call that has come in."""
        now, wall = self.clock(), self.wall()
        compound = self._compound(tags, client, now, wall)
        if compound is not None:
            tags = compound.join(tags)
            if tags.compound_due_s is not None and len(compound.dues) < MOST_STAGES:
                # Counted from the stage's first call: all its calls are due together.
                compound.dues.setdefault(tags.compound_stage or 0, now + tags.compound_due_s)
        own = None if tags.slo_deadline_s is None else now + tags.slo_deadline_s
        whole = compound.deadline if compound else None
        deadline = min((d for d in (own, whole, _on_clock(tags, now, wall)) if d is not None), default=None)
        call = Call(
            RequestId(next(self._ids)),
            path,
            tags,
            now,
            wall,
            deadline,
            compound,
            prompt_tokens=prompt_tokens,
            sketch=sketch,
            max_tokens=max_tokens,
            affinity=affinity,
            cached_as=cached_as,
            resumable=resumable,
            client=client,
        )
        self._calls.put(client, call.id, call)
        self._open[call.id] = call
        return call

    def close(self, call: Call, outcome: Outcome) -> bool:
        """Record that a call has ended. False if it had ended before: only the first ending counts."""
        if call.ended is not None:
            return False
        del self._open[call.id]
        call.ended, call.outcome = self.clock(), outcome
        call.track.completed = outcome is Outcome.DONE
        call.track.move(Phase.ENDED, call.ended)
        if call.compound:
            call.compound.left(
                call.ended,
                whole=outcome is Outcome.DONE,
                off=outcome is Outcome.ABORTED,
                gone=outcome is Outcome.GONE,
                tags=call.tags,
                spent=call.track.spent(call.ended),
                qoe=call.track.qoe(call.ended),
            )
        return True

    def open_calls(self, *, compound_id: str | None, fork_group: str | None) -> list[Call]:
        """The calls in progress of a compound, a fork group or both. Without either, none."""
        wanted = [c for c in self._open.values() if compound_id or fork_group]
        wanted = [c for c in wanted if compound_id is None or c.tags.compound_id == compound_id]
        return [c for c in wanted if fork_group is None or c.tags.fork_group == fork_group]

    def live(self, most: int = 256) -> list[tuple[Compound, float]]:
        """Workflows with stages to come, and when the present stage of each began: the first arrival of its open
        calls, or the end of its last call while it has none. At most so many, the last heard of first."""
        since: dict[str, float] = {}
        for call in self._open.values():
            if call.compound is not None:
                since[call.compound.id] = min(call.arrived, since.get(call.compound.id, call.arrived))
        out: list[tuple[Compound, float]] = []
        for compound in itertools.islice(self._compounds.latest_first(), most):
            began = since.get(compound.id, compound.ended_at)
            if began is not None and compound.stage is not None and compound.stage.rest:
                out.append((compound, began))
        return out

    def infeasible(self, step: Callable[[Call], StepModel]) -> Counter[str]:
        """By kind, how many calls in progress cannot keep their promise any more. `step`: gives a call's
        StepModel."""
        now = self.clock()
        return Counter(c.kind.value for c in self._open.values() if c.feasible(now, step(c)) is False)

    def apps(self, client: str = "") -> dict[str, dict[str, int]]:
        """The client's applications, the last heard of first: how many of the remembered calls each made, and how
        many are in progress. Calls without an `app_id` are under ""."""
        made: dict[str, dict[str, int]] = {}
        for call in reversed(self._calls.of(client)):
            one = made.setdefault(told(call.tags.app_id or "", client), {"calls": 0, "open": 0})
            one["calls"] += 1
            one["open"] += call.ended is None
        return made

    def snapshot(
        self,
        compound_id: str | None = None,
        step: Callable[[Call], StepModel] = lambda _: StepModel(),
        client: str = "",
    ) -> dict[str, object]:
        """The client's records as JSON: all of them, or those of one compound. `step`: gives a call's StepModel."""
        now, offset = self.clock(), self.wall() - self.clock()
        can = {c.id: c.feasible(now, step(c)) for c in self._open.values()}
        lost = {c.compound.id for c in self._open.values() if c.compound is not None and can[c.id] is False}
        calls = [c for c in self._calls.of(client) if compound_id is None or c.tags.compound_id == compound_id]
        compounds = [c for c in self._compounds.of(client) if compound_id is None or c.id == compound_id]
        return {
            "requests": [
                {
                    "id": c.id,
                    "path": c.path,
                    "outcome": c.outcome.value,
                    "arrived_at": c.arrived_unix,
                    "tags": told_tags(c.tags, client),
                    **asdict(c.ledger(now)),
                    "feasible": can.get(c.id),
                }
                for c in calls
            ],
            "compounds": [
                {
                    "id": told(c.id, client),
                    "calls": c.calls,
                    "done": c.done,
                    "open": c.open,
                    "first_at": c.first_at + offset,
                    "total_s": None if c.ended_at is None else c.ended_at - c.first_at,
                    "deadline_s": None if c.deadline is None else c.deadline - c.first_at,
                    "met": c.met(),
                    "left_s": None if c.deadline is None else c.deadline - now,
                    "feasible": c.feasible(now) and c.id not in lost,
                    "spent": asdict(c.spent),
                    "qoe": c.qoe,
                }
                for c in compounds
            ],
        }

    def _compound(self, tags: SLOTags, client: str, now: float, wall: float) -> Compound | None:
        if tags.compound_id is None:
            return None
        compound = self._compounds.get(client, tags.compound_id) or Compound(tags.compound_id, now)
        self._compounds.put(client, tags.compound_id, compound)
        if compound.deadline is None:
            at = _on_clock(tags, now, wall)
            by = None if tags.compound_deadline_s is None else compound.first_at + tags.compound_deadline_s
            compound.deadline = min((d for d in (at, by) if d is not None), default=None)
        return compound


def _on_clock(tags: SLOTags, now: float, wall: float) -> float | None:
    return None if tags.compound_deadline_at is None else now + tags.compound_deadline_at - wall
