"""Graphs that are refused, with an error that names the place and the correction."""

from __future__ import annotations

import functools
import operator
import socket
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, Literal, TypedDict

import pytest
from langchain_core.runnables import RunnableLambda
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command

from ramify import Sandbox, step, workflow
from ramify.compiler.errors import WorkflowError
from ramify.compiler.pipeline import compile_graph


class State(TypedDict):
    x: int


def node(state: State) -> State:
    return state


def graph_of(**nodes: Any) -> Any:
    graph: Any = StateGraph(State)
    for name, action in nodes.items():
        graph.add_node(name, action)
    graph.add_edge(START, next(iter(nodes)))
    return graph


def here(function: Any) -> str:
    return f"langgraph/test_graph_checks.py:{function.__code__.co_firstlineno}"


def compiled(graph: Any) -> Any:
    return compile_graph(graph, name="flow", ref="app.py:graph")


def test_a_node_without_incoming_edges_is_logged_as_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    assert compiled(graph_of(first=node, lost=node)).plan.op("run.lost")
    (record,) = caplog.records
    assert record.name == "ramify.compiler" and record.levelname == "WARNING"
    assert "no edge leads to node lost" in record.getMessage()
    assert here(node) in record.getMessage()


def test_there_is_no_warning_if_code_may_lead_to_the_node(caplog: pytest.LogCaptureFixture) -> None:
    """Code may lead there in many ways, and not all can be read."""

    def go(state: State) -> Any:
        return Command(goto="far")

    def local(state: State) -> Any:
        from langgraph.types import Command as Going

        return Going(goto="far")

    def each(state: State) -> Any:
        return [go(state) for _ in "x"]

    def asks(state: State) -> Any:
        return app.invoke(state)

    helpers = ModuleType("helpers")
    helpers.go = go  # type: ignore[attr-defined]
    name, table = "go", {"go": go}

    class Router:
        def go(self, state: State) -> Any:
            return self.__call__(state)

        def __call__(self, state: State) -> Any:
            return go(state)

    def decorated(function: Any) -> Any:
        @functools.wraps(function)
        def wrapper(state: State) -> Any:
            return function(state) and go(state)

        return wrapper

    ways = [
        go,
        lambda state: go(state),
        each,
        asks,
        local,
        lambda state: helpers.go(state),
        lambda state: getattr(helpers, name)(state),
        lambda state: table["go"](state),
        lambda state: RunnableLambda(go),
        RunnableLambda(go),
        Router(),
        Router().go,
        functools.partial(go),
        decorated(node),
        graph_of(inside=go).compile(),
    ]
    for action in ways:
        assert compiled(graph_of(first=action, far=node)).plan.op("run.far").step == "far"
    assert not caplog.records
    app: Any = None  # like an app that its own nodes call: bound when the graph is compiled


def test_a_cycle_that_only_an_interrupt_or_the_limit_ends_is_accepted(caplog: pytest.LogCaptureFixture) -> None:
    graph = graph_of(a=node, b=node)
    graph.add_edge("a", "b")
    graph.add_edge("b", "a")
    assert compiled(graph).plan.op("run.b")
    assert not caplog.records


def test_a_cycle_with_an_exit_is_accepted() -> None:
    def choose(state: State) -> Literal["a", "__end__"]:
        return "a"

    graph = graph_of(a=node, b=node)
    graph.add_edge("a", "b")
    graph.add_conditional_edges("b", choose)
    assert compiled(graph).plan.op("run.b")
    assert END == "__end__"


def fans(one: Any, other: Any, schema: Any = State) -> Any:
    graph: Any = StateGraph(schema)
    for name, action in (("first", node_of(schema)), ("left", one), ("right", other)):
        graph.add_node(name, action)
    graph.add_edge(START, "first")
    graph.add_edge("first", "left")
    graph.add_edge("first", "right")
    return graph


def node_of(schema: Any) -> Any:
    def first(state: Any) -> Any:
        return {}

    return first


def left(state: State) -> State:
    return {"x": state["x"] + 1}


def right(state: State) -> State:
    if state["x"] > 1:
        return {"x": 2}
    return {"x": 3}


def test_two_nodes_that_write_a_channel_without_a_reducer_are_refused() -> None:
    with pytest.raises(WorkflowError, match="channel x has no reducer") as error:
        compiled(fans(left, right))
    assert f"first -> left ({here(left)}) and first -> right ({here(right)})" in error.value.what
    assert "Annotated" in error.value.mend


def test_they_are_not_refused_if_a_decorator_may_change_the_result() -> None:
    def perhaps(function: Any) -> Any:
        @functools.wraps(function)
        def wrapper(state: State) -> Any:
            return function(state) if state["x"] else {}

        return wrapper

    assert compiled(fans(left, perhaps(right))).plan.op("run.left").attrs["writes"] == ["x"]
    assert "writes" not in compiled(fans(left, perhaps(right))).plan.op("run.right").attrs


def test_they_are_not_refused_if_one_may_not_write_the_channel() -> None:
    def perhaps(state: State) -> Any:
        if state["x"]:
            return {"x": 1}

    class Joined(TypedDict):
        x: Annotated[int, operator.add]

    attrs = compiled(fans(left, perhaps)).plan.op("run.left").attrs
    assert attrs == {"reads": ["x"], "writes": ["x"], "reads_by": "syntax"}
    assert compiled(fans(left, right, Joined))
    later = fans(left, right)
    later.nodes["right"].defer = True
    assert compiled(later)


def test_a_reducer_that_cannot_join_its_channels_values_is_refused() -> None:
    class Bad(TypedDict):
        x: int
        found: Annotated[dict, operator.add]  # line: of this field

    with pytest.raises(WorkflowError, match="reducer add of channel found raises on two of dict") as error:
        compiled(graph_of_schema(Bad))
    assert error.value.where == f"langgraph/test_graph_checks.py:{line_of('# line: of this field')}"


@pytest.mark.parametrize(
    "hint", [Annotated[list, operator.mul], Annotated[int, operator.floordiv], Annotated[str, operator.mod]]
)
def test_a_reducer_that_joins_another_type_is_not_refused(hint: Any) -> None:
    assert compiled(graph_of_schema(TypedDict("Odd", {"x": int, "odd": hint})))  # type: ignore[operator]


def line_of(text: str) -> int:
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    return next(number for number, line in enumerate(lines, 1) if line.endswith(text))


def graph_of_schema(schema: Any) -> Any:
    graph: Any = StateGraph(schema)
    graph.add_node("only", node_of(schema))
    graph.add_edge(START, "only")
    return graph


def test_a_reducer_of_the_wrong_shape_is_refused_by_langgraph_itself() -> None:
    class Bad(TypedDict):
        x: Annotated[int, lambda one: one]

    with pytest.raises(ValueError, match="Invalid reducer signature"):
        StateGraph(Bad)


def test_a_channel_that_no_checkpoint_can_store_is_refused() -> None:
    class Bad(TypedDict):
        line: socket.socket | None  # line: of the socket

    with pytest.raises(WorkflowError, match="channel line holds a socket, which no checkpoint can store") as error:
        compiled(graph_of_schema(Bad).compile(checkpointer=InMemorySaver()))
    assert error.value.where == f"langgraph/test_graph_checks.py:{line_of('# line: of the socket')}"
    assert compiled(graph_of_schema(Bad).compile()), "nothing is stored without a checkpointer, as in LangGraph"


def test_a_world_in_the_state_is_refused_with_and_without_a_checkpointer() -> None:
    class Bad(TypedDict):
        world: Sandbox

    with pytest.raises(WorkflowError, match="channel world holds a Sandbox"):
        compiled(graph_of_schema(Bad))


def test_duplicate_names_of_nodes_are_refused_by_langgraph_itself() -> None:
    with pytest.raises(ValueError, match="Node `a` already present"):
        graph_of(a=node).add_node("a", node)


def a_world() -> Sandbox:
    return Sandbox.__new__(Sandbox)


def test_a_node_that_holds_a_world_in_its_closure_is_refused() -> None:
    world = a_world()

    def holds(state: State) -> Any:
        return {"x": len(str(world))}

    with pytest.raises(WorkflowError, match="node only holds a world in world") as error:
        compiled(graph_of(only=holds))
    assert error.value.where == f"langgraph/test_graph_checks.py:{holds.__code__.co_firstlineno + 1}"


def test_a_node_that_calls_a_step_or_a_workflow_is_refused() -> None:
    @step
    async def ours(sandbox: Sandbox) -> None: ...

    @workflow
    async def flow() -> None: ...

    async def calls_step(state: State) -> Any:
        await ours()

    async def calls_workflow(state: State) -> Any:
        await flow()

    for name, action in (("step ours", calls_step), ("workflow flow", calls_workflow)):
        with pytest.raises(WorkflowError, match=f"node only calls the {name}") as error:
            compiled(graph_of(only=action))
        assert error.value.where == f"langgraph/test_graph_checks.py:{action.__code__.co_firstlineno + 1}"


def test_an_inner_function_may_use_the_nodes_world() -> None:
    def makes(state: State, sandbox: Sandbox) -> Any:
        def reader() -> Any:
            return lambda name: sandbox.path / name

        return {"x": len(str(reader()("a")))}

    def takes_another(state: State, sandbox: Sandbox) -> Any:
        return {"x": sorted([1], key=lambda sandbox: sandbox)[0]}

    for action in (makes, takes_another):
        assert compiled(graph_of(only=action))


def test_a_returned_function_may_not_hold_the_nodes_world() -> None:
    def hands_out(state: State, sandbox: Sandbox) -> Any:
        def read() -> Any:
            return sandbox.path

        return {"x": read}

    with pytest.raises(WorkflowError, match="returns a function that holds its world sandbox"):
        compiled(graph_of(only=hands_out))
