"""What a compiled app keeps behind it: the portal, the services, and the runs that are being worked on.

Everything is opened by the first node that runs. Nothing of it survives a kill, and nothing needs to: the runs are
in the journal, and the sandboxes' helper ends with its parent.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path

from ramify.compiler.plan import Plan
from ramify.fork_engine.types import Skipped, SnapshotId
from ramify.runtime.calls import LLMCalls
from ramify.runtime.driver import Launch, Services, create, new_run_id
from ramify.runtime.errors import RunNotFound
from ramify.runtime.journal import checkpoint_id
from ramify.runtime.langgraph.attempt import Attempt
from ramify.runtime.langgraph.channel import Env
from ramify.runtime.langgraph.errors import SessionClosed, WorldLost
from ramify.runtime.langgraph.portal import Portal
from ramify.runtime.langgraph.thread import GraphRun, Task
from ramify.runtime.records import CheckpointId, RunId, RunRecord, RunStatus

OpenServices = Callable[[], AbstractAsyncContextManager[Services]]


@dataclass(eq=False, slots=True)
class Invocation:
    """One call of `invoke`, `stream` and their like."""

    thread: str | None
    addressed: bool  # the caller named a checkpoint: its thread has been run before
    calls: dict[RunId, LLMCalls] = field(default_factory=dict)
    env: Callable[[], Env | None] = lambda: None  # the channel's value, once all supersteps are done
    anonymous: RunId | None = None  # the run, where nothing is kept that could name it


class Session:
    def __init__(
        self, open_services: OpenServices, plan: Plan, workspace: Path | None, deadline_s: float | None
    ) -> None:
        self.portal = Portal()
        self.plan = plan
        self._open_services = open_services
        self._workspace = workspace
        self._deadline_s = deadline_s
        self._runs: dict[RunId, GraphRun] = {}
        self._users: dict[RunId, set[Invocation]] = {}
        self._lock = asyncio.Lock()
        self._services: asyncio.Future[Services] | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._closing = asyncio.Event()
        self.last_run_id: RunId | None = None

    def close(self) -> None:
        """End what is open. Safe to call twice; the app cannot be used afterwards."""
        if self.portal.started:
            self.portal.wait(self._close())
        self.portal.stop()

    async def start(self, invocation: Invocation, task: Task, env: Env | None) -> Env | None:
        """A thread begins: import the workspace. None where it has begun already."""
        if env is not None:
            return None
        return await self._first(await self._enter(invocation, await self._run_id(invocation, task), new=True))

    async def begin(self, invocation: Invocation, task: Task, env: Env | None) -> Attempt:
        """The attempt at a node, its branch found. Raises `RunNotFound` for a thread of another home."""
        if env is None:
            run = await self._enter(invocation, await self._run_id(invocation, task), new=True)
        else:
            run = await self._enter(invocation, RunId(env["run"]))
        step = await run.superstep(task, env or await self._first(run))
        return Attempt(self.portal, run, task, step, invocation.calls[run.record.id])

    async def end(self, invocation: Invocation, error: BaseException | None) -> None:
        """An invocation is over. Raises `NodesConflict` where its last superstep does not merge."""
        env = invocation.env() if error is None else None
        try:
            if env is not None and "join" in env and env["run"] in invocation.calls:
                await self._runs[RunId(env["run"])].settle(env)
        except Exception as failure:
            error = failure
            raise
        finally:
            for run_id in invocation.calls:
                self._users[run_id].discard(invocation)
                if not self._users[run_id] and run_id in self._runs:
                    await self._runs.pop(run_id).close(*_outcome(error))

    async def snapshot(self, env: Env) -> SnapshotId:
        """The snapshot that a checkpoint's value means, siblings merged. Raises `NodesConflict`, `WorldLost`."""
        if env.get("unsealed"):
            raise WorldLost(env["branch"])
        if "join" not in env:
            return SnapshotId(env["snapshot"])
        asking = Invocation(None, addressed=True)
        run = await self._enter(asking, RunId(env["run"]))
        try:
            return (await run.settle(env)).snapshot.id
        finally:
            await self.end(asking, None)

    async def services(self) -> Services:
        if self._services is None:
            self._services = asyncio.get_running_loop().create_future()
            self._keeper = asyncio.create_task(self._keep_open(self._services))
        return await asyncio.shield(self._services)

    # Below: how it is done

    async def _keep_open(self, opened: asyncio.Future[Services]) -> None:
        """One task opens and closes the services: what they hold may belong to it."""
        try:
            async with self._open_services() as services:
                opened.set_result(services)
                await self._closing.wait()
        except Exception as error:
            if opened.done():
                raise
            self._services = None  # the next call may have more luck
            opened.set_exception(error)

    async def _close(self) -> None:
        self._closing.set()
        for run in list(self._runs.values()):
            await run.close(RunStatus.CANCELLED, "the app was closed")
        self._runs.clear()
        if self._keeper is not None:
            await self._keeper

    async def _enter(self, invocation: Invocation, run_id: RunId, *, new: bool = False) -> GraphRun:
        async with self._lock:
            if self._closing.is_set():
                raise SessionClosed("this app was closed: compile the graph again")
            services = await self.services()
            if run_id not in self._runs:
                self._runs[run_id] = await self._open(services, invocation, run_id, new)
                self._users[run_id] = set()
            run = self._runs[run_id]
            self._users[run_id].add(invocation)
            self.last_run_id = run_id
            if run_id not in invocation.calls:
                # every invocation has the whole deadline: a thread may lie still for days between two of them
                limit = None if self._deadline_s is None else self._deadline_s + run.journal.consumed_s()
                record = replace(run.record, deadline_s=limit)
                invocation.calls[run_id] = LLMCalls(record, self.plan, run.journal, services.llm, services.clock)
            return run

    async def _open(self, services: Services, invocation: Invocation, run_id: RunId, new: bool) -> GraphRun:
        try:
            record, skipped = await services.store.run(run_id), tuple[Skipped, ...]()
        except RunNotFound:
            if not new:
                raise
            launch = Launch(self.plan, (), {}, self._workspace, self._deadline_s, run_id, invocation.thread)
            record, skipped = await create(services, launch)
        return await GraphRun.open(services, record, self.plan, skipped)

    async def _run_id(self, invocation: Invocation, task: Task) -> RunId:
        """Which run a thread without a world belongs to: a new one, the same however often its start is repeated."""
        if not task.durable:
            invocation.anonymous = invocation.anonymous or new_run_id()
            return invocation.anonymous
        if invocation.addressed and (known := await self._run_of(invocation.thread)) is not None:
            return known.id
        return RunId(hashlib.sha256(f"{self.plan.name}|{task.superstep}".encode()).hexdigest()[:12])

    async def _run_of(self, thread: str | None) -> RunRecord | None:
        """The newest run of a thread."""
        services = await self.services()
        runs = (run for run in await services.store.runs() if run.thread_id == thread and run.name == self.plan.name)
        return next(runs, None)

    async def _first(self, run: GraphRun) -> Env:
        base = await asyncio.to_thread(run.services.snapshots.get, run.record.base_snapshot)
        return run.first(base, CheckpointId(checkpoint_id(run.record.id, 0)))


def _outcome(error: BaseException | None) -> tuple[RunStatus, str]:
    if error is None:
        return RunStatus.DONE, ""
    if isinstance(error, Exception):
        return RunStatus.FAILED, f"{type(error).__name__}: {error}"
    return RunStatus.CANCELLED, "cancelled"
