"""An attempt at a node that has its branch: its world, and how it is sealed and recorded."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
from dataclasses import dataclass, field, replace
from typing import Any

from langgraph.types import Command

from ramify.compiler.plan import OpId, OpKind, PlanOp
from ramify.fork_engine.gc_pins import Pins
from ramify.fork_engine.types import Snapshot
from ramify.runtime.codec import codec
from ramify.runtime.errors import error_text
from ramify.runtime.estimates.recorded_runs import CHANNELS, files_written
from ramify.runtime.events import Level
from ramify.runtime.execution.model_calls import LLMCalls
from ramify.runtime.journal.journal import Durable
from ramify.runtime.langgraph.thread.graph_run import GraphRun
from ramify.runtime.langgraph.thread.portal import Portal, PortalSandbox
from ramify.runtime.langgraph.thread.positions import StoredPosition, copy_fork
from ramify.runtime.langgraph.thread.supersteps import DeferredFork, NestedFork, Position, Superstep, Task
from ramify.runtime.langgraph.value_summary import brief
from ramify.runtime.records import BranchPath, CheckpointId, OpRecord, OpStatus
from ramify.runtime.reuse.commands import ReusableCommands
from ramify.runtime.user_code.call_slo import CallSLO
from ramify.runtime.worlds.world_pool import Branch
from ramify.serving.types import ChatRequest, ChatResult

_LINE = 80
_TAIL = 800


@dataclass(eq=False, slots=True)
class AttemptContext:
    """What an attempt at a node knows from its beginning."""

    portal: Portal
    run: GraphRun
    task: Task
    calls: LLMCalls
    held: StoredPosition | None  # the value of the world channel
    op: PlanOp
    code: str  # digest of the node's code, "" if the plan does not have the node
    begun: float  # Unix seconds
    open_forks: list[DeferredFork] = field(default_factory=list)  # may not have been taken yet
    forks: int = 0  # forks and merges so far, which numbers their journal keys

    @property
    def key(self) -> str:
        """The journal key under which this attempt's forks, merges and model calls are recorded."""
        return f"{self.task.key}|a{self.task.attempt}"

    @property
    def has_world(self) -> bool:
        """False for a step declared pure."""
        return self.op.has_world or self.op.kind is OpKind.BREAK

    @property
    def durable(self) -> Durable:
        """When the row of its end has to be durable: with LangGraph's checkpoint of the superstep, if one follows."""
        follows = self.run.with_checkpoints and self.task.durable and not self.task.inner
        return Durable.NEXT_STEP if follows else Durable.NOW

    def row(self, path: BranchPath, *, status: OpStatus = OpStatus.DONE, **changes: Any) -> OpRecord:
        """Return the row of the node, which ends now."""
        return replace(node_row(self.run, self.task, self.op, self.code, self.begun, path, status), **changes)

    def where(self, branch: str, snapshot: str) -> str:
        return f"raised in node {self.task.node!r} on branch {branch}, on the world of snapshot {snapshot[:12]}"


def node_row(
    run: GraphRun, task: Task, op: PlanOp, code: str, begun: float, path: BranchPath, status: OpStatus
) -> OpRecord:
    """Return the row of a node, which ends now."""
    place = (run.record.id, 0, task.key, op.id, OpKind.RUN, path, status, task.node, code)
    return OpRecord(*place, started_at=begun, ended_at=run.clock())


class StandingAttempt:
    """An attempt that holds the lock of its branch, until `done`, `failed` or `drop`."""

    def __init__(self, context: AttemptContext, superstep: Superstep, branch: Branch) -> None:
        self._context = context
        self.superstep = superstep
        self.branch = branch
        self.face: PortalSandbox | None = None  # made with the world, when it is first asked for
        self._making = asyncio.Lock()
        self._fork_s: float | None = None
        # protects what is sealed on the way from garbage collection
        self._world_pins = Pins(context.run.services.locks).of_world()

    @classmethod
    async def on(cls, context: AttemptContext, superstep: Superstep, branch: Branch) -> StandingAttempt:
        """Put the branch where the superstep began; its lock is held."""
        start = superstep.start
        if not start.unsealed:  # an earlier attempt may have changed it: an edge after the node raised
            if branch.unsealed:
                await context.run.worlds.drop(branch)
                branch.lost = False
            branch.snapshot, branch.checkpoint = start.snapshot, start.checkpoint
        context.run.journal.forget_below(context.task.key)
        return cls(context, superstep, branch)

    @property
    def start(self) -> Position:
        """Where the superstep began."""
        return self.superstep.start

    @property
    def may_have_changed(self) -> bool:
        """Whether its world may have changed already, or is about to be made."""
        return self.face is not None or self._making.locked()

    async def sandbox(self) -> PortalSandbox:
        """Return the task's world, in the state where its superstep began. Raises `WorldStartFailed`,
        `BackendUnavailable`."""
        async with self._making:
            if self.face is None:
                await self._fix_open_forks()
                world, self._fork_s = await self._context.run.worlds.acquire(self.branch)
                self.face = PortalSandbox(world, self._context.portal, self._commands())
                if self._context.run.came_back and self._fork_s is not None:
                    self._tell_restored(self._fork_s)
            return self.face

    def _tell_restored(self, took_s: float) -> None:
        state = self.branch.snapshot
        if state.id == self._context.run.record.base_snapshot:
            return
        why = f"state {state.id[:12]} is whole: {len(state.layers)} layers mounted, in place of the nodes before it"
        self._context.run.recovered(self.branch.path, Level.RESTORE, why, took_s)

    def _commands(self) -> ReusableCommands:
        """What answers `run(..., reuse=True)` from earlier results."""

        def blank(kind: OpKind, op: OpId, key: str) -> OpRecord:
            return self._context.run.row(kind, self._context.op, key, self.branch.path)

        return ReusableCommands(self._context.run, self._context.key, self._context.op.id, blank, self._world_pins)

    async def call_llm(self, requests: list[ChatRequest], said: CallSLO) -> list[ChatResult]:
        return await self._context.calls.stage(
            requests,
            op_id=self._context.op.id,
            place=self._context.key,
            branch=self.branch.path,
            step_key=self._context.task.key,
            said=said,
        )

    async def fork(self, number: int, state: Snapshot | None) -> NestedFork:
        """Record a fork of the world, in this state or as it is now."""
        async with self._making:
            state = state or await self._now()
            key = self._new_key(f"LEND|{number}")
            branch, place = await self._context.run.nested_fork(key, self._context.task.node, self.branch, state)
            return NestedFork(branch, state, place)

    def _new_key(self, what: str) -> str:
        """Return the journal key of a fork or merge. An attempt that was killed may have recorded one of that name,
        with another state: then the key has the number of a later attempt."""
        task = self._context.task
        keys = (f"{task.key}|a{number}|{what}" for number in itertools.count(task.attempt))
        return next(key for key in keys if not self._context.run.journal.knows(key))

    async def _fix_open_forks(self) -> None:
        """Give all open forks the present state, before the world changes."""
        waiting = [fork for fork in self._context.open_forks if fork.made is None and fork.state is None]
        if waiting:
            state = await self._now()
            for fork in waiting:
                fork.state = state
        self._context.open_forks.clear()

    async def take_back(self, base_id: str, theirs_id: str) -> None:
        """Merge what ran on a fork of this world into it. Raises `MergeConflict` if both sides changed a file."""
        async with self._making:
            await self._fix_open_forks()
            here = await self._now()
            base, theirs = await self._context.run.snapshot(base_id), await self._context.run.snapshot(theirs_id)
            if here.content_key and here.content_key == base.content_key:
                merged = theirs  # the same files, perhaps made again by a node that was resumed
            else:
                merged = await asyncio.to_thread(self._context.run.services.snapshots.merge, base, here, theirs)
            self._context.forks += 1
            key = self._new_key(f"BACK|{self._context.forks}")
            await self._context.run.taken_back(key, self._context.task, self.branch, (base, here, theirs), merged)
            if self.face is not None and self.branch.world is not None:
                await self.branch.world.rollback(merged)
            self.branch.snapshot = merged

    async def _now(self) -> Snapshot:
        """Return the sealed state of the node's world."""
        if self.branch.unsealed and self.face is None:
            world, self._fork_s = await self._context.run.worlds.acquire(self.branch)
            self.face = PortalSandbox(world, self._context.portal, self._commands())
        if self.face is not None and self.branch.world is not None:
            world = self.branch.world
            with self._world_pins.following(lambda: world.snapshot.id):
                return await world.seal(flush=False)
        return self.branch.snapshot

    async def done(self, value: Any = None, result: tuple[str, bytes] | None = None) -> StoredPosition | None:
        """Seal and commit what changed; return the channel write, None if nothing changed.

        `result` is what the node returned, as (kind, bytes) of a serialiser. A resumed thread that lost only
        LangGraph's record of this task gets it from the journal, and the node does not run again.
        """
        try:
            # stopped by a wrong cache hit whose error the node's code or a tool node has caught
            self._context.run.journal.refuse_when_stopped()
            with self._context.run.journal.ending(self.branch.path):
                return await self._done(brief(value), codec.encode(result), channels_written(value))
        except BaseException:
            await self._drop_world()
            raise
        finally:
            self.end()

    async def failed(self, error: Exception) -> None:
        """Record the error for people to read, add a note to it that says where it was raised, and drop the world."""
        stands, last = self.branch.snapshot.id, self._last_output()
        error.add_note(self._context.where(self.branch.path, stands) + last)
        try:
            row = self._context.row(
                self.branch.path,
                status=OpStatus.FAILED,
                snapshot_in=stands,
                attrs={"last_output": last, "attempt": str(self._context.task.attempt)},
                **error_fields(error),
            )
            await self._context.run.record_rows(row)
        finally:
            await self.drop()

    async def drop(self) -> None:
        """Discard what the attempt did to its world, and release the branch."""
        try:
            await self._drop_world()
        finally:
            self.end()

    def end(self) -> None:
        """Release the branch."""
        if self.face is not None:
            self.face.end()
        self._world_pins.close()
        self.branch.lock.release()

    async def served(self, row: OpRecord) -> StoredPosition | None:
        """Return the channel write of a recorded result, and release the branch."""
        try:
            return await self._served(row)
        finally:
            self.end()

    async def _drop_world(self) -> None:
        if self.face is not None:
            await self._context.run.worlds.drop(self.branch)

    async def _done(self, summary: str, result: str, wrote: dict[str, str]) -> StoredPosition | None:
        run, branch = self._context.run, self.branch
        seal_op = run.seal_op(self._context.op)
        entry, was_unsealed = self.superstep.start.snapshot, branch.unsealed
        sealed: Snapshot | None = None
        if branch.world is not None and (self.face is not None or branch.unsealed):
            # siblings are merged, and that needs a sealed state
            if seal_op is not None or self.superstep.place is not None:
                sealed = await branch.world.seal(flush=False)
            else:
                branch.unsealed = True
        out = sealed.id if sealed is not None else None if branch.unsealed else branch.snapshot.id
        changed = was_unsealed or out != entry.id
        if sealed is not None:
            wrote |= files_written(run.services.snapshots, entry, sealed)
        row = self._context.row(
            branch.path,
            result_json=result,
            result_digest=digest(result),
            summary=summary,
            snapshot_in=entry.id if self._context.has_world else None,
            snapshot_out=out if self._context.has_world else None,
            attrs=wrote if self._fork_s is None else {"fork_ms": f"{self._fork_s * 1000:.3f}", **wrote},
        )
        if not changed:
            run.note(row)  # LangGraph holds what the node returned, and nothing else can be lost
        elif sealed is None or (sealed.id == branch.snapshot.id and not was_unsealed):
            await run.record_rows(row, durable=self._context.durable)
        else:
            await self._record_sealed(row, sealed)
        if sealed is not None:
            branch.snapshot, branch.unsealed = sealed, False
        if self.superstep.place is not None:
            await run.worlds.drop(branch)  # nothing more runs on a child: it is merged in its sealed state
        elif branch.world is not None:
            await run.worlds.rest(branch)
        return self._write(branch.snapshot, branch.checkpoint, changed=changed, unsealed=branch.unsealed)

    async def _record_sealed(self, row: OpRecord, sealed: Snapshot) -> None:
        seal_op = self._context.run.seal_op(self._context.op)
        if seal_op is None:
            await self._context.run.record_rows(row, durable=self._context.durable)
            return
        seal = replace(
            row,
            key=f"{self._context.task.key}|SEAL",
            op_id=seal_op.id,
            kind=OpKind.SEAL,
            result_json=None,
            result_digest=sealed.content_key,
            started_at=row.ended_at,
            attrs={"tier": sealed.tier.value},
        )
        checkpoint = (self.branch, sealed, self._context.task.node)
        await self._context.run.record_rows(row, seal, checkpoint=checkpoint, durable=self._context.durable)

    async def _served(self, row: OpRecord) -> StoredPosition | None:
        snapshot = self.superstep.start.snapshot
        if row.snapshot_out is not None:
            snapshot = await self._context.run.snapshot(row.snapshot_out)
        seal = self._context.run.journal.served(f"{row.key}|SEAL")
        checkpoint = (
            self.superstep.start.checkpoint if seal is None else self._context.run.journal.checkpoint_of(seal)
        )
        return self._write(snapshot, checkpoint, changed=row.snapshot_in != row.snapshot_out)

    def _write(
        self, snapshot: Snapshot, checkpoint: CheckpointId, *, changed: bool, unsealed: bool = False
    ) -> StoredPosition | None:
        """Return what the task writes to the world channel; None if the channel holds that already."""
        start, line = self.superstep.start, self.superstep.line
        if self.superstep.place is not None:
            env = _env(self._context.run, line.path, start.at, start.snapshot, start.checkpoint)
            env["child"] = [snapshot.id, self._context.task.node, self.branch.path, checkpoint]
        else:
            env = _env(
                self._context.run, line.path, self._context.task.key if changed else start.at, snapshot, checkpoint
            )
            if unsealed:
                env["unsealed"] = True
        if self.superstep.env is not None:
            copy_fork(self.superstep.env, env)
        return env if env != self._context.held else None

    def _last_output(self) -> str:
        if self.face is None or self.face.last is None:
            return ""
        last = self.face.last
        tail = (last.stdout + last.stderr)[-_TAIL:].strip()
        return f"; its last command {last.command!r} exited with {last.exit_code}" + (f":\n{tail}" if tail else "")


def _env(run: GraphRun, path: BranchPath, at: str, snapshot: Snapshot, checkpoint: CheckpointId) -> StoredPosition:
    return {"run": run.record.id, "branch": path, "at": at, "snapshot": snapshot.id, "checkpoint": checkpoint}


def digest(packed: str) -> str:
    """Equals `codec.digest_text` of (kind, bytes). It contains no dicts, so no order has to be normalised."""
    return hashlib.sha256(packed.encode()).hexdigest()


def channels_written(value: Any) -> dict[str, str]:
    """Return the row attribute with the channels that a node's result names, directly or as a Command's update."""
    update = value.update if isinstance(value, Command) else value
    names = [name for name in update if isinstance(name, str)] if isinstance(update, dict) else []
    return {CHANNELS: "\n".join(names)} if names else {}


def error_fields(error: Exception) -> dict[str, str]:
    text = error_text(error)
    return {"error": text, "summary": text.splitlines()[0][:_LINE]}
