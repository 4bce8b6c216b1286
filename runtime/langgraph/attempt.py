"""One attempt at a node: its world, made when it is first asked for, its model calls, and how it ends.

All of this runs on the portal's loop.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

from ramify.compiler.plan import OpKind
from ramify.fork_engine.types import Snapshot
from ramify.runtime import codec
from ramify.runtime.calls import LLMCalls
from ramify.runtime.langgraph.channel import Env
from ramify.runtime.langgraph.portal import FarSandbox, Portal
from ramify.runtime.langgraph.thread import GraphRun, Superstep, Task
from ramify.runtime.records import BranchPath, CheckpointId, OpRecord, OpStatus
from ramify.runtime.worlds import Branch
from ramify.serving.types import ChatRequest, ChatResult

_LINE = 80
_TAIL = 800


class Attempt:
    """Begun with `begin`, ended by exactly one of `done`, `failed` and `dropped`."""

    def __init__(self, portal: Portal, run: GraphRun, task: Task, step: Superstep, calls: LLMCalls) -> None:
        self.portal = portal
        self.run = run
        self.task = task
        self.op = run.node_op(task.node)
        self.branch: Branch = step.branch(task.index)
        self.face: FarSandbox | None = None  # made with the world, when it is first asked for
        self._step = step
        self._calls = calls
        self._making = asyncio.Lock()
        self._fork_s: float | None = None
        self._begun = run.services.clock()
        planned = run.plan.step(task.node)
        self._code = planned.code_digest if planned is not None else ""

    @property
    def has_world(self) -> bool:
        """False for a step declared pure."""
        return bool(self.op.inputs) or self.op.kind is OpKind.BREAK

    async def begin(self) -> tuple[Any, Env] | None:
        """The recorded (result, channel write) where the journal has it; else None, and the branch is ours."""
        await self.branch.lock.acquire()
        try:
            return await self._begin()
        except BaseException:
            self.branch.lock.release()
            raise

    async def _begin(self) -> tuple[Any, Env] | None:
        start = self._step.start
        if not start.unsealed:  # an earlier attempt may have moved on: the edge after the node raised
            if self.branch.unsealed:
                await self.run.worlds.drop(self.branch)
                self.branch.lost = False
            self.branch.snapshot, self.branch.checkpoint = start.snapshot, start.checkpoint
        if self.task.durable and self.task.attempt == 1:
            row = self.run.journal.served(self.task.key)
            result = codec.decode(row.result_json or "null") if row is not None else None
            if row is not None and result is not None and row.args_digest == self._code:
                served = result, await self._served(row)
                self.branch.lock.release()
                return served
        self.run.journal.forget_place(f"{self.task.key}|")
        return None

    async def sandbox(self) -> FarSandbox:
        """The task's world, standing where its superstep began. Raises `WorldStartFailed`, `BackendUnavailable`."""
        async with self._making:
            if self.face is None:
                world, self._fork_s = await self.run.worlds.acquire(self.branch)
                self.face = FarSandbox(world, self.portal)
            return self.face

    async def call_llm(self, requests: list[ChatRequest]) -> list[ChatResult]:
        place = f"{self.task.key}|a{self.task.attempt}"
        return await self._calls.stage(
            requests, op_id=self.op.id, place=place, branch=self.branch.path, step_key=self.task.key
        )

    async def done(self, summary: str = "", result: tuple[str, bytes] | None = None) -> Env:
        """Seal what changed and commit it. `result` is what the node returned, as (kind, bytes) of a serialiser: a
        resumed thread that lost only LangGraph's own record of this task gets it again without running the node."""
        try:
            return await self._done(summary.partition("\n")[0][:_LINE], codec.encode(result))
        except BaseException:
            await self._let_go()
            raise
        finally:
            self._over()

    async def failed(self, error: Exception) -> None:
        """Record it for people to read, say on the error where it was raised, and drop the world."""
        shown = f"{type(error).__name__}: {error}"
        stands = self.branch.snapshot.id
        last = self._last_output()
        error.add_note(
            f"raised in node {self.task.node!r} on branch {self.branch.path}, on the world of snapshot {stands[:12]}"
            + last
        )
        try:
            await self.run.record_rows(
                self._row(
                    status=OpStatus.FAILED,
                    error=shown,
                    snapshot_in=stands,
                    summary=shown.splitlines()[0][:_LINE],
                    attrs={"last_output": last, "attempt": str(self.task.attempt)},
                )
            )
        finally:
            await self.dropped()

    async def dropped(self) -> None:
        """Interrupted or cancelled: what it did to its world is forgotten."""
        try:
            await self._let_go()
        finally:
            self._over()

    def _over(self) -> None:
        if self.face is not None:
            self.face.end()
        self.branch.lock.release()

    async def _let_go(self) -> None:
        if self.face is not None:
            await self.run.worlds.drop(self.branch)

    async def _done(self, summary: str, result: str) -> Env:
        run, branch = self.run, self.branch
        seal_op = run.seal_op(self.op)
        entry, was_unsealed = branch.snapshot, branch.unsealed
        sealed: Snapshot | None = None
        if branch.world is not None and (self.face is not None or branch.unsealed):
            if seal_op is not None or self._step.place is not None:  # siblings are merged: that needs a sealed state
                sealed = await branch.world.seal()
            else:
                branch.unsealed = True
        out = sealed.id if sealed is not None else None if branch.unsealed else entry.id
        row = self._row(
            result_json=result,
            result_digest=codec.digest_text(result),
            summary=summary,
            snapshot_in=entry.id if self.has_world else None,
            snapshot_out=out if self.has_world else None,
            attrs={} if self._fork_s is None else {"fork_ms": f"{self._fork_s * 1000:.3f}"},
        )
        if sealed is None or (sealed.id == entry.id and not was_unsealed):
            await run.record_rows(row)
        else:
            await self._record_sealed(row, sealed)
        if sealed is not None:
            branch.snapshot, branch.unsealed = sealed, False
        if self._step.place is not None:
            await run.worlds.drop(branch)  # nothing more runs on a child: it is merged as it was sealed
        elif branch.world is not None:
            await run.worlds.rest(branch)
        return self._write(branch.snapshot, branch.checkpoint, unsealed=branch.unsealed)

    async def _record_sealed(self, row: OpRecord, sealed: Snapshot) -> None:
        seal_op = self.run.seal_op(self.op)
        if seal_op is None:
            await self.run.record_rows(row)
            return
        seal = replace(
            row,
            key=f"{self.task.key}|SEAL",
            op_id=seal_op.id,
            kind=OpKind.SEAL,
            result_json=None,
            result_digest=sealed.content_key,
            started_at=row.ended_at,
            attrs={"tier": sealed.tier.value},
        )
        await self.run.record_rows(row, seal, checkpoint=(self.branch, sealed, self.task.node))

    async def _served(self, row: OpRecord) -> Env:
        snapshot = self._step.start.snapshot
        if row.snapshot_out is not None:
            snapshot = await asyncio.to_thread(self.run.services.snapshots.get, row.snapshot_out)
        seal = self.run.journal.served(f"{row.key}|SEAL")
        checkpoint = self._step.start.checkpoint if seal is None else self.run.journal.checkpoint_of(seal)
        return self._write(snapshot, checkpoint)

    def _write(self, snapshot: Snapshot, checkpoint: CheckpointId, *, unsealed: bool = False) -> Env:
        """What the task writes to the channel."""
        start, line = self._step.start, self._step.line
        if self._step.place is not None:
            env = _env(self.run, line.path, start.at, start.snapshot, start.checkpoint)
            env["child"] = [snapshot.id, self.task.node, self.branch.path, checkpoint]
            return env
        env = _env(self.run, line.path, self.task.key, snapshot, checkpoint)
        if unsealed:
            env["unsealed"] = True
        return env

    def _row(self, **changes: object) -> OpRecord:
        return self.run.row(
            OpKind.RUN,
            self.op,
            self.task.key,
            self.branch.path,
            **{"step": self.task.node, "args_digest": self._code, "started_at": self._begun, **changes},
        )

    def _last_output(self) -> str:
        if self.face is None or self.face.last is None:
            return ""
        last = self.face.last
        tail = (last.stdout + last.stderr)[-_TAIL:].strip()
        return f"; its last command {last.command!r} exited with {last.exit_code}" + (f":\n{tail}" if tail else "")


def _env(run: GraphRun, path: BranchPath, at: str, snapshot: Snapshot, checkpoint: CheckpointId) -> Env:
    return {"run": run.record.id, "branch": path, "at": at, "snapshot": snapshot.id, "checkpoint": checkpoint}
