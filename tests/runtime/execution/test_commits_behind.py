"""A step's snapshot and rows are written while the model answers; nothing that depends on them comes first."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import Any

import behind_app
import pytest

from ramify import Runtime
from ramify.compiler.plan import OpKind
from ramify.fork_engine.types import Snapshot
from ramify.runtime.errors import RunFailed
from ramify.runtime.execution import driver, steps
from ramify.runtime.execution.new_runs import Services
from ramify.runtime.execution.run import Run
from ramify.runtime.execution.step_call import StepCall
from ramify.runtime.execution.step_commits import BegunSeal, asks_model_next
from ramify.runtime.records import BranchPath, RunStatus
from ramify.runtime.worlds.world_pool import Branch
from ramify.sandboxes.errors import SealFailed
from ramify.sandboxes.host.agent_world import AgentWorld
from ramify.serving.client import LLMClient
from ramify.serving.testing import ScriptedModel
from ramify.serving.types import ChatRequest
from tests.plans import compile_plan


def client_of(model: ScriptedModel) -> LLMClient:
    return LLMClient("http://model.test/v1", transport=model)


class HeldSeals:
    """Seals that were begun and end once `go` is set, or fail with `error`."""

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.error: Exception | None = None
        self.begun = 0
        self.turns = 0  # of the event loop, that a seal takes besides

    def hold(self, monkeypatch: pytest.MonkeyPatch) -> None:
        begin = AgentWorld.begin_seal

        async def held(world: AgentWorld) -> asyncio.Future[Snapshot]:
            sealing = await begin(world)
            self.begun += 1

            async def later() -> Snapshot:
                await self.go.wait()
                for _ in range(self.turns):
                    await asyncio.sleep(0)
                sealed = await sealing
                if self.error is not None:
                    raise self.error
                return sealed

            return asyncio.ensure_future(later())

        monkeypatch.setattr(AgentWorld, "begin_seal", held)


async def test_the_model_is_asked_before_the_step_is_on_disk_and_its_answer_is_recorded_after(
    home: Path, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seals, rows_then = HeldSeals(), []
    seals.hold(monkeypatch)

    async def script(request: ChatRequest) -> str:
        rows_then.append([row.kind for row in await runtime.journal()])
        seals.go.set()  # a run that waits for the snapshot first would wait for ever
        return "said"

    async with client_of(ScriptedModel(script)) as client, Runtime(home=home, sandbox="copy", llm=client) as runtime:
        assert await runtime.run(behind_app.asks_at_the_end, workspace=workspace) == "said"
        rows, calls = await runtime.journal(), await runtime.llm_calls()
    assert rows_then == [[]]
    assert [row.kind for row in rows] == [OpKind.RUN, OpKind.SEAL]
    assert rows[0].snapshot_out == rows[1].snapshot_out != rows[0].snapshot_in
    assert max(row.seq for row in rows) < calls[0].seq
    assert seals.begun == 1


async def test_a_turn_sees_all_turns_before_it(home: Path, workspace: Path) -> None:
    model = ScriptedModel(lambda request: f"after {request.messages[-1].content}")
    async with client_of(model) as client, Runtime(home=home, sandbox="copy", llm=client) as runtime:
        said = await runtime.run(behind_app.agent, 3, workspace=workspace)
        run = str(runtime.last_run_id)
        rows = [(row.seq, row.key) for row in await runtime.journal()] + [
            (call.seq, call.key) for call in await runtime.llm_calls()
        ]
        assert await runtime.resume(run) == said
    assert said == "begin\nafter turn 0 has 1\nafter turn 1 has 2\n"
    kinds = ["llm" if "llm" in key else "seal" if key.endswith("SEAL") else "run" for _, key in sorted(rows)]
    assert kinds[:9] == ["run", "seal", "llm"] * 3


async def test_a_fork_begins_at_the_state_after_the_step(home: Path, workspace: Path) -> None:
    async with (
        client_of(ScriptedModel(lambda request: "b")) as client,
        Runtime(home=home, sandbox="copy", llm=client) as runtime,
    ):
        found = await runtime.run(behind_app.forks_after_the_model, workspace=workspace)
    assert found == ["root\nb 0\n", "root\nb 1\n"]


async def test_a_run_whose_snapshot_fails_ends_and_runs_the_step_again(
    home: Path, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model has answered by then, but nothing says so: the answer would follow from a step that is not there."""
    seals = HeldSeals()
    seals.error = SealFailed("the disk is full")

    def script(request: ChatRequest) -> str:
        seals.go.set()
        return "said"

    with monkeypatch.context() as patched:
        seals.hold(patched)
        async with (
            client_of(ScriptedModel(script)) as client,
            Runtime(home=home, sandbox="copy", llm=client) as runtime,
        ):
            with pytest.raises(RunFailed, match="the disk is full"):
                await runtime.run(behind_app.asks_at_the_end, workspace=workspace)
            run = str(runtime.last_run_id)
            assert (await runtime.record()).status is RunStatus.FAILED
            assert await runtime.journal() == []
            assert await runtime.llm_calls() == []
    async with client_of(ScriptedModel(script)) as client, Runtime(home=home, sandbox="copy", llm=client) as runtime:
        assert await runtime.resume(run) == "said"


async def test_a_run_that_is_cancelled_while_its_step_is_committed_keeps_the_step(
    home: Path, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seals, asked = HeldSeals(), asyncio.Event()
    seals.hold(monkeypatch)

    async def never(request: ChatRequest) -> str:
        asked.set()
        await asyncio.Event().wait()
        return ""

    async with client_of(ScriptedModel(never)) as client, Runtime(home=home, sandbox="copy", llm=client) as runtime:
        running = asyncio.ensure_future(runtime.run(behind_app.asks_at_the_end, workspace=workspace))
        await asked.wait()
        running.cancel()
        await asyncio.sleep(0)
        seals.go.set()
        with pytest.raises(asyncio.CancelledError):
            await running
        rows = await runtime.journal()
        assert [row.kind for row in rows] == [OpKind.RUN, OpKind.SEAL]
        run = str(runtime.last_run_id)
    monkeypatch.undo()
    model = ScriptedModel(lambda request: request.messages[-1].content)
    async with client_of(model) as client, Runtime(home=home, sandbox="copy", llm=client) as runtime:
        assert await runtime.resume(run) == "1"  # the step is not run a second time


async def test_a_run_that_is_cancelled_again_and_again_ends_after_its_commits(
    home: Path, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its lock and its lease are given back then, and a commit that comes later would be without them."""
    seals, asked = HeldSeals(), asyncio.Event()
    seals.hold(monkeypatch)

    async def never(request: ChatRequest) -> str:
        asked.set()
        await asyncio.Event().wait()
        return ""

    async with client_of(ScriptedModel(never)) as client, Runtime(home=home, sandbox="copy", llm=client) as runtime:
        running = asyncio.ensure_future(runtime.run(behind_app.asks_at_the_end, workspace=workspace))
        await asked.wait()
        for _ in range(20):
            running.cancel()
            for _ in range(5):
                await asyncio.sleep(0)
        assert not running.done()
        seals.go.set()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert [row.kind for row in await runtime.journal()] == [OpKind.RUN, OpKind.SEAL]


async def test_a_workflow_that_ends_after_its_run_was_given_back_records_nothing(
    home: Path, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process may have resumed the run."""
    asked, go, ended = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def never(request: ChatRequest) -> str:
        asked.set()
        await asyncio.Event().wait()
        return ""

    async def go_on() -> None:
        while not go.is_set():
            with suppress(asyncio.CancelledError):
                await go.wait()

    end = driver._end_stopped_run

    async def noted(run: Run, error: BaseException, services: Services) -> None:
        await end(run, error, services)
        ended.set()

    monkeypatch.setattr(behind_app, "_go_on", go_on)
    monkeypatch.setattr(driver, "_end_stopped_run", noted)
    async with client_of(ScriptedModel(never)) as client, Runtime(home=home, sandbox="copy", llm=client) as runtime:
        running = asyncio.ensure_future(runtime.run(behind_app.ends_late, workspace=workspace))
        await asked.wait()
        while not running.done():
            running.cancel()
            await asyncio.wait({running}, timeout=0.01)
        go.set()
        await ended.wait()
        assert (await runtime.record()).status is RunStatus.RUNNING


async def test_a_step_that_is_called_while_a_seal_begins_comes_after_the_commit(
    home: Path, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would get the branch's lock before the commit, and wait for the commit with its row: for ever."""
    begins, branches = asyncio.Event(), list[Branch]()
    begin, of = steps.begin_commit_behind, BegunSeal.of

    async def held(world: AgentWorld) -> BegunSeal:
        begins.set()
        for _ in range(50):
            await asyncio.sleep(0)
        if branches[0].lock._waiters:
            raise SealFailed("a step waits for the lock that the commit needs")
        return await of(world)

    async def noted(call: StepCall, *args: Any) -> None:
        branches.append(call.scope.branch)
        await begin(call, *args)

    monkeypatch.setattr(BegunSeal, "of", held)
    monkeypatch.setattr(steps, "begin_commit_behind", noted)
    monkeypatch.setattr(behind_app, "_another", begins.wait)
    model = ScriptedModel(lambda request: "said")
    async with client_of(model) as client, Runtime(home=home, sandbox="copy", llm=client) as runtime:
        assert await runtime.run(behind_app.begins_another_step, workspace=workspace) == ["said", "2"]
    assert len(branches) == 1


async def test_a_fork_that_is_left_waits_for_the_commit_of_its_step(
    home: Path, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seals, under_way = HeldSeals(), list[bool]()
    seals.hold(monkeypatch)
    seals.go.set()
    seals.turns = 50
    settle = Run.settle

    async def noted(run: Run, under: BranchPath) -> None:
        under_way.append(run.journal.behind.under_way)
        await settle(run, under)

    monkeypatch.setattr(Run, "settle", noted)
    async with client_of(ScriptedModel(str)) as client, Runtime(home=home, sandbox="copy", llm=client) as runtime:
        assert await runtime.run(behind_app.leaves_a_fork, workspace=workspace) == "left"
    assert seals.begun == 1
    assert not any(under_way)


async def test_an_item_is_given_out_when_the_step_before_it_is_recorded(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seals, kinds = HeldSeals(), list[list[OpKind]]()
    seals.hold(monkeypatch)
    seals.go.set()
    seals.turns = 50
    model = ScriptedModel(lambda request: "said")
    async with client_of(model) as client, Runtime(home=home, sandbox="copy", llm=client) as runtime:
        async for _ in behind_app.yields_before_the_model.stream():
            kinds.append([row.kind for row in await runtime.journal()])
    assert seals.begun == 1
    assert kinds == [[OpKind.RUN, OpKind.SEAL]] * 2


@pytest.mark.parametrize(
    ("way", "asks"),
    [
        (behind_app.asks_at_the_end, True),
        (behind_app.agent, True),
        (behind_app.forks_after_the_model, True),
        (behind_app.does_not_ask, False),
        (behind_app.asks_perhaps, False),
    ],
)
def test_the_plan_says_whether_the_model_is_asked_next(way: Any, asks: bool) -> None:
    plan = compile_plan(way)
    first = next(op for op in plan.ops if op.kind is OpKind.RUN)
    assert asks_model_next(plan, first) is asks


async def test_steps_at_once_are_committed_before_the_workflow_goes_on(
    home: Path, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The order of results is that of the rows, so a row must not be late while another could come first."""
    seals = HeldSeals()
    seals.hold(monkeypatch)
    seals.go.set()
    model = ScriptedModel(lambda request: request.messages[-1].content)
    async with client_of(model) as client, Runtime(home=home, sandbox="copy", llm=client) as runtime:
        said = await runtime.run(behind_app.two_at_once, workspace=workspace)
        assert await runtime.resume(str(runtime.last_run_id)) == said
    assert said == ["a 1", "b 2"]
    assert seals.begun <= 1
