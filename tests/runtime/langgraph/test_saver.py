"""The checkpointer on disk behaves as LangGraph's own in memory, and its threads outlive the process."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph
from langgraph.types import Command, interrupt

from ramify.runtime.langgraph.saver import Saver

CONFIG: Any = {"configurable": {"thread_id": "1"}}


class State(TypedDict, total=False):
    log: Annotated[list[str], operator.add]
    big: str


def graph(saver: BaseCheckpointSaver[Any]) -> Any:
    def ask(state: State) -> State:
        return {"log": [interrupt("?")]}

    built = StateGraph(State)
    for name in ("a", "b", "c"):
        built.add_node(name, lambda state, name=name: {"log": [name]})
    built.add_node("ask", ask).add_edge(START, "a").add_edge("a", "b").add_edge("a", "c").add_edge(["b", "c"], "ask")
    return built.compile(checkpointer=saver)


@pytest.fixture
def saver(tmp_path: Path) -> Iterator[Saver]:
    with Saver(tmp_path / "deep" / "threads.db") as opened:
        yield opened


def history(app: Any, config: Any = CONFIG) -> list[Any]:
    return [
        (state.values, state.next, state.metadata, [task.name for task in state.tasks], len(state.interrupts))
        for state in app.get_state_history(config)
    ]


def scenario(app: Any) -> list[Any]:
    app.invoke({"log": [], "big": "x" * 1000}, CONFIG)
    app.invoke(Command(resume="yes"), CONFIG)
    back = next(state for state in app.get_state_history(CONFIG) if set(state.next) == {"b", "c"})
    app.invoke(None, back.config)
    app.update_state(CONFIG, {"log": ["updated"]}, as_node="c")
    return history(app)


def test_it_keeps_what_the_one_in_memory_keeps(saver: Saver) -> None:
    assert scenario(graph(saver)) == scenario(graph(InMemorySaver()))


async def test_async_calls_do_the_same(saver: Saver) -> None:
    async def over(app: Any) -> list[Any]:
        await app.ainvoke({"log": []}, CONFIG)
        await app.ainvoke(Command(resume="yes"), CONFIG)
        return [(state.values, state.next) async for state in app.aget_state_history(CONFIG)]

    assert await over(graph(saver)) == await over(graph(InMemorySaver()))
    await saver.adelete_thread("1")
    assert await saver.aget_tuple(CONFIG) is None


def test_another_process_finds_it(saver: Saver) -> None:
    app = graph(saver)
    app.invoke({"log": []}, CONFIG)
    with Saver(saver.path) as again:
        assert history(graph(again)) == history(app)
        assert graph(again).invoke(Command(resume="late"), CONFIG)["log"][-1] == "late"


def test_branches_of_a_thread_keep_their_own_values(saver: Saver) -> None:
    app = graph(saver)
    app.invoke({"log": []}, CONFIG)
    back = next(state for state in app.get_state_history(CONFIG) if set(state.next) == {"b", "c"})
    left, right = (app.update_state(back.config, {"log": [side]}, as_node="a") for side in ("left", "right"))
    assert app.get_state(left).values["log"] == ["a", "left"]
    assert app.get_state(right).values["log"] == ["a", "right"]


@pytest.mark.parametrize(
    "ask",
    [
        lambda saver, last: saver.list(CONFIG, limit=2),
        lambda saver, last: saver.list(CONFIG, before=last),
        lambda saver, last: saver.list(CONFIG, filter={"source": "loop", "step": 1}),
        lambda saver, last: saver.list(None, filter={"source": "input"}),
        lambda saver, last: saver.list({"configurable": {"thread_id": "none"}}),
    ],
)
def test_listing(ask: Callable[..., Any], saver: Saver) -> None:
    def steps(saver: BaseCheckpointSaver[Any]) -> list[int]:
        graph(saver).invoke({"log": []}, CONFIG)
        last = saver.get_tuple(CONFIG)
        assert last is not None
        return [one.metadata["step"] for one in ask(saver, last.config)]

    assert steps(saver) == steps(InMemorySaver())


def test_deleting_a_thread_leaves_the_others(saver: Saver) -> None:
    other: Any = {"configurable": {"thread_id": "2"}}
    app = graph(saver)
    app.invoke({"log": []}, CONFIG)
    app.invoke({"log": []}, other)
    saver.delete_thread("1")
    assert saver.get_tuple(CONFIG) is None
    assert list(saver.list(CONFIG)) == []
    assert app.get_state(other).next == ("ask",)
    assert graph(saver).invoke({"log": ["anew"]}, CONFIG)["log"] == ["anew", "a", "b", "c"]


def test_a_value_that_did_not_change_is_stored_once(saver: Saver) -> None:
    graph(saver).invoke({"log": [], "big": "y" * 200_000}, CONFIG)
    saver.close()
    size = sum(path.stat().st_size for path in saver.path.parent.iterdir())
    assert size < 5 * 200_000  # as the input, as the first write, as the value; not once for each of the checkpoints
