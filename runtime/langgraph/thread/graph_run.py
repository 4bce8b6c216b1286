"""One LangGraph thread as a run: its branches, and where each superstep stands on them.

A superstep of one task acts on the branch itself. A superstep of several forks the branch, and its children are
merged when somebody next asks for the world. A checkpoint that is not where its branch stands now was gone back
to: what runs on from there is a new branch.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from ramify.compiler.plan import STEPS, OpKind, Plan, PlanOp
from ramify.fork_engine.types import Skipped, Snapshot, SnapshotId
from ramify.runtime.codec import codec
from ramify.runtime.estimates.cost_model import CostModel
from ramify.runtime.events import Level, Recovered, RunEnded, RunStarted
from ramify.runtime.execution.driver import Services, mixing, reuse_of
from ramify.runtime.journal.journal import Durable, Journal
from ramify.runtime.langgraph.errors import WorldLost
from ramify.runtime.langgraph.thread.lost_states import Lineage
from ramify.runtime.langgraph.thread.positions import StoredPosition, join_key
from ramify.runtime.langgraph.thread.supersteps import merged
from ramify.runtime.records import (
    BranchPath,
    CheckpointId,
    OpRecord,
    OpStatus,
    RunRecord,
    RunStatus,
    RunUpdate,
)
from ramify.runtime.reuse.reuse import Reuse
from ramify.runtime.store.run_locks import hold_run
from ramify.runtime.worlds.world_pool import Branch, WorldPool, world_spec

_LINGER_S = 0.05
"""How long rows that nothing waits for may gather."""


REPLAY = "|replay "
"""In the key of a task that LangGraph ran again under its old id, before what tells this time from the others."""


@dataclass(frozen=True, slots=True)
class Task:
    """One execution of a node, as LangGraph names it."""

    node: str
    key: str  # thread, namespace and task id, perhaps `REPLAY`: its place in the journal
    superstep: str  # thread, namespace and parent checkpoint
    index: int  # among the tasks of its superstep
    width: int  # how many these are
    attempt: int = 1
    durable: bool = False  # the thread's checkpoints outlive the invocation
    inner: bool = False  # run by a node's own code: not in the plan, which has the node


@dataclass(frozen=True, slots=True)
class Position:
    """Where a thread's world stands, all joins done."""

    branch: BranchPath
    at: str
    snapshot: Snapshot
    checkpoint: CheckpointId
    unsealed: bool = False


@dataclass(frozen=True, slots=True)
class Superstep:
    """What the tasks of one superstep share. `place` names its fork; None where there is only one task."""

    line: Branch
    start: Position
    place: str | None = None
    env: StoredPosition | None = None  # what it was found by
    children: dict[int, Branch] = field(default_factory=dict)

    def branch(self, index: int) -> Branch:
        if self.place is None:
            return self.line
        if index not in self.children:
            path = BranchPath(f"{self.line.path}/{self.place}.{index}")
            self.children[index] = Branch(path, self.start.snapshot, self.start.checkpoint)
        return self.children[index]


class GraphRun:
    """A run of the LangGraph front end, while an invocation works on it."""

    def __init__(self, services: Services, record: RunRecord, plan: Plan, journal: Journal) -> None:
        self.services = services
        self.record = record
        self.plan = plan
        self.journal = journal
        self.worlds = WorldPool(services.backend, world_spec(record))
        self._lines: dict[BranchPath, Branch] = {}
        self._heads: dict[str, str] = {}  # branch to the key of the row that it stands at
        self._forks = 0
        self.lineage = Lineage(self)
        self.again: Callable[[Any, Task], None] | None = None  # asked before a node's code runs, where one runs again
        self.recorded_keys: dict[str, str] = {}  # keys of tasks that the journal has under another key
        self.came_back = False  # it was ended on the way, and no world of it has been mounted since
        self.stands = (record.status, record.error or "")  # how its last invocation ended
        self._goes_on = False  # else it is only looked at, and its row says how it stands
        self.with_checkpoints = False  # LangGraph's are committed with the rows, and follow those of finished nodes
        self._supersteps: dict[str, Superstep] = {}
        self._loop = asyncio.get_running_loop()
        self._noted = deque[OpRecord]()
        self._whole: dict[str, Snapshot] = {}  # known to be there
        self._is_lingering = False
        self._writing: asyncio.Task[None] | None = None
        self._lock = asyncio.Lock()
        self._stack = AsyncExitStack()
        self.clock = services.clock
        self.costs = CostModel()
        self._runs = {op.step: op for op in reversed(plan.ops) if op.kind in STEPS}
        ops = {op.kind: op for op in plan.ops}
        self._fork_op = ops.get(OpKind.FORK, plan.catch_all)
        self._merge_op = ops.get(OpKind.MERGE, plan.catch_all)
        self._release_op = plan.release_of(self._fork_op) or plan.catch_all

    @classmethod
    async def open(
        cls,
        services: Services,
        record: RunRecord,
        plan: Plan,
        skipped: tuple[Skipped, ...] = (),
        *,
        looks: bool = False,
    ) -> GraphRun:
        """Take a run over from where its journal ends; `looks`: it stays as it stands until it `goes_on`. Raises
        `RunLocked` where another process works on it."""
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(hold_run(services.locks, services.store, record.id))
            ops = await services.store.ops(record.id)
            llm = await services.store.llm(record.id)
            resumed = bool(ops or llm) or record.status is not RunStatus.RUNNING
            came_back = resumed and record.status is not RunStatus.DONE
            if (mixed := mixing(record, services.settings)) is not None:
                await services.store.commit(record.id, update=RunUpdate(settings=mixed))
                record = replace(record, settings=mixed)
            journal = Journal(
                services.store,
                record,
                ops=ops,
                llm=llm,
                flush=services.snapshots.flush,
                clock=services.clock,
                emit=services.emit,
            )
            run = cls(services, record, plan, journal)
            run.came_back = came_back
            for row in ops:
                run._remember(row)
            if not looks:
                await run.goes_on()
            run._stack = stack.pop_all()
        services.emit(RunStarted(run.record, resumed=resumed, skipped=skipped))
        return run

    async def goes_on(self) -> None:
        """From here on its row says that it runs."""
        if self._goes_on:
            return
        self._goes_on = True  # also where the caller is cancelled, who hears of it when the row is written
        if self.record.status is not RunStatus.RUNNING:
            await self.services.store.commit(self.record.id, update=RunUpdate(status=RunStatus.RUNNING))
            self.record = replace(self.record, status=RunStatus.RUNNING)

    @cached_property
    def reuse(self) -> Reuse:
        """Made when a command asks whether it was run before: it looks at all that worlds see of this machine."""
        made = reuse_of(self.services, self.record, self.journal)
        self._stack.callback(made.close)
        return made

    async def close(self, status: RunStatus, error: str = "") -> None:
        """One that was only looked at stands as it stood, whatever is said."""
        end = RunUpdate(status=status, error=error)
        if not self._goes_on:
            status, end = self.stands[0], RunUpdate()
        async with self._stack:
            await self.worlds.close()
            if self._writing is not None:
                await asyncio.wait([self._writing])
            await self.write_noted()
            await self.journal.finish(end)
            self.journal.close()
            self.services.emit(RunEnded(self.record, status))

    def task_op(self, task: Task) -> PlanOp:
        """The plan's operation for a node; its catch-all for what a node's own code runs."""
        return self.plan.catch_all if task.inner else self._runs.get(task.node, self.plan.catch_all)

    def seal_op(self, op: PlanOp) -> PlanOp | None:
        if op.kind is OpKind.BREAK:
            return op if op.attrs.get("seal", True) else None
        return self.plan.after(op, OpKind.SEAL)

    async def record_rows(
        self,
        *rows: OpRecord,
        checkpoint: tuple[Branch, Snapshot, str] | None = None,
        durable: Durable = Durable.NOW,
    ) -> None:
        """Record these, and what was noted before with them."""
        noted = [self._noted.popleft() for _ in range(len(self._noted))]
        try:
            await self.journal.record(*noted, *rows, checkpoint=checkpoint, durable=durable)
        except BaseException:
            self._noted.extendleft(reversed(noted))
            raise
        for row in rows:
            self._remember(row)

    def note(self, row: OpRecord) -> None:
        """Record a row that nothing waits for: with the next that is waited for, or a little later by itself. On any
        thread."""
        self._noted.append(row)
        if not self._is_lingering:
            self._is_lingering = True
            self._loop.call_soon_threadsafe(self._linger)

    def _linger(self) -> None:
        self._writing = asyncio.create_task(self._write_behind())

    async def _write_behind(self) -> None:
        await asyncio.sleep(_LINGER_S)
        self._is_lingering = False
        with suppress(Exception):  # they are noted still: whoever records next, or ends the run, meets the error
            await self.write_noted()

    async def write_noted(self) -> None:
        if self._noted:
            await self.record_rows()

    def row(self, kind: OpKind, op: PlanOp, key: str, branch: BranchPath, **changes: object) -> OpRecord:
        said = {"status": OpStatus.DONE, "ended_at": self.services.clock(), **changes}
        return OpRecord(self.record.id, 0, key, op.id, kind, branch, **said)  # type: ignore[arg-type]

    def _remember(self, row: OpRecord) -> None:
        if row.status is not OpStatus.DONE:
            return
        self.lineage.note(row)
        if row.kind is OpKind.RUN:
            if row.snapshot_in != row.snapshot_out:  # else its branch stands where it stood
                self._heads[row.branch] = row.key
        elif row.kind is OpKind.FORK:
            self._forks += 1
            if "line" in row.attrs:
                self._heads[row.attrs["line"]] = row.attrs["at"]
        elif row.kind is OpKind.RELEASE and self._heads.get(row.branch, "") == row.attrs["at"]:
            self._heads[row.branch] = row.key

    def first(self, snapshot: Snapshot, checkpoint: CheckpointId) -> StoredPosition:
        """Where a thread's world stands before its first node."""
        return {
            "run": self.record.id,
            "branch": "root",
            "at": "",
            "snapshot": snapshot.id,
            "checkpoint": checkpoint,
        }

    async def superstep(self, task: Task, env: StoredPosition) -> Superstep:
        """Where this task's superstep stands; the same answer for each of its tasks. Raises `NodesConflict`."""
        async with self._lock:
            if task.superstep not in self._supersteps:
                await self.journal.settled()
                self._supersteps[task.superstep] = await self._stand(task, env)
            return self._supersteps[task.superstep]

    async def lent(self, key: str, inside: str, parent: Branch, snapshot: Snapshot) -> tuple[Branch, str]:
        """A new branch for what a node's code runs on a fork of the node's world; and the place of that fork."""
        async with self._lock:  # the place is counted by the rows
            return await self._lent(key, inside, parent, snapshot)

    async def _lent(self, key: str, inside: str, parent: Branch, snapshot: Snapshot) -> tuple[Branch, str]:
        place = f"{self._fork_op.id}.{self._forks}"
        branch = Branch(BranchPath(f"{parent.path}/{place}.0"), snapshot, parent.checkpoint)
        row = self.row(
            OpKind.FORK,
            self._fork_op,
            key,
            parent.path,
            result_json=codec.encode({"children": 1, "place": place}),
            result_digest=codec.digest(1),
            snapshot_in=snapshot.id,
            snapshot_out=snapshot.id,
            started_at=self.services.clock(),
            summary=f"inside {inside}",
        )
        changed = snapshot.id != parent.snapshot.id
        await self.record_rows(row, checkpoint=(branch, snapshot, f"inside {inside}") if changed else None)
        return branch, place

    async def edited(self, branch: Branch, sealed: Snapshot) -> None:
        """Record that a person changed the world on a branch made for that."""
        op = self.plan.catch_all
        row = self.row(
            OpKind.SEAL,
            op,
            f"edit {branch.path}|SEAL",
            branch.path,
            result_digest=sealed.content_key,
            snapshot_in=branch.snapshot.id,
            snapshot_out=sealed.id,
            started_at=self.services.clock(),
            summary="edited by hand",
        )
        await self.record_rows(row, checkpoint=(branch, sealed, "edited by hand"))

    async def taken_back(
        self, key: str, task: Task, parent: Branch, merge: tuple[Snapshot, Snapshot, Snapshot], merged: Snapshot
    ) -> None:
        """Record that the node's world took in what ran on a fork of it. `merge`: base, the node's, the fork's."""
        base, ours, theirs = merge
        row = self.row(
            OpKind.MERGE,
            self._merge_op,
            key,
            parent.path,
            result_digest=merged.content_key,
            snapshot_in=parent.snapshot.id,
            snapshot_out=merged.id,
            started_at=self.services.clock(),
            summary=f"back in {task.node}",
            attrs={"base": base.id, "ours": ours.id, "theirs": theirs.id},
        )
        await self.record_rows(row, checkpoint=(parent, merged, f"inside {task.node}"))

    async def settle(self, env: StoredPosition) -> Position:
        """The position that the channel's value means; what it leaves to be merged is merged now."""
        if (joined := await self._joined(env)) is not None:  # a node may ask while it is run again, and the lock held
            return joined
        async with self._lock:
            return await self._settle(env)

    async def _stand(self, task: Task, env: StoredPosition) -> Superstep:
        start = await self._settle(env)
        path, place = await self._path(task, start)
        line = self._lines.get(path)
        if line is None:
            line = self._lines[path] = Branch(path, start.snapshot, start.checkpoint)
        if start.unsealed:
            if not line.unsealed or line.world is None or self._heads.get(path, "") != start.at:
                raise WorldLost(path)
        else:
            line.snapshot, line.checkpoint = start.snapshot, start.checkpoint
        if task.width == 1:
            return Superstep(line, start, env=env)
        if line.unsealed and line.world is not None:  # children can only stand on a sealed state
            line.snapshot, line.unsealed = await line.world.seal(flush=False), False
        start = replace(start, snapshot=line.snapshot, unsealed=False)
        if place is None:
            place = await self._record_fork(f"{task.superstep}|FORK", start, path, task.width)
        return Superstep(line, start, place, env)

    async def _path(self, task: Task, start: Position) -> tuple[BranchPath, str | None]:
        """The branch that the superstep acts on and, where the journal knows it, the place of its fork."""
        if (row := self.journal.served(f"{task.superstep}|FORK")) is not None:
            return row.branch, codec.decode(row.result_json or "")["place"]
        if task.width == 1 and (row := self.journal.served(task.key)) is not None:
            return row.branch, None
        if (row := self.journal.served(f"{task.superstep}|BRANCH")) is not None:
            return BranchPath(row.attrs["line"]), None
        line = self._lines.get(start.branch)
        taken = line is not None and line.lock.locked() and task.width == 1 and not start.unsealed
        if self._heads.get(start.branch, "") == start.at and not taken:  # else a copy of the thread runs on it
            return start.branch, None
        place = f"{self._fork_op.id}.{self._forks}"
        path = BranchPath(f"{start.branch}/{place}.0")
        attrs = {"line": path, "at": start.at}
        await self._record_fork(f"{task.superstep}|BRANCH", start, start.branch, 1, attrs)
        return path, None

    async def _record_fork(
        self, key: str, start: Position, path: BranchPath, children: int, attrs: dict[str, str] | None = None
    ) -> str:
        place = f"{self._fork_op.id}.{self._forks}"
        row = self.row(
            OpKind.FORK,
            self._fork_op,
            key,
            path,
            result_json=codec.encode({"children": children, "place": place}),
            result_digest=codec.digest(children),
            snapshot_in=start.snapshot.id,
            snapshot_out=start.snapshot.id,
            started_at=self.services.clock(),
            summary=f"{children} tasks" if attrs is None else "gone back to, and on from here",
            attrs=attrs or {},
        )
        await self.record_rows(row, durable=Durable.NEXT_ROW)
        return place

    async def _settle(self, env: StoredPosition) -> Position:
        if (joined := await self._joined(env)) is not None:
            return joined
        branch, snapshot = BranchPath(env["branch"]), await self.snapshot(env["snapshot"])
        here = Position(branch, env["at"], snapshot, CheckpointId(env["checkpoint"]), env.get("unsealed", False))
        return await self._join(here, join_key(env), env["join"]) if "join" in env else here

    async def _joined(self, env: StoredPosition) -> Position | None:
        """Where its tasks were joined already: what they stood on is not looked at."""
        row = self.journal.served(f"{join_key(env)}|RELEASE") if "join" in env else None
        if row is None or row.snapshot_out is None:
            return None
        snapshot = await self.snapshot(row.snapshot_out)
        return Position(BranchPath(env["branch"]), row.key, snapshot, CheckpointId(row.attrs["checkpoint"]))

    async def _join(self, here: Position, key: str, children: list[list[str]]) -> Position:
        """Merge the tasks of a superstep, in the order of their paths, and release their branches."""
        line = Branch(here.branch, here.snapshot, here.checkpoint)
        theirs = [(node, await self.snapshot(id)) for id, node, _, _ in children]
        steps = await asyncio.to_thread(merged, self.services.snapshots, here.snapshot, theirs)
        for (_, node, path, checkpoint), (_, child), result in zip(children, theirs, steps, strict=True):
            if result is None:
                continue
            merge_key = f"{key}|MERGE|{path}"
            if (known := self.journal.served(merge_key)) is not None and known.snapshot_out is not None:
                line.snapshot, line.checkpoint = (
                    await self.snapshot(known.snapshot_out),
                    self.journal.checkpoint_of(known),
                )
                continue
            row = self.row(
                OpKind.MERGE,
                self._merge_op,
                merge_key,
                here.branch,
                result_digest=result.content_key,
                snapshot_in=line.snapshot.id,
                snapshot_out=result.id,
                started_at=self.services.clock(),
                summary=f"merged {node}",
                attrs={
                    "base": here.snapshot.id,
                    "theirs": child.id,
                    "theirs_branch": path,
                    "theirs_checkpoint": checkpoint,
                },
            )
            await self.record_rows(row, checkpoint=(line, result, f"merge {node}"), durable=Durable.NEXT_ROW)
            line.snapshot = result
        place = children[0][2].removeprefix(f"{here.branch}/").rpartition(".")[0]
        adopted = sum(result is not None for result in steps)
        release = self.row(
            OpKind.RELEASE,
            self._release_op,
            f"{key}|RELEASE",
            here.branch,
            result_json=codec.encode({"children": len(children), "place": place}),
            result_digest=codec.digest(len(children)),
            snapshot_in=line.snapshot.id,
            snapshot_out=line.snapshot.id,
            started_at=self.services.clock(),
            summary=f"{len(children)} joined, {adopted} with changes",
            attrs={"at": here.at, "checkpoint": line.checkpoint},
        )
        await self.record_rows(release, durable=Durable.NEXT_ROW)
        return Position(here.branch, release.key, line.snapshot, line.checkpoint)

    async def snapshot(self, id: str) -> Snapshot:
        """The state as it can be mounted, made again where it is lost. Raises `StateGone`."""
        found = self._whole.get(id)
        if found is None:
            found = self._whole[id] = await self.lineage.whole(SnapshotId(id))
        return found

    def recovered(self, branch: BranchPath, level: Level, why: str, took_s: float) -> None:
        """Tell which level of recovery a branch goes on from."""
        self.came_back = self.came_back and level is Level.RETRY
        self.services.emit(Recovered(self.record.id, branch, level, why, took_s))
