"""Small graphs that use each feature of LangGraph, to compare plain graphs with graphs over worlds."""

from __future__ import annotations

from langgraph.types import Command

from tests.runtime.langgraph.differential.gallery_entrypoints import async_flow, failing_flow, flow
from tests.runtime.langgraph.differential.gallery_nodes import (
    agent,
    given_up,
    handled,
    retried,
    runnables,
    slow,
    streaming_model,
    tool_loop,
)
from tests.runtime.langgraph.differential.gallery_routes import (
    asking_sends,
    branches,
    deferred,
    endless,
    goto,
    plain_line,
    twice_asking,
)
from tests.runtime.langgraph.differential.gallery_state import (
    channels,
    context,
    data,
    failing_reducer,
    invalid,
    messages,
    private,
    two_last_values,
)
from tests.runtime.langgraph.differential.gallery_subgraphs import (
    both_asking,
    closure,
    parent,
    parent_of_two,
    remembering,
    sent_graphs,
    static_inside,
    two_closures,
)
from tests.runtime.langgraph.differential.pieces import HUMAN, Piece

GALLERY: dict[str, Piece] = {
    "goto": Piece(goto),
    "parent": Piece(parent),
    "parent of two": Piece(parent_of_two),
    "closure": Piece(closure),
    "two closures": Piece(two_closures),
    "remembering": Piece(remembering, ({"log": ["1"]}, {"log": ["2"]})),
    "deferred": Piece(deferred),
    "asking sends": Piece(asking_sends, is_racy=True),
    "sent graphs": Piece(sent_graphs, is_racy=True),
    "channels": Piece(channels),
    "two last values": Piece(two_last_values, ({"log": ""},)),
    "failing reducer": Piece(failing_reducer),
    "invalid": Piece(invalid),
    "private": Piece(private),
    "runnables": Piece(runnables),
    "context": Piece(context, calls={"context": {"who": "me"}}),
    "handled": Piece(handled),
    "retried": Piece(retried),
    "given up": Piece(given_up),
    "endless": Piece(endless),
    "slow": Piece(slow, needs_loop=True),
    "messages": Piece(messages, (HUMAN,)),
    "streaming model": Piece(streaming_model, (HUMAN,)),
    "agent": Piece(agent, (HUMAN,)),
    "tool loop": Piece(tool_loop, (HUMAN,)),
    "flow": Piece(flow, (1, 2), at_once=True),
    "async flow": Piece(async_flow, (1,), at_once=True, needs_loop=True),
    "failing flow": Piece(failing_flow, (1,), at_once=True),
    "branches": Piece(branches),
    "static inside": Piece(static_inside, ({"log": ["in"]}, None, None)),
    "before": Piece(plain_line, ({"log": []}, None, None), {"interrupt_before": ["b", "c"]}),
    "after all": Piece(plain_line, ({"log": []}, None, None, None), {"interrupt_after": "*"}),
    "twice asking": Piece(twice_asking),
    "both asking": Piece(both_asking, is_racy=True),
    "data": Piece(data),
    "resumed with more": Piece(
        twice_asking, ({"log": []}, Command(resume="1", update={"log": ["more"]}), Command(goto="b"))
    ),
    "durable": Piece(plain_line, calls={"durability": "sync"}),
}
