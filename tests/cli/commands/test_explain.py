from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import passes_app

from ramify import Runtime
from ramify.cli.commands.explain import Changed, change_lines, choice_lines, compared, warm_lines
from ramify.compiler.plan import OpId, OpKind, Plan, PlanOp
from ramify.inspect.plan_outcomes import KeptWarm, kept_warm
from ramify.inspect.plan_outcomes import story as told_of
from ramify.runtime.estimates.cost_model import Regret
from ramify.runtime.estimates.recorded_runs import RecordedEstimates, observed
from ramify.runtime.records import WARM, OpStatus
from ramify.serving.client import LLMClient
from ramify.serving.testing import ScriptedModel
from tests.plans import compile_plan


def by_op(said: Any) -> dict[str, Any]:
    return {one["op"]: one for one in said.json["operations"]}


async def scripted(work: Callable[[LLMClient], Awaitable[None]]) -> None:
    model = ScriptedModel(lambda request: f"w{request.seed}")
    async with LLMClient("http://model.test/v1", transport=model) as client:
        await work(client)


async def run_once(home: Path, workspace: Path, model: LLMClient) -> None:
    async with Runtime(home=home, sandbox="copy", llm=model) as runtime:
        await runtime.run(passes_app.searches, "what?", workspace=workspace)


def test_plan_is_compared_with_what_happened(ramify: Any, tmp_path: Path, workspace: Path) -> None:
    for _ in range(2):
        asyncio.run(scripted(lambda model: run_once(tmp_path / "home", workspace, model)))
    found = by_op(said := ramify("explain", "--json"))
    assert (found["run.1"]["step"], found["run.1"]["done"], found["seal.1"]["snapshots"]) == ("write", 1, 1)
    assert (found["llm.1"]["done"], found["prefork.llm.1"]["done"], found["fork.1"]["done"]) == (1, 1, 1)
    assert (found["run.2"]["done"], found["merge.1"]["done"], found["break.unseen"]["done"]) == (3, 1, 0)
    assert found["run.1"]["predicted_s"] > 0  # from the other run
    assert found["llm.1"]["predicted_s"] is not None
    nothing: dict[str, object] = {"known": True, "why": "", "workflow": False, "steps": [], "ops": []}
    assert said.json["changed"] == nothing | {"parts": [], "readers": {}}
    text = ramify("explain").out
    assert said.json["without_effect"].keys() <= set(said.json["passes"])
    for name, why in said.json["without_effect"].items():
        assert f"  {name}: no effect: {why}" in text
        assert name not in text.split("passes: ")[1].splitlines()[0]
    assert "lookahead" in text.split("passes: ")[1].splitlines()[0]
    assert "break.unseen" in text
    assert "skipped" in text
    assert "the workflow, its steps and what they use are unchanged since the plan was compiled" in text


def test_what_was_chosen_by_cost_and_what_that_cost(ramify: Any, tmp_path: Path, workspace: Path) -> None:
    asyncio.run(scripted(lambda model: run_once(tmp_path / "home", workspace, model)))
    assert ramify("explain", "--json").json["choices"] == []
    made = [Regret(4, "built", "restore", 3.0, 1.0, 0.5), Regret(9, "tested", "recompute", 1.0, 1.0, None)]
    assert choice_lines(made) == [
        "choices by cost: 2 choices, 2.50 s regretted, predictions off by 1.00 s in the median",
        "  built (row 4): restore took 3.00 s, instead 0.50 s: 2.50 s regretted",
    ]
    assert choice_lines([]) == []


def test_code_that_has_changed_since_is_named(ramify: Any, tmp_path: Path, workspace: Path, monkeypatch: Any) -> None:
    asyncio.run(scripted(lambda model: run_once(tmp_path / "home", workspace, model)))
    from ramify.compiler.frontend.python import code_parts as code
    from ramify.compiler.frontend.python import part_digests

    whole, pieces = code.text_of, part_digests.pieces_of  # as if the text of every statement were another
    monkeypatch.setattr(code, "text_of", lambda node: whole(node) + "x")
    monkeypatch.setattr(part_digests, "pieces_of", lambda node: (*pieces(node), "x"))
    changed = ramify("explain", "--json").json["changed"]
    assert (changed["workflow"], changed["steps"], changed["ops"]) == (True, ["write"], ["run.1", "run.2"])
    assert "changed since: write; affected: run.1, run.2" in ramify("explain").out
    said = r"changed since: write \(.*passes_app.py:\d+\); steps that may be affected: write"
    assert re.search(said, ramify("explain").out)
    told = change_lines(Changed(True, "", steps=("write",), ops=(OpId("run.1"),), readers={OpId("run.3"): ("log",)}))
    assert told[-1] == "later operations that read what they may write: run.3 (log)"


def test_merges_that_may_conflict_are_named(ramify: Any, tmp_path: Path, workspace: Path) -> None:
    async def run(model: LLMClient) -> None:
        async with Runtime(home=tmp_path / "home", sandbox="copy", llm=model) as runtime:
            await runtime.run(passes_app.adopts_both, workspace=workspace)

    asyncio.run(scripted(run))
    assert "merge.1 @ apps/passes_app.py" in (text := ramify("explain").out)
    assert "may conflict: same" in text
    assert ramify("explain", "--json").json["conflicts"] == {"merge.1": ["same"]}


def test_predictions_come_from_the_runs_of_the_workflow(tmp_path: Path, workspace: Path) -> None:
    async def seen(model: LLMClient) -> None:
        async with Runtime(home=tmp_path / "home", sandbox="copy", llm=model) as runtime:
            for _ in range(2):
                await runtime.run(passes_app.searches, "what?", workspace=workspace)
            found = await observed(runtime.store, (await runtime.record()).workflow)
            assert found.width("fork.1") == 3  # type: ignore[arg-type]
            calls = found.calls("llm.1")  # type: ignore[arg-type]
            assert calls is not None
            assert calls.calls == 3
            whole, code, seal = found.step_s("write"), found.rerun_s("write"), found.seal_s()
            assert whole is not None and code is not None and seal is not None
            assert 0 < code < whole, "what goes by in a step is also the making of its world, and the seal"
            assert found.step_s("another") is None

    asyncio.run(scripted(seen))


def test_figures_of_code_that_has_changed_since_are_not_used(tmp_path: Path, workspace: Path) -> None:
    async def seen(model: LLMClient) -> None:
        async with Runtime(home=tmp_path / "home", sandbox="copy", llm=model) as runtime:
            await runtime.run(passes_app.searches, "what?", workspace=workspace)
            plan = Plan.from_json((await runtime.record()).plan_json)
            steps = {step.name: step.code_digest for step in plan.steps}
            found = await observed(runtime.store, plan.workflow)
            same, step_changed, workflow_changed = (
                found.valid_for_code(plan.code_digest, steps),
                found.valid_for_code(plan.code_digest, {"write": "other"}),
                found.valid_for_code("other", steps),
            )
            fork, call = OpId("fork.1"), OpId("llm.1")
            assert same.step_s("write") == found.step_s("write") is not None
            assert (same.calls(call), same.width(fork)) == (found.calls(call), 3)
            assert step_changed.step_s("write") is None
            assert (step_changed.calls(call), step_changed.width(fork)) == (found.calls(call), 3)
            assert workflow_changed.step_s("write") == found.step_s("write"), "a step is the same wherever it stands"
            assert (workflow_changed.calls(call), workflow_changed.width(fork)) == (None, None)

    asyncio.run(scripted(seen))


def test_a_node_that_runs_tools_has_its_times(story: Any) -> None:
    op = PlanOp(OpId("tool.1"), OpKind.CALL_TOOL, step="tools")
    rows = [replace(story.ops[0], op_id=op.id, step="tools")]  # a node's row is a RUN, whatever the plan calls it
    seen = RecordedEstimates(()).on(None)
    told = told_of(op, cast(Plan, SimpleNamespace(expected=())), story.run, rows, [], seen)
    assert (told.done, told.took_s) == (1, 0.5)


def test_an_app_is_a_threads(ramify: Any, home: Any) -> None:
    said = ramify("explain", "--app", "nowhere.py:app")
    assert said.status == 2 and "belongs to a workflow" in said.err


def test_a_run_that_is_not_there(ramify: Any, home: Any) -> None:
    said = ramify("explain", "ffff")
    assert (said.status, said.out) == (1, "")
    assert f"ramify --home {home.path} ls" in said.err


def test_what_was_kept_ready_and_why() -> None:
    plan = compile_plan(passes_app.searches)
    seal = next(op for op in plan.ops if op.kind is OpKind.SEAL)
    made: Any = [
        SimpleNamespace(op_id=seal.id, attrs={WARM: said}, status=OpStatus.DONE) for said in ("3 for the fork", *"nn")
    ]
    made += [SimpleNamespace(op_id=seal.id, attrs={}, status=OpStatus.DONE)]  # of an earlier version
    until = tuple(seal.attrs["dies"])
    found = kept_warm(plan, made)
    assert found == [KeptWarm(seal.id, 1, "3 for the fork", until), KeptWarm(seal.id, 2, "n", until)]
    assert warm_lines(found)[0] == (f"kept ready after {seal.id} (1 time): 3 for the fork; until {', '.join(until)}")


def test_a_plan_of_a_format_with_the_same_digests_is_compared() -> None:
    now = compile_plan(passes_app.searches)
    assert compared(replace(now, version=9), now, "decorators") == Changed(known=True, why="")
    assert not compared(replace(now, version=8), now, "decorators").known
