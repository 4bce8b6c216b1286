"""Which node takes which run."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ramify.fleet.errors import NodeUnfit
from ramify.fleet.node_versions import checked
from ramify.fleet.placement import Asked, Member, Queue, choose, unfit
from ramify.fleet.types import HostFacts, Needs, Node, NodeId
from ramify.fork_engine.types import SnapshotId

FACTS = HostFacts("0.2.0", "3.11.7", "m", 7, "boot", "/home", 8 << 30, {"copy": "", "docker": "no engine"}, "no CRIU")
BASE = SnapshotId("base")
ANY = Asked("copy", Needs(), BASE)


def member(name: str, slots: int = 1, **resources: float) -> Member[None]:
    return Member(Node(NodeId(name), "m", {"CPU": 1.0, **resources}), FACTS, None, slots)


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        (ANY, ""),
        (Asked("docker", Needs(), BASE), "no docker sandboxes: no engine"),
        (Asked("mine", Needs(), BASE), "no mine sandboxes: there is no such backend"),
        (Asked("copy", Needs(criu=True), BASE), "processes cannot be dumped: no CRIU"),
        (Asked("copy", Needs(memory=9 << 30), BASE), "it has 8192 MiB of memory, and the run needs 9216 MiB"),
        (Asked("copy", Needs(resources={"GPU": 2}), BASE), "it has 1 GPU, and the run needs 2"),
        (Asked("copy", Needs(resources={"GPU": 1}, memory=1 << 30), BASE), ""),
    ],
)
def test_why_a_node_cannot_take_a_run(asked: Asked, why: str) -> None:
    one = member("a", GPU=1.0)
    assert unfit(one.node, one.facts, asked) == why


def test_the_freest_node_is_chosen_and_among_equals_one_that_has_the_state() -> None:
    busy, wide, knows = member("busy"), member("wide", slots=4), member("knows", slots=2)
    busy.taken, wide.taken, knows.taken = 1, 2, 1
    assert choose([busy], ANY) is None
    assert choose([busy, wide, knows], ANY) is wide
    knows.has.add(BASE)
    assert choose([busy, wide, knows], ANY) is knows
    wide.taken = 1
    assert choose([busy, wide, knows], ANY) is wide


async def test_runs_wait_in_their_order_and_one_that_fits_nowhere_holds_up_none() -> None:
    queue: Queue[None] = Queue()
    first, gpu, second = (queue.ask(one) for one in (ANY, Asked("copy", Needs(resources={"GPU": 1}), BASE), ANY))
    plain = member("plain")
    queue.add(plain)
    assert [one.done() for one in (first, gpu, second)] == [True, False, False]
    left = queue.ask(ANY)
    left.cancel()
    queue.release(plain)
    assert [one.done() for one in (first, gpu, second)] == [True, False, True]
    assert queue.reasons(Asked("copy", Needs(resources={"GPU": 1}), BASE)) == {
        plain.node.name: "it has 0 GPU, and the run needs 1"
    }
    queue.remove(plain)
    queue.release(plain)  # it died
    able = member("able", GPU=1.0)
    queue.add(able)
    assert (await asyncio.wait_for(gpu, 60)) is able
    assert (able.taken, plain.taken) == (1, 0)


@pytest.mark.parametrize(
    ("told", "reason"),
    [
        ({"version": "0.1.0"}, "it has Ramify 0.1.0, and this program 0.2.0: install"),
        ({"python": "3.9.2"}, "it has Python 3.9.2, and this program"),
        ({"version": None}, "it has Ramify None"),
    ],
)
def test_a_node_with_other_versions_is_unfit(
    told: dict[str, Any], reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ramify.__version__", "0.2.0")
    with pytest.raises(NodeUnfit, match=reason) as unfit:
        checked(member("a").node, {"version": "0.2.0", "python": "3.11.0", **told})
    assert unfit.value.node == "m (a)"


def test_a_command_goes_where_its_world_is_and_a_fork_where_a_slot_is_free() -> None:
    home, other = member("home", slots=2), member("other", slots=2)
    home.taken = 1
    fork, lives = (Asked("copy", Needs(), BASE, NodeId("home"), stays=stays) for stays in (False, True))
    assert choose([home, other], fork) is home
    home.taken = 2
    assert choose([home, other], fork) is other
    assert choose([home, other], lives) is None
    assert choose([other], lives) is other


async def test_who_waits_for_a_node_that_goes_is_placed_elsewhere() -> None:
    queue: Queue[None] = Queue()
    home, other = member("home"), member("other")
    queue.add(home)
    queue.add(other)
    home.taken = 1
    waits = queue.ask(Asked("copy", Needs(), BASE, NodeId("home"), stays=True))
    assert not waits.done()
    queue.remove(home)
    assert waits.result() is other
