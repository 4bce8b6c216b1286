"""Joins and topics under durability="async", with a checkpointer that is slower than the graph."""

from __future__ import annotations

import operator
import time
from pathlib import Path
from typing import Annotated, Any, TypedDict

from langchain_core.runnables import RunnableConfig
from langgraph.channels import Topic
from langgraph.graph import START, StateGraph

import ramify
from ramify import Saver


class State(TypedDict):
    log: Annotated[list[str], operator.add]


class Slow(Saver):
    def put(self, *given: Any) -> RunnableConfig:
        time.sleep(0.05)
        return super().put(*given)


def joins() -> Any:
    """A graph in which `a` arrives at the join one superstep before `b2`."""
    graph: Any = StateGraph(State)
    for name in ("a", "b", "b2", "join"):
        graph.add_node(name, lambda state, name=name: {"log": [name]})
    graph.add_edge(START, "a")
    graph.add_edge(START, "b")
    graph.add_edge("b", "b2")
    graph.add_edge(["a", "b2"], "join")
    return graph


def test_a_joins_checkpoint_is_that_of_its_superstep(home: Path, tmp_path: Path) -> None:
    config: RunnableConfig = {"configurable": {"thread_id": "1"}}
    with (
        Slow.open(tmp_path / "threads.db") as saver,
        ramify.compile(joins(), home=home, sandbox="copy", checkpointer=saver, name="joins") as app,
    ):
        app.invoke({"log": []}, config, durability="async")
        (first,) = [one for one in app.get_state_history(config) if one.metadata and one.metadata.get("step") == 1]
        assert first.next == ("b2",)
        assert app.invoke(None, first.config)["log"] == ["a", "b", "b2", "join"]


class Heard(TypedDict, total=False):
    heard: Annotated[list[str], Topic(str, accumulate=True)]


def test_a_topics_checkpoint_is_that_of_its_superstep(home: Path, tmp_path: Path) -> None:
    config: RunnableConfig = {"configurable": {"thread_id": "1"}}
    graph: Any = StateGraph(Heard)
    for name in ("a", "b", "c"):
        graph.add_node(name, lambda state, name=name: {"heard": name})
    graph.add_edge(START, "a").add_edge("a", "b").add_edge("b", "c")
    with (
        Slow.open(tmp_path / "threads.db") as saver,
        ramify.compile(graph, home=home, sandbox="copy", checkpointer=saver, name="topics") as app,
    ):
        app.invoke({}, config, durability="async")
        first, second = (
            next(one for one in app.get_state_history(config) if one.metadata and one.metadata.get("step") == step)
            for step in (1, 2)
        )
        assert (first.values["heard"], second.values["heard"]) == (["a"], ["a", "b"])
        assert app.invoke(None, first.config)["heard"] == ["a", "b", "c"]


class OnceEach(Topic[str]):
    """A user's own kind of topic."""

    def update(self, values: Any) -> bool:
        return super().update([value for value in values if value not in self.values])


class Distinct(TypedDict, total=False):
    heard: Annotated[list[str], OnceEach(str, accumulate=True)]


def test_a_users_own_kind_of_topic_stays_as_it_is(home: Path) -> None:
    graph: Any = StateGraph(Distinct)
    for name in ("a", "b"):
        graph.add_node(name, lambda state: {"heard": "said"})
    graph.add_edge(START, "a").add_edge("a", "b")
    with ramify.compile(graph, home=home, sandbox="copy", name="topics") as app:
        assert app.invoke({})["heard"] == ["said"]
