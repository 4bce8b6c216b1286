"""`Fleet`: runs of a `Runtime` that go on on the nodes of a Ray cluster.

A run is stored where the fleet is, with its workspace in the bucket, and then a node resumes it. So starting a run
on a node, and going on with it on another one after the first died, are the same call. What Ray knows is never
needed to recover: the journal is in the database, and `Runtime.resume` in any process would do as well.

If a node dies, its leases are ended at once, rather than waited for (docs/decisions/105). That is safe even if Ray is
wrong and the node lives: each write of a run checks the lease, so what the node still wants to write is refused.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any, Self

from ramify.compiler.plan import Plan
from ramify.decorators import Workflow
from ramify.fleet.carried_errors import rebuilt
from ramify.fleet.errors import FleetError, NodesDied, NodeUnfit, NoFitNode, NotShared
from ramify.fleet.node_versions import checked, why_not_started
from ramify.fleet.placement import Asked, Member, Queue
from ramify.fleet.ray_cluster import HostDied, RayCluster, RayHost
from ramify.fleet.relayed_events import decoded
from ramify.fleet.run_host import Ended, file_identity
from ramify.fleet.types import (
    FleetEvent,
    HostFacts,
    Needs,
    Node,
    NodeId,
    NodeJoined,
    NodeLost,
    NodeRefused,
    NotUploaded,
    Placed,
    Shared,
)
from ramify.recorded_runs import NO_ANSWER, given_answers
from ramify.runtime.durations import Duration, seconds
from ramify.runtime.errors import LeaseHeld, RunCancelled
from ramify.runtime.records import RunId, RunRecord, RunStatus
from ramify.runtime.store.address import parse
from ramify.runtime.worlds.recovery import missing
from ramify.session import Runtime

LOOK_S = 1.0
"""Seconds between two looks at the nodes of the cluster."""

MOST_DEATHS = 3
"""Nodes that may die, one after the other, while they work on a run: the run may be what kills them."""

_STOP_S = 30.0
_NOT_BEGUN_S = 0.05


class Fleet:
    """An async context manager: the nodes of a Ray cluster, each with a home of its own, that work on runs of
    `runtime`.

    runtime: open, with `database` on a PostgreSQL server (or a file, while all nodes are on this machine) and with
    `remote`. address: "auto", or HOST:PORT of Ray's head; this machine must be a node of the cluster. runs_per_node:
    by default as many as Ray says the node has CPUs; a node without CPUs takes none. patience: for how long a run
    waits for a node that can take it, if there is none. observer: called with each event; what it raises is for the
    exception handler of the event loop.

    Workflows are found on each node at the same path as here. A node uses its own $RAMIFY_HOME, its own model server
    if $RAMIFY_BASE_URL names one, and the key in its $RAMIFY_API_KEY.

    Entering raises `RayMissing`, `ClusterUnreachable`, `NotShared`, and `NoFitNode` if no node can work for the
    fleet. Leaving waits for the nodes' uploads and raises the first error of these.
    """

    def __init__(
        self,
        runtime: Runtime,
        address: str = "auto",
        *,
        runs_per_node: int | None = None,
        patience: Duration = 30.0,
        observer: Callable[[FleetEvent], None] | None = None,
    ) -> None:
        if runs_per_node is not None and runs_per_node < 1:
            raise ValueError(f"runs_per_node={runs_per_node}: at least 1")
        self.runtime = runtime
        self._cluster = RayCluster(address)
        self._runs_per_node, self._patience_s = runs_per_node, seconds(patience)
        self._observer = observer
        self._queue: Queue[RayHost] = Queue()
        self._known: dict[NodeId, asyncio.Task[None]] = {}  # joins, ended or not
        self._refused: dict[str, str] = {}
        self._stack = AsyncExitStack()
        self._is_open = False

    async def __aenter__(self) -> Self:
        self.runtime.check_open()
        self._shared = _shared(self.runtime)
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self._cluster)
            stack.push_async_exit(self._close_hosts)
            for joining in [self._join_soon(node) for node in await self._cluster.nodes()]:
                await joining
            if not self._queue.members:
                raise NoFitNode("no node of the cluster can work for this fleet:", reasons=self._refused)
            watching = asyncio.create_task(self._watch())
            stack.push_async_callback(_ended, watching)
            self._stack = stack.pop_all()
        self._is_open = True
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_open = False
        await self._stack.__aexit__(kind, error, trace)

    @property
    def nodes(self) -> dict[str, HostFacts]:
        """The nodes that work for this fleet now, by name."""
        return {one.node.name: one.facts for one in self._queue.members}

    async def run(
        self,
        workflow: Workflow[..., Any],
        *args: Any,
        workspace: str | Path | None = None,
        deadline: Duration | None = None,
        plan: Plan | None = None,
        **kwargs: Any,
    ) -> Any:
        """As `Runtime.run`, on a node. Raises what `Runtime.run` raises there, and `FleetError`.

        Cancelling the caller cancels the run.
        """
        return await self.start(workflow, args, kwargs, workspace=workspace, deadline=deadline, plan=plan)

    async def start(
        self,
        workflow: Workflow[..., Any],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] = MappingProxyType({}),
        *,
        workspace: str | Path | None = None,
        deadline: Duration | None = None,
        plan: Plan | None = None,
        needs: Needs = Needs(),  # noqa: B008
    ) -> Any:
        """As `run`, for a workflow whose parameters have the same names as those of `run`, or a run with needs."""
        self._check_open()
        record = await self.runtime.create(workflow, args, kwargs, workspace=workspace, deadline=deadline, plan=plan)
        return await self._to_the_end(record, needs)

    async def resume(
        self,
        run_id: str,
        *,
        answer: Any = NO_ANSWER,
        answers: Mapping[str, Any] = MappingProxyType({}),
        needs: Needs = Needs(),  # noqa: B008
    ) -> Any:
        """Continue a run on a node, where its journal ends; answers as in `Runtime.resume`. Its states must be in the
        bucket, or steps of it are run again."""
        self._check_open()
        record = await self.runtime.record(run_id)
        await self.runtime.store_answers_of(record, given_answers(answer, answers), "Fleet.resume")
        return await self._to_the_end(record, needs)

    def _check_open(self) -> None:
        if not self._is_open:
            raise FleetError("the fleet is not open: `async with Fleet(runtime) as fleet`")

    async def _to_the_end(self, record: RunRecord, needs: Needs) -> Any:
        if record.status is not RunStatus.DONE:
            assert self.runtime.bucket is not None
            if await asyncio.to_thread(missing, self.runtime.snapshots, record.base_snapshot) is None:
                await self.runtime.bucket.upload(record.base_snapshot)
            asked = Asked(self.runtime.sandbox_of(record), needs, record.base_snapshot)
            await self._on_nodes(record.id, asked)
        return await self.runtime.resume(record.id)  # the result of a run that is done

    async def _on_nodes(self, run: RunId, asked: Asked) -> None:
        died: list[str] = []
        dead: set[tuple[str, int]] = set()  # their processes, as leases name them
        while len(died) < MOST_DEATHS:
            member = await self._place(run, asked)
            try:
                self._emit(Placed(run, member.node.name, tuple(died)))
                ended = await self._at(member, run, asked)
            except HostDied as error:
                died.append(member.node.name)
                dead.add((member.facts.host, member.facts.pid))
                await self._lost(member, run, str(error))
                continue
            finally:
                self._queue.release(member)
            if ended.error is not None:
                failed = rebuilt(ended.error, member.node.name)
                if isinstance(failed, LeaseHeld) and (owner := (failed.host, failed.pid)) in dead:
                    dead.remove(owner)  # it lived, and took the lease after that was ended: once more
                    await self.runtime.store.end_lease(run, *owner)
                    continue
                raise failed
            if ended.cancelled:
                why = f"run {run} was cancelled by its fleet or another caller: `ramify resume {run}` continues it"
                raise RunCancelled(why, run_id=run)
            if ended.not_uploaded:
                self._emit(NotUploaded(run, member.node.name, ended.not_uploaded))
            return
        raise NodesDied(
            f"run {run}: {len(died)} nodes died, one after the other, while they worked on it ({', '.join(died)}). "
            f"It may be the cause, for example by its memory. `ramify resume {run}` continues it",
            stranded_run=run,
            nodes=died,
        )

    async def _place(self, run: RunId, asked: Asked) -> Member[RayHost]:
        """Wait for a node. Raises `NoFitNode` if those of the fleet cannot take the run, or if it has had none for
        too long."""
        placing, now = self._queue.ask(asked), asyncio.get_running_loop().time
        until = now() + self._patience_s
        try:
            while not placing.done():
                if self._queue.can_ever_place(asked):
                    until = now() + self._patience_s
                elif self._queue.members or now() >= until:
                    raise NoFitNode(
                        f"no node can take run {run}. It is kept, and `ramify resume {run}` continues it:",
                        reasons={**self._refused, **self._queue.reasons(asked)},
                    )
                await asyncio.wait({placing}, timeout=LOOK_S)
            return placing.result()
        except BaseException:
            if placing.done() and not placing.cancelled():
                self._queue.release(placing.result())
            placing.cancel()
            raise

    async def _at(self, member: Member[RayHost], run: RunId, asked: Asked) -> Ended:
        working = asyncio.ensure_future(member.host.go_on(run, asked.sandbox, member.node.name))
        relaying = asyncio.create_task(self._relay(member, run, working))
        try:
            ended = await working
            await asyncio.wait({relaying}, timeout=_STOP_S)
            if relaying.done():
                relaying.result()  # what the observer raised
            return ended
        except asyncio.CancelledError:
            with suppress(HostDied, FleetError, TimeoutError):
                await asyncio.wait_for(asyncio.shield(member.host.stop(run)), _STOP_S)
            raise
        finally:
            relaying.cancel()

    async def _relay(self, member: Member[RayHost], run: RunId, working: asyncio.Future[Ended]) -> None:
        """Tell the runtime's observer what happens in a run on a node, until it ends there."""
        heard = False
        with suppress(HostDied):
            while True:
                data = await member.host.events(run)
                if data is not None:
                    heard = True
                    for event in decoded(data):
                        self.runtime.tell(event)
                elif heard or working.done():
                    return
                else:  # the node has not begun
                    await asyncio.sleep(_NOT_BEGUN_S)

    async def _lost(self, member: Member[RayHost], run: RunId, why: str) -> None:
        """Forget a node, and end the lease that it has of the run."""
        if member in self._queue.members:
            self._queue.remove(member)
            self._known.pop(member.node.id, None)  # if the node lives, it gets another process
            self._emit(NodeLost(member.node.name, why))
            await member.host.kill()  # it may live, and only not be reached
        await self.runtime.store.end_lease(run, member.facts.host, member.facts.pid)

    # The nodes

    async def _watch(self) -> None:
        """Take in nodes that come, and forget those that went without working on a run."""
        while True:
            await asyncio.sleep(LOOK_S)
            try:
                nodes = {node.id: node for node in await self._cluster.nodes()}
            except FleetError:
                continue  # Ray's head restarts, or Ray ends this process
            for node in nodes.values():
                self._join_soon(node)
            for member in [one for one in self._queue.members if one.node.id not in nodes and not one.taken]:
                self._queue.remove(member)
                self._emit(NodeLost(member.node.name, "it left the cluster"))
            for id in self._known.keys() - nodes.keys():
                self._known.pop(id).cancel()
            names = {node.name for node in nodes.values()}
            self._refused = {name: why for name, why in self._refused.items() if name in names}

    def _join_soon(self, node: Node) -> asyncio.Task[None]:
        if node.id not in self._known:
            self._known[node.id] = asyncio.create_task(self._join(node))
        return self._known[node.id]

    async def _join(self, node: Node) -> None:
        slots = self._runs_per_node if self._runs_per_node is not None and node.cpus else node.cpus
        if not slots:
            self._refuse(node, "it has no CPUs for Ray")
            return
        host = await self._cluster.start_host(node)
        try:
            facts = checked(node, await host.describe())
            if (error := await host.open(self._shared, self.runtime.sandbox, node.name)) is not None:
                raise rebuilt(error, node.name)
        except HostDied as error:
            self._refuse(node, why_not_started(str(error)))
        except NodeUnfit as error:
            self._refuse(node, error.reason)
            await host.kill()
        except Exception as error:  # noqa: BLE001  # of its database, its bucket or its home
            self._refuse(node, f"{type(error).__name__}: {error}")
            await host.kill()
        else:
            self._refused.pop(node.name, None)
            self._queue.add(Member(node, facts, host, slots))
            self._emit(NodeJoined(node.name, slots))

    def _emit(self, event: FleetEvent) -> None:
        if self._observer is not None:
            try:
                self._observer(event)
            except Exception as error:  # noqa: BLE001  # no run and no watch over the nodes ends with it
                told = {"message": f"the observer of a fleet failed at {event!r}", "exception": error}
                asyncio.get_running_loop().call_exception_handler(told)

    def _refuse(self, node: Node, reason: str) -> None:
        self._refused[node.name] = reason
        self._emit(NodeRefused(node.name, reason))

    async def _close_hosts(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for joining in self._known.values():
            joining.cancel()
        await asyncio.gather(*self._known.values(), return_exceptions=True)
        members, self._queue.members = self._queue.members, []
        errors = await asyncio.gather(*(_closed(one) for one in members))
        first = next((one for one in errors if one is not None), None)
        if error is None and first is not None:
            raise first


async def _closed(member: Member[RayHost]) -> BaseException | None:
    """Close a node's process. Returns what went wrong with its uploads."""
    try:
        error = await member.host.close()
    except HostDied:
        return None  # its runs are kept
    except FleetError as failed:
        await member.host.kill()
        return failed
    await member.host.kill()
    return None if error is None else rebuilt(error, member.node.name)


async def _ended(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait({task})


def _shared(runtime: Runtime) -> Shared:
    if runtime.bucket is None:
        raise NotShared("a fleet needs a bucket that carries states between its nodes: name one, --remote URL")
    file = parse(runtime.database).file
    database = str(runtime.database) if file is None else str(file.absolute())
    return Shared(
        database=database,
        file=None if file is None else file_identity(file),
        bucket=runtime.bucket.url,
        store=runtime.bucket.store_id,
        check_reuse=runtime.check_reuse,
        reuse_answers=runtime.reuse_answers,
    )
