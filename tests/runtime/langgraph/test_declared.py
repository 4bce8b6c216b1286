"""Steps as nodes: what only workflows honour is refused by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypedDict

import pytest
from langgraph.graph import START, StateGraph

import ramify
from ramify import Sandbox, step
from ramify.runtime.langgraph.errors import UnsupportedGraph


class State(TypedDict, total=False):
    n: int


@pytest.mark.parametrize(
    ("declared", "named"),
    [
        ({"retry": 1}, "retry"),
        ({"reuse": True}, "reuse"),
        ({"effect": "irreversible"}, "irreversible"),
        ({"effect": "readonly"}, "readonly"),
    ],
)
def test_what_a_node_cannot_declare(declared: dict[str, Any], named: str, home: Path, workspace: Path) -> None:
    async def act(state: State, sandbox: Sandbox) -> State:
        return {"n": 1}

    built = StateGraph(State).add_node("act", step(**declared)(act)).add_edge(START, "act")
    with pytest.raises(UnsupportedGraph, match=named):
        ramify.compile(built, workspace, home=home, sandbox="copy")
