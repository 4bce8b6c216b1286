"""A node that runs outside of its graph by `app.nodes[name].invoke(state)`, as LangGraph's manual tests nodes."""

from __future__ import annotations

import json
from typing import Any, TypedDict

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.config import get_store, get_stream_writer
from langgraph.graph import START, StateGraph
from langgraph.types import interrupt

from ramify import Sandbox, SyncSandbox
from ramify.runtime.records import RunStatus


class State(TypedDict, total=False):
    text: str


def upper(state: State) -> State:
    return {"text": state["text"].upper()}


def append(state: State, sandbox: SyncSandbox) -> State:
    file = sandbox.path / "file"
    seen = file.read_text() if file.exists() else "new"
    file.write_text(f"{seen}.")
    return {"text": seen}


async def list_files(state: State, sandbox: Sandbox) -> State:
    return {"text": (await sandbox.run("ls")).stdout}


def nested(state: State, sandbox: SyncSandbox) -> State:
    StateGraph(State).add_node(append).add_edge(START, "append").compile().invoke(state)
    return append(state, sandbox)


def fail(state: State) -> State:
    raise KeyError("missing")


@pytest.fixture
def app(compile_graph: Any) -> Any:
    nodes = [upper, append, list_files, nested, fail]
    graph = StateGraph(State).add_sequence(nodes)
    return compile_graph(graph.add_edge(START, "upper"))


async def test_a_node_runs_outside_of_its_graph(app: Any) -> None:
    assert app.nodes["upper"].invoke({"text": "a"}) == {"text": "A"}
    assert await app.nodes["upper"].ainvoke({"text": "a"}) == {"text": "A"}
    assert list(app.nodes["upper"].stream({"text": "a"})) == [{"text": "A"}]
    assert app.nodes["upper"].invoke({"text": "a"}, {"configurable": {"thread_id": "1"}}) == {"text": "A"}


async def test_each_time_on_a_world_of_its_own(app: Any, workspace: Any) -> None:
    (workspace / "file").unlink(missing_ok=True)
    assert [app.nodes["append"].invoke({})["text"] for _ in range(2)] == ["new", "new"]
    assert app.nodes["nested"].invoke({}) == {"text": "new."}
    assert "file" not in (await app.nodes["list_files"].ainvoke({}))["text"].split()


async def test_its_error_is_the_callers_and_its_run_has_ended(app: Any, kept: Any) -> None:
    with pytest.raises(KeyError, match="missing"):
        app.nodes["fail"].invoke({})
    with pytest.raises(KeyError, match="missing"):
        await app.nodes["fail"].ainvoke({})
    app.nodes["upper"].invoke({"text": "a"})
    assert sorted(run.status for run in kept(app).runs) == [RunStatus.DONE, RunStatus.FAILED, RunStatus.FAILED]


@pytest.mark.parametrize("asks", [lambda: interrupt("go on?"), get_store, get_stream_writer])
async def test_what_only_a_run_has_is_refused(asks: Any, compile_graph: Any) -> None:
    """As in LangGraph."""
    graph = StateGraph(State).add_node("ask", lambda state: {"text": str(asks())}).add_edge(START, "ask")
    for app in (compile_graph(graph), graph.compile()):
        with pytest.raises(RuntimeError):
            app.nodes["ask"].invoke({})
        with pytest.raises(RuntimeError):
            await app.nodes["ask"].ainvoke({})


async def test_a_drawing_shows_the_users_nodes(app: Any) -> None:
    plain = (
        StateGraph(State).add_sequence([upper, append, list_files, nested, fail]).add_edge(START, "upper").compile()
    )
    assert app.get_graph().to_json() == plain.get_graph().to_json()
    assert (await app.aget_graph(xray=True)).draw_mermaid() == plain.get_graph(xray=True).draw_mermaid()


def test_an_app_as_a_node_is_drawn_with_its_class(app: Any, compile_graph: Any) -> None:
    outer = StateGraph(State).add_node("inner", app).add_edge(START, "inner").compile()
    assert "WorldGraph" in json.dumps(outer.get_graph().to_json())
    inner = StateGraph(State).add_sequence([upper, append, list_files, nested, fail]).add_edge(START, "upper")
    plain = StateGraph(State).add_node("inner", inner.compile()).add_edge(START, "inner").compile()
    for xray in (False, True):  # in a graph of ours it is drawn as the graph that it was made of
        assert compile_graph(outer).get_graph(xray=xray).to_json() == plain.get_graph(xray=xray).to_json()


def test_a_checkpoint_holds_the_world_and_the_state_does_not(compile_graph: Any) -> None:
    saver, config = InMemorySaver(), {"configurable": {"thread_id": "1"}}
    app = compile_graph(StateGraph(State).add_node(append).add_edge(START, "append"), checkpointer=saver)
    app.invoke({"text": "a"}, config)
    assert all("__env__" in one.checkpoint["channel_versions"] for one in list(saver.list(config))[:1])
    assert set(app.get_state(config).values) == {"text"}
