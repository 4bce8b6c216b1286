"""Every pass that can be turned off, in both front ends: turned off, its operations are neither in the plan nor in
the journal, and the results are the same."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypedDict

import passes_app
import pytest
from langgraph.graph import START, StateGraph

import ramify
from ramify import Runtime, Sandbox, llm
from ramify.compiler.passes import OPTIONAL
from ramify.compiler.pipeline import compile_graph, compile_workflow
from ramify.compiler.plan import Plan
from ramify.runtime.codec import codec
from ramify.runtime.records import LLMRecord, OpRecord
from ramify.runtime.worlds.garbage_collection import dead_states
from ramify.serving.client import LLMClient
from tests.runtime.execution.test_passes import Measured


@dataclass(frozen=True)
class Done:
    """A run, and what each pass left in its journal."""

    result: object
    rows: list[OpRecord]
    calls: list[LLMRecord]
    plan: Plan

    def traces(self) -> dict[str, list[str]]:
        dues = (codec.decode(call.tags_json).get("compound_due_s") for call in self.calls)  # type: ignore[attr-defined]
        steps = [row for row in self.rows if row.step is not None]
        return {
            "placement": sorted(row.op_id for row in steps if row.snapshot_in and row.snapshot_out is None),
            "parallel": sorted(row.op_id for row in steps if row.step == "peek" and "fork_ms" in row.attrs),
            "common": sorted(row.op_id for row in steps if row.lineage_key is not None),
            "lookahead": sorted(row.op_id for row in self.rows if row.op_id.startswith("prefork")),
            "liveness": ["states that are dead"] if dead_states(self.plan, self.rows) else [],
            "stages": ["due" for due in dues if due is not None],
        }


async def as_workflow(home: Path, workspace: Path, model: LLMClient, passes: list[str]) -> Done:
    flow = passes_app.everything
    ref = flow.__ramify_workflow__.ref
    plan = compile_workflow(flow, ref=ref, passes=passes, estimates=Measured()).plan
    async with Runtime(home=home, sandbox="copy", llm=model) as runtime:
        result = await runtime.run(flow, "what?", workspace=workspace, plan=plan, deadline="600s")
        return Done(result, await runtime.journal(), await runtime.llm_calls(), plan)


class State(TypedDict):
    said: str


async def asks(state: State, sandbox: Sandbox) -> State:
    (sandbox.path / "log").write_text("one")
    return {"said": (await llm.chat("what?")).text}


async def peek(state: State, sandbox: Sandbox) -> State:
    return {"said": state["said"] + (sandbox.path / "log").read_text()}


async def as_graph(home: Path, workspace: Path, model: LLMClient, passes: list[str]) -> Done:
    graph = StateGraph(State).add_sequence([asks, peek]).add_edge(START, "asks")
    plan = compile_graph(graph, name="graph", ref="here:graph", passes=passes, estimates=Measured()).plan
    app = ramify.compile(graph, workspace, "600s", plan=plan, home=home, sandbox="copy", llm=model, name="graph")
    try:
        result = await app.ainvoke({"said": ""})
        services = await app.session.portal.cross(app.session.services())
        run, store = app.session.last_run_id, services.store
        rows = await app.session.portal.cross(store.ops(run))
        return Done(result, rows, await app.session.portal.cross(store.llm(run)), plan)
    finally:
        app.close()


@dataclass(frozen=True)
class Left:
    """What a pass leaves: `traces` in the journal, operations that it places or takes out, attributes that it sets.

    `traces()` above says where each pass leaves its traces. A pass without traces in the journal is not in it.
    """

    traces: list[str] = field(default_factory=list)
    operations: set[str] = field(default_factory=set)
    attributes: set[str] = field(default_factory=set)


IN_WORKFLOW = {
    "placement": Left(["run.1"], operations={"seal.1"}),
    "parallel": Left(["run.3", "run.4"], attributes={"beside"}),
    "common": Left(["run.5", "run.5"], attributes={"shared"}),
    "lookahead": Left(["prefork.llm.1"], {"prefork.llm.1"}, {"during", "forks", "width"}),
    "liveness": Left(["states that are dead"], attributes={"dies"}),
    "stages": Left(["due", "due"]),
}
IN_GRAPH = {"stages": Left(["due"])}
"""LangGraph decides what runs at once, and keeps each state: the other passes leave nothing there."""


WHOLE: dict[Callable[..., Awaitable[Done]], Done] = {}
"""The run with every pass, of each front end."""


@pytest.mark.parametrize("off", OPTIONAL)
@pytest.mark.parametrize(
    ("run", "left"), [(as_workflow, IN_WORKFLOW), (as_graph, IN_GRAPH)], ids=["workflow", "graph"]
)
async def test_a_pass_that_is_turned_off_leaves_nothing(
    run: Callable[..., Awaitable[Done]],
    left: Mapping[str, Left],
    off: str,
    tmp_path: Path,
    workspace: Path,
    model: LLMClient,
) -> None:
    if run not in WHOLE:
        WHOLE[run] = await run(tmp_path / "whole", workspace, model, list(OPTIONAL))
    whole = WHOLE[run]
    less = await run(tmp_path / "less", workspace, model, [name for name in OPTIONAL if name != off])
    assert whole.result == less.result
    assert set(whole.plan.passes) - set(less.plan.passes) == {off}
    expected = left.get(off, Left())
    table = "IN_WORKFLOW" if left is IN_WORKFLOW else "IN_GRAPH"
    said = f"if that is what the pass is for, say so in {table}"
    traces, fewer = whole.traces(), less.traces()
    assert (traces.pop(off, []), fewer.pop(off, [])) == (expected.traces, []), said
    assert fewer == traces
    assert {op.id for op in whole.plan.ops} ^ {op.id for op in less.plan.ops} == expected.operations, said
    assert marked(whole.plan) - marked(less.plan) == expected.attributes, said
    rows, others = (
        sorted(row.op_id for row in done.rows if row.op_id not in expected.operations) for done in (whole, less)
    )
    assert rows == others


def marked(plan: Plan) -> set[str]:
    return {name for op in plan.ops for name in op.attrs} - {"conflicts"}


def test_every_switch_is_in_the_table() -> None:
    assert set(IN_WORKFLOW) == set(OPTIONAL), "add the pass to IN_WORKFLOW, and to IN_GRAPH if it changes graphs"
