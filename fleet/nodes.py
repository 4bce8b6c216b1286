"""The nodes of a cluster that work for a fleet: they join, take work in its order, and are forgotten if they die."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from math import inf
from types import TracebackType
from typing import Any, TypeVar

from ramify.fleet.carried_errors import rebuilt
from ramify.fleet.errors import ClusterUnreachable, FleetClosed, FleetError, NodeUnfit, NoFitNode
from ramify.fleet.job_order import JobOrder
from ramify.fleet.node_versions import checked, why_not_started
from ramify.fleet.placement import Asked, Member, Slot
from ramify.fleet.ray_cluster import RayCluster
from ramify.fleet.ray_host import HostDied, RayHost
from ramify.fleet.slot_queue import SlotQueue
from ramify.fleet.types import FleetEvent, Node, NodeId, NodeJoined, NodeLost, NodeRefused, Shared

Answer = TypeVar("Answer")

LOOK_S = 1.0
"""Seconds between two looks at the nodes of the cluster."""

AGAIN_S, LONGEST_AGAIN_S = 10.0, 600.0
"""Seconds after which a node that could not be used is tried again: at first, and at most. Each pause is twice as
long as the one before."""

MOST_DEATHS = 3
"""Nodes that may die, one after the other, while they work on the same thing, which may be what kills them."""


class FleetNodes:
    """The nodes of the cluster at `address`. slots: what a node does at the same time; by default as many as Ray says
    it has CPUs. patience_s: for how long work waits for a node that can take it. observer: of the fleet.
    order: which job gets a slot that several wait for."""

    def __init__(
        self,
        address: str,
        *,
        slots: int | None,
        patience_s: float,
        observer: Callable[[FleetEvent], None] | None,
        order: JobOrder | None = None,
    ) -> None:
        self.queue: SlotQueue[RayHost] = SlotQueue(order)
        self.here: NodeId | None = None  # the node of this process
        self._cluster = RayCluster(address)
        self._slots, self._patience_s, self._observer = slots, patience_s, observer
        self._known: dict[NodeId, asyncio.Task[None]] = {}  # joins, ended or not
        self._refused: dict[str, str] = {}
        self._again: dict[NodeId, tuple[float, float]] = {}  # when a refused node is tried again, and the pause
        self._closed = False
        self._head_lost = asyncio.Event()

    @asynccontextmanager
    async def opened(self, shared: Shared, sandbox: str) -> AsyncIterator[None]:
        """Connect, and have nodes work while the block runs. Leaving it closes their processes, after their uploads.

        Raises `RayMissing`, `ClusterUnreachable`, `NoFitNode`, and at its end the first error of the uploads.
        """
        self._shared, self._sandbox = shared, sandbox
        self._again, self._closed, self._head_lost = {}, False, asyncio.Event()
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self._cluster)
            stack.push_async_exit(self._close_hosts)
            self.here = self._cluster.here
            for joining in [self._join_soon(node) for node in await self._cluster.nodes()]:
                await joining
            if not self.queue.members:
                raise NoFitNode("no node of the cluster can work for this fleet:", reasons=self._refused)
            watching = asyncio.create_task(self._watch())
            stack.push_async_callback(_ended, watching)
            yield

    async def place(self, asked: Asked, refusal: str) -> Slot[RayHost]:
        """Wait for a slot of a node and take it; `queue.release` gives it back. Raises an error that begins with
        `refusal`: `NoFitNode` if the nodes of the fleet cannot take it, or if the last one that could is gone for too
        long, or if there was none for too long; `FleetClosed`; `ClusterUnreachable`."""
        self.check_open(refusal)
        placing, now = self.queue.ask(asked), asyncio.get_running_loop().time
        until = now() + self._patience_s
        try:
            while not placing.done():
                self.check_open(refusal)
                if self.queue.can_ever_place(asked):
                    until = now() + self._patience_s
                elif now() >= until or (self.queue.members and not self._may_come_back(asked)):
                    raise NoFitNode(refusal, reasons={**self._refused, **self.queue.reasons(asked)})
                await asyncio.wait({placing}, timeout=LOOK_S)
            return placing.result()
        except BaseException:
            if placing.done() and not placing.cancelled():
                self.queue.release(placing.result())
            placing.cancel()
            raise

    def _may_come_back(self, asked: Asked) -> bool:
        """Whether a node that could take it went a short time ago. Another may take its place."""
        return self.queue.lately_could_place(asked, self._patience_s)

    async def answer(self, working: asyncio.Future[Answer], refusal: str) -> Answer:
        """Wait for what a node does. Raises what it raises, and `ClusterUnreachable`, which begins with `refusal`."""
        lost = asyncio.ensure_future(self._head_lost.wait())
        either: set[asyncio.Future[Any]] = {working, lost}
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if not working.done():
                raise self._unreachable(refusal)
            return working.result()
        finally:
            lost.cancel()
            working.cancel()

    def lives(self, member: Member[RayHost]) -> bool:
        """Whether a node works for the fleet, as far as is known."""
        return member in self.queue.members

    async def forget(self, member: Member[RayHost], why: str) -> None:
        """Give up a node, or its process. If the node lives, it gets another process."""
        if member in self.queue.members:
            self.queue.remove(member)
            self._known.pop(member.node.id, None)
            self.emit(NodeLost(member.node.name, why))
            await member.host.kill()  # it may live, and only not be reached

    def emit(self, event: FleetEvent) -> None:
        if self._observer is not None:
            try:
                self._observer(event)
            except Exception as error:  # noqa: BLE001  # no work and no watch over the nodes ends with it
                told = {"message": f"the observer of a fleet failed at {event!r}", "exception": error}
                asyncio.get_running_loop().call_exception_handler(told)

    async def _watch(self) -> None:
        """Take in nodes that come, and forget those that went without working on a run. Ends if the head of the
        cluster is silent for so long that Ray would soon end this process and the nodes."""
        now, silent_since = asyncio.get_running_loop().time, None
        listing = asyncio.ensure_future(self._cluster.nodes())
        try:
            while True:
                await asyncio.sleep(LOOK_S)
                if listing.done() and listing.exception() is None:
                    silent_since = None
                    self._take_in({node.id: node for node in listing.result()})
                elif silent_since is None:
                    silent_since = now()  # not before: this program may have been busy for long
                elif now() - silent_since >= self._cluster.silence_s:
                    break
                if listing.done():
                    listing = asyncio.ensure_future(self._cluster.nodes())
            self._head_lost.set()
        finally:
            listing.cancel()

    def _take_in(self, nodes: Mapping[NodeId, Node]) -> None:
        now = asyncio.get_running_loop().time()
        for node in nodes.values():
            if self._again.get(node.id, (inf, 0.0))[0] <= now and self._known[node.id].done():
                del self._known[node.id]
            self._join_soon(node)
        for member in [one for one in self.queue.members if one.node.id not in nodes and not one.taken]:
            self.queue.remove(member)
            self.emit(NodeLost(member.node.name, "it left the cluster"))
        for id in self._known.keys() - nodes.keys():
            self._known.pop(id).cancel()
            self._again.pop(id, None)
        names = {node.name for node in nodes.values()}
        self._refused = {name: why for name, why in self._refused.items() if name in names}

    def check_open(self, refusal: str) -> None:
        """Raises `FleetClosed` and `ClusterUnreachable`, which begin with `refusal`."""
        if self._closed:
            raise FleetClosed(f"{refusal} the fleet is closed")
        if self._head_lost.is_set():
            raise self._unreachable(refusal)

    def _unreachable(self, refusal: str) -> ClusterUnreachable:
        silence = self._cluster.silence_s
        ends = "the nodes end their work for this program. Restart the cluster, or mend the network"
        if not self._cluster.is_outside:
            ends = f"after {2 * silence:g} s Ray ends this program and the nodes. Restart the cluster"
        return ClusterUnreachable(
            f"{refusal} the head of the Ray cluster has not answered for {silence:g} s, and {ends}"
        )

    def _join_soon(self, node: Node) -> asyncio.Task[None]:
        if node.id not in self._known:
            self._known[node.id] = asyncio.create_task(self._join(node))
        return self._known[node.id]

    async def _join(self, node: Node) -> None:
        slots = self._slots if self._slots is not None and node.cpus else node.cpus
        if not slots:
            self._refuse(node, "it has no CPUs for Ray")
            return
        host: RayHost | None = None
        try:
            host = await self._cluster.start_host(node)
            asked_at = time.time()
            facts = checked(node, await host.describe(), asked_at)
            if (failed := await host.open(self._shared, self._sandbox, node.name)) is not None:
                raise rebuilt(failed, node.name)
        except Exception as error:  # noqa: BLE001  # of Ray, of the node's database, its bucket or its home
            self._refuse(node, _why(error))
            if host is not None:
                await host.kill()
        else:
            self._refused.pop(node.name, None)
            self._again.pop(node.id, None)
            self.queue.add(Member(node, facts, host, slots))
            self.emit(NodeJoined(node.name, slots))

    def _refuse(self, node: Node, reason: str) -> None:
        """Note, and tell if it is news, why a node is not used. It is tried again later."""
        pause = min(2 * self._again.get(node.id, (0.0, AGAIN_S / 2))[1], LONGEST_AGAIN_S)
        self._again[node.id] = (asyncio.get_running_loop().time() + pause, pause)
        if self._refused.get(node.name) != reason:
            self._refused[node.name] = reason
            self.emit(NodeRefused(node.name, reason))

    async def _close_hosts(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closed = True
        for joining in self._known.values():
            joining.cancel()
        await asyncio.gather(*self._known.values(), return_exceptions=True)
        self._known, self._refused = {}, {}
        members, self.queue.members = self.queue.members, []
        if self._head_lost.is_set() and self._cluster.is_outside:
            return  # all calls went through the head
        errors = await asyncio.gather(*(_closed(one) for one in members))
        first = next((one for one in errors if one is not None), None)
        if error is None and first is not None:
            raise first


def _why(error: Exception) -> str:
    """Why a node is not used, given what its start raised."""
    match error:
        case NodeUnfit():
            return error.reason
        case HostDied():
            return why_not_started(str(error))
        case ClusterUnreachable():
            return str(error)
    return f"{type(error).__name__}: {error}"


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
