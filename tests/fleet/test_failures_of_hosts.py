"""What a fleet does when its observer, or the process on a node, fails. These processes are doubles of `RayHost`."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ramify import Runtime
from ramify.fleet.carried_errors import carried
from ramify.fleet.errors import ClusterUnreachable, FleetClosed, FleetError
from ramify.fleet.fleet import Fleet
from ramify.fleet.fleet_world import FleetWorld
from ramify.fleet.nodes import _closed
from ramify.fleet.placement import Asked, Member
from ramify.fleet.ray_cluster import RayCluster
from ramify.fleet.ray_connection import RayConnection
from ramify.fleet.ray_host import ActorInside, ActorThroughClient, HostDied, RayHost
from ramify.fleet.run_host import Ended
from ramify.fleet.types import HostFacts, Needs, Node, NodeId, Shared
from ramify.fleet.world_host import WorldSetup
from ramify.fork_engine.types import SnapshotId
from ramify.runtime.errors import LeaseHeld
from ramify.runtime.records import RunId

RUN = RunId("r1")
ANY = Asked("copy", Needs(), SnapshotId("base"))


class Host:
    """A process on a node that answers each call for a run with the next of `answers`."""

    def __init__(
        self,
        *answers: Ended,
        closing: Exception | None = None,
        stopping: Exception | None = None,
        dying: Exception | None = None,
    ) -> None:
        self.answers, self.closing, self.stopping, self.dying = list(answers), closing, stopping, dying
        self.killed = False
        self.began = asyncio.Event()

    async def go_on(self, run: RunId, sandbox: str, node: str, slots: int) -> Ended:
        self.began.set()
        if self.dying is not None:
            raise self.dying
        if not self.answers:
            await asyncio.Event().wait()
        return self.answers.pop(0)

    async def events(self, run: RunId) -> bytes | None:
        return None

    async def errands(self, run: RunId) -> None:
        return None

    async def stop(self, run: RunId) -> None:
        if self.stopping is not None:
            raise self.stopping

    async def close(self) -> None:
        if self.closing is not None:
            raise self.closing

    async def kill(self) -> None:
        self.killed = True


def member(host: Host, pid: int = 7) -> Member[Any]:
    facts = HostFacts("0.2.0", "3.11.7", "m", pid, "boot", "/home", 8 << 30, {"copy": ""}, "")
    return Member(Node(NodeId("a"), "m", {"CPU": 1.0}), facts, host, 1)


async def test_an_observer_that_raises_keeps_no_slot_and_is_reported(tmp_path: Path) -> None:
    reported: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: reported.append(context))
    wrong = RuntimeError("of the observer")

    def observer(event: object) -> None:
        raise wrong

    fleet = Fleet(Runtime(home=tmp_path), observer=observer)
    fleet._nodes.queue.add(one := member(Host(Ended())))
    await fleet._on_nodes(RUN, ANY)
    assert one.taken == 0
    assert [context["exception"] for context in reported] == [wrong]
    assert "Placed" in reported[0]["message"]


async def test_a_caller_is_cancelled_although_its_node_fails_to_stop(tmp_path: Path) -> None:
    fleet = Fleet(Runtime(home=tmp_path))
    host = Host(stopping=FleetError("a bug"))
    fleet._nodes.queue.add(one := member(host))
    call = asyncio.create_task(fleet._on_nodes(RUN, ANY))
    await host.began.wait()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert one.taken == 0


async def test_a_lease_that_a_node_took_after_it_was_given_up_is_ended_once(tmp_path: Path) -> None:
    ended: list[tuple[object, ...]] = []

    async def end_lease(*lease: object) -> bool:
        ended.append(lease)
        return True

    held = Ended(carried(LeaseHeld("busy", host="m", pid=7, renewed=(1, 2))))
    fleet = Fleet(Runtime(home=tmp_path))
    fleet.runtime = SimpleNamespace(store=SimpleNamespace(end_lease=end_lease))  # type: ignore[assignment]
    cut_off = member(Host(dying=HostDied("cut off")), pid=7)
    fleet._nodes.queue.add(cut_off)
    call = asyncio.create_task(fleet._on_nodes(RUN, ANY))
    while cut_off in fleet._nodes.queue.members:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    fleet._nodes.queue.add(other := member(Host(held, Ended()), pid=8))
    await call
    assert ended == [(RUN, "m", 7)] * 2
    fleet._nodes.queue.remove(other)
    fleet._nodes.queue.add(member(Host(held), pid=9))
    with pytest.raises(LeaseHeld):  # of a process that this call has not seen die
        await fleet._on_nodes(RUN, ANY)
    assert len(ended) == 2


async def test_a_process_that_cannot_close_is_killed() -> None:
    wrong = FleetError("a bug")
    host = Host(closing=wrong)
    assert await _closed(member(host)) is wrong
    assert host.killed


async def test_a_cancelled_connection_is_ended() -> None:
    began, goes_on, ended = asyncio.Event(), threading.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    class Slow(RayConnection):
        def open(self) -> None:
            loop.call_soon_threadsafe(began.set)
            goes_on.wait()

        def close(self) -> None:
            ended.set()

    cluster = RayCluster("auto")
    cluster._connection = Slow("auto")
    entering = asyncio.ensure_future(cluster.__aenter__())
    await began.wait()
    entering.cancel()
    await asyncio.sleep(0)
    goes_on.set()
    with pytest.raises(asyncio.CancelledError):
        await entering
    assert ended.is_set()


class RayError(Exception):
    pass


class RaySystemError(RayError):
    pass


class RayTaskError(RayError):
    pass


@pytest.mark.parametrize(
    ("raised", "told"),
    [(RayError, HostDied), (RaySystemError, FleetError), (RayTaskError, FleetError), (ConnectionError, HostDied)],
)
async def test_an_answer_that_cannot_be_decoded_is_not_the_death_of_its_node(
    raised: type[Exception], told: type[Exception]
) -> None:
    class Actor:
        async def call(self, method: str, *arguments: Any) -> None:
            raise raised("of Ray")

        async def kill(self) -> None:
            """It ends with the test."""

    ray = SimpleNamespace(
        exceptions=SimpleNamespace(RayError=RayError, RaySystemError=RaySystemError, RayTaskError=RayTaskError)
    )
    with pytest.raises(told, match="of Ray"):
        await RayHost(ray, Actor()).stop(RUN)


async def test_no_call_waits_for_a_head_that_is_away() -> None:
    """Ray would end this process while it waits."""

    def kill(actor: object) -> None:
        raise AssertionError("it asks the head")

    away = SimpleNamespace(gcs_address="127.0.0.1:1")
    ray = SimpleNamespace(
        is_initialized=lambda: True, get_runtime_context=lambda: away, kill=kill, nodes=lambda: kill(None)
    )
    await RayHost(ray, ActorInside(ray, None)).kill()
    cluster = RayCluster("auto")
    cluster._connection.ray = ray
    with pytest.raises(ClusterUnreachable, match="does not answer"):
        await cluster.nodes()


async def test_no_call_is_made_once_the_program_has_left_the_cluster() -> None:
    """Ray would connect to another cluster, or start one on this machine, to answer it."""

    def call(*given: object) -> None:
        raise AssertionError("it calls Ray")

    errors = SimpleNamespace(RayError=RayError, RaySystemError=RaySystemError, RayTaskError=RayTaskError)
    ray = SimpleNamespace(
        is_initialized=lambda: False, get_runtime_context=call, kill=call, nodes=call, remote=call, exceptions=errors
    )
    for actor in (ActorInside(ray, None), ActorThroughClient(ray, None)):
        await RayHost(ray, actor).kill()
        with pytest.raises(HostDied, match="not connected"):
            await RayHost(ray, actor).stop(RUN)
    for outside in (False, True):
        cluster = RayCluster("auto")
        cluster._connection.ray, cluster._connection.is_outside = ray, outside
        with pytest.raises(ClusterUnreachable, match="not connected"):
            await cluster.nodes()
        with pytest.raises(ClusterUnreachable, match="not connected"):
            cluster._start(member(Host()).node)


async def test_the_head_is_asked_although_the_program_keeps_all_threads_busy() -> None:
    class Here(RayCluster):
        def _nodes(self) -> list[Node]:
            return [member(Host()).node]

    loop, goes_on = asyncio.get_running_loop(), threading.Event()
    loop.set_default_executor(ThreadPoolExecutor(1))
    busy = loop.run_in_executor(None, goes_on.wait)
    try:
        assert [node.id for node in await Here("auto").nodes()] == ["a"]
    finally:
        goes_on.set()
        await busy


def world_of(fleet: Fleet) -> FleetWorld:
    setup = WorldSetup("copy", "/w", {}, None)
    return FleetWorld(fleet._nodes, fleet.runtime, setup, Needs(), SnapshotId("last"))


async def test_a_closed_fleet_says_so_at_once(tmp_path: Path) -> None:
    fleet = Fleet(Runtime(home=tmp_path), patience=3600)
    await fleet._nodes._close_hosts(None, None, None)
    world = world_of(fleet)
    with pytest.raises(FleetClosed, match=r'snapshot="last"\) is its last state: the fleet is closed'):
        await world.exec("true")
    await world.close()


async def test_a_head_that_stays_silent_ends_what_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray would end this process a little later, without an error."""

    class Silent:
        silence_s = 0.05
        is_outside = False

        async def nodes(self) -> list[Node]:
            raise ClusterUnreachable("away")

    monkeypatch.setattr("ramify.fleet.nodes.LOOK_S", 0.01)
    fleet = Fleet(Runtime(home=tmp_path), patience=3600)
    fleet._nodes._cluster = Silent()  # type: ignore[assignment]
    fleet._nodes.queue.add(member(host := Host()))
    calls = [asyncio.create_task(fleet._on_nodes(RunId(name), ANY)) for name in ("works", "waits")]
    await host.began.wait()
    await fleet._nodes._watch()
    for call in calls:
        with pytest.raises(ClusterUnreachable, match=r"`ramify resume (works|waits)` continues it: the head"):
            await call
    with pytest.raises(ClusterUnreachable, match="is its last state: the head"):
        await world_of(fleet).exec("true")


def test_passwords_are_not_shown() -> None:
    assert "secret" not in repr(Shared("postgresql://u:secret@h/d", None, "s3://b", "id", 0.0, True))
