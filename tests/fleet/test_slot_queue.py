"""What waits for a slot, and what gets it."""

from __future__ import annotations

import asyncio
import random

import pytest

from ramify.fleet.job_order import order_of
from ramify.fleet.placement import Asked, Member
from ramify.fleet.slot_queue import SlotQueue
from ramify.fleet.types import HostFacts, Needs, Node, NodeId
from ramify.fork_engine.types import SnapshotId
from ramify.serving.matching import JobId

FACTS = HostFacts("0.2.0", "3.11.7", "m", 7, "boot", "/home", 8 << 30, {"copy": ""}, "")
BASE = SnapshotId("base")
ANY = Asked("copy", Needs(), BASE)
GPU = Needs(resources={"GPU": 1})
RULES = ("fifo", "price", "venn", "srsf", "random")


def member(name: str, slots: int = 1, **resources: float) -> Member[None]:
    return Member(Node(NodeId(name), "m", {"CPU": 1.0, **resources}), FACTS, None, slots)


def queue_of(rule: str, *members: Member[None]) -> SlotQueue[None]:
    queue: SlotQueue[None] = SlotQueue(order_of(rule, None, random.Random(1)))
    for one in members:
        queue.add(one)
    return queue


@pytest.mark.parametrize("rule", RULES)
async def test_what_fits_nowhere_holds_up_nothing(rule: str) -> None:
    plain = member("plain")
    queue = queue_of(rule)
    gpu, first = queue.ask(Asked("copy", GPU, BASE)), queue.ask(ANY)
    queue.add(plain)
    second = queue.ask(ANY)
    assert [one.done() for one in (gpu, first, second)] == [False, True, False]
    left = queue.ask(ANY)
    left.cancel()
    queue.release(first.result())
    assert [one.done() for one in (gpu, second)] == [False, True]
    assert queue.reasons(Asked("copy", GPU, BASE)) == {plain.node.name: "it has 0 GPU, and the run needs 1"}
    queue.remove(plain)
    queue.release(second.result())  # its node died
    able = member("able", GPU=1.0)
    queue.add(able)
    assert (await asyncio.wait_for(gpu, 60)).member is able
    assert (able.taken, plain.taken) == (1, 0)


async def test_without_a_rule_the_first_to_ask_is_the_first_to_be_served() -> None:
    queue = queue_of("fifo", node := member("a"))
    asked = [queue.ask(ANY) for _ in range(4)]
    served: list[int] = []
    for _ in asked:
        (now,) = (n for n, one in enumerate(asked) if one.done() and n not in served)
        served.append(now)
        queue.release(asked[now].result())
    assert served == [0, 1, 2, 3]
    assert node.taken == 0


@pytest.mark.parametrize("rule", RULES)
async def test_what_waits_for_a_node_that_goes_is_placed_elsewhere(rule: str) -> None:
    home, other = member("home"), member("other")
    queue = queue_of(rule, home, other)
    home.taken = 1
    waits = queue.ask(Asked("copy", Needs(), BASE, NodeId("home"), stays=True))
    assert not waits.done()
    queue.remove(home)
    assert waits.result().member is other


@pytest.mark.parametrize("rule", RULES)
async def test_every_job_is_served_once_and_all_slots_are_given_back(rule: str) -> None:
    nodes = [member("plain", slots=2), member("able", GPU=1.0)]
    queue = queue_of(rule, *nodes)
    waiting = []
    for n in range(60):
        job, needs = JobId(f"{n % 7}"), GPU if n % 3 == 0 else Needs()
        waiting.append(queue.ask(Asked("copy", needs, SnapshotId(f"{n % 5}"), job=job, returns=n % 2 == 0)))
    while waiting:
        held = [one.result() for one in waiting if one.done()]
        waiting = [one for one in waiting if not one.done()]
        assert held
        assert all(one.taken <= one.slots for one in nodes)
        assert all(one.member is nodes[1] for one in held if one.asked.needs is GPU)
        for one in held:
            queue.release(one)
    assert [one.taken for one in nodes] == [0, 0]


async def test_a_free_slot_is_given_at_once_whatever_the_price() -> None:
    """A rule decides only where more wait than slots are free."""
    queue = queue_of("price", free := member("free"), able := member("able", GPU=1.0))
    assert queue.ask(ANY).result().member is free  # among equals the one with fewer resources
    assert queue.ask(ANY).result().member is able
