"""Which job gets the next slot of which node."""

from __future__ import annotations

import random
from asyncio import Future
from typing import Any

import pytest

from ramify.fleet.job_order import FORGET_S, PATIENT_S, JobOrder, order_of
from ramify.fleet.node_tiers import NodeTiers
from ramify.fleet.placement import Asked, Member, Slot
from ramify.fleet.slot_queue import SlotQueue
from ramify.fleet.types import HostFacts, Needs, Node, NodeId
from ramify.fork_engine.types import SnapshotId
from ramify.serving.matching import FEWEST, JobId, ScarcityPriced

FACTS = HostFacts("0.2.0", "3.11.7", "m", 7, "boot", "/home", 8 << 30, {"copy": ""}, "")
GPU = Needs(resources={"GPU": 1})


class Fleet:
    """Two nodes with a slot each, both taken, one with a GPU; the time is set."""

    def __init__(self, rule: str, fairness: float | None = None) -> None:
        self.now = 0.0
        order = order_of(rule, fairness, random.Random(1))
        self.queue: SlotQueue[None] = SlotQueue(order, now=lambda: self.now)
        self.plain, self.able = self._node("plain"), self._node("able", GPU=1.0)
        self.held = {one.node.id: self.ask("holds", GPU if one is self.able else Needs()) for one in self._both}
        self.asked: list[tuple[str, Future[Slot[None]]]] = []

    @property
    def _both(self) -> list[Member[None]]:
        return [self.able, self.plain]

    def _node(self, name: str, **resources: float) -> Member[None]:
        made: Member[None] = Member(Node(NodeId(name), "m", {"CPU": 1.0, **resources}), FACTS, None, 1)
        self.queue.add(made)
        return made

    def ask(self, job: str, needs: Needs | None = None, *, base: str = "", **more: Any) -> Future[Slot[None]]:
        return self.queue.ask(Asked("copy", needs or Needs(), SnapshotId(base or job), job=JobId(job), **more))

    def wait(self, job: str, needs: Needs | None = None, *, many: int = 1, base: str = "", **more: Any) -> None:
        self.asked += [(job, self.ask(job, needs, base=base, **more)) for _ in range(many)]

    def next(self, node: Member[None], took: float = 1.0) -> str:
        """The job that gets the slot of a node which is given back after so many seconds."""
        self.now += took
        self.queue.release(self.held[node.node.id].result())
        ((job, given),) = [(job, one) for job, one in self.asked if one.done()]
        self.asked.remove((job, given))
        self.held[node.node.id] = given
        assert given.result().member is node
        return job


async def test_a_job_that_can_use_nothing_else_gets_the_scarce_slot_though_it_asked_last() -> None:
    for rule, first in (("fifo", "any"), ("srsf", "any"), ("price", "gpu"), ("venn", "gpu")):
        fleet = Fleet(rule)
        fleet.wait("any", many=3)
        fleet.wait("gpu", GPU, many=4)
        assert fleet.next(fleet.able) == first, rule
        assert fleet.next(fleet.plain) == "any"


async def test_a_short_job_goes_before_a_long_one_of_its_group() -> None:
    for rule in ("srsf", "price", "venn"):
        fleet = Fleet(rule)
        fleet.wait("long", many=9)
        fleet.wait("short", many=2)
        assert [fleet.next(fleet.plain) for _ in range(3)] == ["short", "short", "long"], rule


async def test_venn_gives_the_scarce_slot_to_the_long_queue_and_the_price_does_not() -> None:
    for rule, gets in (("venn", "any0"), ("price", "gpu")):
        fleet = Fleet(rule)
        for number in range(6):
            fleet.wait(f"any{number}", many=1 + number)
        fleet.wait("gpu", GPU)
        assert fleet.next(fleet.able) == gets


async def test_the_price_learns_how_long_slots_of_a_kind_are_held() -> None:
    fleet = Fleet("price")
    for kind, took in (("slow", 9.0), ("fast", 1.0), ("slow", 9.0), ("fast", 1.0)):
        fleet.wait(f"{kind} {fleet.now}", kind=kind)
        fleet.next(fleet.plain, 0.0)
        fleet.now += took
        fleet.wait("between", kind="between")
        fleet.next(fleet.plain, 0.0)
    fleet.wait("two slow ones", many=2, kind="slow")
    fleet.wait("five fast ones", many=5, kind="fast")
    assert fleet.next(fleet.plain) == "five fast ones"


async def test_a_job_that_asks_again_and_again_counts_what_it_has_had() -> None:
    fleet = Fleet("price")
    for _ in range(5):
        fleet.wait("search", base="one", returns=True)
        assert fleet.next(fleet.plain) == "search"
    fleet.wait("search", base="one", returns=True)
    fleet.wait("new", base="one", many=2, returns=True)
    assert fleet.next(fleet.plain) == "new"


async def test_a_node_that_has_the_state_prefers_its_job() -> None:
    for rule in ("price", "venn", "srsf"):
        fleet = Fleet(rule)
        fleet.plain.has.add(SnapshotId("there"))
        fleet.wait("lacks", many=2)
        fleet.wait("there", many=3)
        assert fleet.next(fleet.plain) == "there", rule
        fleet.wait("short", base="nowhere")
        fleet.wait("there", many=4)
        assert fleet.next(fleet.plain) == "short", rule


async def test_of_a_job_that_goes_first_which_has_its_state_on_the_node() -> None:
    fleet = Fleet("price")
    fleet.plain.has.add(SnapshotId("there"))
    far, near = fleet.ask("job", base="far"), fleet.ask("job", base="there")
    fleet.queue.release(fleet.held[fleet.plain.node.id].result())
    assert (far.done(), near.done()) == (False, True)


@pytest.mark.parametrize("rule", ["price", "venn"])
async def test_fairness_serves_a_long_job_that_waited_beyond_its_share(rule: str) -> None:
    def served(fairness: float) -> int:
        fleet = Fleet(rule, fairness)
        fleet.wait("long", many=6)
        for number in range(300):
            fleet.wait(f"short {number}")
            if fleet.next(fleet.plain) == "long":
                return number
        return 300

    assert served(0.0) == 300
    assert served(2.0) < 100


async def test_a_job_that_holds_and_wants_nothing_is_forgotten() -> None:
    fleet = Fleet("price")
    order = fleet.queue.order
    assert order is not None
    fleet.wait("done")
    fleet.next(fleet.plain)
    for late in (0.0, FORGET_S + 1.0, FORGET_S + 1.0):
        fleet.wait("a")
        fleet.wait("b")
        fleet.next(fleet.plain, late)
        fleet.next(fleet.plain, 0.0)
    assert JobId("done") not in order._jobs
    assert JobId("holds") in order._jobs  # on the other node


@pytest.mark.parametrize("rule", ["price", "venn", "srsf"])
async def test_requests_whose_state_is_there_do_not_hold_up_an_older_one_for_ever(rule: str) -> None:
    fleet = Fleet(rule)
    old = fleet.ask("search", base="elsewhere")
    fleet.asked.append(("old", old))
    served = []
    while len(served) < 2 * PATIENT_S and not old.done():
        fleet.wait("search", base="there", near=NodeId("plain"))
        served.append(fleet.next(fleet.plain))
    assert served == ["search"] * round(PATIENT_S - 1) + ["old"]


async def test_what_belongs_to_no_job_is_one_by_itself() -> None:
    fleet = Fleet("price")
    fleet.wait("", many=4, base="one")
    fleet.wait("two", many=2, base="one")
    assert [fleet.next(fleet.plain) for _ in range(5)] == ["", "", "", "", "two"]


def test_a_fast_tier_is_used_by_a_job_that_works_long_and_waits_little() -> None:
    tiers, job = NodeTiers(2, random.Random(3)), JobId("job")
    tiers.began(job, 0.01)
    chosen = set()
    for number in range(8 * FEWEST):
        node, took = (NodeId("slow"), 100.0) if number % 2 else (NodeId("fast"), 10.0)
        tiers.ended(job, node, took, 55.0, round_over=True)
        chosen.add((tiers.accepts(job, NodeId("slow")), tiers.accepts(job, NodeId("fast"))))
    assert chosen == {(True, True), (False, True)}  # the slow tier saves nothing
    tiers.forget(job)
    assert tiers.accepts(job, NodeId("slow"))


class _Refuses(NodeTiers):
    def accepts(self, job: JobId, node: NodeId) -> bool:
        return job != "picky"


async def test_a_slot_of_another_tier_is_taken_if_nobody_else_wants_it() -> None:
    fleet = Fleet("price")
    fleet.queue.order = JobOrder(ScarcityPriced(), _Refuses(2, random.Random(0)))
    fleet.wait("picky")
    fleet.wait("other", many=5)
    assert [fleet.next(fleet.plain) for _ in range(6)] == ["other"] * 5 + ["picky"]


@pytest.mark.parametrize(
    ("matching", "fairness", "why"),
    [
        ("best", None, "one of fifo, price, random, srsf, venn"),
        ("", 1.0, "one of fifo"),
        ("venn", -1.0, "fairness=-1: 0 to 16, for price and venn"),
        ("price", float("nan"), "fairness=nan: 0 to 16"),
        ("price", 16.1, "fairness=16.1: 0 to 16"),
        ("fifo", 1.0, "fairness=1: 0 to 16, for price and venn"),
    ],
)
def test_an_unknown_rule_is_refused(matching: str, fairness: float | None, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        order_of(matching, fairness, random.Random())


@pytest.mark.parametrize("rule", ["price", "venn"])
async def test_the_largest_fairness_ends_no_queue(rule: str) -> None:
    fleet = Fleet(rule, fairness=16.0)
    fleet.wait("old", GPU)
    for number in range(5):
        fleet.wait(f"new{number}", GPU)
    served = [fleet.next(fleet.able, took=took) for took in (1e-9, 1e9, 1e-9, 1e6, 1.0)]
    assert len(set(served)) == 5
