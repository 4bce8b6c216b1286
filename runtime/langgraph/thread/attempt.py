"""One attempt at a node: its world, its model calls, and how it ends.

An attempt *stands* from when its code first asks for the world, for a model, or for a graph or task of its own. Then
its position in the superstep is found, forks are recorded, and it holds the lock of its branch. An attempt that never
asks has no world, no lock and no position, and its row is written later.

Everything runs on the portal's loop, except `end_clean` and `fail_clean`, which any thread may call.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import hashlib
from dataclasses import replace
from typing import Any

from langgraph.types import Command

from ramify.compiler.plan import OpId, OpKind
from ramify.fork_engine.gc_pins import Pins
from ramify.fork_engine.types import Snapshot
from ramify.runtime.codec import codec
from ramify.runtime.errors import NotInARun
from ramify.runtime.estimates.recorded_runs import CHANNELS, files_written
from ramify.runtime.events import Level
from ramify.runtime.execution.model_calls import LLMCalls
from ramify.runtime.journal.journal import Durable
from ramify.runtime.langgraph.thread.graph_run import GraphRun
from ramify.runtime.langgraph.thread.nested_forks import Later, Lent, Loan
from ramify.runtime.langgraph.thread.portal import Portal, PortalSandbox
from ramify.runtime.langgraph.thread.positions import StoredPosition, copy_loan
from ramify.runtime.langgraph.thread.supersteps import Position, Superstep, Task
from ramify.runtime.langgraph.value_summary import brief
from ramify.runtime.records import BranchPath, CheckpointId, OpRecord, OpStatus
from ramify.runtime.reuse.commands import ReusableCommands
from ramify.runtime.worlds.world_pool import Branch
from ramify.serving.types import ChatRequest, ChatResult

_LINE = 80
_TAIL = 800


class Attempt:
    """One attempt at a node. End it by exactly one of `done`, `failed` and `dropped`, or by `end_clean` or
    `fail_clean` if it never stood."""

    def __init__(
        self,
        portal: Portal,
        run: GraphRun,
        task: Task,
        at: StoredPosition | Superstep | Later,
        calls: LLMCalls,
        saved: concurrent.futures.Future[Any] | None = None,
        *,
        held: StoredPosition | None = None,
    ) -> None:
        """`at` is where the world stands, or the superstep if it is known; `held` is the value of the world channel.
        `saved` is done when the superstep's checkpoint is durable: nothing is recorded under its id before."""
        self.portal = portal
        self.run = run
        self.task = task
        self.op = run.task_op(task)
        self.face: PortalSandbox | None = None  # made with the world, when it is first asked for
        self._at = at
        self._held = held
        self._saved = saved
        self._stood: tuple[Superstep, Branch] | None = None
        self._over = False
        self.calls = calls
        self._lent = 0
        self._loans: list[Loan] = []  # may not have been taken yet
        self._standing = asyncio.Lock()
        self._making = asyncio.Lock()
        self._fork_s: float | None = None
        self._ground = Pins(run.services.locks).ground()
        self._begun = run.services.clock()
        planned = None if task.inner else run.plan.step(task.node)
        self.code = planned.code_digest if planned is not None else ""

    @property
    def _step(self) -> Superstep:
        assert self._stood is not None, "stand comes first"
        return self._stood[0]

    @property
    def branch(self) -> Branch:
        assert self._stood is not None, "stand comes first"
        return self._stood[1]

    @property
    def start(self) -> Snapshot:
        """The state where the attempt's superstep began."""
        return self._step.start.snapshot

    @property
    def starts_unsealed(self) -> bool:
        return self._step.start.unsealed

    @property
    def has_world(self) -> bool:
        """False for a step declared pure."""
        return self.op.has_world or self.op.kind is OpKind.BREAK

    @property
    def _durable(self) -> Durable:
        """When the row of its end has to be durable: with LangGraph's checkpoint of the superstep, if one follows."""
        follows = self.run.with_checkpoints and self.task.durable and not self.task.inner
        return Durable.NEXT_STEP if follows else Durable.NOW

    async def stand(self) -> None:
        """Find the position and lock the branch. Raises `NodesConflict`, `WorldLost`, and `NotInARun` if the node is
        over."""
        async with self._standing:
            if self._stood is None:
                self._refuse_when_over()
                if self._saved is not None:
                    await asyncio.wrap_future(self._saved)
                at = self._at
                found = await at.known() if isinstance(at, Later) else at
                step = found if isinstance(found, Superstep) else await self.run.superstep(self.task, found)
                branch = step.branch(self.task.index)
                await branch.lock.acquire()
                try:
                    self._refuse_when_over()
                    await self._position(step.start, branch)
                except BaseException:
                    branch.lock.release()
                    raise
                self._stood = step, branch

    async def _position(self, start: Position, branch: Branch) -> None:
        if not start.unsealed:  # an earlier attempt may have changed it: an edge after the node raised
            if branch.unsealed:
                await self.run.worlds.drop(branch)
                branch.lost = False
            branch.snapshot, branch.checkpoint = start.snapshot, start.checkpoint
        self.run.journal.forget_place(f"{self.task.key}|")

    async def begin(self) -> tuple[Any, StoredPosition | None] | None:
        """Stand. If the journal has the result, return (result, channel write): then the attempt is over."""
        await self.stand()
        if self.task.attempt > 1:
            why = f"attempt {self.task.attempt} at node {self.task.node!r}, on the world that the first began on"
            self.run.recovered(self.branch.path, Level.RETRY, why, 0.0)
            return None
        if not self.task.durable:
            return None
        try:
            row = self.run.journal.served(self.task.key)
            result = codec.decode(row.result_json or "null") if row is not None else None
            if row is None or result is None or row.args_digest != self.code:
                return None
            served = result, await self._served(row)
        except BaseException:
            self._end()
            raise
        self._end()
        return served

    @property
    def stands(self) -> bool:
        """Whether it stands, or is about to."""
        return self._stood is not None or self._standing.locked()

    def end_clean(self, value: Any) -> bool:
        """End an attempt that never stood; return False if it does stand. Its row is written later together with
        others, and without the result, which LangGraph's own record makes durable sooner."""
        if self.stands:
            return False
        self._over = True
        attrs = channels_written(value)
        self._note(result_json=_NOTHING, result_digest=_NOTHING_DIGEST, summary=brief(value), attrs=attrs)
        return True

    def fail_clean(self, error: Exception) -> bool:
        """The counterpart of `failed` for an attempt that never stood; return False if it does stand."""
        if self.stands:
            return False
        self._over = True
        error.add_note(self._where(*self.place()))
        self._note(
            status=OpStatus.FAILED, attrs={"last_output": "", "attempt": str(self.task.attempt)}, **_told(error)
        )
        return True

    def _note(self, **changes: object) -> None:
        self.run.note(self._row(self.place()[0], **changes))

    def place(self) -> tuple[BranchPath, str]:
        """Return the branch and the snapshot id where it is, or where the node is that lends it a world."""
        at = self._at
        if isinstance(at, Later):
            return at.lenders_place()
        if isinstance(at, Superstep):
            return at.line.path, at.start.snapshot.id
        return BranchPath(at["branch"]), at["snapshot"]

    def _refuse_when_over(self) -> None:
        if self._over:
            raise NotInARun(f"node {self.task.node!r} is over: its world cannot be used any more")

    async def sandbox(self) -> PortalSandbox:
        """Return the task's world, in the state where its superstep began. Raises `WorldStartFailed`,
        `BackendUnavailable`."""
        await self.stand()
        async with self._making:
            if self.face is None:
                await self._fix_loans()
                world, self._fork_s = await self.run.worlds.acquire(self.branch)
                self.face = PortalSandbox(world, self.portal, self._commands())
                if self.run.came_back and self._fork_s is not None:
                    self._tell_restored(self._fork_s)
            return self.face

    def _tell_restored(self, took_s: float) -> None:
        state = self.branch.snapshot
        if state.id == self.run.record.base_snapshot:
            return
        why = f"state {state.id[:12]} is whole: {len(state.layers)} layers mounted, in place of the nodes before it"
        self.run.recovered(self.branch.path, Level.RESTORE, why, took_s)

    def _commands(self) -> ReusableCommands:
        """What answers `run(..., reuse=True)` from earlier results."""

        def blank(kind: OpKind, op: OpId, key: str) -> OpRecord:
            return self.run.row(kind, self.op, key, self.branch.path)

        return ReusableCommands(self.run, f"{self.task.key}|a{self.task.attempt}", self.op.id, blank, self._ground)

    async def call_llm(self, requests: list[ChatRequest]) -> list[ChatResult]:
        await self.stand()
        place = f"{self.task.key}|a{self.task.attempt}"
        return await self.calls.stage(
            requests, op_id=self.op.id, place=place, branch=self.branch.path, step_key=self.task.key
        )

    def lends(self) -> Loan:
        """Reserve a fork of the world as it is now, for something that the node's code runs. Any thread may call
        this. If `must_lend_now`, take the loan at once."""
        number, self._lent = self._lent, self._lent + 1

        async def make(state: Snapshot | None) -> Lent:
            await self.stand()
            async with self._making:
                state = state or await self._now()
                key = f"{self.task.key}|a{self.task.attempt}|LEND|{number}"
                branch, place = await self.run.lent(key, self.task.node, self.branch, state)
                return Lent(branch, state, place)

        self._loans.append(Loan(make))
        return self._loans[-1]

    @property
    def must_lend_now(self) -> bool:
        """Whether the node's world may have changed already, or is about to be made."""
        return self.face is not None or self._making.locked()

    async def _fix_loans(self) -> None:
        """Give all open loans the present state, before the world changes."""
        waiting = [loan for loan in self._loans if loan.lent is None and loan.state is None]
        if waiting:
            state = await self._now()
            for loan in waiting:
                loan.state = state
        self._loans.clear()

    async def take_back(self, base_id: str, theirs_id: str) -> None:
        """Merge what ran on a fork of this world into it. Raises `MergeConflict` if both sides changed a file."""
        if base_id == theirs_id:
            return
        await self.stand()
        async with self._making:
            await self._fix_loans()
            here = await self._now()
            base, theirs = await self.run.snapshot(base_id), await self.run.snapshot(theirs_id)
            if here.content_key and here.content_key == base.content_key:
                merged = theirs  # the same files, perhaps made again by a node that was resumed
            else:
                merged = await asyncio.to_thread(self.run.services.snapshots.merge, base, here, theirs)
            self._lent += 1
            key = f"{self.task.key}|a{self.task.attempt}|BACK|{self._lent}"
            await self.run.taken_back(key, self.task, self.branch, (base, here, theirs), merged)
            if self.face is not None and self.branch.world is not None:
                await self.branch.world.rollback(merged)
            self.branch.snapshot = merged

    async def _now(self) -> Snapshot:
        """Return the sealed state of the node's world."""
        if self.branch.unsealed and self.face is None:
            world, self._fork_s = await self.run.worlds.acquire(self.branch)
            self.face = PortalSandbox(world, self.portal, self._commands())
        if self.face is not None and self.branch.world is not None:
            sealed = await self.branch.world.seal(flush=False)
            self._ground.moved(sealed.id)
            return sealed
        return self.branch.snapshot

    async def done(self, value: Any = None, result: tuple[str, bytes] | None = None) -> StoredPosition | None:
        """Seal and commit what changed; return the channel write, None if nothing changed.

        `result` is what the node returned, as (kind, bytes) of a serialiser. A resumed thread that lost only
        LangGraph's record of this task gets it from the journal, and the node does not run again.
        """
        await self.stand()
        try:
            # stopped by a wrong cache hit whose error the node's code or a tool node has caught
            self.run.journal.refuse_when_stopped()
            with self.run.journal.ending(self.branch.path):
                return await self._done(brief(value), codec.encode(result), channels_written(value))
        except BaseException:
            await self._let_go()
            raise
        finally:
            self._end()

    async def failed(self, error: Exception) -> None:
        """Record the error for people to read, add a note to it that says where it was raised, and drop the world."""
        await self.stand()
        stands, last = self.branch.snapshot.id, self._last_output()
        error.add_note(self._where(self.branch.path, stands) + last)
        try:
            row = self._row(
                self.branch.path,
                status=OpStatus.FAILED,
                snapshot_in=stands,
                attrs={"last_output": last, "attempt": str(self.task.attempt)},
                **_told(error),
            )
            await self.run.record_rows(row)
        finally:
            await self.dropped()

    async def dropped(self) -> None:
        """Discard what an interrupted or cancelled attempt did to its world."""
        async with self._standing:
            self._over = True
        if self._stood is None:
            return
        try:
            await self._let_go()
        finally:
            self._end()

    def _end(self) -> None:
        self._over = True
        if self.face is not None:
            self.face.end()
        self._ground.close()
        self.branch.lock.release()

    def _where(self, branch: str, snapshot: str) -> str:
        return f"raised in node {self.task.node!r} on branch {branch}, on the world of snapshot {snapshot[:12]}"

    async def _let_go(self) -> None:
        if self.face is not None:
            await self.run.worlds.drop(self.branch)

    async def _done(self, summary: str, result: str, wrote: dict[str, str]) -> StoredPosition | None:
        run, branch = self.run, self.branch
        seal_op = run.seal_op(self.op)
        entry, was_unsealed = self._step.start.snapshot, branch.unsealed
        sealed: Snapshot | None = None
        if branch.world is not None and (self.face is not None or branch.unsealed):
            # siblings are merged, and that needs a sealed state
            if seal_op is not None or self._step.place is not None:
                sealed = await branch.world.seal(flush=False)
            else:
                branch.unsealed = True
        out = sealed.id if sealed is not None else None if branch.unsealed else branch.snapshot.id
        changed = was_unsealed or out != entry.id
        if sealed is not None:
            wrote |= files_written(run.services.snapshots, entry, sealed)
        row = self._row(
            branch.path,
            result_json=result,
            result_digest=_digest(result),
            summary=summary,
            snapshot_in=entry.id if self.has_world else None,
            snapshot_out=out if self.has_world else None,
            attrs=wrote if self._fork_s is None else {"fork_ms": f"{self._fork_s * 1000:.3f}", **wrote},
        )
        if not changed:
            run.note(row)  # LangGraph holds what the node returned, and nothing else can be lost
        elif sealed is None or (sealed.id == branch.snapshot.id and not was_unsealed):
            await run.record_rows(row, durable=self._durable)
        else:
            await self._record_sealed(row, sealed)
        if sealed is not None:
            branch.snapshot, branch.unsealed = sealed, False
        if self._step.place is not None:
            await run.worlds.drop(branch)  # nothing more runs on a child: it is merged in its sealed state
        elif branch.world is not None:
            await run.worlds.rest(branch)
        return self._write(branch.snapshot, branch.checkpoint, changed=changed, unsealed=branch.unsealed)

    async def _record_sealed(self, row: OpRecord, sealed: Snapshot) -> None:
        seal_op = self.run.seal_op(self.op)
        if seal_op is None:
            await self.run.record_rows(row, durable=self._durable)
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
        checkpoint = (self.branch, sealed, self.task.node)
        await self.run.record_rows(row, seal, checkpoint=checkpoint, durable=self._durable)

    async def _served(self, row: OpRecord) -> StoredPosition | None:
        snapshot = self._step.start.snapshot
        if row.snapshot_out is not None:
            snapshot = await self.run.snapshot(row.snapshot_out)
        seal = self.run.journal.served(f"{row.key}|SEAL")
        checkpoint = self._step.start.checkpoint if seal is None else self.run.journal.checkpoint_of(seal)
        return self._write(snapshot, checkpoint, changed=row.snapshot_in != row.snapshot_out)

    def _write(
        self, snapshot: Snapshot, checkpoint: CheckpointId, *, changed: bool, unsealed: bool = False
    ) -> StoredPosition | None:
        """Return what the task writes to the world channel; None if the channel holds that already."""
        start, line = self._step.start, self._step.line
        if self._step.place is not None:
            env = _env(self.run, line.path, start.at, start.snapshot, start.checkpoint)
            env["child"] = [snapshot.id, self.task.node, self.branch.path, checkpoint]
        else:
            env = _env(self.run, line.path, self.task.key if changed else start.at, snapshot, checkpoint)
            if unsealed:
                env["unsealed"] = True
        if self._step.env is not None:
            copy_loan(self._step.env, env)
        return env if env != self._held else None

    def _row(self, path: BranchPath, **changes: object) -> OpRecord:
        return self.run.row(
            OpKind.RUN,
            self.op,
            self.task.key,
            path,
            **{"step": self.task.node, "args_digest": self.code, "started_at": self._begun, **changes},
        )

    def _last_output(self) -> str:
        if self.face is None or self.face.last is None:
            return ""
        last = self.face.last
        tail = (last.stdout + last.stderr)[-_TAIL:].strip()
        return f"; its last command {last.command!r} exited with {last.exit_code}" + (f":\n{tail}" if tail else "")


def _env(run: GraphRun, path: BranchPath, at: str, snapshot: Snapshot, checkpoint: CheckpointId) -> StoredPosition:
    return {"run": run.record.id, "branch": path, "at": at, "snapshot": snapshot.id, "checkpoint": checkpoint}


def _digest(packed: str) -> str:
    """Equals `codec.digest_text` of (kind, bytes). It contains no dicts, so no order has to be normalised."""
    return hashlib.sha256(packed.encode()).hexdigest()


def channels_written(value: Any) -> dict[str, str]:
    """Return the row attribute with the channels that a node's result names, directly or as a Command's update."""
    update = value.update if isinstance(value, Command) else value
    names = [name for name in update if isinstance(name, str)] if isinstance(update, dict) else []
    return {CHANNELS: "\n".join(names)} if names else {}


def _told(error: Exception) -> dict[str, str]:
    text = f"{type(error).__name__}: {error}"
    return {"error": text, "summary": text.splitlines()[0][:_LINE]}


_NOTHING = codec.encode(None)
_NOTHING_DIGEST = _digest(_NOTHING)
