"""Ray, as far as a fleet uses it: the nodes of a cluster, and one actor on each. Only this module and
`ray_connection` import Ray.

A program on a node of the cluster belongs to it. A program outside (ray://) is a client: a server on the head makes
its calls, so values pass through the head, and the program is on no node.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Any, Self, TypeVar, cast

import ramify
from ramify.fleet.errors import ClusterUnreachable
from ramify.fleet.ray_connection import CLIENT, RayConnection
from ramify.fleet.ray_host import ActorInside, ActorThroughClient, RayHost, check_head
from ramify.fleet.run_host import RunHost
from ramify.fleet.types import Node, NodeId
from ramify.sandboxes.host.concurrency import finish_before_cancelling

Result = TypeVar("Result")

MOST_CALLS = 10_000
"""Calls that an actor takes at the same time: a run is one."""

RAY_ENDS_S = 60.0
"""Seconds after which Ray ends the processes of a cluster whose head is away, by default."""

_RAY_ENDS = "RAY_gcs_rpc_server_reconnect_timeout_s"

CLIENT_ENDS_S = 30.0
"""Seconds for which Ray's client tries to reach a head again, by default. After as long the head ends what works for
a client that is away."""

_CLIENT_ENDS = "RAY_CLIENT_RECONNECT_GRACE_PERIOD"
_LEAST_SILENCE_S = 5.0

_LEAVE_S = 10.0


class RayCluster:
    """An async context manager: a connection to a running cluster.

    address: "auto" for the cluster that this machine belongs to, HOST:PORT of the head, or ray://HOST:PORT of the
    server for clients on the head. A process has at most one connection. If it has one already, that one is used, and
    must be to this address; if the program made it, it stays.

    Entering raises `RayMissing` and `ClusterUnreachable`.
    """

    def __init__(self, address: str) -> None:
        self._connection = RayConnection(address)

    async def __aenter__(self) -> Self:
        try:
            await finish_before_cancelling(asyncio.to_thread(self._connection.open))
        except asyncio.CancelledError:
            await self._disconnect()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._disconnect()

    @property
    def is_outside(self) -> bool:
        """Whether this process is a client of the cluster, and on no node of it."""
        return self._connection.is_outside

    @property
    def silence_s(self) -> float:
        """For how long the head may not answer. Inside the cluster: half of the time after which Ray ends the
        processes of a cluster that has none. The rest is for leaving. Outside: the time for which Ray's client tries
        to reach the head again."""
        if self.is_outside:
            return max(float(os.environ.get(_CLIENT_ENDS, CLIENT_ENDS_S)), _LEAST_SILENCE_S)
        return float(os.environ.get(_RAY_ENDS, RAY_ENDS_S)) / 2

    @property
    def here(self) -> NodeId | None:
        """The node that this process belongs to."""
        if self.is_outside:
            return None
        return NodeId(self._ray.get_runtime_context().get_node_id())

    async def nodes(self) -> list[Node]:
        """Return the nodes that live. Raises `ClusterUnreachable`; may wait for a head that went just now.

        In a thread of its own: the program may keep those of `asyncio.to_thread` busy, and must not wait at its end
        for one that waits for the head.
        """
        return await _in_own_thread(self._nodes)

    async def start_host(self, node: Node) -> RayHost:
        """Start an actor on a node. It ends with this process at the latest."""
        return RayHost(self._ray, await asyncio.to_thread(self._start, node))

    async def _disconnect(self) -> None:
        leaving = _in_own_thread(self._connection.close)
        if self.is_outside:  # a client whose head is gone may wait for it for minutes
            leaving = asyncio.wait_for(leaving, _LEAVE_S)
        with suppress(TimeoutError):
            await finish_before_cancelling(leaving)

    @property
    def _ray(self) -> Any:
        return self._connection.ray

    def _nodes(self) -> list[Node]:
        check_head(self._ray, self.is_outside)
        try:
            listed = self._ray.nodes()
        except Exception as error:
            raise ClusterUnreachable(f"the Ray cluster does not list its nodes: {error}") from error
        return [
            Node(NodeId(one["NodeID"]), one["NodeManagerHostname"], one["Resources"])
            for one in listed
            if one["Alive"]
        ]

    def _start(self, node: Node) -> ActorInside | ActorThroughClient:
        check_head(self._ray, self.is_outside)
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        place = NodeAffinitySchedulingStrategy(node.id, soft=False)
        options = {"num_cpus": 0, "max_concurrency": MOST_CALLS, "scheduling_strategy": place}
        try:
            actor = self._ray.remote(RunHost).options(**options).remote()
        except ModuleNotFoundError as error:  # on the head: it makes the calls of its clients
            raise ClusterUnreachable(
                f"the head of the Ray cluster lacks a module: {error}. A program outside the cluster ({CLIENT}) "
                f"needs Ramify on the head, too: install ramify[ray]=={ramify.__version__} there"
            ) from error
        if self.is_outside:
            return ActorThroughClient(self._ray, actor)
        return ActorInside(self._ray, actor)


async def _in_own_thread(work: Callable[[], Result]) -> Result:
    """As `asyncio.to_thread`, in a thread that neither other work nor the end of the program waits for."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Result] = loop.create_future()

    def tell(result: Result | None, error: Exception | None) -> None:
        if done.done():
            return  # its caller was cancelled
        if error is not None:
            done.set_exception(error)
        else:
            done.set_result(cast("Result", result))

    def do() -> None:
        result, raised = None, None
        try:
            result = work()
        except Exception as error:  # noqa: BLE001  # raised to the caller
            raised = error
        with suppress(RuntimeError):  # the loop has ended meanwhile
            loop.call_soon_threadsafe(tell, result, raised)

    threading.Thread(target=do, name="ramify-ray", daemon=True).start()
    return await done
