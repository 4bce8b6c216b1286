"""What of a node runs again when its thread is resumed."""

from __future__ import annotations

from typing import Any, TypedDict

from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph
from langgraph.types import Command, interrupt

from ramify import SyncSandbox

CONFIG: Any = {"configurable": {"thread_id": "1"}}


class State(TypedDict, total=False):
    text: str


def test_a_node_whose_edge_asks_is_not_run_again(compile_graph: Any) -> None:
    ran: list[str] = []

    def writes(state: State, sandbox: SyncSandbox) -> State:
        ran.append("writes")
        (sandbox.path / "file").write_text("written")
        return {"text": "said"}

    def edge(state: State) -> str:
        ran.append("edge")
        return str(interrupt("where?"))

    def reads(state: State, sandbox: SyncSandbox) -> State:
        return {"text": f"{state['text']}, {(sandbox.path / 'file').read_text()}"}

    graph = StateGraph(State).add_node(writes).add_node(reads).add_edge(START, "writes")
    app = compile_graph(graph.add_conditional_edges("writes", edge, ["reads"]), checkpointer=InMemorySaver())
    app.invoke({}, CONFIG)
    assert app.invoke(Command(resume="reads"), CONFIG)["text"] == "said, written"
    assert ran == ["writes", "edge", "edge"]
