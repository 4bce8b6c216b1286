"""Ray, as far as a fleet uses it: the nodes of a cluster, and one actor on each. The only module that imports Ray."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import threading
from collections.abc import Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

from ramify.fleet.carried_errors import CarriedError
from ramify.fleet.errors import ClusterUnreachable, FleetError, RayMissing
from ramify.fleet.relayed_places import Errand, SlotReply
from ramify.fleet.run_host import Ended, RunHost
from ramify.fleet.step_calls import Told
from ramify.fleet.step_host import StepReply
from ramify.fleet.types import Node, NodeId, Shared
from ramify.fleet.world_host import WorldAnswer, WorldKey, WorldOrder
from ramify.runtime.execution.placed_steps import StepOrder
from ramify.runtime.records import BranchPath, RunId
from ramify.runtime.user_code.call_slo import CallSLO
from ramify.sandboxes.host.concurrency import finish_before_cancelling
from ramify.serving.types import ChatRequest

MOST_CALLS = 10_000
"""Calls that an actor takes at the same time: a run is one."""

RAY_ENDS_S = 60.0
"""Seconds after which Ray ends the processes of a cluster whose head is away, by default."""

_RAY_ENDS = "RAY_gcs_rpc_server_reconnect_timeout_s"

_REACH_S = 5.0


class HostDied(Exception):
    """The actor, or its node, is gone or cannot be reached."""


class RayCluster:
    """An async context manager: a connection to a running cluster.

    address: "auto" for the cluster that this machine belongs to, or HOST:PORT of the head. A process has at most one
    connection; if it has one already, that one is used, and it stays.

    Entering raises `RayMissing` and `ClusterUnreachable`.
    """

    def __init__(self, address: str) -> None:
        self._address = address
        self._is_ours = False

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
        """For how long the head may not answer: half of the time after which Ray ends the processes of a cluster that
        has none. The rest is for leaving."""
        return float(os.environ.get(_RAY_ENDS, RAY_ENDS_S)) / 2

    @property
    def here(self) -> NodeId:
        """The node that this process belongs to."""
        return NodeId(self._ray.get_runtime_context().get_node_id())

    async def nodes(self) -> list[Node]:
        """Return the nodes that live. Raises `ClusterUnreachable`; may wait for a head that went just now.

        In a thread of its own: the program may keep those of `asyncio.to_thread` busy, and must not wait at its end
        for one that waits for the head.
        """
        loop = asyncio.get_running_loop()
        listed: asyncio.Future[list[Node]] = loop.create_future()

        def tell(found: list[Node] | Exception) -> None:
            if listed.done():
                return  # its caller was cancelled
            if isinstance(found, Exception):
                listed.set_exception(found)
            else:
                listed.set_result(found)

        def look() -> None:
            found: list[Node] | Exception
            try:
                found = self._nodes()
            except Exception as error:  # noqa: BLE001  # raised to the caller
                found = error
            with suppress(RuntimeError):  # the loop has ended meanwhile
                loop.call_soon_threadsafe(tell, found)

        threading.Thread(target=look, name="ramify-nodes", daemon=True).start()
        return await listed

    async def start_host(self, node: Node) -> RayHost:
        """Start an actor on a node. It ends with this process at the latest."""
        return RayHost(self._ray, await asyncio.to_thread(self._start, node))

    async def _disconnect(self) -> None:
        if self._is_ours:
            await finish_before_cancelling(asyncio.to_thread(self._ray.shutdown))
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
            if ray.util.client.ray.is_connected():
                raise _of_client("this program's connection to Ray")
            return
        if named.startswith("ray://"):
            raise _of_client(repr(named))
        if "://" in named:
            raise ClusterUnreachable(f'{named!r} is not the address of a head: name "auto" or HOST:PORT')
        _reach(named)
        log = logging.getLogger("ray._private.worker")
        log.addFilter(_not_of_signals)
        try:
            ray.init(self._address, log_to_driver=False, configure_logging=False)
        except Exception as error:  # ConnectionError, RuntimeError, ValueError, by what is wrong
            raise ClusterUnreachable(
                f"the Ray cluster {self._address!r} cannot be used: {str(error).strip()}. `ray start --head` starts "
                "one; this machine must be one of its nodes, with the same versions of Ray and Python"
            ) from error
        finally:
            log.removeFilter(_not_of_signals)
        self._is_ours = True
        _let_print(ray, False)

    def _nodes(self) -> list[Node]:
        _check_head(self._ray)
        try:
            listed = self._ray.nodes()
        except Exception as error:
            raise ClusterUnreachable(f"the Ray cluster does not list its nodes: {error}") from error
        return [
            Node(NodeId(one["NodeID"]), one["NodeManagerHostname"], one["Resources"])
            for one in listed
            if one["Alive"]
        ]

    def _start(self, node: Node) -> Any:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        place = NodeAffinitySchedulingStrategy(node.id, soft=False)
        actor = self._ray.remote(RunHost)
        return actor.options(num_cpus=0, max_concurrency=MOST_CALLS, scheduling_strategy=place).remote()


def _of_client(what: str) -> ClusterUnreachable:
    return ClusterUnreachable(
        f"{what}: Ray's client protocol is not supported. Run this program on a node of the cluster (`ray job submit "
        "--address=http://HOST:8265 -- python …` does so from outside, if the head has `ray[default]`; `ray start "
        '--address=HOST:PORT` makes this machine a node), and name "auto" or HOST:PORT'
    )


def _reach(address: str) -> None:
    """Raises `ClusterUnreachable` if nothing listens there. Ray itself would try for minutes."""
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdecimal():
        return  # "auto", or something that Ray refuses
    try:
        socket.create_connection((host.strip("[]"), int(port)), _REACH_S).close()
    except (OSError, OverflowError) as error:
        raise ClusterUnreachable(
            f"nothing that can be reached listens at {address}: {error}. `ray start --head` starts a cluster and "
            "prints its address"
        ) from None


def _check_head(ray: Any) -> None:
    """Raises `ClusterUnreachable` if the head is away. A call that waits for the head would have Ray end this process
    after a while, even if it has left the cluster by then."""
    host, _, port = str(ray.get_runtime_context().gcs_address).rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), _REACH_S).close()
    except OSError as error:
        raise ClusterUnreachable(f"the head of the Ray cluster does not answer: {error}") from None


def _let_print(ray: Any, allowed: bool) -> None:
    """Whether Ray prints the errors of nodes, with the ends of their logs, on the program's stdout: there the result
    of `ramify run` goes. The fleet's observer is told that a node is lost. Ray has no public way to say this."""
    if (internal := getattr(ray, "_private", None)) is not None:
        internal.worker._worker_logs_enabled = allowed


def _not_of_signals(record: logging.LogRecord) -> bool:
    """Leaves out that Ray does not handle SIGTERM: it connects on another thread, so that the program's own handler
    stays."""
    return "SIGTERM" not in record.getMessage()


class RayHost:
    """`RunHost` on a node. Each method raises `HostDied` if it is gone, or never started; `FleetError` for a bug in
    it."""

    def __init__(self, module: Any, actor: Any) -> None:
        self._ray = module
        self._actor = actor

    async def describe(self) -> dict[str, Any]:
        return dict(await self._answer(self._actor.describe.remote()))

    async def open(self, shared: Shared, sandbox: str, node: str) -> CarriedError | None:
        answer: CarriedError | None = await self._answer(self._actor.open.remote(shared, sandbox, node))
        return answer

    async def go_on(self, run: RunId, sandbox: str, node: str, slots: int) -> Ended:
        ended: Ended = await self._answer(self._actor.go_on.remote(run, sandbox, node, slots))
        return ended

    async def errands(self, run: RunId) -> tuple[Errand, ...] | None:
        errands: tuple[Errand, ...] | None = await self._answer(self._actor.errands.remote(run))
        return errands

    async def reply_errand(self, run: RunId, slot: int, reply: SlotReply) -> None:
        await self._answer(self._actor.reply_errand.remote(run, slot, reply))

    async def make_calls(
        self, run: RunId, slot: int, number: int, requests: tuple[ChatRequest, ...], said: CallSLO
    ) -> Told:
        told: Told = await self._answer(self._actor.make_calls.remote(run, slot, number, requests, said))
        return told

    async def cancel_calls(self, run: RunId, slot: int, number: int) -> None:
        await self._answer(self._actor.cancel_calls.remote(run, slot, number))

    async def events(self, run: RunId) -> bytes | None:
        events: bytes | None = await self._answer(self._actor.events.remote(run))
        return events

    async def stop(self, run: RunId) -> None:
        await self._answer(self._actor.stop.remote(run))

    async def in_world(self, order: WorldOrder) -> WorldAnswer:
        answer: WorldAnswer = await self._answer(self._actor.in_world.remote(order))
        return answer

    async def close_world(self, world: WorldKey) -> None:
        await self._answer(self._actor.close_world.remote(world))

    async def begin_step(self, order: StepOrder, sandbox: str) -> StepReply:
        reply: StepReply = await self._answer(self._actor.begin_step.remote(order, sandbox))
        return reply

    async def next_of_step(self, id: str) -> StepReply:
        reply: StepReply = await self._answer(self._actor.next_of_step.remote(id))
        return reply

    async def tell_step(self, id: str, number: int, told: Told) -> None:
        await self._answer(self._actor.tell_step.remote(id, number, told))

    async def stop_step(self, id: str) -> None:
        await self._answer(self._actor.stop_step.remote(id))

    async def end_steps(self, run: RunId, branches: Sequence[BranchPath] | None) -> None:
        await self._answer(self._actor.end_steps.remote(run, branches))

    async def close(self) -> CarriedError | None:
        answer: CarriedError | None = await self._answer(self._actor.close.remote())
        return answer

    async def kill(self) -> None:
        """End the process. Does nothing if it is gone, or if the head is: then it ends with the cluster."""
        with suppress(ClusterUnreachable):
            await asyncio.to_thread(self._kill)

    def _kill(self) -> None:
        _check_head(self._ray)
        self._ray.kill(self._actor)

    async def _answer(self, reference: Any) -> Any:
        errors = self._ray.exceptions
        try:
            return await reference
        except (errors.RayTaskError, errors.RaySystemError) as error:  # the latter: its answer cannot be decoded
            raise FleetError(f"the fleet's process on a node failed: {error}") from error
        except errors.RayError as error:
            raise HostDied(str(error).strip()) from error
