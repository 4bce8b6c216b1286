"""Graphs that would lose files are refused, with an error that says what to do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypedDict

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph

import ramify
import ramify.graph
from ramify import SyncSandbox, current_sandbox, step
from ramify.runtime.langgraph.errors import UnsupportedGraph

CONFIG = {"configurable": {"thread_id": "1"}}


class State(TypedDict, total=False):
    names: list[str]


class Open(TypedDict, total=False):
    connection: Any


def touches(state: State) -> State:
    sandbox: Any = current_sandbox()
    sandbox.run("touch inner", check=True)
    return {"names": sorted(path.name for path in sandbox.path.iterdir())}


def only(function: Any, **options: Any) -> StateGraph[State]:
    return StateGraph(State).add_node("only", function, **options).add_edge(START, "only")


@step(retry=2)
def retried(sandbox: SyncSandbox, state: State) -> State:
    return {}


def test_a_step_with_retries_of_its_own(compile_graph: Any) -> None:
    with pytest.raises(UnsupportedGraph, match="retry_policy"):
        compile_graph(only(retried))


def first(sandbox: SyncSandbox, state: State) -> State:
    return {}


def no_state(sandbox: SyncSandbox) -> State:
    return {}


def several(state: State, *sandboxes: SyncSandbox) -> State:
    return {}


def perhaps(state: State, sandbox: SyncSandbox | None = None) -> State:
    return {}


async def blocking(state: State, sandbox: SyncSandbox) -> State:
    return {}


@pytest.mark.parametrize(
    ("node", "mend"),
    [
        (first, r"write `def first\(state, sandbox: Sandbox\)`"),
        (no_state, r"write `def no_state\(state, sandbox: Sandbox\)`"),
        (several, r"write `def several\(state, sandbox: Sandbox\)`"),
        (perhaps, "write Sandbox"),
        (blocking, "annotate Sandbox"),
    ],
)
def test_a_node_that_cannot_be_given_its_world(node: Any, mend: str, compile_graph: Any) -> None:
    place = f"langgraph/test_unsupported.py:{node.__code__.co_firstlineno}: "
    with pytest.raises(TypeError, match=f"^{place}.*{mend}"):
        compile_graph(only(node))


def test_a_graph_that_is_over_worlds_already(compile_graph: Any) -> None:
    with pytest.raises(UnsupportedGraph, match="already"):
        ramify.compile(compile_graph(only(touches)))


def test_without_a_thread_langgraph_itself_says_so(compile_graph: Any) -> None:
    with pytest.raises(ValueError, match="thread_id"):
        compile_graph(only(touches), checkpointer=InMemorySaver()).invoke({})


def test_two_worlds_in_one_node(compile_graph: Any) -> None:
    def greedy(state: State, one: SyncSandbox, two: SyncSandbox) -> State:
        return {}

    graph: Callable[[], Any] = lambda: compile_graph(only(greedy))  # noqa: E731
    with pytest.raises(TypeError, match="2 worlds"):
        graph()


def test_what_is_no_graph(compile_graph: Any) -> None:
    with pytest.raises(TypeError, match=r"42 is not a graph: .*StateGraph"):
        compile_graph(42)


def test_what_no_checkpoint_can_keep_is_named(compile_graph: Any, tmp_path: Path) -> None:
    def opens(state: Open) -> Any:
        return {"connection": lambda: None}

    with ramify.graph.saver(str(tmp_path / "threads")) as saver:
        graph = StateGraph(Open).add_node("opens", opens).add_edge(START, "opens")
        with pytest.raises(TypeError) as caught:
            compile_graph(graph, checkpointer=saver).invoke({}, CONFIG)
    assert "channel 'connection' was given a function" in "".join(caught.value.__notes__)
