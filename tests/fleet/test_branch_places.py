"""Branches of one run on the processes of two nodes, without Ray: each has a home of its own."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import branches_app
import pytest
import pytest_asyncio

from ramify import Runtime, Workflow
from ramify.compiler.plan import OpKind
from ramify.fleet.branch_errands import BranchErrands
from ramify.fleet.branch_places import BranchPlaces
from ramify.fleet.errors import FleetClosed
from ramify.fleet.fleet import _shared
from ramify.fleet.nodes import FleetNodes
from ramify.fleet.placement import Member
from ramify.fleet.ray_host import HostDied
from ramify.fleet.run_host import RunHost
from ramify.fleet.step_host import StepHost, StepReply
from ramify.fleet.types import FleetEvent, HostFacts, Node, NodeId, StepStays
from ramify.runtime.errors import StepFailed, WorkflowChanged
from ramify.runtime.execution.placed_steps import StepOrder
from ramify.runtime.records import OpRecord, OpStatus, RunRecord
from ramify.serving.client import LLMClient
from ramify.serving.protocol.tags import HEADER, SLOTags
from ramify.serving.testing import ScriptedModel, ScriptedServer

pytest.importorskip("obstore", reason="needs obstore (ramify[remote])")

LONGEST_S = 60.0
needs_time = pytest.mark.ray  # they need no Ray: they are left out of `make test`, which takes long enough
FACTS = HostFacts("0.2.0", "3.11.7", "m", 7, "boot", "/home", 8 << 30, {"copy": ""}, "no CRIU")


class Near(RunHost):
    """The process of a node, in this process. dead: as a fleet is told by Ray."""

    def __init__(self) -> None:
        super().__init__()
        self.orders: list[StepOrder] = []
        self.dead = asyncio.Event()

    async def begin_step(self, order: StepOrder, sandbox: str) -> StepReply:
        self.orders.append(order)
        return await self._until_dead(super().begin_step(order, sandbox))

    async def next_of_step(self, id: str) -> StepReply:
        return await self._until_dead(super().next_of_step(id))

    async def kill(self) -> None:
        for order in self.orders:
            await self.stop_step(order.id)

    async def _until_dead(self, working: Coroutine[Any, Any, StepReply]) -> StepReply:
        task, death = asyncio.ensure_future(working), asyncio.ensure_future(self.dead.wait())
        await asyncio.wait({task, death}, return_when=asyncio.FIRST_COMPLETED)
        if self.dead.is_set():
            raise HostDied("it is dead")
        death.cancel()
        return await task


@dataclass
class Fleet:
    runtime: Runtime
    nodes: FleetNodes
    hosts: dict[str, Near]
    events: list[FleetEvent]

    def here(self, slots: int) -> None:
        """This process is a node with so many slots."""
        self.nodes.here = NodeId("here")
        self.add("here", None, slots)

    def add(self, name: str, host: Any, slots: int = 1) -> None:
        self.nodes.queue.add(Member(Node(NodeId(name), name, {"CPU": 1.0}), FACTS, host, slots))

    async def rows(self) -> list[OpRecord]:
        (run,) = await self.runtime.store.runs()
        return list(await self.runtime.store.ops(run.id))

    async def done(self) -> set[str | None]:
        """The steps that have a result."""
        rows = [row for run in await self.runtime.store.runs() for row in await self.runtime.store.ops(run.id)]
        return {row.step for row in rows if row.kind is OpKind.RUN and row.status is OpStatus.DONE}

    async def ran(self, step: str) -> list[str]:
        """Where the calls of a step ran, in the order of their branches; "" is here."""
        rows = [row for row in await self.rows() if row.step == step and row.kind is OpKind.RUN]
        return [row.attrs.get("node", "").partition(" ")[0] for row in sorted(rows, key=lambda row: row.branch)]


@asynccontextmanager
async def opened(folder: Path, monkeypatch: pytest.MonkeyPatch, **how: Any) -> AsyncIterator[Fleet]:
    events: list[FleetEvent] = []
    async with Runtime(home=folder / "home", sandbox="copy", remote=folder / "bucket", **how) as runtime:
        nodes, hosts = FleetNodes("none", slots=1, patience_s=5.0, observer=events.append), dict[str, Near]()
        made = Fleet(runtime, nodes, hosts, events)
        for name in ("a", "b"):
            monkeypatch.setenv("RAMIFY_HOME", str(folder / name))
            host = hosts[name] = Near()
            assert await host.open(_shared(runtime), "copy", name) is None
            made.add(name, host)

        def places(record: RunRecord) -> BranchPlaces:
            return BranchPlaces(nodes, runtime, record.id, "copy", here=nodes.here)

        with runtime.placing(places):
            yield made
        for host in hosts.values():
            assert await host.close() is None


@pytest_asyncio.fixture
async def fleet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Fleet]:
    async with opened(tmp_path, monkeypatch) as made:
        yield made


async def until(there: Callable[[], bool]) -> None:
    end = time.monotonic() + LONGEST_S
    while not there():
        assert time.monotonic() < end
        await asyncio.sleep(0.02)


async def test_a_fork_is_spread_and_what_it_makes_is_as_if_it_were_not(fleet: Fleet, folder: Path) -> None:
    (folder / branches_app.GATE).touch()
    result = await fleet.runtime.run(branches_app.grow, str(folder), 4)
    words = "root\n3\nb\n"
    assert result == [[0, 1, 2, 3], ["root\n3\na\n", "root\n3\nb\n"], words, words, [0, 1, 4, 9], words]
    assert set(await fleet.ran("write")) == {"a", "b"}
    assert set(await fleet.ran("square")) == {"a", "b"}
    assert await fleet.ran("send") == [""]


@needs_time
async def test_a_larger_fork_uses_this_machine_too(fleet: Fleet, folder: Path) -> None:
    fleet.here(1)
    running = asyncio.create_task(fleet.runtime.run(branches_app.grow, str(folder), 3))
    await until(lambda: len(branches_app.told(folder, "begun")) == 3)
    (folder / branches_app.GATE).touch()
    await running
    assert await fleet.ran("write") == ["", "a", "b"]


@needs_time
async def test_losers_are_stopped_and_leave_nothing(fleet: Fleet, folder: Path) -> None:
    running = asyncio.create_task(fleet.runtime.run(branches_app.first_of, str(folder), 2))
    await until(lambda: len(branches_app.told(folder, "begun")) == 2)
    (folder / f"{branches_app.GATE}1").touch()
    assert await running == [1]
    assert not any(host._steps for host in fleet.hosts.values())


@needs_time
async def test_a_node_that_dies_loses_nothing(fleet: Fleet, folder: Path) -> None:
    running = asyncio.create_task(fleet.runtime.run(branches_app.grow, str(folder), 2))
    await until(lambda: len(branches_app.told(folder, "begun")) == 2)
    fleet.hosts["a"].dead.set()
    await until(lambda: not fleet.hosts["a"].orders or len(fleet.nodes.queue.members) == 1)
    (folder / branches_app.GATE).touch()
    result = await running
    assert result[0] == [0, 1]
    assert result[-1] == "root\n1\nb\n"
    assert await fleet.ran("write") == ["b", "b"]
    assert sorted(branches_app.told(folder, "begun")) == ["0", "0", "1"]


@needs_time
async def test_a_resume_repeats_no_branch_that_was_answered(fleet: Fleet, folder: Path) -> None:
    """The run is stopped when one branch has its result and another one is at work."""
    running = asyncio.create_task(fleet.runtime.run(branches_app.grow, str(folder), 4))
    (folder / f"{branches_app.GATE}1").touch()
    while "write" not in await fleet.done():  # noqa: ASYNC110
        await asyncio.sleep(0.02)
    await until(lambda: "0" in branches_app.told(folder, "begun"))
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert not any(host._steps for host in fleet.hosts.values())
    (folder / branches_app.GATE).touch()
    result = await fleet.runtime.resume(str(fleet.runtime.last_run_id))
    assert result[0] == [0, 1, 2, 3]
    assert branches_app.told(folder, "begun").count("1") == 1
    assert branches_app.told(folder, "begun").count("0") == 2


@needs_time
async def test_a_step_is_tried_again_from_where_it_began(fleet: Fleet, folder: Path) -> None:
    assert await fleet.runtime.run(branches_app.tries, str(folder)) == ["try\n", "try\n"]
    assert branches_app.told(folder, "tries1") == ["once", "once"]


@needs_time
async def test_errors_are_those_of_the_step(fleet: Fleet) -> None:
    assert await fleet.runtime.run(branches_app.refused) == ["Wrong: branch 0", "Wrong: branch 1"]
    failed = [row for row in await fleet.rows() if row.status is OpStatus.FAILED]
    assert ["it stops here" in row.attrs["last_output"] for row in failed] == [True, True]


@pytest.fixture
def model() -> ScriptedModel:
    return ScriptedModel(lambda request: f"<{request.messages[-1].content}>")


@needs_time
async def test_model_calls_of_a_step_are_made_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: Path, model: ScriptedModel
) -> None:
    async with (
        LLMClient("http://model.test/v1", transport=model) as client,
        opened(tmp_path, monkeypatch, llm=client) as fleet,
    ):
        running = asyncio.create_task(fleet.runtime.run(branches_app.asks, str(folder)))
        await until(lambda: len(branches_app.told(folder, "asked")) == 2)
        fleet.hosts["a"].dead.set()
        await until(lambda: len(fleet.nodes.queue.members) == 1)
        (folder / branches_app.GATE).touch()
        said = [f"<first {n}> <second {n}> <second {n}>" for n in range(2)]
        assert await running == said
        assert len(model.calls) == 6
        assert await fleet.ran("ask") == ["b", "b"]
        (run,) = await fleet.runtime.store.runs()
        assert len(await fleet.runtime.store.llm(run.id)) == 6
        assert await fleet.runtime.resume(run.id) == said


@needs_time
async def test_a_step_has_what_the_workflow_said_of_model_calls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: Path, model: ScriptedModel
) -> None:
    (folder / branches_app.GATE).touch()
    async with (
        LLMClient("http://model.test/v1", transport=model) as client,
        opened(tmp_path, monkeypatch, llm=client) as fleet,
    ):
        await fleet.runtime.run(branches_app.asks_in_time, str(folder))
        assert set(await fleet.ran("ask")) == {"a", "b"}
    assert [SLOTags.from_header(call.headers[HEADER]).goodput_weight for call in model.calls] == [3.0] * 6


@needs_time
async def test_a_step_that_streams_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: ScriptedModel
) -> None:
    async with (
        LLMClient("http://model.test/v1", transport=model) as client,
        opened(tmp_path, monkeypatch, llm=client) as fleet,
    ):
        assert await fleet.runtime.run(branches_app.reads_streams) == ["<stream 0>", "<stream 1>"]
        assert await fleet.ran("streams") == ["", ""]
        assert {event.step for event in fleet.events if isinstance(event, StepStays)} == {"streams"}


@asynccontextmanager
async def on_a_node(fleet: Fleet, workflow: Workflow[..., Any], *args: object) -> AsyncIterator[asyncio.Task[Any]]:
    """A run on node a, which has one slot, the run's own. The branches' steps are placed as `Fleet.run` does."""
    runtime = fleet.runtime
    run = await runtime.create(workflow, args, {})
    assert runtime.bucket is not None
    await runtime.bucket.upload(run.base_snapshot)
    node = fleet.nodes.queue.members[0]
    node.taken += 1
    places = BranchPlaces(fleet.nodes, runtime, run.id, "copy", here=node.node.id, lends=True)

    async def result() -> Any:
        working = asyncio.ensure_future(fleet.hosts["a"].go_on(run.id, "copy", "a", 2))
        serving = asyncio.create_task(BranchErrands(places, fleet.hosts["a"]).serve(working))  # type: ignore[arg-type]
        ended = await working
        await serving
        assert ended.error is None, ended.error
        assert ended.not_uploaded == ""
        return await runtime.resume(run.id)

    task = asyncio.create_task(result())
    yield task
    task.cancel()


@needs_time
async def test_branches_of_a_run_on_a_node_go_to_others(fleet: Fleet, folder: Path) -> None:
    async with on_a_node(fleet, branches_app.grow, str(folder), 2) as running:
        await until(lambda: len(branches_app.told(folder, "begun")) == 2)
        (folder / branches_app.GATE).touch()
        result = await running
    words = "root\n1\nb\n"
    assert result == [[0, 1], ["root\n1\na\n", words], words, words, [0, 1], words]
    assert await fleet.ran("write") == ["", "b"]
    assert not fleet.hosts["a"].orders
    assert [member.taken for member in fleet.nodes.queue.members] == [1, 0]


@needs_time
async def test_model_calls_of_a_run_on_a_node_are_in_its_journal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: Path, model: ScriptedModel
) -> None:
    (folder / branches_app.GATE).touch()
    async with ScriptedServer(model) as server:
        monkeypatch.setenv("RAMIFY_BASE_URL", server.base_url)
        async with (
            opened(tmp_path, monkeypatch) as fleet,
            on_a_node(fleet, branches_app.asks, str(folder)) as running,
        ):
            assert await running == [f"<first {n}> <second {n}> <second {n}>" for n in range(2)]
            assert await fleet.ran("ask") == ["", "b"]
            (run,) = await fleet.runtime.store.runs()
            assert len(await fleet.runtime.store.llm(run.id)) == len(model.calls) == 6


@needs_time
async def test_a_node_with_other_code_ends_the_run_and_is_no_result_of_a_branch(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The workflow takes errors of its branches for results."""
    begin = StepHost.perform

    async def other(self: StepHost, order: StepOrder) -> StepReply:
        return await begin(self, replace(order, code="other"))

    with monkeypatch.context() as patched:
        patched.setattr(StepHost, "perform", other)
        with pytest.raises(StepFailed) as failed:
            await fleet.runtime.run(branches_app.refused)
    assert isinstance(failed.value.__cause__, WorkflowChanged)
    result = await fleet.runtime.resume(str(fleet.runtime.last_run_id))
    assert result == ["Wrong: branch 0", "Wrong: branch 1"]


@needs_time
async def test_a_fleet_that_closes_ends_a_run_which_goes_on_later(fleet: Fleet, folder: Path) -> None:
    running = asyncio.create_task(fleet.runtime.run(branches_app.takes_last, str(folder)))
    await until(lambda: len(branches_app.told(folder, "begun")) == 2)
    fleet.nodes._closed = True
    for host in fleet.hosts.values():
        await host.close()
    with pytest.raises(StepFailed) as failed:
        await running
    assert isinstance(failed.value.__cause__, FleetClosed)
    (folder / branches_app.GATE).touch()
    with fleet.runtime.placing(lambda record: None):
        await fleet.runtime.resume(str(fleet.runtime.last_run_id))


@needs_time
async def test_a_step_that_is_stopped_while_its_node_gets_ready_does_not_begin(
    fleet: Fleet, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opening, opens = asyncio.Event(), asyncio.Event()
    ready = RunHost._step_host

    async def slow(self: RunHost, sandbox: str) -> StepHost:
        opening.set()
        await opens.wait()
        return await ready(self, sandbox)

    monkeypatch.setattr(RunHost, "_step_host", slow)
    running = asyncio.create_task(fleet.runtime.run(branches_app.takes_last, str(folder)))
    await opening.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    opens.set()
    for _ in range(5):
        await asyncio.sleep(0)
    assert not any(host._steps for host in fleet.hosts.values())
    assert not any(steps._working for host in fleet.hosts.values() for steps in host._step_hosts.values())


@needs_time
async def test_a_readonly_step_runs_among_the_processes_that_its_branch_has_on_a_node(
    fleet: Fleet, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / branches_app.GATE).touch()
    monkeypatch.setattr(BranchPlaces, "keeps_processes", lambda self, branch: True)
    await fleet.runtime.run(branches_app.reads, str(folder))
    assert await fleet.ran("read") == ["a", "b"]
    assert not any(order.aside for host in fleet.hosts.values() for order in host.orders)


@needs_time
async def test_a_run_that_ends_as_it_began_has_nothing_to_upload(fleet: Fleet) -> None:
    """Only branches used its state, and those on other nodes."""
    async with on_a_node(fleet, branches_app.refused) as running:
        assert await running == ["Wrong: branch 0", "Wrong: branch 1"]


@needs_time
async def test_the_last_state_of_a_run_may_be_one_that_another_node_has_uploaded(fleet: Fleet, folder: Path) -> None:
    async with on_a_node(fleet, branches_app.takes_last, str(folder)) as running:
        await until(lambda: len(branches_app.told(folder, "begun")) == 2)
        (folder / branches_app.GATE).touch()
        await running
    assert await fleet.ran("write") == ["", "b"]
