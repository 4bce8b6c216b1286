"""If a reducer raises, the caller gets plain LangGraph's error with a note that says where to look."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest
from langgraph.graph import START, StateGraph

import ramify


def refuses(held: list[int], update: list[int]) -> list[int]:
    raise ValueError("these two do not go together")


class State(TypedDict, total=False):
    found: Annotated[list[int], refuses]


def one(state: State) -> State:
    return {"found": [1]}


def two(state: State) -> State:
    return {"found": [2]}


def graph(**nodes: Any) -> Any:
    made: Any = StateGraph(State)
    for name, action in nodes.items():
        made.add_node(name, action)
        made.add_edge(START, name)
    return made


@pytest.mark.parametrize("nested", [False, True])
def test_its_error_is_plain_langgraphs_with_a_note(home: Path, nested: bool) -> None:
    plain = graph(one=one, two=two).compile()
    with pytest.raises(ValueError, match="these two do not go together") as theirs:
        plain.invoke({})
    outer = graph(inside=lambda state: plain.invoke({})) if nested else plain
    with (
        ramify.compile(outer, home=home, sandbox="copy", name="reduces") as app,
        pytest.raises(ValueError, match="these two do not go together") as ours,
    ):
        app.invoke({})
    (note,) = [note for note in ours.value.__notes__ if "reducer" in note]
    line = refuses.__code__.co_firstlineno
    assert note.startswith(
        f"thread/test_channels_reducers.py:{line}: reducer refuses of channel found raised: the channel held a list"
    )
    assert "make it join everything that a node may write to found" in note
    assert not [note for note in getattr(theirs.value, "__notes__", ()) if "reducer" in note], "plain graphs stay so"
