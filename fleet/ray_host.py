"""`RunHost` on a node, as this program calls it through Ray, which `ray_cluster` imports."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Protocol

from ramify.fleet.carried_errors import CarriedError
from ramify.fleet.errors import ClusterUnreachable, FleetError
from ramify.fleet.relayed_places import Errand, SlotReply
from ramify.fleet.run_host import Ended
from ramify.fleet.step_calls import Told
from ramify.fleet.step_host import StepReply
from ramify.fleet.types import Shared
from ramify.fleet.world_host import WorldAnswer, WorldKey, WorldOrder
from ramify.runtime.execution.placed_steps import StepOrder
from ramify.runtime.records import BranchPath, RunId
from ramify.runtime.user_code.call_slo import CallSLO
from ramify.serving.types import ChatRequest

REACH_S = 5.0
_KILL_S = 10.0


class HostDied(Exception):
    """The actor, or its node, is gone or cannot be reached."""


def check_connected(ray: Any) -> None:
    """Raises `ConnectionError` if the program has left the cluster: for a call, Ray would connect to another cluster,
    or start one."""
    if not ray.is_initialized():
        raise ConnectionError("this program is not connected to the Ray cluster any more")


def check_head(ray: Any, outside: bool) -> None:
    """Raises `ClusterUnreachable` if the program has left the cluster, or the head is away. A call that waits for the
    head would have Ray end this process after a while, even if it has left the cluster by then. outside: this process
    is a client, which Ray does not end."""
    try:
        check_connected(ray)
    except ConnectionError as error:
        raise ClusterUnreachable(str(error)) from None
    if outside:
        return
    host, _, port = str(ray.get_runtime_context().gcs_address).rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), REACH_S).close()
    except OSError as error:
        raise ClusterUnreachable(f"the head of the Ray cluster does not answer: {error}") from None


class Actor(Protocol):
    """How an actor of Ray is called. Each raises what Ray does."""

    async def call(self, method: str, *arguments: Any) -> Any: ...

    async def kill(self) -> None:
        """May raise `ClusterUnreachable`."""
        ...


class ActorInside:
    """An actor of the cluster that this process belongs to."""

    def __init__(self, module: Any, actor: Any) -> None:
        self._ray, self._actor = module, actor

    async def call(self, method: str, *arguments: Any) -> Any:
        check_connected(self._ray)
        return await getattr(self._actor, method).remote(*arguments)

    async def kill(self) -> None:
        await asyncio.to_thread(self._kill)

    def _kill(self) -> None:
        check_head(self._ray, outside=False)
        self._ray.kill(self._actor)


class ActorThroughClient:
    """An actor of a cluster that this process is a client of (ray://).

    A call of Ray's client waits for the head, so each is made in a thread. It is one thread, so that the actor gets
    the calls in their order.
    """

    def __init__(self, module: Any, actor: Any) -> None:
        self._ray, self._actor = module, actor
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="ramify-ray-client")

    async def call(self, method: str, *arguments: Any) -> Any:
        def send() -> Future[Any]:
            check_connected(self._ray)
            sent: Future[Any] = getattr(self._actor, method).remote(*arguments).future()
            return sent

        answer = asyncio.wrap_future(await asyncio.wrap_future(self._thread.submit(send)))
        answer.add_done_callback(_seen)
        return await asyncio.shield(answer)  # Ray's own thread sets it, and fails if it was cancelled

    async def kill(self) -> None:
        """Does not wait for long: the actor ends with the connection at the latest."""
        killing = asyncio.wrap_future(self._thread.submit(self._kill))
        await asyncio.wait({killing}, timeout=_KILL_S)
        killing.add_done_callback(_seen)  # the connection may go meanwhile

    def _kill(self) -> None:
        if self._ray.is_initialized():  # otherwise Ray would connect to another cluster
            self._ray.kill(self._actor)


def _seen(done: asyncio.Future[Any]) -> None:
    """Asyncio reports the error of a future that nobody has seen, such as that of a cancelled call."""
    if not done.cancelled():
        done.exception()


class RayHost:
    """`RunHost` on a node. Each method raises `HostDied` if it is gone, never started, or if the cluster is;
    `FleetError` for a bug in it."""

    def __init__(self, module: Any, actor: Actor) -> None:
        self._ray, self._actor = module, actor

    async def describe(self) -> dict[str, Any]:
        return dict(await self._call("describe"))

    async def open(self, shared: Shared, sandbox: str, node: str) -> CarriedError | None:
        answer: CarriedError | None = await self._call("open", shared, sandbox, node)
        return answer

    async def go_on(self, run: RunId, sandbox: str, node: str, slots: int) -> Ended:
        ended: Ended = await self._call("go_on", run, sandbox, node, slots)
        return ended

    async def errands(self, run: RunId) -> tuple[Errand, ...] | None:
        errands: tuple[Errand, ...] | None = await self._call("errands", run)
        return errands

    async def reply_errand(self, run: RunId, slot: int, reply: SlotReply) -> None:
        await self._call("reply_errand", run, slot, reply)

    async def make_calls(
        self, run: RunId, slot: int, number: int, requests: tuple[ChatRequest, ...], said: CallSLO
    ) -> Told:
        told: Told = await self._call("make_calls", run, slot, number, requests, said)
        return told

    async def cancel_calls(self, run: RunId, slot: int, number: int) -> None:
        await self._call("cancel_calls", run, slot, number)

    async def events(self, run: RunId) -> bytes | None:
        events: bytes | None = await self._call("events", run)
        return events

    async def stop(self, run: RunId) -> None:
        await self._call("stop", run)

    async def in_world(self, order: WorldOrder) -> WorldAnswer:
        answer: WorldAnswer = await self._call("in_world", order)
        return answer

    async def close_world(self, world: WorldKey) -> None:
        await self._call("close_world", world)

    async def begin_step(self, order: StepOrder, sandbox: str) -> StepReply:
        reply: StepReply = await self._call("begin_step", order, sandbox)
        return reply

    async def next_of_step(self, id: str) -> StepReply:
        reply: StepReply = await self._call("next_of_step", id)
        return reply

    async def tell_step(self, id: str, number: int, told: Told) -> None:
        await self._call("tell_step", id, number, told)

    async def stop_step(self, id: str) -> None:
        await self._call("stop_step", id)

    async def end_steps(self, run: RunId, branches: Sequence[BranchPath] | None) -> None:
        await self._call("end_steps", run, branches)

    async def close(self) -> CarriedError | None:
        answer: CarriedError | None = await self._call("close")
        return answer

    async def kill(self) -> None:
        """End the process. Does nothing if it is gone, or if the head is: then it ends with the cluster."""
        with suppress(ClusterUnreachable):
            await self._actor.kill()

    async def _call(self, method: str, *arguments: Any) -> Any:
        errors = self._ray.exceptions
        try:
            return await self._actor.call(method, *arguments)
        except (errors.RayTaskError, errors.RaySystemError) as error:  # the latter: its answer cannot be decoded
            raise FleetError(f"the fleet's process on a node failed: {error}") from error
        except (errors.RayError, ConnectionError) as error:  # the latter: of the client, for a cluster that is gone
            raise HostDied(str(error).strip()) from error
