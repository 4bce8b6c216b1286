"""The questions of a waiting thread are read from its checkpoints without its program."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, TypedDict

import pytest
from langgraph.graph import START, StateGraph
from langgraph.types import Command, interrupt

from ramify import paths
from ramify.graph import Saver, saver
from ramify.runtime.langgraph.errors import ThreadElsewhere
from ramify.runtime.langgraph.thread.stored_thread import questions


class State(TypedDict):
    said: str


@pytest.fixture
def checkpoints(home: Path) -> Iterator[Saver]:
    made = saver(home)
    yield made
    made.close()


def ask(state: State) -> State:
    first = interrupt({"sure?": ["yes", "no"]})
    return {"said": first + interrupt("quite sure?")}


def test_only_unanswered_interrupts_are_open_questions(
    checkpoints: Saver, compile_graph: Any, kept: Any, home: Path
) -> None:
    graph = StateGraph(State)
    graph.add_node("ask", ask)
    graph.add_edge(START, "ask")
    app = compile_graph(graph, checkpointer=checkpoints)
    thread = {"configurable": {"thread_id": "t"}}
    told = []
    for given in ({"said": ""}, Command(resume="yes"), Command(resume="!")):
        last = app.invoke(given, thread)
        told.append(questions(paths.database(home), kept(app).runs[0]))
    assert told == [[{"sure?": ["yes", "no"]}], ["quite sure?"], []]
    assert last["said"] == "yes!"
    with pytest.raises(ThreadElsewhere):
        questions(paths.database(home), replace(kept(app).runs[0], thread_id="another"))
