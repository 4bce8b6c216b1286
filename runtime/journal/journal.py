"""A run's journal in memory: what is served from it, and the one place that commits to it.

A row's key is its place in the workflow: branch, plan operation, digest of the arguments, and which occurrence of
these three it is. It holds nothing of the run or of time, so a resumed or repeated run meets the same keys.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from enum import Enum, auto
from itertools import chain

from ramify.compiler.plan import OpId, OpKind
from ramify.fork_engine import crash_points
from ramify.fork_engine.types import Snapshot
from ramify.runtime.codec import codec
from ramify.runtime.errors import BranchReleased
from ramify.runtime.events import Event, LLMDone, OpDone
from ramify.runtime.journal.forked_runs import FORKED
from ramify.runtime.records import (
    AGAIN,
    HAPPENED,
    LEGAL_SETTLEMENTS,
    ROOT,
    BranchPath,
    CheckpointId,
    CheckpointRecord,
    EffectRecord,
    EffectStatus,
    LLMRecord,
    OpRecord,
    OpStatus,
    RunId,
    RunRecord,
    RunUpdate,
    checkpoint_id,
)
from ramify.runtime.store import RunStore
from ramify.runtime.store.engines import finish_despite_cancel
from ramify.runtime.store.run_committer import JOIN_NEXT_COMMIT_S, AnnouncedCommit
from ramify.runtime.worlds.world_pool import Branch

RAISED = "raised"
"""The attribute of a FAILED row that holds its error, where that can be kept."""


class Durable(Enum):
    """When rows have to be durable. Those of a run are so in the order in which they were recorded."""

    NOW = auto()  # before the caller goes on
    NEXT_STEP = auto()  # before the run's next step begins (`settled`): they share the commit of a checkpoint to come
    NEXT_ROW = auto()  # with the next row: whoever resumes without them makes the same ones


LINGER_S = {Durable.NEXT_STEP: JOIN_NEXT_COMMIT_S, Durable.NEXT_ROW: 0.5}


class Journal:
    """Serves what the run did already, and records what it does now.

    `flush` puts all sealed layers on disk; it is called before rows that name a snapshot are durable. `caught`: rows
    of failures after which the workflow is known to have gone on. `elsewhere`: effects of the runs that this one was
    forked from, the nearest first.
    """

    def __init__(
        self,
        store: RunStore,
        run: RunRecord,
        *,
        ops: Sequence[OpRecord],
        llm: Sequence[LLMRecord],
        effects: Sequence[EffectRecord] = (),
        elsewhere: Sequence[EffectRecord] = (),
        caught: Sequence[OpRecord] = (),
        flush: Callable[[], None],
        clock: Callable[[], float],
        timer: Callable[[], float] = time.monotonic,
        emit: Callable[[Event], None],
    ) -> None:
        self._store = store
        self._run = run
        self._clock = clock
        self._emit = emit
        self._flush = flush
        self._coming: dict[BranchPath, AnnouncedCommit] = {}
        self._timer = timer
        self._begun = timer()
        self._ops = {row.key: row for row in ops if row.status is OpStatus.DONE}
        self._before = {row.key: row for row in self._ops.values() if row.kind is OpKind.RUN and row.step is not None}
        self._asked: set[str] = set()  # keys that were given out
        self._earlier = _keys_of(ops, llm, effects)  # what processes before this one recorded, and on which branch
        self._places_before = {key.rpartition("|")[0] for key in self._earlier}
        self._met_astray: set[str] = set()  # rows that were met, but in another state than theirs
        self._computed = {row.lineage_key: row for row in self._ops.values() if row.lineage_key is not None}
        self._llm = {row.key: row for row in llm}
        self._caught = {row.key: row for row in caught}
        self._effects = {effect.key: effect for effect in effects}
        self._unmet: dict[str, dict[str, None]] = {}  # of these, by branch and operation: keys not given out yet
        for key in self._effects:
            self._unmet.setdefault("|".join(key.split("|")[:2]), {})[key] = None
        self._elsewhere = elsewhere
        self._recorded = {row.args_digest for row in ops if row.args_digest}
        forks = [row for row in ops if row.key == FORKED]  # also where the run has since gone back to before it
        self.fenced = bool(forks) and forks[-1].attrs.get("for_real") != "yes"
        """Whether the whole run is to meet the outside as a branch of a fork does."""
        self.stopped: BaseException | None = None
        """Why nothing new begins and the run ends, whoever caught that: an effect of which nobody knows whether it
        happened, a wrong hit (decision 005), questions that wait for a person (decision 075)."""
        self._seq = max(max((row.seq for row in ops), default=0), max((row.seq for row in llm), default=0))
        self._occurrences: Counter[str] = Counter()
        self._places: Counter[tuple[BranchPath, OpId]] = Counter()
        self._over = False
        self._lost: BaseException | None = None  # why rows that nobody waited for are not there
        self._soon: dict[asyncio.Future[None], Durable] = {}
        self._last_sealed: dict[BranchPath, int] = {}
        for row in ops:
            seals = row.kind is not OpKind.COMMAND and AGAIN not in row.attrs
            if seals and row.snapshot_out is not None and row.status is not OpStatus.UNDONE:
                self._last_sealed[row.branch] = row.seq
            if (theirs := row.attrs.get("theirs_branch")) is not None and row.status is not OpStatus.UNDONE:
                self._last_sealed[BranchPath(theirs)] = row.seq  # a merge freezes the branch that it takes in
            if row.kind is OpKind.FORK and row.status is OpStatus.DONE:
                self._places[row.branch, row.op_id] += 1

    def key(self, *parts: str) -> str:
        """A key for this place, told apart from earlier calls at the same place. Call it in program order."""
        place = "|".join(parts)
        occurrence = self._occurrences[place]
        self._occurrences[place] += 1
        key = f"{place}|{occurrence}"
        self._asked.add(key)
        self._unmet.get("|".join(parts[:2]), {}).pop(key, None)
        return key

    def forget_place(self, *parts: str) -> None:
        """A step starts again: its inner keys count from nought."""
        prefix = "|".join(parts)
        for place in [p for p in self._occurrences if p.startswith(prefix)]:
            del self._occurrences[place]

    def next_place(self, branch: BranchPath, op: OpId) -> int:
        """Which of the forks of that operation on that branch the next new one is."""
        place = self._places[branch, op]
        self._places[branch, op] += 1
        return place

    def served(self, key: str, at: Snapshot | None = None) -> OpRecord | None:
        """The recorded outcome of an operation, where it still holds.

        It holds where the branch stands `at` the state that the operation began in: another order of the calls
        before it leads to another state, and then it is done again. A step that changed a world which no later
        snapshot of its branch holds has to run again, too.
        """
        row = self._ops.get(key)
        if row is None:
            return None
        if at is not None and row.snapshot_in not in (None, at.id):
            self._met_astray.add(key)
            return None
        lost = row.snapshot_in is not None and row.snapshot_out is None
        if lost and self._last_sealed.get(row.branch, 0) < row.seq:
            return None
        self._emit(OpDone(row, replayed=True))
        return row

    def unused_results(self, *, ended: bool) -> list[tuple[OpRecord, str]]:
        """The steps of earlier processes whose results this one did not take, and why. `ended`: the workflow has
        returned, so that what it did not ask for it does not ask for any more."""
        fresh = {tuple(key.split("|")[:2]) for key in self._asked - self._before.keys()}
        found = []
        for key, row in self._before.items():
            if key in self._met_astray:
                found.append((row, "its world is in another state"))
            elif ended and key not in self._asked:
                other = (row.branch, row.op_id) in fresh
                found.append((row, "called with other arguments" if other else "not called any more"))
        return found

    def failed(self, key: str, at: Snapshot | None = None) -> Exception | None:
        """What an operation raised, and the workflow caught, where that still holds and can be raised again."""
        row = self._caught.get(key)
        if row is None or RAISED not in row.attrs or (at is not None and row.snapshot_in not in (None, at.id)):
            return None
        try:
            error = codec.decode(row.attrs[RAISED])
        except Exception:  # noqa: BLE001  its class is another one by now: the step says for itself what it raises
            return None
        self._emit(OpDone(row, replayed=True))
        return error if isinstance(error, Exception) else None

    @property
    def pulse(self) -> tuple[int, int]:
        """Changes with each operation that is met or recorded."""
        return len(self._asked), self._seq

    def stop(self, why: BaseException) -> BaseException:
        """Have the run end with this error, or with the first that was said; it is for the caller to raise."""
        self.stopped = self.stopped or why
        return why

    def refuse_when_stopped(self) -> None:
        """Before something new begins. Raises what the run was stopped with."""
        if self.stopped is not None:
            raise self.stopped

    @property
    def has_digests(self) -> bool:
        """Whether earlier processes recorded anything that was given arguments."""
        return bool(self._recorded or self._effects)

    def has_digest(self, digest: str) -> bool:
        """Whether earlier processes recorded something under that digest of its arguments."""
        if digest in self._recorded:
            return True
        return any(digest[:16] in key for key in self._effects)  # one that was begun has no row yet

    def has_place(self, *parts: str) -> bool:
        """Whether earlier processes recorded a call at that place (see `key`)."""
        return "|".join(parts) in self._places_before

    def knows(self, key: str) -> bool:
        """Whether an operation of that key was done, in whatever state."""
        return key in self._ops

    def changed(self, key: str) -> bool:
        """Whether an operation of that key was done, and may have changed its world."""
        row = self._ops.get(key)
        return row is not None and row.snapshot_out != row.snapshot_in

    def computed(self, lineage_key: str) -> OpRecord | None:
        """A row of this run that did the work of that key, or took it over."""
        return self._computed.get(lineage_key)

    def row(self, key: str) -> OpRecord:
        """A DONE row of this run by its key."""
        return self._ops[key]

    def checkpoint_of(self, row: OpRecord) -> CheckpointId:
        """The checkpoint that a recorded row made."""
        return checkpoint_id(self._run.id, row.seq)

    def served_llm(self, key: str) -> LLMRecord | None:
        row = self._llm.get(key)
        if row is not None:
            self._emit(LLMDone(row, replayed=True))
        return row

    def called_model(self, step_key: str) -> bool:
        """Whether that step made model calls, answered in whatever way."""
        return any(row.step_key == step_key for row in self._llm.values())

    def consumed_s(self) -> float:
        """Seconds of the deadline used by this run so far, over all processes that worked on it."""
        return self._run.consumed_s + self._timer() - self._begun

    async def record(
        self,
        *rows: OpRecord,
        checkpoint: tuple[Branch, Snapshot, str] | None = None,
        effect: EffectRecord | None = None,
        durable: Durable = Durable.NOW,
    ) -> None:
        """Commit rows, the checkpoint that the last of them made, and an effect's result, in one transaction.

        `checkpoint` is (branch, snapshot, label); the branch's position moves on once it is durable, or is to be.
        """
        if durable is not Durable.NOW:
            assert effect is None, "an effect's result is durable before anybody sees it"
            self._record_soon(rows, checkpoint, durable)
            return
        await finish_despite_cancel(self._record(rows, checkpoint, effect))

    async def settled(self) -> None:
        """Return when the rows that `NEXT_STEP` was said of are durable. Raises why one of them is not."""
        while waiting := [one for one, durable in self._soon.items() if durable is Durable.NEXT_STEP]:
            await asyncio.wait(waiting)
        self._refuse_what_does_not_follow()

    async def _record(
        self,
        rows: tuple[OpRecord, ...],
        checkpoint: tuple[Branch, Snapshot, str] | None,
        effect: EffectRecord | None,
    ) -> None:
        """Not to be cancelled half way: what the database holds and what this object knows move on together."""
        numbered, made = self._numbered(rows, checkpoint)
        ledger = [] if effect is None else [self._settled(effect)]
        await self._store.commit(
            self._run.id,
            ops=numbered,
            checkpoints=made,
            effects=ledger,
            update=self._touch(),
            barrier=self._barrier(numbered, checkpoint),
            coming=self._announced(rows),
        )
        crash_points.point("rows durable")
        self._effects.update({one.key: one for one in ledger})
        self._know(numbered, checkpoint, made)
        for row in numbered:
            self._emit(OpDone(row))

    def _record_soon(
        self, rows: tuple[OpRecord, ...], checkpoint: tuple[Branch, Snapshot, str] | None, durable: Durable
    ) -> None:
        numbered, made = self._numbered(rows, checkpoint)
        done = self._store.commit_soon(
            self._run.id,
            ops=numbered,
            checkpoints=made,
            update=self._touch(),
            barrier=self._barrier(numbered, checkpoint),
            coming=self._announced(rows),
            linger_s=LINGER_S[durable],
        )
        self._know(numbered, checkpoint, made)
        self._soon[done] = durable
        done.add_done_callback(lambda done: self._came(done, numbered))

    def _came(self, done: asyncio.Future[None], numbered: Sequence[OpRecord]) -> None:
        del self._soon[done]
        if done.cancelled() or (error := done.exception()) is None:
            for row in numbered:
                self._emit(OpDone(row))
        else:
            self._lost = self._lost or error

    def _numbered(
        self, rows: tuple[OpRecord, ...], checkpoint: tuple[Branch, Snapshot, str] | None
    ) -> tuple[list[OpRecord], list[CheckpointRecord]]:
        self._refuse_when_over()
        numbered = [replace(row, seq=self._next_seq()) for row in rows]
        made = [] if checkpoint is None else [self._checkpoint(numbered[-1], *checkpoint)]
        crash_points.point("rows numbered")
        return numbered, made

    def _know(
        self,
        numbered: Sequence[OpRecord],
        checkpoint: tuple[Branch, Snapshot, str] | None,
        made: Sequence[CheckpointRecord],
    ) -> None:
        done = [row for row in numbered if row.status is OpStatus.DONE]
        self._ops.update({row.key: row for row in done})
        self._computed.update({row.lineage_key: row for row in done if row.lineage_key is not None})
        if checkpoint is not None:
            checkpoint[0].checkpoint = made[0].id

    def _barrier(
        self, rows: Sequence[OpRecord], checkpoint: tuple[Branch, Snapshot, str] | None
    ) -> Callable[[], None] | None:
        names_layers = checkpoint is not None or any(
            row.snapshot_out is not None and row.kind is not OpKind.COMMAND  # what is lost of these is run again
            for row in rows
        )
        return self._flush if names_layers else None

    def _announced(self, rows: Sequence[OpRecord]) -> AnnouncedCommit | None:
        return next((one for row in rows if (one := self._coming.get(row.branch)) is not None), None)

    @contextmanager
    def ending(self, branch: BranchPath) -> Iterator[None]:
        """A step on that branch has ended, and its row is about to be recorded: seal inside, `flush=False`, and
        record. Rows that are ready meanwhile wait a little, to be committed with it."""
        with self._store.coming() as coming:
            self._coming[branch] = coming
            try:
                yield
            finally:
                del self._coming[branch]

    def _next_seq(self) -> int:
        """Given out once: where a commit fails, its numbers stay unused."""
        self._seq += 1
        return self._seq

    def effect(self, key: str) -> EffectRecord | None:
        """What the ledger says of the effect of that step."""
        return self._effects.get(key)

    def effect_like(self, step: str, args_json: str) -> EffectRecord | None:
        """An effect that was done by the same step with the same arguments, in this run or one that it comes from."""
        every = chain(self._effects.values(), self._elsewhere)
        same = (e for e in every if (e.step, e.args_json) == (step, args_json))
        return next((e for e in same if e.status is EffectStatus.DONE), None)

    def unreached_effect(self, key: str, step: str, args_json: str) -> EffectRecord | None:
        """An effect of this run that took place, or may have, by the same step with the same arguments, and that the
        workflow did not come to again in this process. Calls of one place come in order, so that another one of the
        place of `key` is none. What a run did after another was forked from it is that one's to do for itself."""
        place = key.rpartition("|")[0]
        for effect in self._effects.values():
            if (effect.step, effect.args_json) != (step, args_json) or effect.status not in HAPPENED:
                continue
            if effect.key not in self._asked and effect.key.rpartition("|")[0] != place:
                return effect
        return None

    def unreached_effects_at(self, branch: BranchPath, op: OpId) -> Iterator[EffectRecord]:
        """Effects of one operation on one branch that took place, or may have, and that the workflow did not come to
        again in this process: it gave the operation other arguments."""
        found = (self._effects[key] for key in self._unmet.get(f"{branch}|{op}", ()))
        return (effect for effect in found if effect.status in HAPPENED)

    def unreached_step_at(self, branch: BranchPath, op: OpId) -> bool:
        """Whether earlier processes recorded a step of that operation on that branch, with arguments that the
        workflow did not give it again in this process."""
        rows = (row for key, row in self._before.items() if key not in self._asked)
        return any((row.branch, row.op_id) == (branch, op) for row in rows)

    def is_replayed(self, branch: BranchPath) -> bool:
        """Whether earlier processes recorded something on a branch, or below it, that was not asked for yet."""
        below = f"{branch}/"
        found = (key for key, there in self._earlier.items() if there == branch or there.startswith(below))
        return any(key not in self._asked for key in found)

    def record_with_next(self, row: OpRecord) -> None:
        """As `record` with `Durable.NEXT_ROW`, not to be awaited."""
        self._record_soon((row,), None, Durable.NEXT_ROW)

    def effects_under(self, branch: BranchPath) -> list[EffectRecord]:
        """What was done on a branch and below it, in the order of the intents."""
        below = f"{branch}/"
        return [e for e in self._effects.values() if e.branch == branch or e.branch.startswith(below)]

    async def settle(self, effect: EffectRecord) -> None:
        """Make durable what is known of an effect."""
        await self.record(effect=effect)

    def _settled(self, effect: EffectRecord) -> EffectRecord:
        before = self._effects.get(effect.key)
        if before is not None and effect.status not in LEGAL_SETTLEMENTS[before.status]:
            raise RuntimeError(f"effect {effect.key} is {before.status}: it cannot become {effect.status}")
        return effect

    async def record_llm(self, row: LLMRecord) -> None:
        await finish_despite_cancel(self._record_llm(row))

    async def _record_llm(self, row: LLMRecord) -> None:
        self._refuse_when_over()
        numbered = replace(row, seq=self._next_seq())
        crash_points.point("answer numbered")
        await self._store.commit(self._run.id, llm=[numbered], update=self._touch())
        crash_points.point("answer durable")
        self._llm[numbered.key] = numbered
        self._emit(LLMDone(numbered))

    def close(self) -> None:
        """Nothing is recorded after this: another process may work on the run from now on."""
        self._over = True

    def _refuse_when_over(self) -> None:
        if self._over:
            raise BranchReleased(f"run {self._run.id} is over in this process: nothing more is recorded for it")
        self._refuse_what_does_not_follow()

    def _refuse_what_does_not_follow(self) -> None:
        """Nothing stands in the journal after rows that are not there."""
        if self._lost is not None:
            raise self._lost

    async def finish(self, update: RunUpdate, *, unasked: Sequence[str] = ()) -> None:
        """The run's own row, last. `unasked`: the keys of questions that are not open any more."""
        touched = self._touch()
        update = replace(update, consumed_s=touched.consumed_s, updated_at=touched.updated_at)
        await self._store.commit(self._run.id, unasked=unasked, update=update)
        while self._soon:  # committed before, or with it: only their futures are to be heard
            await asyncio.wait(list(self._soon))
        self._refuse_what_does_not_follow()

    def _checkpoint(self, row: OpRecord, branch: Branch, snapshot: Snapshot, label: str) -> CheckpointRecord:
        parents = [branch.checkpoint]
        if (other := row.attrs.get("theirs_checkpoint")) is not None:
            parents.append(CheckpointId(other))
        return CheckpointRecord(
            id=checkpoint_id(self._run.id, row.seq),
            run_id=self._run.id,
            seq=row.seq,
            branch=branch.path,
            snapshot_id=snapshot.id,
            content_key=snapshot.content_key,
            parents=tuple(parents),
            created_at=self._clock(),
            label=label,
        )

    def _touch(self) -> RunUpdate:
        return RunUpdate(consumed_s=self.consumed_s(), updated_at=self._clock())


_MET = (OpKind.RUN, OpKind.FORK, OpKind.MERGE, OpKind.INTERRUPT)


def _keys_of(
    ops: Sequence[OpRecord], llm: Sequence[LLMRecord], effects: Sequence[EffectRecord]
) -> dict[str, BranchPath]:
    """The keys that a replay of these rows gives out."""
    found = {row.key: row.branch for row in ops if row.kind in _MET and row.status in (OpStatus.DONE, OpStatus.ASKED)}
    found |= {call.key: call.branch for call in llm if call.step_key is None}
    return found | {effect.key: effect.branch for effect in effects if effect.status in HAPPENED}


def base_checkpoint(run: RunId, snapshot: Snapshot, at: float) -> CheckpointRecord:
    """The workspace as it was when the run began."""
    return CheckpointRecord(
        id=checkpoint_id(run, 0),
        run_id=run,
        seq=0,
        branch=ROOT,
        snapshot_id=snapshot.id,
        content_key=snapshot.content_key,
        parents=(),
        created_at=at,
        label="workspace",
    )
