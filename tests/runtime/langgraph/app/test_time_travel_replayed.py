"""Resume a checkpoint that the thread has moved past: its tasks run again, as in plain LangGraph, and results of
their first run in the journal do not replace their new results."""

from __future__ import annotations

import operator
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.func import entrypoint, task
from langgraph.graph import START, StateGraph
from langgraph.types import Command, interrupt

from ramify import Sandbox, SyncSandbox, current_sandbox, llm
from ramify.runtime.user_code.scope import is_in_a_run
from ramify.serving.testing import ScriptedModel
from tests.runtime.langgraph.lost_snapshots import lose

CONFIG: Any = {"configurable": {"thread_id": "1"}}
RAN: list[str] = []


class State(TypedDict, total=False):
    seen: Annotated[list[str], operator.add]
    number: Annotated[int, lambda old, new: new]


@pytest.fixture(autouse=True)
def nothing_ran() -> None:
    RAN.clear()


def leaves(name: str) -> None:
    """Write a file; in a plain graph there is no world, and nothing is written."""
    RAN.append(name)
    if is_in_a_run():
        (current_sandbox().path / name).write_text(name)


def files() -> list[str]:
    return sorted(path.name for path in current_sandbox().path.iterdir() if path.name != "hello.txt")


def siblings() -> StateGraph[State]:
    """One sibling uses a world and finishes, the other asks; the next node tells which files exist."""

    def finishes(state: State) -> State:
        leaves(f"done {state['number']}")
        return {"seen": [f"done {state['number']}"]}

    def asks(state: State) -> State:
        RAN.append("asks")
        return {"seen": [interrupt("sure?")]}

    def last(state: State) -> State:
        RAN.append("last")
        if is_in_a_run():
            assert files() == [one for one in state["seen"] if one.startswith("done")]
        return {}

    graph = StateGraph(State).add_node("finishes", finishes).add_node("asks", asks).add_node("last", last)
    return graph.add_edge(START, "finishes").add_edge(START, "asks").add_edge(["finishes", "asks"], "last")


def told(graph: Any, *calls: tuple[Any, Any]) -> list[Any]:
    found = []
    for given, config in calls:
        RAN.clear()
        found.append((graph.invoke(given, config), sorted(RAN)))
    return found


@pytest.mark.parametrize("followed", [False, True], ids=["resumed once", "resumed before"])
def test_a_finished_sibling_runs_again_where_an_old_checkpoint_is_resumed_with_an_update(
    followed: bool, compile_graph: Any
) -> None:
    def seen(graph: Any) -> list[Any]:
        begun = told(graph, ({"seen": [], "number": 0}, CONFIG))
        at = graph.get_state(CONFIG).config
        calls = [(Command(resume="one"), CONFIG)] if followed else []
        calls += [(Command(resume="two", update={"number": 1}), at), (Command(resume="three"), at), (None, at)]
        shown = [*begun, *told(graph, *calls, (Command(resume="four"), CONFIG))]
        return [({**values, "__interrupt__": len(values.get("__interrupt__", ()))}, ran) for values, ran in shown]

    plain = seen(siblings().compile(checkpointer=InMemorySaver()))
    assert seen(compile_graph(siblings(), checkpointer=InMemorySaver())) == plain


def test_tasks_of_an_entrypoint_run_again_with_it(compile_graph: Any) -> None:
    def flow() -> Any:
        @task
        def work(name: str) -> str:
            leaves(name)
            return name

        @entrypoint(checkpointer=InMemorySaver())
        def app(name: str) -> list[str]:
            done = work(name).result()
            return [done, interrupt("sure?"), *(files() if is_in_a_run() else [name])]

        return app

    def seen(graph: Any) -> list[Any]:
        found = told(graph, ("one", CONFIG))
        at = graph.get_state(CONFIG).config
        found += told(graph, (Command(resume="a"), CONFIG), (Command(resume="b"), at), (Command(resume="c"), at))
        return [(values if isinstance(values, list) else "asked", ran) for values, ran in found]

    assert seen(compile_graph(flow(), checkpointer=InMemorySaver())) == seen(flow())


async def test_a_model_is_asked_again(compile_graph: Any, scripted: ScriptedModel) -> None:
    async def talks(state: State, sandbox: Sandbox) -> State:
        return {"seen": [(await llm.chat("hello?")).text]}

    def asks(state: State) -> State:
        return {"seen": [interrupt("sure?")]}

    graph = StateGraph(State).add_node("talks", talks).add_node("asks", asks)
    app = compile_graph(graph.add_edge(START, "talks").add_edge(START, "asks"), checkpointer=InMemorySaver())
    await app.ainvoke({"seen": []}, CONFIG)
    at = (await app.aget_state(CONFIG)).config
    await app.ainvoke(Command(resume="one"), CONFIG)
    assert len(scripted.calls) == 1
    await app.ainvoke(Command(resume="two"), at)
    assert len(scripted.calls) == 2


def test_a_lost_state_of_a_task_that_ran_again_is_made_again(compile_graph: Any, kept: Any, home: Path) -> None:
    def finishes(state: State, sandbox: SyncSandbox) -> State:
        RAN.append("finishes")
        (sandbox.path / f"done {state['number']}").write_text("here")
        return {}

    def asks(state: State) -> State:
        return {"seen": [interrupt("sure?")]}

    def last(state: State, sandbox: SyncSandbox) -> State:
        return {"seen": sorted(path.name for path in sandbox.path.iterdir())}

    def graph() -> StateGraph[State]:
        built = StateGraph(State).add_node("finishes", finishes).add_node("asks", asks).add_node("last", last)
        return built.add_edge(START, "finishes").add_edge(START, "asks").add_edge(["finishes", "asks"], "last")

    saver = InMemorySaver()
    app = compile_graph(graph(), checkpointer=saver, interrupt_before=["last"])
    app.invoke({"seen": [], "number": 0}, CONFIG)
    at = app.get_state(CONFIG).config
    app.invoke(Command(resume="one"), CONFIG)
    app.invoke(Command(resume="two", update={"number": 1}), at)
    made = [row.snapshot_out for row in kept(app).ops if row.step == "finishes" and row.snapshot_out]
    app.close()
    lose(home, made[-1])
    RAN.clear()
    assert compile_graph(graph(), checkpointer=saver).invoke(None, CONFIG)["seen"][-2:] == ["done 1", "hello.txt"]
    assert RAN == ["finishes"]


@pytest.mark.parametrize("depth", [1, 2])
def test_files_follow_a_journey_into_a_graph_that_keeps_its_state(depth: int, compile_graph: Any) -> None:
    def writes(name: str) -> Any:
        def node(state: State) -> State:
            found = files()
            leaves(name)
            return {"seen": [f"{name}: {' '.join(found)}"]}

        return node

    def asks(state: State) -> State:
        return {"seen": [interrupt("sure?")]}

    graph = StateGraph(State).add_node("a", writes("a")).add_node("asks", asks).add_node("b", writes("b"))
    graph.add_edge(START, "a").add_edge("a", "asks").add_edge("asks", "b")
    for number in range(depth):
        outer = StateGraph(State).add_node(f"before{number}", writes(f"before{number}"))
        outer.add_node(f"inner{number}", graph.compile(checkpointer=True))
        outer.add_node(f"after{number}", writes(f"after{number}"))
        outer.add_edge(START, f"before{number}").add_edge(f"before{number}", f"inner{number}")
        graph = outer.add_edge(f"inner{number}", f"after{number}")
    app = compile_graph(graph, checkpointer=InMemorySaver())
    app.invoke({"seen": []}, CONFIG)
    state = app.get_state(CONFIG, subgraphs=True)
    while hasattr(state.tasks[0].state, "tasks"):
        state = state.tasks[0].state
    app.invoke(Command(resume="one"), CONFIG)
    assert app.invoke(None, state.config)["__interrupt__"]
    seen = app.invoke(Command(resume="two"), CONFIG)["seen"]
    before = [f"before{number}" for number in range(depth)]
    last = f"after{depth - 1}: {' '.join(sorted([*before, 'a', 'b', *(f'after{n}' for n in range(depth - 1))]))}"
    assert seen[-1] == last
    assert f"b: {' '.join(sorted([*before, 'a']))}" in seen
    assert "two" in seen and "one" not in seen


class More(State, total=False):
    extra: str


@pytest.mark.parametrize("over", [False, True], ids=["plain", "over worlds"])
def test_a_channel_that_only_the_second_run_of_a_task_writes_is_kept(compile_graph: Any, over: bool) -> None:
    """Channels whose values are read from the writes (`DeltaChannel`) lost it. A checkpointer keeps the first write
    of each place among those of a task, and the world channel took that of the new one."""

    def finishes(state: More) -> More:
        leaves(f"done {state['number']}")
        return {"seen": ["done"], **({"extra": "new"} if state["number"] == 2 else {})}

    def asks(state: More) -> More:
        return {"seen": [interrupt("sure?")]}

    graph = StateGraph(More).add_node("finishes", finishes).add_node("asks", asks)
    graph.add_edge(START, "finishes").add_edge(START, "asks")
    saver = InMemorySaver()
    app = compile_graph(graph, checkpointer=saver) if over else graph.compile(checkpointer=saver)
    app.invoke({"number": 1}, CONFIG)
    paused = app.get_state(CONFIG).config
    app.update_state(CONFIG, None)
    app.invoke(Command(resume="yes", update={"number": 2}), paused)
    found = saver.get_tuple(paused)
    assert found is not None and found.pending_writes is not None
    assert ("extra", "new") in [(channel, value) for _, channel, value in found.pending_writes]


def test_an_old_checkpoint_that_is_answered_again_shows_one_result(compile_graph: Any, saver: Any) -> None:
    """The task runs again under its old id. Its write to the world channel does not take the place of another one."""

    def seen(graph: Any) -> list[Any]:
        graph.invoke({"seen": ["in"], "number": 0}, CONFIG)
        graph.invoke(Command(resume="yes"), CONFIG)
        history = [state.config for state in graph.get_state_history(CONFIG)]
        graph.update_state(history[-1], {"seen": ["fork"]})  # the thread moves to another branch
        graph.invoke(Command(resume="again"), history[1])
        return [[task.result for task in state.tasks] for state in graph.get_state_history(CONFIG)]

    def asks(state: State) -> State:
        return {"seen": [interrupt("sure?")]}

    def build() -> StateGraph[State]:
        graph = StateGraph(State).add_node("before", lambda state: {"number": 1}).add_node("asks", asks)
        return graph.add_edge(START, "before").add_edge("before", "asks")

    assert seen(compile_graph(build(), checkpointer=saver)) == seen(build().compile(checkpointer=InMemorySaver()))
