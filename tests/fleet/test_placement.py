"""Which node takes which run."""

from __future__ import annotations

import asyncio
import platform
from dataclasses import asdict, replace
from typing import Any, cast

import pytest

from ramify.compiler.plan import Effect, OpId
from ramify.fleet.branch_places import BranchPlaces
from ramify.fleet.errors import NodeUnfit
from ramify.fleet.node_versions import checked
from ramify.fleet.nodes import FleetNodes
from ramify.fleet.placement import Asked, Member, choose, unfit
from ramify.fleet.types import HostFacts, Needs, Node, NodeId
from ramify.fork_engine.types import SnapshotId
from ramify.runtime.execution.placed_steps import StepAnswer, StepOrder, most_at_once
from ramify.runtime.execution.step_call import StepDef
from ramify.runtime.records import BranchPath, RunId

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


def test_among_equals_a_node_whose_home_has_more_of_the_layers_is_chosen() -> None:
    asked = replace(ANY, layers=frozenset({"image", "its tools", "mine"}))
    bare, some, most = (
        Member(Node(NodeId(name), "m", {}), replace(FACTS, layers=frozenset(layers)), None, 2)
        for name, layers in (("bare", {"other"}), ("some", {"image"}), ("most", {"image", "its tools"}))
    )
    assert choose([bare, some, most], asked) is most
    some.sent(asked)
    some.taken = 0
    assert choose([bare, some, most], asked) is some
    assert choose([bare, some, most], replace(asked, base=SnapshotId("another"))) is some


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


@pytest.mark.parametrize(
    ("clock", "reason"),
    [
        *((None, ""), (1000.0, ""), (1030.0, ""), (941.0, ""), (1089.0, "")),
        *((4631.0, "its clock is 3600 s ahead of this program's: set"), (-2600.0, "its clock is 3600 s behind this")),
    ],
)
def test_a_node_whose_clock_is_off_is_unfit(
    clock: float | None, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was asked at 1000 and had answered at 1031, by the clock here."""
    monkeypatch.setattr("ramify.__version__", "0.2.0")
    monkeypatch.setattr("ramify.fleet.node_versions.time.time", lambda: 1031.0)
    told = {**asdict(FACTS), "python": platform.python_version(), "clock": clock}
    if not reason:
        assert checked(member("a").node, told, 1000.0).clock == clock
        return
    with pytest.raises(NodeUnfit, match=reason) as unfit:
        checked(member("a").node, told, 1000.0)
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


async def settled() -> None:
    """Let tasks go on that wait for nothing but each other."""
    for _ in range(50):
        await asyncio.sleep(0)


class Placed:
    """Steps of branches that hold their slots until they are ended. here: the node of their run."""

    def __init__(self, *members: Member[Any], here: str, lends: bool) -> None:
        nodes = FleetNodes("none", slots=1, patience_s=60.0, observer=None)
        nodes.queue.members += members
        runtime: Any = None  # only steps that are sent need it
        self._places = BranchPlaces(nodes, runtime, RunId("r"), "copy", here=NodeId(here), lends=lends)
        self._over: dict[str, asyncio.Event] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self.nodes: dict[str, str] = {}

    async def begin(self, branch: str) -> str:
        """The node where a step runs; "here" where its run is, "waits" if it has no slot yet."""
        self._tasks[branch], self._over[branch] = asyncio.create_task(self._hold(branch)), asyncio.Event()
        await settled()
        return self.nodes.get(branch, "waits")

    async def end(self, *branches: str) -> None:
        for branch in branches:
            self._over[branch].set()
            await self._tasks[branch]
        await settled()

    async def _hold(self, branch: str) -> None:
        async with self._places.place(BranchPath(branch), BASE) as place:
            self.nodes[branch] = "here" if place is None else place.name
            await self._over[branch].wait()


async def test_a_fork_stays_with_its_run_while_there_are_slots() -> None:
    home, other = member("home", slots=2), member("other", slots=3)
    steps = Placed(home, other, here="home", lends=False)
    began = [await steps.begin(f"root/f.0.{index}") for index in range(3)]
    assert began == ["here", "here", "m (other)"]
    await steps.end(*(f"root/f.0.{index}" for index in range(3)))
    assert (home.taken, other.taken) == (0, 0)
    assert await steps.begin("root/f.0.2") == "m (other)"  # where its state is
    assert await steps.begin("root/f.0.2/f.0.0") == "m (other)"
    assert await steps.begin("root/f.0.3") == "here"
    await steps.end("root/f.0.2", "root/f.0.2/f.0.0", "root/f.0.3")


async def test_a_run_lends_its_own_slot_to_its_branches() -> None:
    home, other = member("home"), member("other")
    home.taken = 1  # by the run
    steps = Placed(home, other, here="home", lends=True)
    assert [await steps.begin(one) for one in "abc"] == ["here", "m (other)", "waits"]
    await steps.end("a")
    assert steps.nodes["c"] == "here"
    assert await steps.begin("d") == "waits"
    await steps.end("b")
    assert steps.nodes["d"] == "m (other)"
    await steps.end("c", "d")
    assert (home.taken, other.taken) == (1, 0)
    assert await steps.begin("e") == "here"
    await steps.end("e")


def test_a_step_outside_the_world_of_its_branch_says_nothing_of_the_processes_there() -> None:
    nodes, runtime = FleetNodes("none", slots=1, patience_s=60.0, observer=None), None
    nodes, runtime = FleetNodes("none", slots=1, patience_s=60.0, observer=None), cast("Any", None)
    places = BranchPlaces(nodes, runtime, RunId("r"), "copy", here=None)
    branch = BranchPath("root/f.0.0")
    served = StepOrder("1", RunId("r"), branch, "k", OpId("run.1"), "s", "", "{}", 0, BASE, False, 0.0)
    places.answered(served, StepAnswer(busy=True))
    for other in (replace(served, aside=True), replace(served, state=None)):
        places.answered(other, StepAnswer())
        assert places.keeps_processes(branch)
    places.answered(served, StepAnswer())
    assert not places.keeps_processes(branch)


def test_steps_that_stay_are_begun_one_per_core() -> None:
    nodes, runtime = FleetNodes("none", slots=1, patience_s=60.0, observer=None), cast("Any", None)
    nodes.queue.members = cast("Any", [member("a", slots=1000)])
    places = BranchPlaces(nodes, runtime, RunId("r"), "copy", here=None)
    travels = StepDef("s", lambda: None, Effect.UNKNOWN, None)
    cores = most_at_once(None, travels)
    assert most_at_once(places, travels) == 1000 > cores
    assert most_at_once(places, replace(travels, reuse=True)) == cores
    assert most_at_once(places, replace(travels, effect=Effect.IRREVERSIBLE)) == cores
    places.stays("s", "it streams")
    assert most_at_once(places, travels) == cores


async def test_steps_that_no_node_can_run_stay() -> None:
    unfit_node = Member(Node(NodeId("a"), "m", {}), FACTS, None, 1)
    steps = Placed(unfit_node, here="elsewhere", lends=False)
    steps._places.sandbox = "mine"
    assert [await steps.begin(one) for one in "ab"] == ["here", "here"]
    await steps.end("a", "b")
