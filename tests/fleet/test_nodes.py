"""Nodes that cannot be used at first, and nodes that go while something needs them. The cluster is a double."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from ramify.fleet import nodes as module
from ramify.fleet.errors import ClusterUnreachable, NodeUnfit, NoFitNode
from ramify.fleet.node_versions import checked
from ramify.fleet.nodes import FleetNodes
from ramify.fleet.placement import Asked, Member
from ramify.fleet.ray_host import HostDied
from ramify.fleet.types import FleetEvent, HostFacts, Needs, Node, NodeId, NodeJoined, NodeRefused
from ramify.fork_engine.types import SnapshotId

FACTS = HostFacts("0.2.0", "3.11.7", "m", 7, "boot", "/home", 8 << 30, {"copy": ""}, "")
NODE = Node(NodeId("a" * 8), "m", {"CPU": 1.0})
GPU = Asked("copy", Needs(resources={"GPU": 1}), SnapshotId("base"))


class Host:
    def __init__(self) -> None:
        self.killed = 0

    async def describe(self) -> dict[str, Any]:
        return {}

    async def open(self, *given: object) -> None:
        """It can work."""

    async def kill(self) -> None:
        self.killed += 1


class Cluster:
    """starts: what each start of a process raises, the first one first, and then nothing."""

    def __init__(self, *starts: Exception) -> None:
        self.starts, self.hosts = list(starts), list[Host]()

    async def start_host(self, node: Node) -> Host:
        if self.starts:
            raise self.starts.pop(0)
        self.hosts.append(Host())
        return self.hosts[-1]


def fleet_of(cluster: Cluster, told: Callable[[FleetEvent], None], patience: float = 0.2) -> FleetNodes:
    found = FleetNodes("auto", slots=None, patience_s=patience, observer=told)
    found._cluster = cluster  # type: ignore[assignment]
    found._shared, found._sandbox = None, "copy"  # type: ignore[assignment]
    return found


@pytest.fixture
def prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "AGAIN_S", 0.0)
    monkeypatch.setattr(module, "LOOK_S", 0.01)
    monkeypatch.setattr(module, "checked", lambda *given: FACTS)


@pytest.mark.usefixtures("prompt")
@pytest.mark.parametrize(
    "raised", [ConnectionError("away"), ClusterUnreachable("away"), HostDied("away"), Exception("away")]
)
async def test_a_node_whose_start_failed_is_tried_again(raised: Exception) -> None:
    told: list[FleetEvent] = []
    fleet = fleet_of(Cluster(raised, raised), told.append)
    while not fleet.queue.members:
        fleet._take_in({NODE.id: NODE})
        await asyncio.sleep(0.001)
    assert [type(one) for one in told] == [NodeRefused, NodeJoined], "the same reason is told once"
    assert fleet._refused == {}
    for _ in range(3):
        fleet._take_in({NODE.id: NODE})
        await asyncio.sleep(0)
    assert len(fleet.queue.members) == 1


@pytest.mark.usefixtures("prompt")
async def test_a_process_that_cannot_be_used_is_ended_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    def unfit(node: Node, *given: object) -> HostFacts:
        raise NodeUnfit(node.name, "its clock is off")

    monkeypatch.setattr(module, "checked", unfit)
    fleet = fleet_of(cluster := Cluster(), lambda event: None)
    while len(cluster.hosts) < 3:
        fleet._take_in({NODE.id: NODE})
        await asyncio.sleep(0.001)
    await asyncio.gather(*fleet._known.values())
    assert {one.killed for one in cluster.hosts} == {1}
    monkeypatch.setattr(module, "checked", checked)


async def test_pauses_between_tries_become_longer() -> None:
    fleet = fleet_of(Cluster(), lambda event: None)
    pauses = []
    for _ in range(9):
        fleet._refuse(NODE, "why")
        pauses.append(fleet._again[NODE.id][1])
    assert pauses[:3] == [module.AGAIN_S, 2 * module.AGAIN_S, 4 * module.AGAIN_S]
    assert pauses[-1] == module.LONGEST_AGAIN_S


@pytest.mark.usefixtures("prompt")
async def test_what_needs_a_node_that_is_gone_waits_for_another_one() -> None:
    fleet = fleet_of(Cluster(), lambda event: None, patience=60.0)
    able = Member[Any](Node(NodeId("gpu"), "m", {"CPU": 1.0, "GPU": 1.0}), FACTS, Host(), 1)
    fleet.queue.add(Member(NODE, FACTS, Host(), 1))  # type: ignore[arg-type]
    with pytest.raises(NoFitNode, match="needs 1"):  # no node ever could
        await asyncio.wait_for(fleet.place(GPU, "no node:"), 10)
    fleet.queue.add(able)
    slot = await fleet.place(GPU, "no node:")
    await fleet.forget(able, "it died")
    fleet.queue.release(slot)
    again = asyncio.create_task(fleet.place(GPU, "no node:"))
    await asyncio.sleep(0.1)
    assert not again.done()
    fleet.queue.add(other := Member[Any](able.node, FACTS, Host(), 1))
    assert (await asyncio.wait_for(again, 10)).member is other


@pytest.mark.usefixtures("prompt")
async def test_it_does_not_wait_for_longer_than_its_patience() -> None:
    fleet = fleet_of(Cluster(), lambda event: None, patience=0.1)
    able = Member[Any](Node(NodeId("gpu"), "m", {"CPU": 1.0, "GPU": 1.0}), FACTS, Host(), 1)
    for one in (able, Member[Any](NODE, FACTS, Host(), 1)):
        fleet.queue.add(one)
    fleet.queue.remove(able)
    with pytest.raises(NoFitNode, match="needs 1"):
        await asyncio.wait_for(fleet.place(GPU, "no node:"), 10)
    assert not fleet.queue._waiting
