"""Steps as nodes: options that only workflows support are refused by name, and what nodes did is recorded."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypedDict

import pytest
from langgraph.graph import START, StateGraph
from langgraph.types import Command

import ramify
from ramify import Sandbox, SyncSandbox, step
from ramify.runtime.estimates.recorded_runs import RecordedEstimates
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


def test_what_nodes_wrote_is_in_their_rows(compile_graph: Any, kept: Any) -> None:
    def act(state: State, sandbox: SyncSandbox) -> State:
        (sandbox.path / "made").write_text("1")
        return {"n": 1}

    def end(state: State) -> Any:
        return Command(update={"n": 2})

    app = compile_graph(StateGraph(State).add_sequence([act, end]).add_edge(START, "act"))
    app.invoke({})
    seen = RecordedEstimates(kept(app).ops)
    assert seen.wrote("act") == {"files": ("made",), "channels": ("n",)}
    assert seen.wrote("end") == {"channels": ("n",)}
