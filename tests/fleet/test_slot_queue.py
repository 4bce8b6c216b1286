"""What waits for a slot, and what gets it."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import Any, cast

import pytest

from ramify.fleet.job_order import PATIENT_S, order_of
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


def of_gpu(share: float, **more: Any) -> Asked:
    return Asked("copy", Needs(resources={"GPU": share}), BASE, **more)


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


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(("share", "most"), [(1.0, 1), (0.5, 2), (0.3, 3), (0.1, 10), (0.6, 1)])
async def test_runs_that_share_a_resource_are_no_more_than_it_has(rule: str, share: float, most: int) -> None:
    node = member("able", slots=12, GPU=1.0)
    queue = queue_of(rule, node)
    asked = [queue.ask(of_gpu(share)) for _ in range(25)]
    plain = queue.ask(ANY)
    assert plain.done(), "it needs only a slot"
    seen = 0
    while asked:
        held = [one for one in asked if one.done()]
        assert len(held) == min(most, len(asked))
        queue.release(held[0].result())
        asked.remove(held[0])
        seen += 1
    queue.release(plain.result())
    assert (seen, node.taken, +node.used) == (25, 0, Counter())


@pytest.mark.parametrize("rule", RULES)
async def test_memory_is_shared_like_a_resource(rule: str) -> None:
    half = Asked("copy", Needs(memory=4 << 30), BASE)  # of 8 GiB
    queue = queue_of(rule, member("a", slots=4))
    asked = [queue.ask(half) for _ in range(3)]
    assert [one.done() for one in asked] == [True, True, False]
    queue.release(asked[0].result())
    assert asked[2].done()


@pytest.mark.parametrize("rule", RULES)
async def test_what_needs_the_whole_is_served_although_others_that_need_a_part_keep_coming(rule: str) -> None:
    now = [0.0]
    queue: SlotQueue[None] = SlotQueue(order_of(rule, None, random.Random(1)), now=lambda: now[0])
    queue.add(member("able", slots=4, GPU=1.0))
    parts = [queue.ask(of_gpu(0.5, job=JobId("parts"))) for _ in range(3)]
    whole = queue.ask(of_gpu(1.0, job=JobId("whole")))
    while not whole.done():
        now[0] += 5.0
        assert now[0] <= PATIENT_S + 15
        assert queue.ask(ANY).done(), "room is kept of the GPU, and not of slots"
        queue.members[0].taken -= 1
        parts.append(queue.ask(of_gpu(0.5, job=JobId("parts"))))
        done = next(one for one in parts if one.done())
        parts.remove(done)
        queue.release(done.result())
    assert now[0] >= PATIENT_S


@pytest.mark.parametrize("rule", RULES)
async def test_room_is_kept_on_one_node_and_given_back_if_it_is_not_wanted(rule: str) -> None:
    now = [0.0]
    queue: SlotQueue[None] = SlotQueue(order_of(rule, None, random.Random(1)), now=lambda: now[0])
    for name in "ab":
        queue.add(member(name, slots=4, GPU=1.0))
    held = [queue.ask(of_gpu(0.5)) for _ in range(2)]
    whole = queue.ask(of_gpu(1.0))
    assert {one.result().member.node.id for one in held} == {"a", "b"} and not whole.done()
    now[0] = PATIENT_S
    more = [queue.ask(of_gpu(0.5)) for _ in range(2)]
    assert sorted(one.done() for one in more) == [False, True]
    whole.cancel()
    await asyncio.sleep(0)
    assert all(one.done() for one in more)


async def test_what_was_cancelled_is_forgotten_while_all_slots_are_taken() -> None:
    queue = queue_of("price", member("a"))
    queue.ask(ANY)
    for _ in range(10):
        queue.ask(ANY).cancel()
    await asyncio.sleep(0)
    assert not queue._waiting


async def test_a_node_that_went_is_remembered_for_a_while() -> None:
    now = [0.0]
    queue: SlotQueue[None] = SlotQueue(now=lambda: now[0])
    queue.add(able := member("able", GPU=1.0))
    queue.add(member("plain"))
    assert not queue.lately_could_place(of_gpu(1.0), 30)
    queue.remove(able)
    now[0] = 29.0
    assert queue.lately_could_place(of_gpu(1.0), 30)
    assert not queue.lately_could_place(of_gpu(2.0), 30), "it never could"
    now[0] = 31.0
    assert not queue.lately_could_place(of_gpu(1.0), 30)


@pytest.mark.parametrize(
    "amount", [-1.0, -1, float("nan"), float("inf"), 1e305, 10**400, 2.0**61, True, "1", None, 1j, [1]]
)
def test_a_need_is_an_amount(amount: Any) -> None:
    with pytest.raises(ValueError, match=r"GPU=.*: an amount is a number from 0"):
        Needs(resources={"GPU": amount})
    with pytest.raises(ValueError, match=r"memory=.*: an amount is a number from 0"):
        Needs(memory=amount)
    with pytest.raises(ValueError, match=r"memory=.*: an amount is a number from 0"):
        Needs(memory=amount, resources={"memory": 1})


def test_memory_is_a_whole_number_and_resources_have_names() -> None:
    with pytest.raises(ValueError, match=r"memory=1.5: a whole number of bytes"):
        Needs(memory=cast("int", 1.5))
    assert repr(Needs(memory=cast("int", 4e9)).memory) == "4000000000"
    for name in ("", None, 1):
        with pytest.raises(ValueError, match="is not the name of a resource"):
            Needs(resources={name: 1.0})  # type: ignore[dict-item]


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(
    "needs",
    [
        Needs(memory=1 << 60),
        Needs(memory=cast("int", 1e18)),
        Needs(resources={"GPU": 1e18}),
        Needs(resources={"bytes of the machine": 9.0}),
        Needs(resources={"no such \n\0\ud800 'name' {}": 1e-3}),
    ],
)
async def test_a_need_that_no_node_has_holds_up_nothing(rule: str, needs: Needs) -> None:
    queue = queue_of(rule, node := member("able", slots=2, GPU=1.0))
    never = Asked("copy", needs, BASE)
    assert not queue.ask(never).done()
    assert not queue.can_ever_place(never)
    assert "the run needs" in queue.reasons(never)[node.node.name]
    held = [queue.ask(of_gpu(0.5)) for _ in range(3)]
    assert [one.done() for one in held] == [True, True, False]
    queue.release(held[0].result())
    assert held[2].done()


async def test_what_is_given_back_is_what_was_taken() -> None:
    """The program may change the mapping that it named its needs by."""
    said = {"GPU": 0.5}
    queue = queue_of("price", node := member("able", slots=4, GPU=1.0))
    held = queue.ask(Asked("copy", Needs(resources=said), BASE))
    said["GPU"] = 0.25
    queue.release(held.result())
    assert +node.used == Counter()


async def test_needs_that_look_alike_are_not_confused() -> None:
    queue = queue_of("price", member("a", slots=4, disk=1234567.0, **{"x=1,y": 1.0}))
    first, never = ({"disk": 1234567}, {"disk": 1234568})
    alike, other = ({"x=1,y": 1.0}, {"x": 1.0, "y": 1.0})
    asked = [queue.ask(Asked("copy", Needs(resources=one), BASE)) for one in (never, first, other, alike)]
    assert [one.done() for one in asked] == [False, True, False, True]


async def test_the_least_need_is_counted() -> None:
    """Less than half a part counted as nothing: any number of runs had it at once."""
    queue = queue_of("price", node := member("able", slots=4, GPU=1.0))
    held = queue.ask(of_gpu(1e-9))
    assert held.done() and +node.used == Counter({"GPU": 1})
    assert not queue.ask(of_gpu(1.0)).done()
    assert queue.can_ever_place(of_gpu(1.0))
