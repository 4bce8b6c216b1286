"""What the store holds of runs, for the program that started them: rows, questions, effects and changed files; and
what a run's journal holds of each operation of its plan."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ramify import paths
from ramify.compiler.plan import OpId, OpKind
from ramify.fork_engine.store import SnapshotStore
from ramify.fork_engine.types import Change, Snapshot, SnapshotId, Written
from ramify.runtime.codec import codec
from ramify.runtime.effects import ledger
from ramify.runtime.journal.inbox import Given, Inbox, OpenQuestion, inbox_of, store_answers
from ramify.runtime.records import (
    HAPPENED,
    ROOT,
    EffectRecord,
    EffectStatus,
    LLMRecord,
    OpRecord,
    OpStatus,
    RunId,
    RunRecord,
)
from ramify.runtime.store import RunStore
from ramify.runtime.worlds.recovery import Fetch, missing

if TYPE_CHECKING:
    from ramify.compiler.result_matching import RecordedResults


NO_ANSWER = object()


def given_answers(answer: Any, answers: Mapping[str, Any]) -> Given:
    """The answers, encoded. Raises `NotSerialisable`."""
    by_id = {id: codec.encode(value, f"the answer to question {id}") for id, value in answers.items()}
    return Given(by_id, None if answer is NO_ANSWER else codec.encode(answer, "the answer"))


class RecordedRuns:
    """The part of a `Runtime` that reads runs and settles what they wait for. It starts nothing.

    A method that takes no run's id is about the run that was started or resumed last.
    """

    home: Path
    database: str | Path
    store: RunStore
    snapshots: SnapshotStore
    last_run_id: RunId | None
    _clock: Callable[[], float]

    def _fetch(self) -> Fetch | None:
        """How to fetch a snapshot that this machine lacks."""
        raise NotImplementedError

    async def questions(self, run_id: str | None = None) -> list[OpenQuestion]:
        """The open questions of a run (by default the last one), in the order in which they were asked.

        For a LangGraph thread, the questions of its interrupts; raises `ThreadElsewhere` if another saver stores it.
        """
        return (await self._inbox(await self.record(run_id))).open

    async def answer(self, run_id: str, question: str, answer: Any) -> None:
        """Store the answer to a question, named by its id, without continuing the run.

        A process that works on the run takes it at once; otherwise the next `resume` does. Raises `AlreadyAnswered`
        if somebody was first.
        """
        record = await self.record(run_id)
        await self.store_answers_of(record, given_answers(NO_ANSWER, {question: answer}), "Runtime.answer")

    async def store_answers_of(self, record: RunRecord, given: Given, by: str) -> None:
        if not given.is_empty:
            await store_answers(self.store, await self._inbox(record), given, clock=self._clock, by=by)

    async def _inbox(self, record: RunRecord) -> Inbox:
        if record.thread_id is None:
            return await inbox_of(self.store, record.id)
        from ramify.runtime.langgraph.thread.stored_thread import open_interrupts

        asked = await asyncio.to_thread(open_interrupts, self.database, record)
        return Inbox.of_interrupts(record.id, asked, await self.store.answers(record.id))

    async def changes(self, run_id: str | None = None) -> list[Change]:
        """What a run (by default the last one) changed so far: its workspace against its root branch's last state."""
        before, after = await self._ends(run_id)
        return await asyncio.to_thread(self.snapshots.changes, before, after)

    async def apply(self, run_id: str | None = None, *, active_files: bool = False) -> Written:
        """Write these changes into the run's workspace. Raises `CheckoutRefused` if the workspace has changed
        meanwhile.

        Changed files that act on entry (hooks and configuration of git, `.envrc`, editors' tasks) are left out,
        unless `active_files`. The result's `withheld` names them.
        """
        before, after = await self._ends(run_id)
        folder = Path((await self.record(run_id)).workspace)
        checkout = partial(self.snapshots.checkout, only_changes_from=before, active_files=active_files)
        return await asyncio.to_thread(checkout, after, folder)

    async def _ends(self, run_id: str | None) -> tuple[Snapshot, Snapshot]:
        run = await self.record(run_id)
        checkpoints = await self.store.checkpoints(run.id)
        last = max((one for one in checkpoints if one.branch == ROOT), key=lambda one: one.seq)
        return await self._complete(run.base_snapshot), await self._complete(last.snapshot_id)

    async def _complete(self, id: SnapshotId) -> Snapshot:
        """The snapshot, fetched if this machine lacks it and the home has a bucket."""
        fetch = self._fetch()
        if fetch is None or await asyncio.to_thread(missing, self.snapshots, id) is None:
            return self.snapshots.get(id)
        return await fetch(id)

    async def approve(self, run_id: str, step: str, *, happened: bool, result: Any = None) -> EffectRecord:
        """Say whether an irreversible step of unknown outcome happened, and with which result; then `resume`.

        `step`: its name, or the beginning of its idempotency key. Raises `RunNotFound`, `AmbiguousRef`, `RunLocked`.
        """
        verdict = EffectStatus.APPROVED if happened else EffectStatus.AGAIN
        result_json = codec.encode(result) if happened else None
        locks = paths.locks(self.home)
        return await ledger.approve(self.store, locks, RunId(run_id), step, verdict, result_json, clock=self._clock)

    async def effects(self, run_id: str | None = None, *, earlier: bool = False) -> list[EffectRecord]:
        """The irreversible effects of a run (by default the last one), in the order in which they started.

        Of each effect the last attempt; with `earlier` also those before it, such as one before
        `approve(happened=False)`.
        """
        run = self._named(run_id)
        return await self.store.effects(run, earlier=earlier) or await self._none_of(run)

    async def journal(self, run_id: str | None = None) -> list[OpRecord]:
        """The journal of a run (by default the last one), in order."""
        run = self._named(run_id)
        return await self.store.ops(run) or await self._none_of(run)

    async def llm_calls(self, run_id: str | None = None) -> list[LLMRecord]:
        """The model calls of a run (by default the last one), in order."""
        run = self._named(run_id)
        return await self.store.llm(run) or await self._none_of(run)

    async def record(self, run_id: str | None = None) -> RunRecord:
        """The row of a run (by default the last one)."""
        return await self.store.run(self._named(run_id))

    def _named(self, run_id: str | None) -> RunId:
        if run_id is not None:
            return RunId(run_id)
        if self.last_run_id is None:
            raise ValueError("no run has been started by this runtime: name one")
        return self.last_run_id

    async def _none_of(self, run: RunId) -> list[Any]:
        """Return no rows of a run. Raises `RunNotFound` if there is no such run."""
        await self.store.run(run)
        return []


def ids_of(ops: Sequence[OpRecord], llm: Sequence[LLMRecord], effects: Sequence[EffectRecord]) -> set[str]:
    return {row.op_id for row in ops} | {row.op_id for row in llm} | {_op_of(effect.key) for effect in effects}


def _op_of(key: str) -> OpId:
    return OpId(key.split("|")[1])


def recorded_results(
    ops: Sequence[OpRecord], llm: Sequence[LLMRecord], effects: Sequence[EffectRecord]
) -> Mapping[str, RecordedResults]:
    """What the journal holds, by the ids of operations. Imports the compiler."""
    from ramify.compiler.result_matching import RecordedResults

    steps: dict[str, Counter[str]] = defaultdict(Counter)
    under: dict[str, Counter[str]] = defaultdict(Counter)
    others, repeated = Counter[str](), set[str]()
    done = [row for row in ops if row.status is OpStatus.DONE]
    keys = {row.key for row in done}
    results = [(row.key, row.op_id, row.branch, row.step or "") for row in done if row.kind is OpKind.RUN]
    results += [
        (effect.key, _op_of(effect.key), effect.branch, effect.step)
        for effect in effects
        if effect.key not in keys and effect.status in HAPPENED
    ]
    for key, op, branch, step in results:
        steps[op][step] += 1
        for fork in _forks_of(branch):
            under[fork][step] += 1
        if _is_repeated(key):
            repeated.add(op)
    asked = (OpKind.FORK, OpKind.MERGE, OpKind.INTERRUPT)
    more = [(row.key, row.op_id) for row in done if row.kind in asked]
    more += [(call.key, call.op_id) for call in llm if call.step_key is None]
    for key, op in more:
        others[op] += 1
        if _is_repeated(key):
            repeated.add(op)
    every = {*steps, *under, *others}
    return {
        op: RecordedResults(dict(steps.get(op, {})), others[op], op in repeated, dict(under.get(op, {})))
        for op in every
    }


def _is_repeated(key: str) -> bool:
    last = key.rpartition("|")[2]
    return last.isdigit() and int(last) > 0


def _forks_of(branch: str) -> list[str]:
    """The forks that a branch lies under: its path names each with its place and the number of the branch."""
    return [part.rsplit(".", 2)[0] for part in branch.split("/")[1:]]
