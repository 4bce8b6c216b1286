"""One LangGraph thread as a run: its branches, and where each superstep stands on them.

A superstep of one task acts on the branch itself. A superstep of several tasks forks the branch, and the children are
merged when something next asks for the world. If a checkpoint is not where its branch stands now, the thread went
back to it, and what runs from there is a new branch.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections import deque
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from functools import cached_property
from typing import Any

from ramify.compiler.plan import STEPS, OpKind, Plan, PlanOp
from ramify.fork_engine.gc_pins import Pins
from ramify.fork_engine.types import Skipped, Snapshot, SnapshotId
from ramify.runtime.codec import codec
from ramify.runtime.estimates.cost_model import CostModel
from ramify.runtime.events import Level, Recovered, RunEnded, RunStarted
from ramify.runtime.execution.driver import mixing, reuse_of
from ramify.runtime.execution.new_runs import Services
from ramify.runtime.journal.journal import Durable, Journal
from ramify.runtime.langgraph.errors import WorldLost
from ramify.runtime.langgraph.thread.lost_states import LostStates
from ramify.runtime.langgraph.thread.positions import StoredPosition, join_key
from ramify.runtime.langgraph.thread.supersteps import Position, Superstep, Task, merged
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
from ramify.runtime.worlds.pinned_seal import sealed as sealed_world
from ramify.runtime.worlds.world_pool import Branch, WorldPool, spec_of_run

_LINGER_S, _MOST_NOTED = 0.2, 512
"""How long rows that nothing waits for may be collected before they are written, and how many. A transaction costs as
much as dozens of rows."""


class GraphRun:
    """A run of a LangGraph graph while invocations work on it."""

    def __init__(self, services: Services, record: RunRecord, plan: Plan, journal: Journal) -> None:
        self.services = services
        self.record = record
        self.plan = plan
        self.journal = journal
        self.worlds = WorldPool(services.backend, spec_of_run(record))
        self._lines: dict[BranchPath, Branch] = {}
        self._heads: dict[str, str] = {}  # by branch: the key of the row at which it stands
        self._forks = 0
        self.lost_states: LostStates[GraphRun] = LostStates(self)
        # called before a node's code runs, if a node is run again to recompute its files
        self.again: Callable[[Any, Task], None] | None = None
        self.recorded_keys: dict[str, str] = {}  # keys of tasks that the journal has under another key
        self.came_back = False  # the run was interrupted, and no world of it has been mounted since
        self.stands = (record.status, record.error or "")  # how its last invocation ended
        self._goes_on = False  # False while the run is only read: its row then keeps the recorded status
        # LangGraph's checkpoints are committed with the rows, after those of finished nodes
        self.with_checkpoints = False
        self._supersteps: dict[str, Superstep] = {}
        self._loop = asyncio.get_running_loop()
        self._noted = deque[OpRecord]()
        self._whole: dict[str, Snapshot] = {}  # known to be complete
        self._is_lingering = False
        self._writing: asyncio.Task[None] | None = None
        self._many = asyncio.Event()  # enough rows were noted, or the run closes
        self._is_closing = False
        self._lock = asyncio.Lock()
        self._stack = AsyncExitStack()
        self.clock = services.clock
        self.costs = CostModel()
        self._runs = {op.step: op for op in reversed(plan.ops) if op.kind in STEPS}
        self._planned: dict[tuple[str, bool], tuple[PlanOp, str]] = {}  # what `planned` returned, by node and `inner`
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
        is_new: bool = False,
    ) -> GraphRun:
        """Open a run where its journal ends. With `looks`, its recorded status stays until `goes_on` is called.
        `is_new`: this process has just made the run, and no other knows its name, so that its journal is empty.
        Raises `RunLocked` if another process works on it."""
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(hold_run(services.locks, services.store, record.id))
            ops, llm = ([], []) if is_new else await services.store.journal(record.id)
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
        """Record that the run is running."""
        if self._goes_on:
            return
        self._goes_on = True  # set first: a cancelled caller gets its error only after the row is written
        if self.record.status is not RunStatus.RUNNING:
            await self.services.store.commit(self.record.id, update=RunUpdate(status=RunStatus.RUNNING))
            self.record = replace(self.record, status=RunStatus.RUNNING)

    @cached_property
    def reuse(self) -> Reuse:
        """Made when a command first asks for reuse: it fingerprints everything that worlds see of this machine."""
        made = reuse_of(self.services, self.record, self.worlds.spec, self.journal)
        self._stack.callback(made.close)
        return made

    async def close(self, status: RunStatus, error: str = "") -> None:
        """End the run with this status. A run that was only read keeps its recorded status instead."""
        end = RunUpdate(status=status, error=error)
        if not self._goes_on:
            status, end = self.stands[0], RunUpdate()
        async with self._stack:
            await self.worlds.close()
            self._is_closing = True
            self._many.set()
            if self._writing is not None:
                await asyncio.wait([self._writing])
            if self._noted:  # they share the commit of the run's end
                await self.record_rows(durable=Durable.NEXT_ROW)
            await self.journal.finish(end)
            self.journal.close()
            self.services.emit(RunEnded(self.record, status))

    def planned(self, task: Task) -> tuple[PlanOp, str]:
        """Return the plan's operation for a node, or its catch-all for what a node's code runs; and the digest of the
        node's code, "" if the plan does not have the node."""
        found = self._planned.get((task.node, task.inner))
        if found is None:
            step, op = (None, None) if task.inner else (self.plan.step(task.node), self._runs.get(task.node))
            op = self.plan.catch_all if op is None else op
            found = self._planned[task.node, task.inner] = op, "" if step is None else step.code_digest
        return found

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
        """Record these rows, after those that were noted before."""
        noted = [self._noted.popleft() for _ in range(len(self._noted))]
        try:
            await self.journal.record(*noted, *rows, checkpoint=checkpoint, durable=durable)
        except BaseException:
            self._noted.extendleft(reversed(noted))
            raise
        for row in rows:
            self._remember(row)

    def note(self, row: OpRecord) -> None:
        """Record a row that nothing waits for: with the next row that is waited for, or a little later. Any thread
        may call this."""
        self._noted.append(row)
        if not self._is_lingering:
            self._is_lingering = True
            # in an empty context: the caller's would keep the node's config, and with it LangGraph's loop
            self._loop.call_soon_threadsafe(self._linger, context=contextvars.Context())
        elif len(self._noted) == _MOST_NOTED:
            self._loop.call_soon_threadsafe(self._many.set, context=contextvars.Context())

    def _linger(self) -> None:
        self._writing = asyncio.create_task(self._write_behind())

    async def _write_behind(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(_LINGER_S):
                await self._many.wait()
        if self._is_closing:
            return
        self._many.clear()
        self._is_lingering = False
        # the rows stay noted: the next recording, or the end of the run, meets the error again
        with suppress(Exception):
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
        self.lost_states.note(row)
        if row.kind is OpKind.RUN:
            if row.snapshot_in != row.snapshot_out:  # otherwise the branch stands where it stood
                self._heads[row.branch] = row.key
        elif row.kind is OpKind.FORK:
            self._forks += 1
            if "line" in row.attrs:
                self._heads[row.attrs["line"]] = row.attrs["at"]
        elif row.kind is OpKind.RELEASE and self._heads.get(row.branch, "") == row.attrs["at"]:
            self._heads[row.branch] = row.key

    def first(self, snapshot: Snapshot, checkpoint: CheckpointId) -> StoredPosition:
        """Return where a thread's world stands before its first node."""
        return {
            "run": self.record.id,
            "branch": "root",
            "at": "",
            "snapshot": snapshot.id,
            "checkpoint": checkpoint,
        }

    async def superstep(self, task: Task, env: StoredPosition) -> Superstep:
        """Return the position of this task's superstep, the same for each of its tasks. Raises `NodesConflict`."""
        async with self._lock:
            if task.superstep not in self._supersteps:
                await self.journal.settled()
                self._supersteps[task.superstep] = await self._stand(task, env)
            return self._supersteps[task.superstep]

    async def nested_fork(self, key: str, inside: str, parent: Branch, snapshot: Snapshot) -> tuple[Branch, str]:
        """Make a branch for what a node's code runs on a fork of its world; return it and the name of the fork."""
        async with self._lock:  # names of forks are numbered by the recorded rows
            return await self._nested_fork(key, inside, parent, snapshot)

    async def _nested_fork(self, key: str, inside: str, parent: Branch, snapshot: Snapshot) -> tuple[Branch, str]:
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
        """Record that a node's world took in what ran on a fork of it. `merge` is (base, the node's state, the fork's
        state)."""
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
        """Return the position that the channel's value describes, after merging what it lists to be merged."""
        # without the lock: a rerun node may ask this while the caller that waits for it holds the lock
        if (joined := await self._joined(env)) is not None:
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
        if line.unsealed and line.world is not None:  # children can fork only from a sealed state
            line.snapshot = await sealed_world(line.world, Pins(self.services.locks))
            line.unsealed = False
        start = replace(start, snapshot=line.snapshot, unsealed=False)
        if place is None:
            place = await self._record_fork(f"{task.superstep}|FORK", start, path, task.width)
        return Superstep(line, start, place, env)

    async def _path(self, task: Task, start: Position) -> tuple[BranchPath, str | None]:
        """Return the branch on which the superstep acts and, if the journal knows it, the name of its fork."""
        if (row := self.journal.served(f"{task.superstep}|FORK")) is not None:
            return row.branch, codec.decode(row.result_json or "")["place"]
        if task.width == 1 and (row := self.journal.served(task.key)) is not None:
            return row.branch, None
        if (row := self.journal.served(f"{task.superstep}|BRANCH")) is not None:
            return BranchPath(row.attrs["line"]), None
        line = self._lines.get(start.branch)
        taken = line is not None and line.lock.locked() and task.width == 1 and not start.unsealed
        # otherwise a copy of the thread runs on the branch
        if self._heads.get(start.branch, "") == start.at and not taken:
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
        """Return the position after the join if the tasks were joined already; their states are not read then."""
        row = self.journal.served(f"{join_key(env)}|RELEASE") if "join" in env else None
        if row is None or row.snapshot_out is None:
            return None
        snapshot = await self.snapshot(row.snapshot_out)
        return Position(BranchPath(env["branch"]), row.key, snapshot, CheckpointId(row.attrs["checkpoint"]))

    async def _join(self, here: Position, key: str, children: list[list[str]]) -> Position:
        """Merge the tasks of a superstep in the order of their paths, and release their branches."""
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
        """Return the state ready to be mounted; recompute it if it is lost. Raises `StateGone`."""
        found = self._whole.get(id)
        if found is None:
            found = self._whole[id] = await self.lost_states.whole(SnapshotId(id))
        return found

    def recovered(self, branch: BranchPath, level: Level, why: str, took_s: float) -> None:
        """Report by which level of recovery a branch continues."""
        self.came_back = self.came_back and level is Level.RETRY
        self.services.emit(Recovered(self.record.id, branch, level, why, took_s))
