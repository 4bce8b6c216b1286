"""One attempt at a node: its world, its model calls, and how it ends.

An attempt *stands* from when its code first asks for the world, for a model, or for a graph or task of its own. Then
its position in the superstep is found, forks are recorded, and it holds the lock of its branch (`StandingAttempt`).
An attempt that never asks has no world, no lock and no position, and its row is written later.

Everything runs on the portal's loop, except `end_clean` and `fail_clean`, which any thread may call.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
from typing import Any, NamedTuple

from ramify.fork_engine.types import Snapshot
from ramify.runtime.codec import codec
from ramify.runtime.errors import NotInARun
from ramify.runtime.events import Level
from ramify.runtime.execution.model_calls import LLMCalls
from ramify.runtime.langgraph.thread.graph_run import GraphRun
from ramify.runtime.langgraph.thread.portal import Portal, PortalSandbox
from ramify.runtime.langgraph.thread.positions import StoredPosition
from ramify.runtime.langgraph.thread.standing_attempt import (
    AttemptContext,
    StandingAttempt,
    channels_written,
    digest,
    error_fields,
    node_row,
)
from ramify.runtime.langgraph.thread.supersteps import DeferredFork, DeferredPosition, NestedFork, Superstep, Task
from ramify.runtime.langgraph.value_summary import brief
from ramify.runtime.records import BranchPath, OpStatus
from ramify.runtime.user_code.call_slo import CallSLO
from ramify.serving.types import ChatRequest, ChatResult

Place = StoredPosition | Superstep | DeferredPosition
"""Where an attempt stands, or the superstep if it is known."""


class Ready(NamedTuple):
    """What an attempt at a node begins with. A node that asks for nothing ends with no more than that. A tuple, as
    every node makes one."""

    run: GraphRun
    at: Place
    calls: LLMCalls
    held: StoredPosition | None  # the value of the world channel
    begun: float  # Unix seconds

    def attempt(self, portal: Portal, task: Task, saved: concurrent.futures.Future[Any] | None) -> Attempt:
        """Return the attempt. `saved` is done when the superstep's checkpoint is durable: nothing is recorded under
        its id before."""
        op, code = self.run.planned(task)
        context = AttemptContext(portal, self.run, task, self.calls, self.held, op, code, self.begun)
        return Attempt(context, self.at, saved)

    def end_clean(self, task: Task, value: Any) -> None:
        """End a node that returned and never asked for anything. Its row is written later together with others, and
        without the result, which LangGraph's own record makes durable sooner."""
        op, code = self.run.planned(task)
        row = node_row(self.run, task, op, code, self.begun, _branch_and_snapshot(self.at)[0], OpStatus.DONE)
        row.result_json, row.result_digest = _NOTHING, _NOTHING_DIGEST
        row.summary, row.attrs = brief(value), channels_written(value)
        self.run.note(row)


class Attempt:
    """One attempt at a node. End it by exactly one of `done`, `failed` and `dropped`, or by `end_clean` or
    `fail_clean` if it never stood."""

    def __init__(
        self, context: AttemptContext, at: Place, saved: concurrent.futures.Future[Any] | None = None
    ) -> None:
        """`saved` as for `Ready.attempt`."""
        self.portal, self.run, self.task, self.calls = context.portal, context.run, context.task, context.calls
        self._context = context
        self._at = at
        self._saved = saved
        self._standing: StandingAttempt | None = None
        self._lock: asyncio.Lock | None = None  # held while it begins to stand; most attempts never do
        self._over = False

    @property
    def code(self) -> str:
        """The digest of the node's code."""
        return self._context.code

    @property
    def has_world(self) -> bool:
        """False for a step declared pure."""
        return self._context.has_world

    @property
    def face(self) -> PortalSandbox | None:
        """The world's sandbox; None if nothing has asked for it."""
        return self._standing.face if self._standing is not None else None

    async def stand(self) -> StandingAttempt:
        """Find the position and lock the branch, unless that was done. Raises `NodesConflict`, `WorldLost`, and
        `NotInARun` if the node is over."""
        async with self._beginning():
            if self._standing is None:
                self._refuse_when_over()
                if self._saved is not None:
                    await asyncio.wrap_future(self._saved)
                at = self._at
                found = await at.known() if isinstance(at, DeferredPosition) else at
                step = found if isinstance(found, Superstep) else await self.run.superstep(self.task, found)
                branch = step.branch(self.task.number)
                await branch.lock.acquire()
                try:
                    self._refuse_when_over()
                    self._standing = await StandingAttempt.on(self._context, step, branch)
                except BaseException:
                    branch.lock.release()
                    raise
            return self._standing

    def _beginning(self) -> asyncio.Lock:
        """Return the lock, on the portal's loop."""
        if self._lock is None:
            self._lock = asyncio.Lock()
        return self._lock

    async def begin(self) -> tuple[Any, StoredPosition | None] | None:
        """Stand. If the journal has the result, return (result, channel write): then the attempt is over."""
        standing = await self.stand()
        if self.task.attempt > 1:
            why = f"attempt {self.task.attempt} at node {self.task.node!r}, on the world that the first began on"
            self.run.recovered(standing.branch.path, Level.RETRY, why, 0.0)
            return None
        if not self.task.durable:
            return None
        try:
            row = self.run.journal.served(self.task.key)
            result = codec.decode(row.result_json or "null") if row is not None else None
            if row is None or result is None or row.args_digest != self._context.code:
                return None
        except BaseException:
            self._over = True
            standing.end()
            raise
        self._over = True
        return result, await standing.served(row)

    @property
    def is_over(self) -> bool:
        return self._over

    @property
    def stands(self) -> bool:
        """Whether it stands, or is about to."""
        return self._standing is not None or (self._lock is not None and self._lock.locked())

    def end(self) -> None:
        """End an attempt that never stood: it cannot stand any more."""
        self._over = True

    def end_clean(self, value: Any) -> bool:
        """End an attempt that never stood as `Ready.end_clean` does; return False if it does stand."""
        if self.stands:
            return False
        self.end()
        context = self._context
        Ready(self.run, self._at, self.calls, context.held, context.begun).end_clean(self.task, value)
        return True

    def fail_clean(self, error: Exception) -> bool:
        """The counterpart of `failed` for an attempt that never stood; return False if it does stand."""
        if self.stands:
            return False
        self.end()
        branch, snapshot = self.place()
        error.add_note(self._context.where(branch, snapshot))
        attrs = {"last_output": "", "attempt": str(self.task.attempt)}
        self.run.note(self._context.row(branch, status=OpStatus.FAILED, attrs=attrs, **error_fields(error)))
        return True

    def place(self) -> tuple[BranchPath, str]:
        """Return the branch and the snapshot id where it is, or where the node is whose world it gets a fork of."""
        return _branch_and_snapshot(self._at)

    def _refuse_when_over(self) -> None:
        if self._over:
            raise NotInARun(f"node {self.task.node!r} has ended: its world cannot be used after that")

    async def sandbox(self) -> PortalSandbox:
        """Return the task's world, in the state where its superstep began. Raises `WorldStartFailed`,
        `BackendUnavailable`."""
        return await (await self.stand()).sandbox()

    async def call_llm(self, requests: list[ChatRequest], said: CallSLO) -> list[ChatResult]:
        return await (await self.stand()).call_llm(requests, said)

    def reserve_fork(self) -> DeferredFork:
        """Reserve a fork of the world as it is now, for something that the node's code runs. If `must_fork_now`, take
        it at once. Any thread may call this."""
        number = self._context.forks
        self._context.forks += 1

        async def make(state: Snapshot | None) -> NestedFork:
            return await (await self.stand()).fork(number, state)

        fork = DeferredFork(make)
        self._context.open_forks.append(fork)
        return fork

    @property
    def must_fork_now(self) -> bool:
        """Whether the node's world may have changed already, or is about to be made."""
        return self._standing is not None and self._standing.may_have_changed

    async def take_back(self, base_id: str, theirs_id: str) -> None:
        """Merge what ran on a fork of this world into it. Raises `MergeConflict` if both sides changed a file."""
        if base_id != theirs_id:
            await (await self.stand()).take_back(base_id, theirs_id)

    async def done(self, value: Any = None, result: tuple[str, bytes] | None = None) -> StoredPosition | None:
        """Seal and commit what changed; return the channel write, None if nothing changed. `result` as in
        `StandingAttempt.done`."""
        standing = await self.stand()
        try:
            return await standing.done(value, result)
        finally:
            self._over = True

    async def failed(self, error: Exception) -> None:
        """Record the error for people to read, add a note to it that says where it was raised, and drop the world."""
        standing = await self.stand()
        try:
            await standing.failed(error)
        finally:
            self._over = True

    async def dropped(self) -> None:
        """Discard what an interrupted or cancelled attempt did to its world."""
        async with self._beginning():
            self._over = True
        if self._standing is not None:
            await self._standing.drop()


def _branch_and_snapshot(at: Place) -> tuple[BranchPath, str]:
    if type(at) is dict:
        return BranchPath(at["branch"]), at["snapshot"]
    if isinstance(at, DeferredPosition):
        return at.callers_place()
    assert isinstance(at, Superstep), "the only other place"
    return at.line.path, at.start.snapshot.id


_NOTHING = codec.encode(None)
_NOTHING_DIGEST = digest(_NOTHING)
