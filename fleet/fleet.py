"""`Fleet`: runs of a `Runtime` that go on on the nodes of a Ray cluster.

A run is stored where the fleet is, with its workspace in the bucket, and then a node resumes it. So starting a run
on a node, and going on with it on another one after the first died, are the same call. Recovery needs nothing that
only Ray knows: the journal is in the database, and `Runtime.resume` in any process would do as well.

If a node dies, its leases are ended at once, rather than waited for (docs/decisions/105). That is safe even if Ray is
wrong and the node lives: each write of a run checks the lease, so later writes of the node are refused.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, suppress
from pathlib import Path
from random import Random
from types import MappingProxyType, TracebackType
from typing import Any, Self

from ramify.compiler.plan import Plan
from ramify.decorators import Workflow
from ramify.fleet.branch_errands import BranchErrands
from ramify.fleet.branch_places import BranchPlaces
from ramify.fleet.carried_errors import rebuilt
from ramify.fleet.errors import FleetClosed, FleetError, NodesDied, NotShared
from ramify.fleet.fleet_world import FleetWorld, world_on_nodes
from ramify.fleet.job_order import order_of
from ramify.fleet.nodes import MOST_DEATHS, FleetNodes
from ramify.fleet.placement import Asked, Member
from ramify.fleet.ray_host import HostDied, RayHost
from ramify.fleet.relayed_events import decoded
from ramify.fleet.run_host import Ended, file_identity
from ramify.fleet.types import FleetEvent, HostFacts, Needs, NotUploaded, Placed, Shared
from ramify.recorded_runs import NO_ANSWER, given_answers
from ramify.runtime.durations import Duration, seconds, shown
from ramify.runtime.errors import LeaseHeld, RunCancelled
from ramify.runtime.records import RunId, RunRecord, RunStatus
from ramify.runtime.store.address import parse
from ramify.runtime.worlds.recovery import missing
from ramify.sandboxes.contract import Limits
from ramify.serving.matching import JobId
from ramify.session import Runtime

_STOP_S = 30.0
_NOT_BEGUN_S = 0.05


class Fleet:
    """An async context manager: the nodes of a Ray cluster, each with a home of its own, that work on runs of
    `runtime`.

    runtime: open, with `database` on a PostgreSQL server (or a file, while all nodes are on this machine) and with
    `remote`. address: "auto" or HOST:PORT of Ray's head, if this machine is a node of the cluster; ray://HOST:10001,
    the head's port for clients, if it is not. runs_per_node: by default as many as Ray says the node has CPUs; a node
    without CPUs takes none. patience: for how long a run waits for a node that can take it, if there is no node, or
    the last one that could take it is gone. observer: called with each event; what it raises is for the exception
    handler of the event loop. matching: which job gets a slot that several wait for: "price", "venn", "srsf", "fifo"
    or "random" (docs/how-to/match-jobs.md).
    fairness: how soon "price" and "venn" serve a job that has waited for longer than its share; 0: never for that.
    random: the source of "random" and "venn".

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
        matching: str = "price",
        fairness: float | None = None,
        random: Random | None = None,
    ) -> None:
        if runs_per_node is not None and (not isinstance(runs_per_node, int) or runs_per_node < 1):
            raise ValueError(f"runs_per_node={shown(runs_per_node)}: a whole number from 1")
        self.runtime = runtime
        self._nodes = FleetNodes(
            address,
            slots=runs_per_node,
            patience_s=seconds(patience),
            observer=observer,
            order=order_of(matching, fairness, random or Random()),
        )
        self._stack = AsyncExitStack()
        self._is_open = self._is_entered = False

    async def __aenter__(self) -> Self:
        self.runtime.check_open()
        if self._is_entered:
            raise FleetError("this Fleet is in use by another `async with`: make one for each")
        self._is_entered = True
        async with AsyncExitStack() as stack:
            stack.callback(self._left)
            await stack.enter_async_context(self._nodes.opened(_shared(self.runtime), self.runtime.sandbox))
            stack.enter_context(self.runtime.placing(self._places_of))
            self._stack = stack.pop_all()
        self._is_open = True
        return self

    def _left(self) -> None:
        self._is_entered = False

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_open = False
        await self._stack.__aexit__(kind, error, trace)

    @property
    def nodes(self) -> dict[str, HostFacts]:
        """The nodes that work for this fleet now, by name."""
        return {one.node.name: one.facts for one in self._nodes.queue.members}

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
        job: str | None = None,
    ) -> Any:
        """As `run`, for a workflow whose parameters have the same names as those of `run`, or for a run with needs.

        job: names what the run is part of, where runs, worlds and branches wait for nodes; by default the run."""
        self._check_open()
        record = await self.runtime.create(workflow, args, kwargs, workspace=workspace, deadline=deadline, plan=plan)
        return await self._to_the_end(record, needs, job)

    async def resume(
        self,
        run_id: str,
        *,
        answer: Any = NO_ANSWER,
        answers: Mapping[str, Any] = MappingProxyType({}),
        needs: Needs = Needs(),  # noqa: B008
        job: str | None = None,
    ) -> Any:
        """Continue a run on a node, where its journal ends; answers as in `Runtime.resume`. Its states must be in the
        bucket, or steps of it are run again."""
        self._check_open()
        record = await self.runtime.record(run_id)
        await self.runtime.store_answers_of(record, given_answers(answer, answers), "Fleet.resume")
        return await self._to_the_end(record, needs, job)

    def world(
        self,
        folder: str | Path | None = None,
        *,
        snapshot: str | None = None,
        image: str | Path | None = None,
        mount_at: str | Path | None = None,
        env: Mapping[str, str] | None = None,
        limits: Limits | None = None,
        needs: Needs = Needs(),  # noqa: B008
        job: str | None = None,
    ) -> AbstractAsyncContextManager[FleetWorld]:
        """A world whose commands run on a node: `async with fleet.world("repo") as world`. It is made from a folder
        of this machine, from a snapshot (a tag, a world or an id of this home, or the whole id of one in the bucket),
        or empty. image: an OCI image, which only this machine needs: its layers travel with the state. It has no
        network. The other arguments are those of `World.create`.

        Raises as `World.create` does, `FleetError`, and `ForkEngineError` if the bucket cannot take its state.
        """
        self._check_open()
        return world_on_nodes(
            self._nodes,
            self.runtime,
            folder,
            snapshot=snapshot,
            image=image,
            mount_at=mount_at,
            env=env,
            limits=limits,
            needs=needs,
            job=JobId(job or ""),
        )

    @property
    def slots(self) -> int:
        """Runs and commands that the nodes of now take at the same time."""
        return sum(one.slots for one in self._nodes.queue.members)

    def _places_of(self, record: RunRecord) -> BranchPlaces:
        """Where the branches of a run may go that this process works on."""
        return BranchPlaces(
            self._nodes, self.runtime, record.id, self.runtime.sandbox_of(record), here=self._nodes.here
        )

    def _check_open(self) -> None:
        if not self._is_open:
            raise FleetClosed("the fleet is not open: `async with Fleet(runtime) as fleet`")

    async def _to_the_end(self, record: RunRecord, needs: Needs, job: str | None) -> Any:
        if record.status is not RunStatus.DONE:
            assert self.runtime.bucket is not None
            base, layers = record.base_snapshot, frozenset[str]()
            if await asyncio.to_thread(missing, self.runtime.snapshots, base) is None:
                await self.runtime.bucket.upload(base)
                layers = frozenset((await asyncio.to_thread(self.runtime.snapshots.get, base)).all_layers)
            asked = Asked(
                self.runtime.sandbox_of(record),
                needs,
                base,
                layers=layers,
                job=JobId(job or record.id),
                kind=record.workflow,
            )
            await self._on_nodes(record.id, asked)
        return await self.runtime.resume(record.id)  # the result of a run that is done

    async def _on_nodes(self, run: RunId, asked: Asked) -> None:
        refusal = f"no node can take run {run}. It is kept, and `ramify resume {run}` continues it:"
        died: list[str] = []
        dead: set[tuple[str, int]] = set()  # their processes, as leases name them
        while len(died) < MOST_DEATHS:
            slot = await self._nodes.place(asked, refusal)
            member = slot.member
            try:
                self._nodes.emit(Placed(run, member.node.name, tuple(died)))
                ended = await self._at(member, run, asked, refusal)
            except HostDied as error:
                died.append(member.node.name)
                dead.add((member.facts.host, member.facts.pid))
                await self._lost(member, run, str(error))
                continue
            finally:
                self._nodes.queue.release(slot)
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
                self._nodes.emit(NotUploaded(run, member.node.name, ended.not_uploaded))
            return
        raise NodesDied(
            f"run {run}: {len(died)} nodes died, one after the other, while they worked on it ({', '.join(died)}). "
            f"It may be the cause, for example by its memory. `ramify resume {run}` continues it",
            stranded_run=run,
            nodes=died,
        )

    async def _at(self, member: Member[RayHost], run: RunId, asked: Asked, refusal: str) -> Ended:
        working = asyncio.ensure_future(member.host.go_on(run, asked.sandbox, member.node.name, self.slots))
        places = BranchPlaces(
            self._nodes,
            self.runtime,
            run,
            asked.sandbox,
            here=member.node.id,
            lends=True,
            needs=asked.needs,
            job=asked.job,
        )
        serving = asyncio.create_task(BranchErrands(places, member.host).serve(working))
        relaying = asyncio.create_task(self._relay(member, run, working))
        try:
            ended = await self._nodes.answer(working, refusal)
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
            serving.cancel()
            await asyncio.wait({serving})

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
        await self._nodes.forget(member, why)
        await self.runtime.store.end_lease(run, member.facts.host, member.facts.pid)


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
