"""Time travel, forks, copies of threads, and moving threads between plain graphs and graphs over worlds."""

from __future__ import annotations

import asyncio
import operator
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import START, StateGraph
from langgraph.types import Command, Send, interrupt

import ramify.graph
from ramify import SyncSandbox, current_sandbox
from ramify.runtime.records import RunStatus
from ramify.runtime.user_code.scope import is_in_a_run

CONFIG: Any = {"configurable": {"thread_id": "1"}}


class State(TypedDict, total=False):
    seen: Annotated[list[list[str]], operator.add]


RAN: list[str] = []


@pytest.fixture(autouse=True)
def nothing_ran() -> None:
    RAN.clear()


def names(sandbox: Any) -> list[str]:
    return sorted(path.name for path in sandbox.path.iterdir() if path.name != "hello.txt")


def writer(name: str) -> Any:
    """A node that also works in a plain graph, where it has no world."""

    def write(state: State) -> State:
        RAN.append(name)
        if not is_in_a_run():
            return {"seen": []}
        sandbox = current_sandbox()
        seen = names(sandbox)
        (sandbox.path / name).write_text(name)
        return {"seen": [seen]}

    return write


def chain(**nodes: Any) -> StateGraph[State]:
    graph = StateGraph(State)
    for name, node in nodes.items():
        graph.add_node(name, node)
    for first, second in zip([START, *nodes], nodes, strict=False):
        graph.add_edge(first, second)
    return graph


def asks(state: State) -> State:
    RAN.append("asks")
    return {"seen": [[interrupt("sure?")]]}


def in_sqlite() -> SqliteSaver:
    """LangGraph's own saver, which serialises checkpoints."""
    return SqliteSaver(sqlite3.connect(":memory:", check_same_thread=False))


@pytest.mark.parametrize("finished", [False, True])
@pytest.mark.parametrize("is_async", [False, True])
async def test_going_back_into_a_subgraph_runs_only_what_follows(
    finished: bool, is_async: bool, compile_graph: Any
) -> None:
    """LangGraph runs the whole subgraph again here (its issue 8458)."""
    sub = chain(b=writer("b"), c=writer("c"), review=asks).compile()
    app = compile_graph(chain(a=writer("a"), sub=sub, z=writer("z")), checkpointer=InMemorySaver())

    async def invoke(given: Any, config: Any) -> Any:
        return await app.ainvoke(given, config) if is_async else await asyncio.to_thread(app.invoke, given, config)

    await invoke({"seen": []}, CONFIG)
    there = app.get_state(CONFIG, subgraphs=True).tasks[0].state.config["configurable"]
    inside = {"configurable": {key: there[key] for key in ("thread_id", "checkpoint_ns")}}
    if finished:
        await invoke(Command(resume="yes"), CONFIG)
    before_c = next(state for state in app.get_state_history(inside) if state.next == ("c",))
    RAN.clear()
    again = await invoke(None, before_c.config)
    assert RAN == ["c", "asks"]
    assert again["__interrupt__"][0].value == "sure?"
    seen = (await invoke(Command(resume="yes"), CONFIG))["seen"]
    assert seen[-3:] == [["a", "b"], ["yes"], ["a", "b", "c"]]


@pytest.mark.parametrize("wanted", ["one", "two"])
def test_going_back_into_one_of_several_sends(wanted: str, compile_graph: Any) -> None:
    class Sent(TypedDict):
        name: str
        seen: Annotated[list[list[str]], operator.add]

    def begins(state: Sent) -> Any:
        RAN.append(f"{state['name']} begins")
        return {"seen": [[state["name"]]]}

    def reviews(state: Sent) -> Any:
        RAN.append(f"{state['name']} reviews")
        return {"seen": [[interrupt(state["name"])]]}

    sub = StateGraph(Sent).add_node("begins", begins).add_node("reviews", reviews)
    sub.add_edge(START, "begins").add_edge("begins", "reviews")
    graph = StateGraph(State).add_node("sub", sub.compile())
    names = ("one", "two")
    graph.add_conditional_edges(START, lambda state: [Send("sub", {"name": name}) for name in names], ["sub"])
    app = compile_graph(graph, checkpointer=InMemorySaver())
    app.invoke({"seen": []}, CONFIG)
    inside = [task.state for task in app.get_state(CONFIG, subgraphs=True).tasks]
    (at,) = [state.config for state in inside if state.values["name"] == wanted]
    RAN.clear()
    asked = app.invoke(None, at)["__interrupt__"]
    assert sorted(one.value for one in asked) == ["one", "two"]
    assert f"{wanted} begins" not in RAN
    app.invoke(Command(resume={one.id: f"yes {one.value}" for one in asked}), CONFIG)
    assert app.get_state(CONFIG).values["seen"] == [["one"], ["yes one"], ["two"], ["yes two"]]


def test_an_edited_world_is_a_fork_with_the_same_future(compile_graph: Any) -> None:
    app = compile_graph(chain(a=writer("a"), b=writer("b"), c=writer("c")), checkpointer=InMemorySaver())
    app.invoke({"seen": []}, CONFIG)
    before_b = next(state for state in app.get_state_history(CONFIG) if state.next == ("b",))
    forked = ramify.graph.edit(app, before_b.config, lambda sandbox: (sandbox.path / "by-hand").write_text("me"))
    assert app.get_state(CONFIG).next == ("b",)
    assert app.get_state(CONFIG).values == before_b.values
    assert app.invoke(None, CONFIG)["seen"][1:] == [["a", "by-hand"], ["a", "b", "by-hand"]]
    assert ramify.graph.read(app, forked, "by-hand") == b"me"
    assert app.invoke(None, before_b.config)["seen"][1:] == [["a"], ["a", "b"]]  # the original has not changed


def test_an_edit_that_fails_leaves_no_fork(compile_graph: Any) -> None:
    def fails(sandbox: SyncSandbox) -> None:
        raise ValueError("no")

    app = compile_graph(chain(a=writer("a")), checkpointer=InMemorySaver())
    app.invoke({"seen": []}, CONFIG)
    before = app.get_state(CONFIG).config
    with pytest.raises(ValueError, match="no"):
        ramify.graph.edit(app, CONFIG, fails)
    assert app.get_state(CONFIG).config == before


def test_a_fork_by_an_update_keeps_what_comes_next(compile_graph: Any) -> None:
    app = compile_graph(chain(a=writer("a"), b=writer("b"), c=writer("c")), checkpointer=InMemorySaver())
    app.invoke({"seen": []}, CONFIG)
    before_c = next(state for state in app.get_state_history(CONFIG) if state.next == ("c",))
    updated = app.update_state(before_c.config, {"seen": [["mine"]]})
    assert app.get_state(updated).next == ("c",)
    assert app.invoke(None, updated)["seen"][-2:] == [["mine"], ["a", "b"]]


UPDATED = [["mine"], ["yes"], ["a", "b"]]


def updated_inside(saver: Any, compile_graph: Any) -> Any:
    sub = chain(b=writer("b"), asks=asks).compile()
    return compile_graph(chain(a=writer("a"), sub=sub, z=writer("z")), checkpointer=saver)


def test_an_update_inside_a_subgraph_keeps_its_files(compile_graph: Any) -> None:
    app = updated_inside(in_sqlite(), compile_graph)
    app.invoke({"seen": []}, CONFIG)
    app.update_state(app.get_state(CONFIG, subgraphs=True).tasks[0].state.config, {"seen": [["mine"]]})
    assert app.invoke(Command(resume="yes"), CONFIG)["seen"][-3:] == UPDATED


async def test_an_async_update_inside_a_subgraph_keeps_its_files(compile_graph: Any) -> None:
    async with AsyncSqliteSaver.from_conn_string(":memory:") as saver:
        app = updated_inside(saver, compile_graph)
        await app.ainvoke({"seen": []}, CONFIG)
        inside = (await app.aget_state(CONFIG, subgraphs=True)).tasks[0].state.config
        await app.aupdate_state(inside, {"seen": [["mine"]]})
        assert (await app.ainvoke(Command(resume="yes"), CONFIG))["seen"][-3:] == UPDATED


def test_a_copied_thread_and_its_original_go_their_own_ways(compile_graph: Any, tmp_path: Path) -> None:
    with ramify.graph.Saver(tmp_path / "threads.db") as saver:
        app = compile_graph(chain(a=writer("a"), asks=asks, z=writer("z")), checkpointer=saver)
        app.invoke({"seen": []}, CONFIG)
        saver.copy_thread("1", "2")
        other: Any = {"configurable": {"thread_id": "2"}}
        for config in (CONFIG, other):
            assert app.invoke(Command(resume="yes"), config)["seen"][-1] == ["a"]
            assert app.invoke({"seen": []}, config)["__interrupt__"]
            assert app.invoke(Command(resume="no"), config)["seen"][-1] == ["a", "z"]


async def test_a_thread_killed_after_its_last_commit_is_found_done(compile_graph: Any, kept: Any) -> None:
    app = compile_graph(chain(a=writer("a"), b=writer("b")), checkpointer=InMemorySaver())
    await app.ainvoke({"seen": []}, CONFIG)
    for goes_on in (app.invoke, lambda *given: asyncio.run(app.ainvoke(*given))):
        kept(app).leave_running()  # as a killed process leaves it
        await asyncio.to_thread(goes_on, None, CONFIG)
        assert [run.status for run in kept(app).runs] == [RunStatus.DONE]
    assert RAN == ["a", "b"]


@pytest.mark.parametrize("make_saver", [InMemorySaver, in_sqlite])
def test_a_thread_goes_from_the_plain_graph_to_ours_and_back(
    make_saver: Callable[[], Any], compile_graph: Any
) -> None:
    saver = make_saver()
    graph = chain(a=writer("a"), sub=chain(b=writer("b"), asks=asks).compile(), z=writer("z"))
    plain, ours = graph.compile(checkpointer=saver), compile_graph(graph, checkpointer=saver)
    plain.invoke({"seen": []}, CONFIG)
    assert ours.invoke(Command(resume="yes"), CONFIG)["seen"] == [["yes"], []]
    ours.invoke({"seen": []}, CONFIG)
    assert plain.invoke(Command(resume="yes"), CONFIG)["seen"][-1] == ["yes"]
    assert RAN == ["a", "b", "asks", "asks", "z", "a", "b", "asks", "asks", "z"]


class Asked(TypedDict):
    seen: Annotated[list[str], operator.add]


@pytest.mark.parametrize("deep", [1, 2])
def test_going_back_into_a_subgraph_around_a_stateful_one_asks_again(deep: int, compile_graph: Any) -> None:
    """As plain LangGraph: the stateful graph keeps its answer, so a fork beside it would pass the question by."""

    def builder() -> StateGraph[Any]:
        inner: Any = StateGraph(Asked).add_node("ask", lambda state: {"seen": [interrupt("sure?")]})
        graph = inner.add_edge(START, "ask").compile(checkpointer=True)
        for level in range(deep):
            graph = StateGraph(Asked).add_node(f"level{level}", graph).add_edge(START, f"level{level}").compile()
        return StateGraph(Asked).add_node("top", graph).add_edge(START, "top")

    plain = builder().compile(checkpointer=InMemorySaver())
    for app in (plain, compile_graph(builder(), checkpointer=InMemorySaver())):
        app.invoke({"seen": []}, CONFIG)
        at = app.get_state(CONFIG, subgraphs=True).tasks[0].state.config
        assert app.invoke(Command(resume="one"), CONFIG) == {"seen": ["one"]}
        again = app.invoke(None, at)
        assert [one.value for one in again["__interrupt__"]] == ["sure?"]
