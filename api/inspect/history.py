"""A run as people look at it: its branches, and what happened on each of them.

The store's rows are in the order of their commits. A `History` arranges them by branch: a `BranchHistory` starts at a
fork, ends at a merge, a release or the end of the run, and holds moments (steps, model calls, questions, forks,
merges) and checkpoints. `ramify log`, the terminal browser and the web page all read it, so they show the same.

`read` loads a run; `read(…, since=before)` loads only what is new in a run that is still going.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import TYPE_CHECKING

from ramify.compiler.plan import OpKind, Plan
from ramify.inspect.model_calls import CallTimes, call_times
from ramify.runtime.records import (
    ROOT,
    BranchPath,
    CheckpointId,
    CheckpointRecord,
    EffectRecord,
    LLMRecord,
    OpRecord,
    OpStatus,
    RunId,
    RunRecord,
)

if TYPE_CHECKING:
    from ramify.runtime.store import RunStore
    from ramify.runtime.store.address import Address
    from ramify.runtime.store.reader import Reader


class End(StrEnum):
    """How a branch ended."""

    OPEN = "open"  # not ended: the run is going on, was stopped, or has ended
    MERGED = "merged"
    RELEASED = "released"


@dataclass(frozen=True, slots=True)
class Moment:
    """One row: an operation of the journal (`op`) or a model call (`llm`). Exactly one of the two is set."""

    seq: int
    branch: BranchPath
    kind: OpKind
    name: str  # the step's, or the plan operation's
    summary: str
    started_at: float  # Unix seconds
    ended_at: float
    status: OpStatus = OpStatus.DONE
    reused_from: str | None = None
    op: OpRecord | None = None
    llm: LLMRecord | None = None

    @property
    def times(self) -> CallTimes | None:
        """Tokens, queue time and deadline of a model call. Decoded on demand, because a result may be long."""
        return None if self.llm is None else call_times(self.llm)

    @property
    def step_key(self) -> str | None:
        """The journal key of the step that made this model call; None outside a step."""
        return None if self.llm is None else self.llm.step_key


@dataclass(frozen=True, slots=True)
class BranchHistory:
    """A branch. `forked_at` and `ended_at_seq` are sequence numbers of its run: 0 and None for the root's."""

    path: BranchPath
    parent: BranchPath | None
    forked_at: int
    end: End
    ended_at_seq: int | None
    moments: tuple[Moment, ...]
    checkpoints: tuple[CheckpointRecord, ...]

    @property
    def depth(self) -> int:
        return self.path.count("/")


@dataclass(frozen=True)
class History:
    """All rows of one run, and what is derived from them."""

    run: RunRecord
    ops: tuple[OpRecord, ...]
    llm: tuple[LLMRecord, ...]
    checkpoints: tuple[CheckpointRecord, ...]
    effects: tuple[EffectRecord, ...]  # all attempts of each

    @cached_property
    def plan(self) -> Plan:
        return Plan.from_json(self.run.plan_json)

    @cached_property
    def moments(self) -> tuple[Moment, ...]:
        """All moments, in the order of their commits."""
        found = [*map(_of_op, self.ops), *map(_of_call, self.llm)]
        return tuple(sorted(found, key=lambda moment: moment.seq))

    @cached_property
    def branches(self) -> Mapping[BranchPath, BranchHistory]:
        """By path: parents before their children, children in the order of their forks."""
        return {line.path: line for line in _lines(self.moments, self.checkpoints)}

    @cached_property
    def by_id(self) -> Mapping[CheckpointId, CheckpointRecord]:
        return {one.id: one for one in self.checkpoints}

    @cached_property
    def _by_seq(self) -> Mapping[int, Moment]:
        return {moment.seq: moment for moment in self.moments}

    def made_by(self, checkpoint: CheckpointRecord) -> Moment | None:
        """The moment that a checkpoint was taken after; None for the first one, and if the row was deleted."""
        return self._by_seq.get(checkpoint.seq)

    def result_of(self, row: OpRecord) -> str | None:
        """JSON for people; see `result_of`."""
        return result_of(self.run, row)

    @property
    def last_seq(self) -> int:
        return max((*(row.seq for row in self.ops[-1:]), *(row.seq for row in self.llm[-1:])), default=0)


def result_of(run: RunRecord, row: OpRecord) -> str | None:
    """The recorded result as JSON for people.

    A LangGraph node's result is stored in its thread's own format. It is decoded without the user's types; if it is
    damaged, the row's summary takes its place.
    """
    packed = None if run.thread_id is None else _packed(json.loads(row.result_json or "null"))
    if packed is None:
        return row.result_json
    from ramify.runtime.langgraph.checkpointer.serializers import stored_json

    try:
        return json.dumps(stored_json(*packed), ensure_ascii=False)
    except ValueError:
        return json.dumps(row.summary, ensure_ascii=False)


async def read(store: RunStore | Reader, run_id: RunId, *, since: History | None = None) -> History:
    """The history of a run as it is now. Raises `RunNotFound`.

    `since`: an earlier history of the same run; only newer rows are fetched. If the run went back to an earlier state
    in between, which changes older rows, everything is read again.
    """
    run = await store.run(run_id)
    after = since.last_seq if since is not None else 0
    ops = await store.ops(run_id, after=after)
    if since is not None and any(row.kind is OpKind.RESTORE for row in ops):
        return await read(store, run_id)
    llm = await store.llm(run_id, after=after)
    checkpoints = await store.checkpoints(run_id, after=after)
    before = since if since is not None else History(run, (), (), (), ())
    return History(
        run,
        (*before.ops, *ops),
        (*before.llm, *llm),
        (*before.checkpoints, *(one for one in checkpoints if one.id not in before.by_id)),
        tuple(await store.effects(run_id, earlier=True)),
    )


def read_now(database: Address, run_id: RunId, since: History | None) -> History:
    """As `read`, in the calling thread and without an event loop."""
    from ramify.runtime.store.reader import at_once, reading

    with reading(database) as store:
        return at_once(read(store, run_id, since=since))


def _of_op(row: OpRecord) -> Moment:
    return Moment(
        row.seq,
        row.branch,
        row.kind,
        row.step or row.op_id,
        row.summary or row.error or "",
        row.started_at,
        row.ended_at,
        row.status,
        row.reused_from,
        op=row,
    )


def _of_call(row: LLMRecord) -> Moment:
    return Moment(
        row.seq,
        row.branch,
        OpKind.CALL_LLM,
        row.op_id,
        "",
        row.started_at,
        row.ended_at,
        reused_from=row.reused_from,
        llm=row,
    )


def _lines(moments: Sequence[Moment], checkpoints: Iterable[CheckpointRecord]) -> list[BranchHistory]:
    mine: dict[BranchPath, list[Moment]] = {ROOT: []}
    states: dict[BranchPath, list[CheckpointRecord]] = {}
    forks: dict[str, int] = {}  # by the prefix of its children's paths
    ends: dict[str, tuple[End, int]] = {}
    for moment in moments:
        mine.setdefault(moment.branch, []).append(moment)
        if moment.op is None or moment.status is not OpStatus.DONE:
            continue
        if moment.kind is OpKind.FORK:
            forks.setdefault(_below(moment.op), moment.seq)
        elif moment.kind is OpKind.MERGE and "theirs_branch" in moment.op.attrs:
            ends[moment.op.attrs["theirs_branch"]] = (End.MERGED, moment.seq)
        elif moment.kind is OpKind.RELEASE:
            ends.setdefault(_below(moment.op), (End.RELEASED, moment.seq))
    for one in checkpoints:
        states.setdefault(one.branch, []).append(one)
    for path in [*states, *mine]:
        for above in _ancestry(path):
            mine.setdefault(above, [])
    made = [_line(path, mine[path], states.get(path, ()), forks, ends) for path in mine]
    return sorted(made, key=lambda line: (line.depth, line.forked_at, len(line.path), line.path))


def _line(
    path: BranchPath,
    moments: Sequence[Moment],
    checkpoints: Sequence[CheckpointRecord],
    forks: Mapping[str, int],
    ends: Mapping[str, tuple[End, int]],
) -> BranchHistory:
    above = _ancestry(path)
    fork = path.rpartition(".")[0]  # "root/o7.0", of "root/o7.0.3"
    first = min((moment.seq for moment in moments), default=0)
    end, at = ends.get(path) or ends.get(fork) or (End.OPEN, None)
    return BranchHistory(
        path,
        above[-2] if len(above) > 1 else None,
        forks.get(fork, first) if len(above) > 1 else 0,
        end,
        at,
        tuple(moments),
        tuple(sorted(checkpoints, key=lambda one: one.seq)),
    )


def _ancestry(path: BranchPath) -> list[BranchPath]:
    """A path and those above it, from the root down."""
    parts = path.split("/")
    return [BranchPath("/".join(parts[: at + 1])) for at in range(len(parts))]


def _packed(value: object) -> tuple[str, bytes] | None:
    """The (kind, bytes) of a serialiser, if the value is one."""
    match value:
        case {"$": "tuple", "v": [str(kind), {"$": "bytes", "v": str(data)}]}:
            return kind, base64.b64decode(data)
    return None


def _below(row: OpRecord) -> str:
    """The prefix of the paths of a fork's children, from its row or from its release's."""
    said = json.loads(row.result_json or "null")
    place = said.get("place", row.op_id) if isinstance(said, dict) else row.op_id
    return f"{row.branch}/{place}"
