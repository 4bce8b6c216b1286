"""The gallery's nodes: what a node can be, how it can fail, and what it can call (policies, models, tools,
agents)."""

from __future__ import annotations

import asyncio
from typing import Any

from langchain.agents import create_agent
from langchain.tools import ToolRuntime
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.runnables import RunnableLambda
from langchain_core.tools import tool
from langgraph.config import get_stream_writer
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition
from langgraph.types import Command

from tests.runtime.langgraph.differential.pieces import RETRY, Log, Scripted, calls, confirm, line, say, write
from tests.runtime.langgraph.differential.shapes import touch


def runnables() -> Any:
    class Node:
        def __call__(self, state: Log) -> Any:
            touch("object")
            return {"log": ["object"]}

    chain = RunnableLambda(say("one")) | RunnableLambda(lambda update: {"log": [*update["log"], "two"]})
    return line(("chain", chain), ("object", Node()), ("lambda", RunnableLambda(say("lambda"))))


def handled() -> Any:
    def fails(state: Log) -> Any:
        touch("half")
        raise ValueError("no")

    def handler(state: Log, error: Any = None) -> Any:
        touch("handler")
        return Command(update={"log": ["handled"]}, goto="z")

    graph = StateGraph(Log).add_node("fails", fails, error_handler=handler, retry_policy=RETRY)
    return graph.add_node("never", say("never")).add_node("z", say("z")).add_edge(START, "fails")


def retried() -> Any:
    tries: list[int] = []

    def flaky(state: Log) -> Any:
        tries.append(1)
        touch(f"try{len(tries)}")
        get_stream_writer()({"try": len(tries)})
        if len(tries) < 3:
            raise OSError("again")
        return {"log": ["at last"]}

    return StateGraph(Log).add_node("flaky", flaky, retry_policy=RETRY).add_edge(START, "flaky")


def given_up() -> Any:
    def fails(state: Log) -> Any:
        raise OSError("never")

    graph = StateGraph(Log).add_node("a", say("a")).add_node("fails", fails, retry_policy=RETRY)
    return graph.add_edge(START, "a").add_edge("a", "fails")


def slow() -> Any:
    async def sleeps(state: Log) -> Any:
        touch("sleeps")
        await asyncio.sleep(30)

    graph = StateGraph(Log).add_node("a", say("a")).add_node("sleeps", sleeps, timeout=0.05)
    return graph.add_edge(START, "a").add_edge("a", "sleeps")


def streaming_model() -> Any:
    def node(state: MessagesState) -> Any:
        model = GenericFakeChatModel(messages=iter([AIMessage("some words in turn", id="m")]))
        touch("node")
        return {"messages": [model.invoke(state["messages"])]}

    return line(("node", node), schema=MessagesState)


@tool
def breaks(what: str) -> str:
    """Fails."""
    raise ValueError(what)


@tool
def remember(what: str, runtime: ToolRuntime) -> Any:
    """Change the state."""
    message = ToolMessage(f"{what} after {len(runtime.state['messages'])}", tool_call_id=runtime.tool_call_id)
    return Command(update={"messages": [message]})


def agent() -> Any:
    said = [calls(("write", {"path": "x"}), ("write", {"path": "y"})), calls(("confirm", {"what": "sure?"})),
            calls(("remember", {"what": "this"})), AIMessage("done", id="m-end")]  # fmt: skip
    return create_agent(Scripted(responses=said), [write, confirm, remember])


def tool_loop() -> Any:
    said = iter([calls(("write", {"path": "x"}), ("breaks", {"what": "no"})), AIMessage("done", id="m-end")])

    def model(state: MessagesState) -> Any:
        return {"messages": [next(said)]}

    graph = StateGraph(MessagesState).add_node("model", model)
    graph.add_node("tools", ToolNode([write, breaks], handle_tool_errors=True)).add_edge(START, "model")
    return graph.add_conditional_edges("model", tools_condition).add_edge("tools", "model")
