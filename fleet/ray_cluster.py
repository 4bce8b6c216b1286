"""Ray, as far as a fleet uses it: the nodes of a cluster, and one actor on each. The only module that imports Ray.

A program on a node of the cluster belongs to it. A program outside (ray://) is a client: a server on the head makes
its calls, so values pass through the head, and the program is on no node.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Any, Self, TypeVar, cast
from urllib.parse import urlsplit

import ramify
from ramify.fleet.errors import ClusterUnreachable, RayMissing
from ramify.fleet.ray_host import REACH_S, ActorInside, ActorThroughClient, RayHost, check_head
from ramify.fleet.run_host import RunHost
from ramify.fleet.types import Node, NodeId
from ramify.sandboxes.host.concurrency import finish_before_cancelling

Result = TypeVar("Result")

MOST_CALLS = 10_000
"""Calls that an actor takes at the same time: a run is one."""

RAY_ENDS_S = 60.0
"""Seconds after which Ray ends the processes of a cluster whose head is away, by default."""

_RAY_ENDS = "RAY_gcs_rpc_server_reconnect_timeout_s"

CLIENT = "ray://"
CLIENT_PORT = 10001

CLIENT_ENDS_S = 30.0
"""Seconds for which Ray's client tries to reach a head again, by default. After as long the head ends what works for
a client that is away."""

_CLIENT_ENDS = "RAY_CLIENT_RECONNECT_GRACE_PERIOD"
_LEAST_SILENCE_S = 5.0

_STARTS_CLUSTER = "`ray start --head` starts a cluster and prints its address"
_STARTS_SERVER = (
    "A head listens for clients there if it has `ramify[ray]` and was started with `ray start --head "
    f"--ray-client-server-port=PORT` (by default {CLIENT_PORT})"
)
_LEAVE_S = 10.0
_TRIES = 3


class RayCluster:
    """An async context manager: a connection to a running cluster.

    address: "auto" for the cluster that this machine belongs to, HOST:PORT of the head, or ray://HOST:PORT of the
    server for clients on the head. A process has at most one connection; if it has one already, that one is used, and
    it stays.

    Entering raises `RayMissing` and `ClusterUnreachable`.

    is_outside: whether this process is a client of the cluster, and on no node of it.
    """

    def __init__(self, address: str) -> None:
        self._address = address
        self._is_ours = False
        self.is_outside = False

    async def __aenter__(self) -> Self:
        try:
            await finish_before_cancelling(asyncio.to_thread(self._connect))
        except asyncio.CancelledError:
            await self._disconnect()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._disconnect()

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
        if not self._is_ours:
            return
        leaving = _in_own_thread(self._ray.shutdown)
        if self.is_outside:  # a client whose head is gone may wait for it for minutes
            leaving = asyncio.wait_for(leaving, _LEAVE_S)
        with suppress(TimeoutError):
            await finish_before_cancelling(leaving)
        _let_print(self._ray, True)

    def _connect(self) -> None:
        try:
            import ray
        except ModuleNotFoundError as error:
            if error.name != "ray":
                raise
            raise RayMissing(
                "Ray is not installed: `pip install 'ramify[ray]'`, on this and every node, with the same version of "
                "Ramify, Ray and Python"
            ) from None
        self._ray = ray
        named = self._address
        if named == "auto":
            named = os.environ.get("RAY_ADDRESS", named)
        if ray.is_initialized():
            self.is_outside = ray.util.client.ray.is_connected()
            return
        self.is_outside = named.startswith(CLIENT)
        if not self.is_outside and "://" in named:
            raise ClusterUnreachable(
                f'{named!r} is not the address of a cluster: name "auto", HOST:PORT of its head, or '
                f"{CLIENT}HOST:{CLIENT_PORT}"
            )
        if self.is_outside:
            _reach(_server_for_clients(named), f"{named!r} cannot be used: ", _STARTS_SERVER)
        else:
            _reach(named, "", _STARTS_CLUSTER)
        log = logging.getLogger("ray._private.worker")
        log.addFilter(_not_of_signals)
        try:
            self._init(named)
        except Exception as error:  # ConnectionError, RuntimeError, ValueError, by what is wrong
            who = "this program needs" if self.is_outside else "this machine must be one of its nodes, with"
            raise ClusterUnreachable(
                f"the Ray cluster {named!r} cannot be used: {str(error).strip()}. `ray start --head` starts one; "
                f"{who} the same versions of Ray and Python"
            ) from error
        finally:
            log.removeFilter(_not_of_signals)
        self._is_ours = True
        _let_print(ray, False)

    def _init(self, address: str) -> None:
        for left in reversed(range(_TRIES)):
            try:
                self._ray.init(address, log_to_driver=False, configure_logging=False)
                return
            except ConnectionAbortedError:  # the head forks a process for each client, and that may fail
                if not left:
                    raise

    def _nodes(self) -> list[Node]:
        if not self.is_outside:
            check_head(self._ray)
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


def _server_for_clients(address: str) -> str:
    """HOST:PORT of ray://HOST[:PORT]. Raises `ClusterUnreachable`."""
    try:
        named = urlsplit(address)
        host, port = named.hostname, named.port or CLIENT_PORT
    except ValueError:
        host, port = None, 0
    if not host:
        raise ClusterUnreachable(f"{address!r} is not an address: {CLIENT}HOST:{CLIENT_PORT}")
    return f"{host}:{port}"


def _reach(address: str, why: str, remedy: str) -> None:
    """Raises `ClusterUnreachable` if nothing listens there. Ray itself would try for minutes. why, remedy: what the
    message begins and ends with."""
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdecimal():
        return  # "auto", or something that Ray refuses
    try:
        socket.create_connection((host.strip("[]"), int(port)), REACH_S).close()
    except (OSError, OverflowError) as error:
        raise ClusterUnreachable(
            f"{why}nothing that can be reached listens at {address}: {error}. {remedy}"
        ) from None


def _let_print(ray: Any, allowed: bool) -> None:
    """Whether Ray prints the errors of nodes, with the ends of their logs, on the program's stdout: there the result
    of `ramify run` goes. The fleet's observer is told that a node is lost. Ray has no public way to say this."""
    if (internal := getattr(ray, "_private", None)) is not None:
        internal.worker._worker_logs_enabled = allowed


def _not_of_signals(record: logging.LogRecord) -> bool:
    """Leaves out that Ray does not handle SIGTERM: it connects on another thread, so that the program's own handler
    stays."""
    return "SIGTERM" not in record.getMessage()
