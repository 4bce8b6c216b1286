"""Merges whose sides write the same path: refused if they must conflict, named in the plan if they may."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypedDict

import pytest
from langgraph.graph import START, StateGraph

from ramify import Sandbox
from ramify.compiler.change_impact import affected_operations
from ramify.compiler.errors import WorkflowError
from ramify.compiler.estimates import Unmeasured
from ramify.compiler.passes.steps import BESIDE
from ramify.compiler.pipeline import compile_graph, compile_spec
from ramify.compiler.plan import OpKind
from ramify.runtime.estimates.recorded_runs import RecordedEstimates

STEPS = """
@step
async def left(sandbox: Sandbox, x=None):
    (sandbox.path / "a").write_text("left")
@step
async def right(sandbox: Sandbox, x=None):
    (sandbox.path / "a").write_text("right")
@step
async def perhaps(sandbox: Sandbox, x=None):
    (sandbox.path / "a").write_text(x)
@step
async def reads(sandbox: Sandbox, x=None):
    return (sandbox.path / "a").read_text()
@step
async def runs(sandbox: Sandbox, x=None):
    await sandbox.run("make")
@workflow
async def flow(x):
    async with fork([1, 2]) as branches:
        {body}
"""


def compiled(compile_source: Callable[..., Any], *lines: str) -> Any:
    return compile_source(STEPS.format(body="\n        ".join(lines)))


def test_a_merge_of_sides_that_always_write_different_contents_is_refused(compile_source: Callable[..., Any]) -> None:
    with pytest.raises(WorkflowError, match="must conflict: both sides always write a") as error:
        compiled(compile_source, "await left()", "await branches.map(right)", "await branches[0].adopt()")
    assert error.value.where.startswith("app/sample.py:")
    assert "strategy" in error.value.mend


@pytest.mark.parametrize(
    "lines",
    [
        ("await left()", "await branches.map(left)", "await branches[0].adopt()"),
        ("await left()", "await branches.map(perhaps)", "await branches[0].adopt()"),
        ("await left()", "await branches[0].run(right)", "await branches[0].adopt()"),
        ("await left()", "await branches.map(right, errors='return')", "await branches[0].adopt()"),
        ("if x: await left()", "await branches.map(right)", "await branches[0].adopt()"),
        (
            "await right()",
            "async with fork([1]) as inner:",
            "    await left()",
            "    await inner.map(right)",
            "    await inner[0].adopt()",
        ),
    ],
)
def test_paths_that_may_conflict_are_named_in_the_plan(
    compile_source: Callable[..., Any], lines: tuple[str, ...]
) -> None:
    (merge,) = merges(compiled(compile_source, *lines))
    assert merge.attrs["conflicts"] == ["a"]


@pytest.mark.parametrize(
    "lines",
    [
        ("await branches.map(right)", "await branches[0].adopt()"),
        ("await left()", "await branches.map(runs)", "await branches[0].adopt()"),  # nothing known is no warning
        ("await left()", "await branches.map(reads)", "await branches[0].adopt()"),
        ("await left()", "await branches.map(right)", "await branches[0].adopt(strategy='theirs')"),
        ("await left()", "await branches.map(right)", "try: await branches[0].adopt()", "except ValueError: pass"),
    ],
)
def test_handled_or_unknown_conflicts_are_not_named(
    compile_source: Callable[..., Any], lines: tuple[str, ...]
) -> None:
    (merge,) = merges(compiled(compile_source, *lines))
    assert "conflicts" not in merge.attrs


def test_a_second_adopted_branch_may_conflict_with_the_first(compile_source: Callable[..., Any]) -> None:
    lines = ("for each in await branches.map(perhaps):", "    await each.adopt()")
    (merge,) = merges(compiled(compile_source, *lines))
    assert merge.attrs["conflicts"] == ["a"]


class Recorded(Unmeasured):
    def wrote(self, step: str) -> Mapping[str, tuple[str, ...]]:
        return {"files": ("built", "log")} if step == "runs" else {}


def test_recorded_runs_add_writes_that_the_syntax_does_not_show(compile_source: Callable[..., Any]) -> None:
    lines = ("await runs()", "await branches.map(runs)", "await branches[0].adopt()")
    plan = compile_spec(compiled(compile_source, *lines).spec, estimates=Recorded()).plan
    assert [op.attrs["conflicts"] for op in plan.ops if op.kind is OpKind.MERGE] == [["built", "log"]]
    assert plan.op("run.1").attrs["wrote"] == {"files": ["built", "log"], "by": "recorded"}
    assert "writes" not in plan.op("run.1").attrs["files"], "recorded paths do not limit what it may write"


def test_steps_that_write_nothing_are_marked_to_run_beside_others(compile_source: Callable[..., Any]) -> None:
    lines = (
        "await asyncio.gather(reads(), left(), runs(), *(reads() for _ in range(3)))",
        "await reads()",
        "await branches.map(reads)",
        "later = reads()",
    )
    compilation = compiled(compile_source, *lines)
    beside = [op.attrs.get(BESIDE, False) for op in compilation.plan.ops if op.kind is OpKind.RUN]
    assert beside == [True, False, False, True, False, False, True]
    assert all(BESIDE not in op.attrs for op in compile_spec(compilation.spec, passes=()).plan.ops)


def merges(compilation: Any) -> list[Any]:
    return [op for op in compilation.plan.ops if op.kind is OpKind.MERGE]


# LangGraph


class State(TypedDict):
    x: int
    y: int


def first(state: State) -> Any:
    return {}


def says_one(state: State, sandbox: Sandbox) -> Any:
    (sandbox.path / "a").write_text("1")


def says_two(state: State, sandbox: Sandbox) -> Any:
    (sandbox.path / "a").write_text("2")


def says_x(state: State, sandbox: Sandbox) -> Any:
    (sandbox.path / "a").write_text(str(state["x"]))


def looks(state: State, sandbox: Sandbox) -> Any:
    return {"y": len((sandbox.path / "a").read_text())}


def fans(*nodes: Any, after: Any = first, on: Path | None = None) -> Any:
    graph: Any = StateGraph(State)
    if after is not None:
        graph.add_node("first", after)
        graph.add_edge(START, "first")
    for node in nodes:
        graph.add_node(node.__name__, node)
        graph.add_edge(START if after is None else "first", node.__name__)
    return compile_graph(graph, name="flow", ref="app.py:graph", estimates=RecordedEstimates(()).on(on))


def test_two_nodes_that_create_a_file_with_different_contents_are_refused(tmp_path: Path) -> None:
    with pytest.raises(WorkflowError, match="always write a, with different contents: START -> says_one") as error:
        fans(says_one, says_two, after=None, on=tmp_path)
    assert error.value.where == f"passes/{Path(__file__).name}:{says_two.__code__.co_firstlineno}"


def test_two_nodes_that_write_an_existing_file_are_not_refused(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("1")
    assert fans(says_one, says_two, after=None, on=tmp_path).plan.op("merge.superstep").attrs["conflicts"] == ["a"]
    assert fans(says_one, says_two, after=says_x).plan.op("merge.superstep").attrs["conflicts"] == ["a"]


def test_files_that_two_nodes_may_both_write_are_named_on_their_merge() -> None:
    assert fans(says_one, says_x).plan.op("merge.superstep").attrs["conflicts"] == ["a"]
    assert "conflicts" not in fans(says_one, looks).plan.op("merge.superstep").attrs


def test_a_changed_node_affects_the_readers_of_what_it_writes() -> None:
    found = affected_operations(fans(says_one, looks, says_x).plan, ["says_one"])
    assert found["run.looks"] == ("a",)
    assert found["run.first"] == ("anything",), "it takes no world, but code that it calls may obtain one"
    assert "run.says_x" not in found, "it reads no file, and only a channel that no node writes"


def test_if_reads_are_not_known_every_later_operation_may_be_affected(compile_source: Callable[..., Any]) -> None:
    plan = compile_source(STEPS.format(body="await left(); await reads(); await runs(); await left()")).plan
    assert affected_operations(plan, ["left"]) == {"run.2": ("a",), "run.3": ("anything",)}
    assert affected_operations(plan, ["reads"]) == {}
    assert affected_operations(plan, ["runs"]) == {}, "what comes after it reads nothing"
