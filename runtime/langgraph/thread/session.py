"""What a compiled app holds open: the portal, the services, and the runs that invocations work on.

The first node that runs opens it. Nothing of it survives a kill, and nothing needs to: the runs are in the journal,
and the sandboxes' helper process ends with its parent.
"""

from __future__ import annotations

import asyncio
import hashlib
import weakref
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ramify.compiler.plan import Plan
from ramify.fork_engine.types import Skipped, SnapshotId
from ramify.runtime.errors import RunNotFound, error_text
from ramify.runtime.events import Observer
from ramify.runtime.execution.model_calls import LLMCalls
from ramify.runtime.execution.new_runs import Launch, Services, create, new_run_id
from ramify.runtime.langgraph.checkpointer import Saver
from ramify.runtime.langgraph.compat import PregelLoop
from ramify.runtime.langgraph.errors import AppClosed, WorldLost
from ramify.runtime.langgraph.thread.attempt import Attempt, Ready
from ramify.runtime.langgraph.thread.channels import WorldChannel, joined
from ramify.runtime.langgraph.thread.graph_run import GraphRun
from ramify.runtime.langgraph.thread.lost_states import RerunsNodes
from ramify.runtime.langgraph.thread.portal import Portal, PortalSandbox
from ramify.runtime.langgraph.thread.positions import ENV, StoredPosition
from ramify.runtime.langgraph.thread.supersteps import DeferredFork, DeferredPosition, Task
from ramify.runtime.records import AGAIN, CheckpointId, RunId, RunRecord, RunStatus, checkpoint_id
from ramify.runtime.store.run_locks import is_held
from ramify.runtime.user_code.sandbox import SyncSandbox
from ramify.runtime.worlds.recovery import missing
from ramify.runtime.worlds.world_pool import Branch

OpenServices = Callable[[Observer | None], AbstractAsyncContextManager[Services]]


@dataclass(eq=False, slots=True)
class Invocation:
    """One call of `invoke`, `stream` and their variants."""

    thread: str | None
    addressed: bool  # the caller named a checkpoint: the thread has been run before
    calls: dict[RunId, LLMCalls] = field(default_factory=dict)
    runs: dict[RunId, GraphRun] = field(default_factory=dict)
    # a checkpoint, and the order in which the writes of its tasks are applied
    order: tuple[str, dict[str, int]] = ("", {})
    # the channels of LangGraph's loop, and the same without the world channel
    shown: tuple[Any, dict[str, Any]] = (None, {})
    channel: WorldChannel | None = None  # of this invocation, set when LangGraph has made it
    loop: PregelLoop | None = None  # LangGraph's, set when a node has run
    within: Attempt | None = None  # the node whose code called the graph
    fork: DeferredFork | None = None  # of that node's world, as it was when this invocation began
    left: StoredPosition | None = None  # where a node stood that handed over to the parent graph
    deadline_s: float | None = None
    anonymous: RunId | None = None  # the run of an invocation without thread or checkpointer
    was_begun: bool = False  # that run may have a row already
    saver: Saver | None = None  # its checkpointer, if that is Ramify's
    # by task: what nodes will write to the world channel
    unsent: dict[str, StoredPosition] = field(default_factory=dict)
    rerunner: RerunsNodes[GraphRun] | None = None  # recomputes lost states of the thread
    instead: GraphRun | None = None  # the run in which its nodes act, if a node is run again to recompute its files
    number: str = field(default_factory=new_run_id)  # unique to this invocation
    looks: bool = False  # it runs no graph: the run's status does not change

    @property
    def env(self) -> StoredPosition | None:
        """Where the world stands after the finished supersteps."""
        return self.channel.get() if self.channel is not None and self.channel.is_available() else None

    @property
    def ran_nothing(self) -> bool:
        """Whether a thread that has a world was invoked and had nothing to do."""
        return not self.calls and self.within is None and self.env is not None

    @property
    def is_interrupted(self) -> bool:
        """Whether it stopped before its end, without an error."""
        return self.loop is not None and self.loop.status != "done"

    def made(self, channel: WorldChannel) -> None:
        self.channel = channel

    @property
    def forks_later(self) -> bool:
        """Whether a graph that a node's code calls may begin without a world, since none of its nodes may ever ask
        for one."""
        assert self.within is not None, "only for a graph in a node"
        self.fork = self.fork or self.within.reserve_fork()
        return self.fork.made is None and not self.within.must_fork_now

    async def base(self) -> StoredPosition:
        """Return where a graph begins that a node's code calls: on a fork of the node's world."""
        assert self.within is not None, "only for a graph in a node"
        self.fork = self.fork or self.within.reserve_fork()
        nested = await self.fork.take()
        first = self.within.run.first(nested.state, nested.branch.checkpoint)
        return {**first, "branch": nested.branch.path, "base": nested.state.id, "lender": self.within.task.key}

    @property
    def reached(self) -> StoredPosition | None:
        """Where the world stands after all tasks that are done, also those of a superstep that is not over."""
        loop, (_, order) = self.loop, self.order
        tasks = {} if loop is None else loop.tasks
        ids = sorted(tasks, key=lambda id: order.get(id, len(order)))
        done = [value for id in ids for channel, value in tasks[id].writes if channel == ENV]
        return joined(done) if done else self.env

    async def take_back_midway(self) -> None:
        """As `take_back`, for a graph whose caller does not read its stream to the end."""
        self.left = self.left or self.reached
        await self.take_back()

    async def take_back(self) -> None:
        """Merge what the graph did into the world of the node that called it."""
        env = self.left or self.env
        if self.within is None or env is None or "base" not in env:
            return
        if self.loop is None and env.get("lender", self.within.task.key) != self.within.task.key:
            return  # LangGraph resumed a graph that keeps its state between calls, and returned another task's result
        if "child" in env:
            env = joined([env])
        state = (await self.within.run.settle(env)).snapshot
        await self.within.take_back(env["base"], state.id)


class Session:
    def __init__(
        self,
        open_services: OpenServices,
        plan: Plan,
        workspace: Path | None,
        deadline_s: float | None,
        observer: Observer | None = None,
    ) -> None:
        self.portal = Portal()
        self.plan = plan
        self.observer = observer  # receives the services' events, also before they are opened
        self._open_services = open_services
        self._workspace = workspace
        self._deadline_s = deadline_s
        self._runs: dict[RunId, GraphRun] = {}
        self._users: dict[RunId, set[Invocation]] = {}
        self._lock = asyncio.Lock()
        self._services: asyncio.Future[Services] | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._closed = False  # no invocation may enter
        self._closing = asyncio.Event()  # nothing is written any more: the services may be closed
        self.last_run_id: RunId | None = None
        # for apps that are never closed
        self._dropped = weakref.finalize(self, self.portal.retire, self._closing.set)
        self._dropped.atexit = False

    def close(self) -> None:
        """End everything that is open. Safe to call twice; the app cannot be used afterwards."""
        self._dropped.detach()
        if self.portal.started:
            self.portal.wait(self._close())
        self.portal.stop()

    async def start(self, invocation: Invocation, task: Task, env: StoredPosition | None) -> StoredPosition | None:
        """Import the workspace when a thread begins. Return None if the thread has begun already."""
        if invocation.within is not None:
            return await invocation.base()
        if env is not None:
            return None
        return await self._first(await self._enter(invocation, await self._run_id(invocation, task), new=True))

    def quick(self, invocation: Invocation, task: Task, env: StoredPosition | None) -> Ready | None:
        """Return what a node begins with that need not stand before it asks for something. Any thread may call this.
        None if something has to be done first: open a thread, merge siblings, or find a recorded result."""
        within = invocation.within
        if task.attempt > 1 or (env is not None and "join" in env):
            return None
        if within is not None:
            return self._quick_within(within, invocation, task, env)
        run = None if env is None else invocation.runs.get(env["run"])  # type: ignore[call-overload]  # a run's id
        if env is None or run is None or run.journal.knows(task.key):
            return None
        return Ready(run, env, invocation.calls[run.record.id], env, run.clock())

    def _quick_within(
        self, within: Attempt, invocation: Invocation, task: Task, env: StoredPosition | None
    ) -> Ready | None:
        run = within.run
        if run.again is not None or run.journal.knows(task.key):
            return None
        if env is not None:
            return Ready(run, env, within.calls, env, run.clock()) if run.record.id == env["run"] else None
        if not invocation.forks_later:
            return None
        return Ready(run, DeferredPosition(within.place, invocation.base), within.calls, None, run.clock())

    async def begin(self, invocation: Invocation, task: Task, env: StoredPosition | None) -> Ready:
        """Return what a node begins with. Raises `RunNotFound` for a thread of another home."""
        if (within := invocation.within) is not None:
            run = within.run
            ours = env is not None and env["run"] == run.record.id
            at = env if env is not None and ours else await invocation.base()
            return Ready(run, at, within.calls, env, run.clock())
        if env is None:
            run = await self._enter(invocation, await self._run_id(invocation, task), new=True)
        else:
            run = await self._enter(invocation, RunId(env["run"]))
        return Ready(run, env or await self._first(run), invocation.calls[run.record.id], env, run.clock())

    async def end(self, invocation: Invocation, error: BaseException | None) -> None:
        """End an invocation. Raises `NodesConflict` if its last superstep does not merge, and the error that stopped
        its run if the graph continued in spite of it."""
        env = invocation.env if error is None and not invocation.is_interrupted else None
        try:
            if env is not None and "join" in env and env["run"] in invocation.calls:
                await self._runs[RunId(env["run"])].settle(env)
            if error is None:
                for run in invocation.runs.values():
                    run.journal.refuse_when_stopped()
        except Exception as failure:
            error = failure
            raise
        finally:
            for run_id in invocation.calls:
                if not invocation.looks and run_id in self._runs:
                    self._runs[run_id].stands = _outcome(invocation, error)
                self._users[run_id].discard(invocation)
                if run_id in self._runs and self._users[run_id]:
                    await self._runs[run_id].write_noted()
                if not self._users[run_id] and run_id in self._runs:
                    run = self._runs.pop(run_id)
                    await run.close(*run.stands)

    async def caught_up(self, invocation: Invocation, *, goes_on: bool) -> None:
        """End the run of a thread that was invoked and had nothing to do, if it still counts as running: its process
        was killed between its last commit and its end."""
        env = invocation.env
        assert env is not None, "only where ran_nothing"
        services = await self.services()
        run_id = RunId(env["run"])
        try:
            record = await services.store.run(run_id)
        except RunNotFound:  # a run of another home; nothing has to run in this one
            return
        if record.status is RunStatus.RUNNING and run_id not in self._runs and not is_held(services.locks, run_id):
            run = await GraphRun.open(services, record, self.plan)
            await run.close(RunStatus.WAITING if goes_on else RunStatus.DONE)

    async def snapshot(
        self, env: StoredPosition, rerunner: RerunsNodes[GraphRun] | None = None, again: GraphRun | None = None
    ) -> SnapshotId:
        """Return the snapshot that a checkpoint's position describes. Siblings are merged; a lost state is
        recomputed. `again` is the run of the calling node if that node is only run again.

        Raises `NodesConflict`, `WorldLost`, `StateGone`.
        """
        if env.get("unsealed"):
            raise WorldLost(env["branch"])
        run_id, at = RunId(env["run"]), SnapshotId(env["snapshot"])
        if "join" not in env and (whole := await self._whole(run_id, at)) is not None:
            return whole
        asking = Invocation(None, addressed=True, rerunner=rerunner, looks=True)
        if again is not None and again.record.id == run_id:
            asking.instead = again  # the caller waits for the rerun and holds the lock that this would wait for
        run = await self._enter(asking, run_id)
        try:
            return (await run.settle(env)).snapshot.id if "join" in env else (await run.snapshot(at)).id
        finally:
            await self.end(asking, None)

    async def edit(
        self,
        env: StoredPosition,
        change: Callable[[SyncSandbox], object],
        rerunner: RerunsNodes[GraphRun] | None = None,
    ) -> StoredPosition:
        """Apply `change` to a fork of the world, on a branch of its own; return where the changed world stands."""
        asking = Invocation(None, addressed=True, rerunner=rerunner, looks=True)
        run = await self._enter(asking, RunId(env["run"]))
        failure: BaseException | None = None
        try:
            here = await run.settle(env)
            old = Branch(here.branch, here.snapshot, here.checkpoint)
            branch, _ = await run.nested_fork(f"edit {new_run_id()}", "an edit", old, here.snapshot)
            world, _ = await run.worlds.acquire(branch)
            face = PortalSandbox(world, self.portal)
            await asyncio.to_thread(change, SyncSandbox(face, asyncio.get_running_loop()))
            sealed = await world.seal()
            await run.edited(branch, sealed)
            return {**run.first(sealed, branch.checkpoint), "branch": branch.path}
        except BaseException as error:
            failure = error
            raise
        finally:
            await self.end(asking, failure)

    async def services(self) -> Services:
        failed = self._services is not None and self._services.done() and self._services.exception() is not None
        if self._services is None or failed:  # try again: the earlier failure may have been temporary
            self._services = asyncio.get_running_loop().create_future()
            self._keeper = self.portal.keep(
                _keep_open(self._open_services(self.observer), self._services, self._closing)
            )
        return await asyncio.shield(self._services)

    # Below: how it is done

    async def _whole(self, run: RunId, id: SnapshotId) -> SnapshotId | None:
        """Return the state, or its recomputed stand-in; None if neither is complete."""
        services = await self.services()
        if await asyncio.to_thread(missing, services.snapshots, id) is None:
            return id
        stand_ins = [row.snapshot_out for row in await services.store.ops(run) if row.attrs.get(AGAIN) == id]
        for found in reversed(stand_ins):
            if found is not None and await asyncio.to_thread(missing, services.snapshots, found) is None:
                return found
        return None

    async def _close(self) -> None:
        async with self._lock:  # wait for invocations that are entering
            self._closed = True
        try:
            for run_id, run in list(self._runs.items()):
                looked_at = all(one.looks for one in self._users[run_id])
                await run.close(*(run.stands if looked_at else (RunStatus.CANCELLED, "the app was closed")))
            self._runs.clear()
        finally:
            self._closing.set()
            if self._keeper is not None:
                await self._keeper

    async def _enter(self, invocation: Invocation, run_id: RunId, *, new: bool = False) -> GraphRun:
        if invocation.instead is not None:
            return invocation.instead
        async with self._lock:
            if self._closed or self._closing.is_set():
                raise AppClosed("this app was closed: compile the graph again")
            services = await self.services()
            if run_id not in self._runs:
                self._runs[run_id] = await self._open(services, invocation, run_id, new)
                self._users[run_id] = set()
            run = self._runs[run_id]
            if not invocation.looks:  # it may have been opened only to be read
                await run.goes_on()
            self._users[run_id].add(invocation)
            self.last_run_id = run_id
            if run_id not in invocation.calls:
                if (saver := invocation.saver) is not None:
                    run.with_checkpoints = await asyncio.to_thread(saver.join, services.store)
                invocation.runs[run_id] = run
                if invocation.rerunner is not None:
                    run.lost_states.rerunners[invocation.thread or ""] = invocation.rerunner
                # every invocation gets the whole deadline: a thread may rest for days between two of them
                given = self._deadline_s if invocation.deadline_s is None else invocation.deadline_s
                limit = None if given is None else given + run.journal.consumed_s()
                record = replace(run.record, deadline_s=limit)
                invocation.calls[run_id] = LLMCalls(record, self.plan, run.journal, services.llm, services.clock)
            return run

    async def _open(self, services: Services, invocation: Invocation, run_id: RunId, new: bool) -> GraphRun:
        is_new = new and run_id == invocation.anonymous and not invocation.was_begun
        if is_new:  # its name is random, so the database need not be asked
            invocation.was_begun = True
            record, skipped = await self._create(services, invocation, run_id)
        else:
            try:
                record, skipped = await services.store.run(run_id), tuple[Skipped, ...]()
            except RunNotFound:
                if not new:
                    raise
                record, skipped = await self._create(services, invocation, run_id)
        return await GraphRun.open(services, record, self.plan, skipped, looks=invocation.looks, is_new=is_new)

    async def _create(
        self, services: Services, invocation: Invocation, run_id: RunId
    ) -> tuple[RunRecord, tuple[Skipped, ...]]:
        launch = Launch(self.plan, (), {}, self._workspace, self._deadline_s, run_id, invocation.thread)
        return await create(services, launch)

    async def _run_id(self, invocation: Invocation, task: Task) -> RunId:
        """Return the id of the run for a thread without a world: a new run, the same however often its start is
        repeated."""
        if not task.durable:
            invocation.anonymous = invocation.anonymous or new_run_id()
            return invocation.anonymous
        if invocation.addressed and (known := await self._run_of(invocation.thread)) is not None:
            return known.id
        begins = f"{self.plan.name}|{task.superstep}".encode("utf-8", "surrogatepass")  # a thread id may be any text
        return RunId(hashlib.sha256(begins).hexdigest()[:12])

    async def _run_of(self, thread: str | None) -> RunRecord | None:
        """Return the newest run of a thread."""
        services = await self.services()
        runs = (run for run in await services.store.runs() if run.thread_id == thread and run.name == self.plan.name)
        return next(runs, None)

    async def _first(self, run: GraphRun) -> StoredPosition:
        base = await run.snapshot(run.record.base_snapshot)
        return run.first(base, CheckpointId(checkpoint_id(run.record.id, 0)))


async def _keep_open(
    opening: AbstractAsyncContextManager[Services], opened: asyncio.Future[Services], closing: asyncio.Event
) -> None:
    """Open and close the services in one task, to which what they hold may belong. It does not hold the session."""
    try:
        async with opening as services:
            opened.set_result(services)
            await closing.wait()
    except Exception as error:
        if opened.done():
            raise
        opened.set_exception(error)


def _outcome(invocation: Invocation, error: BaseException | None) -> tuple[RunStatus, str]:
    if error is None:
        return (RunStatus.WAITING if invocation.is_interrupted else RunStatus.DONE), ""
    if isinstance(error, Exception):
        return RunStatus.FAILED, error_text(error)
    return RunStatus.CANCELLED, "cancelled"
