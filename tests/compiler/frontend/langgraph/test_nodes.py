"""What is read of a LangGraph node beyond its edges: the channels that it reads and writes, and its tools."""

from __future__ import annotations

import operator
from types import FunctionType
from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.tools import StructuredTool, tool
from langgraph.graph import START, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.types import Command

from ramify import Sandbox
from ramify.compiler.errors import SourceError
from ramify.compiler.frontend.langgraph.nodes import tools_of
from ramify.compiler.frontend.python.sources import Sources
from ramify.compiler.pipeline import Compilation, compile_graph
from ramify.compiler.plan import Effect, OpKind


class State(TypedDict):
    x: int
    y: int
    seen: Annotated[list, operator.add]


class Narrow(TypedDict):
    x: int


def compiled(*actions: Any, schema: Any = State) -> Compilation:
    graph: Any = StateGraph(schema)
    for number, action in enumerate(actions):
        graph.add_node(f"n{number}", action)
        graph.add_edge(f"n{number - 1}" if number else START, f"n{number}")
    return compile_graph(graph, name="flow", ref="app.py:graph")


def reads_x(state: State) -> Any:
    return {"y": state["x"] + state.get("x", 0)}


def reads_all(state: State) -> Any:
    if len(state) > 2:
        return None
    return {"x": 1, "seen": [1]}


def writes_unknown(state: State) -> Any:
    update = {"x": state["x"]}
    return update


def narrowed(state: Narrow) -> Any:
    print(state)


def commands(state: State) -> Any:
    return Command(update={"x": state["y"]}, goto="nowhere")


async def hands_over(state: State) -> Any:
    return Command(graph=Command.PARENT, update={"x": 1})


def streams(state: State) -> Any:
    yield {"x": 1}


def spreads(state: State) -> Any:
    return {**state, "x": 1}


@pytest.mark.parametrize(
    ("action", "attrs"),
    [
        (reads_x, {"reads": ["x"], "writes": ["y"]}),
        (reads_all, {"writes": ["seen", "x"]}),
        (writes_unknown, {"reads": ["x"]}),
        (narrowed, {"reads": ["x"], "writes": []}),
        (commands, {"reads": ["y"], "writes": ["x"]}),
        (hands_over, {"reads": []}),
        (streams, {"reads": []}),
        (spreads, {}),
        (lambda state: {"x": state["y"]}, {"reads": ["y"], "writes": ["x"]}),
    ],
)
def test_channels_that_a_node_reads_and_writes(action: Any, attrs: dict[str, Any]) -> None:
    found = compiled(action).plan.op("run.n0").attrs
    assert {name: found[name] for name in ("reads", "writes") if name in found} == attrs


# fmt: off
ON_ONE_LINE = [lambda state: {"x": state["y"]}, lambda state: {"y": f"{state['x']}"}, lambda s: (lambda state: {"seen": [1]})(s), lambda state: None]  # noqa: E501
# fmt: on


def test_lambdas_on_one_line_are_told_apart() -> None:
    nested = [each for each in ON_ONE_LINE[2].__code__.co_consts if hasattr(each, "co_code")]
    functions = [*ON_ONE_LINE[:2], FunctionType(nested[0], {}), ON_ONE_LINE[3]]
    found = [compiled(each).plan.op("run.n0").attrs for each in functions]
    assert [attrs["writes"] for attrs in found] == [["x"], ["y"], ["seen"], []]
    assert [attrs["reads"] for attrs in found] == [["y"], ["x"], [], []]
    assert "writes" not in compiled(ON_ONE_LINE[2]).plan.op("run.n0").attrs

    graph: Any = StateGraph(State)  # both follow START: they would conflict if both were read as one of them
    for number, each in enumerate(ON_ONE_LINE[:2]):
        graph.add_node(f"n{number}", each)
        graph.add_edge(START, f"n{number}")
    assert compile_graph(graph, name="flow", ref="app.py:graph").plan.op("run.n1").attrs["writes"] == ["y"]


def test_a_lambda_without_columns_is_not_guessed() -> None:
    """`PYTHONNODEBUGRANGES` leaves them out."""
    code = ON_ONE_LINE[0].__code__
    bare = FunctionType(code.replace(co_linetable=bytes([0x80 | 13 << 3 | 7, 0]) * 8), {})
    with pytest.raises(SourceError, match="several functions"):
        Sources().function(bare)


def test_every_node_takes_and_makes_a_version_of_the_channels() -> None:
    compilation = compiled(reads_x, reads_all)
    first, second = compilation.plan.op("run.n0"), compilation.plan.op("run.n1")
    for op in (first, second):
        assert [value[0] for value in op.inputs] == [value[0] for value in op.outputs] == ["w", "c", "e"]
    merge, enter = compilation.plan.op("merge.superstep"), compilation.plan.op("enter")
    assert [value[0] for value in merge.outputs] == ["w", "w", "c"]
    assert [value[0] for value in enter.outputs] == ["w", "c", "e"]


@tool
def fetch(url: str) -> str:
    """Fetches."""
    return url


@tool
def edit(path: str, sandbox: Sandbox) -> str:
    """Edits."""
    return path


def hinted(name: str, **hints: bool) -> StructuredTool:
    """Make a tool as tools of MCP servers come to LangChain."""

    def call(path: str) -> str:
        """Does something."""
        return path

    return StructuredTool.from_function(call, name=name, metadata=hints)


@pytest.mark.parametrize(
    ("tools", "effect", "why"),
    [
        ([fetch], Effect.UNKNOWN, "tool fetch: no hint"),
        ([edit], Effect.REVERTIBLE, "tool edit: takes a Sandbox"),
        ([hinted("look", readOnlyHint=True)], Effect.READONLY, "tool look: readOnlyHint"),
        ([hinted("look", readOnlyHint=True), edit], Effect.REVERTIBLE, "tool edit: takes a Sandbox; tool look: "),
        ([hinted("drop", destructiveHint=True), edit], Effect.UNKNOWN, "tool drop: destructiveHint; tool edit: "),
        ([hinted("any", readOnlyHint=False)], Effect.UNKNOWN, "tool any: destructiveHint"),
        ([hinted("put", destructiveHint=False, idempotentHint=True)], Effect.UNKNOWN, "outside, idempotentHint"),
    ],
)
def test_the_effect_of_a_tool_node_follows_from_its_tools(tools: list[Any], effect: Effect, why: str) -> None:
    plan = compiled(ToolNode(tools)).plan
    op, known = plan.op("run.n0"), plan.step("n0")
    assert known is not None
    assert (op.kind, known.effect) == (OpKind.CALL_TOOL, effect)
    assert why in known.why
    assert sorted(op.attrs["tools"]) == sorted(each.name for each in tools)
    sealed = any(each.kind is OpKind.SEAL for each in plan.ops)
    assert sealed is (effect is not Effect.READONLY), "a node that only reads needs no snapshot"


def test_an_irreversible_tool_is_named_on_its_node() -> None:
    plan = compiled(ToolNode([hinted("drop", destructiveHint=True)])).plan
    assert plan.op("run.n0").attrs["tools"] == {"drop": "irreversible"}


def test_a_change_of_a_tools_code_changes_its_nodes_digest() -> None:
    one, other = (compiled(ToolNode([each])).plan.step("n0") for each in (fetch, edit))
    assert one is not None
    assert other is not None
    assert one.code_digest != other.code_digest


def test_a_node_that_is_no_tool_node_has_no_tools() -> None:
    assert tools_of("x", reads_x, None) == ()  # type: ignore[arg-type]
