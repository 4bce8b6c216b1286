"""The process that works for a fleet on a node: it owns the node's home, continues runs that others stored, and runs
commands in worlds and steps of branches.

It runs as an actor of Ray, and imports nothing of Ray. It returns plain values, so that a fleet of another version
can read at least `describe`.
"""

from __future__ import annotations

import asyncio
import os
import platform
import time
from collections.abc import Awaitable, Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import ramify
from ramify import paths
from ramify.fleet.carried_errors import CarriedError, carried
from ramify.fleet.errors import NodeUnfit
from ramify.fleet.node_disk import NodeDisk
from ramify.fleet.relayed_events import EventRelay
from ramify.fleet.relayed_places import Errand, RelayedPlaces, SlotReply
from ramify.fleet.step_calls import Told
from ramify.fleet.step_host import StepHost, StepReply, shared_record
from ramify.fleet.types import FileIdentity, HostFacts, Shared
from ramify.fleet.world_host import WorldAnswer, WorldHost, WorldKey, WorldOrder
from ramify.fork_engine.errors import ForkEngineError
from ramify.fork_engine.remote.remote_store import RemoteStore
from ramify.fork_engine.store import SnapshotStore
from ramify.fork_engine.store_folder import boot_id
from ramify.home_collection import BUDGET_VARIABLE, automatic_policy
from ramify.images.catalogue import Catalogue
from ramify.images.errors import ImagesError
from ramify.runtime.execution.placed_steps import StepAnswer, StepOrder
from ramify.runtime.records import ROOT, BranchPath, RunId
from ramify.runtime.store.address import parse
from ramify.runtime.user_code.call_slo import CallSLO
from ramify.runtime.user_code.program_exits import work_for_others
from ramify.sandboxes import doctor
from ramify.sandboxes.capabilities import Feature
from ramify.sandboxes.linux.process_memory import memory_limits
from ramify.sandboxes.selection import NAMES
from ramify.serving.types import ChatRequest
from ramify.session import Runtime


@dataclass(frozen=True, slots=True)
class Ended:
    """How the work on a run ended here. error: what `Runtime.resume` raised. cancelled: `RunHost.stop` ended it.
    not_uploaded: why the bucket does not have the last state of a run that is done."""

    error: CarriedError | None = None
    cancelled: bool = False
    not_uploaded: str = ""


class RunHost:
    """The runs and worlds that a fleet has placed on this node. `describe` and `open` come first, `close` last."""

    def __init__(self) -> None:
        self._home = paths.home(None)
        self._shared: Shared | None = None
        self._node = ""
        self._stack = AsyncExitStack()
        self._opening = asyncio.Lock()
        self._runtimes: dict[str, Runtime] = {}  # by the name of the sandbox backend
        self._working: dict[RunId, asyncio.Task[Ended]] = {}
        self._world_hosts: dict[str, WorldHost] = {}  # as above
        self._places: dict[RunId, RelayedPlaces] = {}
        self._step_hosts: dict[str, StepHost] = {}  # as above
        self._steps: dict[str, StepHost | None] = {}  # by the id of their order; None: its host is being opened
        self._relay = EventRelay()
        self._disk = NodeDisk(self._home)

    async def describe(self) -> dict[str, Any]:
        """Return `HostFacts` as a mapping."""
        return asdict(await asyncio.to_thread(_facts, self._home))

    async def open(self, shared: Shared, sandbox: str, node: str) -> CarriedError | None:
        """Check that this node shares the fleet's database and bucket, and open what runs in such sandboxes need, so
        that none waits for it. The error is `NodeUnfit`, or what the database or the bucket raised."""
        try:
            _check_database(shared, node)
            _check_budget(node)
            await asyncio.to_thread(_check_bucket, self._home, shared, node)
            self._shared, self._node = shared, node
            if sandbox in NAMES:
                await self._world_host(sandbox)
        except Exception as error:  # noqa: BLE001  # it is raised where the fleet is
            return carried(error)
        return None

    async def go_on(self, run: RunId, sandbox: str, node: str, slots: int = 0) -> Ended:
        """Continue a run until it ends in any way. Its result is in the database, its events are for `events`. A call
        for a run that is worked on here waits for the same end.

        slots: of the fleet that places its branches, which is told by `errands`. 0: they stay here."""
        task = self._working.get(run)
        if task is None or task.done():
            self._relay.watch(run)
            task = self._working[run] = asyncio.ensure_future(self._go_on(run, sandbox, node, slots))
        try:
            await asyncio.wait({task})
        finally:
            if self._working.get(run) is task:
                del self._working[run]
                self._relay.end(run)
                if (places := self._places.pop(run, None)) is not None:
                    await places.close()
        return Ended(cancelled=True) if task.cancelled() else task.result()

    async def errands(self, run: RunId) -> tuple[Errand, ...] | None:
        """Wait for what a run wants for its branches (`RelayedPlaces.take`)."""
        return None if (places := self._places.get(run)) is None else await places.take()

    async def reply_errand(self, run: RunId, slot: int, reply: SlotReply) -> None:
        """As `RelayedPlaces.reply`."""
        if (places := self._places.get(run)) is not None:
            places.reply(slot, reply)

    async def make_calls(
        self, run: RunId, slot: int, number: int, requests: tuple[ChatRequest, ...], said: CallSLO
    ) -> Told:
        """As `RelayedPlaces.make_calls`."""
        if (places := self._places.get(run)) is None:
            return carried(asyncio.CancelledError())
        return await places.make_calls(slot, number, requests, said)

    async def cancel_calls(self, run: RunId, slot: int, number: int) -> None:
        """As `RelayedPlaces.cancel_calls`."""
        if (places := self._places.get(run)) is not None:
            places.cancel_calls(slot, number)

    async def events(self, run: RunId) -> bytes | None:
        """Wait for the next events of a run (see `EventRelay.take`)."""
        return await self._relay.take(run)

    async def stop(self, run: RunId) -> None:
        """Cancel the work on a run, and return once it has ended."""
        if (task := self._working.get(run)) is not None:
            task.cancel()
            await asyncio.wait({task})

    async def in_world(self, order: WorldOrder) -> WorldAnswer:
        """As `WorldHost.perform`."""
        answer = await (await self._world_host(order.setup.sandbox)).perform(order)
        self._look_at_disk()
        return answer

    async def close_world(self, world: WorldKey) -> None:
        """End a world, and the operation that it does."""
        for host in self._world_hosts.values():
            await host.close(world)

    async def begin_step(self, order: StepOrder, sandbox: str) -> StepReply:
        """As `StepHost.perform`."""
        self._steps[order.id] = None
        host = await self._step_host(sandbox)
        if order.id not in self._steps:  # it was stopped meanwhile
            return StepReply(StepAnswer(), carried(asyncio.CancelledError()))
        self._steps[order.id] = host
        return await self._said(order.id, host.perform(order))

    async def next_of_step(self, id: str) -> StepReply:
        """As `StepHost.next`."""
        host = self._steps[id]
        assert host is not None, "`begin_step` comes first"
        return await self._said(id, host.next(id))

    async def tell_step(self, id: str, number: int, told: Told) -> None:
        """As `StepHost.tell`."""
        if (host := self._steps.get(id)) is not None:
            host.tell(id, number, told)

    async def stop_step(self, id: str) -> None:
        """As `StepHost.stop`."""
        if (host := self._steps.pop(id, None)) is not None:
            await host.stop(id)

    async def end_steps(self, run: RunId, branches: Sequence[BranchPath] | None) -> None:
        """End the worlds of these branches of a run. None: of all."""
        for host in self._step_hosts.values():
            if branches is None:
                await host.end(run)
            else:
                await host.release(run, branches)

    async def close(self) -> CarriedError | None:
        """End all work, upload what waits, and return what went wrong with that."""
        for run in list(self._working):
            await self.stop(run)
        for host in self._step_hosts.values():
            await host.close()
        await self._disk.close()
        try:
            await self._stack.aclose()
        except Exception as error:  # noqa: BLE001  # it is raised where the fleet is
            return carried(error)
        return None

    async def _said(self, id: str, working: Awaitable[StepReply]) -> StepReply:
        reply = await working
        if reply.answer is not None:
            self._steps.pop(id, None)
            self._look_at_disk()
        return reply

    async def _step_host(self, sandbox: str) -> StepHost:
        runtime = await self._runtime(sandbox)
        assert runtime.bucket is not None
        return self._step_hosts.setdefault(sandbox, StepHost(runtime, runtime.bucket, self._node))

    async def _go_on(self, run: RunId, sandbox: str, node: str, slots: int) -> Ended:
        work_for_others()
        try:
            runtime = await self._runtime(sandbox)
            assert runtime.bucket is not None
            if slots:
                self._places[run] = RelayedPlaces(slots, runtime.bucket.known)
            await self._disk.ready()
            await shared_record(runtime, run, node)
            await runtime.resume(run)
        except Exception as error:  # noqa: BLE001  # it is raised where the fleet is
            return Ended(carried(error))
        not_uploaded = await _uploaded(runtime, run)
        self._look_at_disk()
        return Ended(not_uploaded=not_uploaded)

    def _look_at_disk(self) -> None:
        if self._shared is not None:
            self._disk.look(self._shared.database)

    async def _runtime(self, sandbox: str) -> Runtime:
        """The runtime for runs in such sandboxes. $RAMIFY_SANDBOX of the node does not count."""
        async with self._opening:
            if (runtime := self._runtimes.get(sandbox)) is None:
                assert self._shared is not None, "open() comes first"
                shared = self._shared
                opening = Runtime(
                    home=self._home,
                    database=shared.database,
                    remote=shared.bucket,
                    sandbox=sandbox,
                    observer=self._relay,
                    check_reuse=shared.check_reuse,
                    reuse_answers=shared.reuse_answers,
                )
                runtime = await self._stack.enter_async_context(opening)
                self._stack.enter_context(runtime.placing(lambda record: self._places.get(record.id)))
                self._runtimes[sandbox] = runtime
            return runtime

    async def _world_host(self, sandbox: str) -> WorldHost:
        runtime = await self._runtime(sandbox)
        assert runtime.bucket is not None
        async with self._opening:
            if (host := self._world_hosts.get(sandbox)) is None:
                opening = WorldHost(self._home, sandbox, runtime.snapshots, runtime.bucket)
                host = self._world_hosts[sandbox] = await self._stack.enter_async_context(opening)
            return host


async def _uploaded(runtime: Runtime, run: RunId) -> str:
    """Wait until the bucket has the last state of a run. Returns why it has not; "" if it has."""
    assert runtime.bucket is not None
    states = [one for one in await runtime.store.checkpoints(run) if one.branch == ROOT]
    last = max(states, key=lambda one: one.seq).snapshot_id
    if last == (await runtime.record(run)).base_snapshot:
        return ""  # the fleet had it uploaded; it may never have come here, if only branches on other nodes used it
    try:
        await runtime.bucket.upload(last)
    except ForkEngineError as error:
        return str(error)
    return ""


def file_identity(file: Path) -> FileIdentity | None:
    """Identifies a file of this machine; None if it does not exist."""
    try:
        there = file.stat()
    except OSError:
        return None
    return FileIdentity(boot_id(), there.st_dev, there.st_ino)


def _facts(home: Path) -> HostFacts:
    scratch = paths.worlds(home)
    paths.make_private(scratch)
    found = {one.backend: one for one in doctor.capabilities(scratch)}
    return HostFacts(
        version=ramify.__version__,
        python=platform.python_version(),
        host=os.uname().nodename,
        pid=os.getpid(),
        boot=boot_id(),
        home=str(home),
        memory=min(total for _, total in memory_limits()),
        sandboxes={name: able.reason for name, able in found.items()},
        criu=found["namespaces"].why_not(Feature.CRIU),
        images=_images(home),
        layers=frozenset(SnapshotStore(paths.snapshots(home)).parts.layers),
        clock=time.time(),
    )


def _images(home: Path) -> tuple[str, ...]:
    try:
        return tuple(name for image in Catalogue(paths.images(home)).all() for name in image.names)
    except ImagesError:  # a damaged one: those who use it are told
        return ()


def _check_database(shared: Shared, node: str) -> None:
    file = parse(shared.database).file
    if file is not None and file_identity(file) != shared.file:
        raise NodeUnfit(
            node,
            f"{file} is not the same file there: a SQLite file belongs to one machine. For nodes on several machines "
            "use PostgreSQL (--database postgresql://…)",
        )


def _check_budget(node: str) -> None:
    try:
        automatic_policy()
    except ValueError as error:
        raise NodeUnfit(node, f"its ${BUDGET_VARIABLE} is wrong: {error}") from None


def _check_bucket(home: Path, shared: Shared, node: str) -> None:
    paths.make_private(home)
    with RemoteStore(SnapshotStore(paths.snapshots(home)), paths.remote(home), shared.bucket) as remote:
        if remote.marker.store != shared.store:
            raise NodeUnfit(
                node,
                f"{shared.bucket} is another bucket there (store {remote.marker.store}, not {shared.store}): a "
                "folder must be the same on all nodes; or use S3, Google Cloud Storage or Azure",
            )
