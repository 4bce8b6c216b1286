"""A pass is said to have no effect exactly if the plan is the same without it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from langgraph.graph import END, START, StateGraph

from ramify.compiler.estimates import UNMEASURED, Estimates
from ramify.compiler.pass_effects import with_effect, without_effect
from ramify.compiler.passes import OPTIONAL
from ramify.compiler.pipeline import compile_graph, compile_spec
from tests.compiler.passes.test_optional_passes import Cheap

FLOWS = {
    "nothing": "return 1",
    "a step": "await edit()",
    "two steps, the first cheap": "await edit(); await test()",
    "model": "await llm.chat('x')",
    "reading": "await asyncio.gather(look(), look())",
    "files of two branches": "async with fork([1, 2]) as branches:\n        await notes()\n"
    "        await branches.map(notes)\n        await branches[0].adopt()",
    "reuse": "await again(); await again()",
    "branches": "await llm.chat('x')\n    async with fork(3) as branches:\n        await branches.map(edit)",
}


SOURCE = """
@step(reuse=True)
async def again(sandbox: Sandbox): ...
@step(effect=Effect.READONLY)
async def look(sandbox: Sandbox): ...
@step
async def notes(sandbox: Sandbox, x=None): (sandbox.path / "notes").write_text("x")
@workflow
async def flow():
    """


@pytest.mark.parametrize("name", FLOWS)
@pytest.mark.parametrize("estimates", [UNMEASURED, Cheap()], ids=["unmeasured", "cheap"])
def test_a_pass_without_effect_leaves_the_plan_as_it_is(
    compile_source: Callable[..., Any], name: str, estimates: Estimates
) -> None:
    spec = compile_source(SOURCE + FLOWS[name]).spec
    whole = compile_spec(spec, estimates=estimates).plan
    idle = without_effect(whole)
    for off in OPTIONAL:
        less = compile_spec(spec, estimates=estimates, passes=[one for one in OPTIONAL if one != off]).plan
        assert (replace(less, passes=whole.passes) == whole) == (off in idle), off
    assert set(idle) | set(with_effect(whole)) == set(whole.passes)


def test_these_workflows_show_each_pass_with_and_without_effect(compile_source: Callable[..., Any]) -> None:
    plans = [compile_spec(compile_source(SOURCE + body).spec, estimates=Cheap()).plan for body in FLOWS.values()]
    idle = {name for plan in plans for name in without_effect(plan)}
    active = {name for plan in plans for name in with_effect(plan)}
    everything = set(plans[0].passes)
    assert (everything - idle, everything - active) == (set(), set())


def test_a_graph_is_told_why_passes_do_nothing() -> None:
    graph = StateGraph(dict)
    graph.add_node("a", lambda state: state)
    graph.add_edge(START, "a")
    graph.add_edge("a", END)
    plan = compile_graph(graph, name="graph", ref="here:graph").plan
    idle = without_effect(plan)
    assert idle.keys() >= {"placement", "parallel", "common", "lookahead", "liveness", "stages"}
    assert all(idle.values())
    assert with_effect(plan) == ("effects", "fork_points")
    assert "stages" in with_effect(plan, 60.0), "calls carry when their stage is due"
