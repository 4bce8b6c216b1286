"""Graphs with everything that LangGraph has, each of them small: for plain and compiled to be laid side by side.

Nodes act on a world where there is one, so the same functions run in the plain graph and in ours.
"""

from __future__ import annotations

import asyncio
import operator
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Annotated, Any

import pydantic
from langchain.agents import create_agent
from langchain.tools import ToolRuntime
from langchain_core.language_models.fake_chat_models import FakeMessagesListChatModel, GenericFakeChatModel
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, RemoveMessage, ToolMessage
from langchain_core.runnables import RunnableLambda
from langchain_core.tools import tool
from langgraph.channels import EphemeralValue, Topic, UntrackedValue
from langgraph.config import get_stream_writer
from langgraph.func import entrypoint, task
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.graph.message import add_messages
from langgraph.prebuilt import ToolNode, tools_condition
from langgraph.runtime import Runtime
from langgraph.types import Command, Overwrite, RetryPolicy, Send, interrupt
from typing_extensions import TypedDict

from tests.runtime.langgraph.shapes import touch

RETRY = RetryPolicy(initial_interval=0.0, jitter=False, retry_on=OSError, max_attempts=3)


@dataclass(frozen=True)
class Piece:
    """A graph, made anew by each `make()`, what it is given in turn, and how it is compiled and called."""

    make: Callable[[], Any]
    given: tuple[Any, ...] = ({"log": ["in"]},)
    options: dict[str, Any] = field(default_factory=dict)
    calls: dict[str, Any] = field(default_factory=dict)
    is_racy: bool = False  # the order of its tasks can be seen: it is run one task at a time, which needs a loop
    needs_loop: bool = False  # its nodes are asynchronous
    at_once: bool = False  # it would wait for ever, in the plain graph, too, if its tasks were run one at a time


class Log(TypedDict, total=False):
    log: Annotated[list[str], operator.add]
    n: Annotated[int, operator.add]


def say(name: str, **more: Any) -> Callable[[Any], Any]:
    def node(state: Any) -> Any:
        touch(name)
        return {"log": [name], **more}

    return node


def ask(name: str, times: int = 1) -> Callable[[Any], Any]:
    def node(state: Any) -> Any:
        touch(name)
        return {"log": [name, *(str(interrupt(f"{name}{i}?")) for i in range(times))]}

    return node


def line(*nodes: tuple[str, Any], schema: Any = Log, **kept: Any) -> Any:
    graph = StateGraph(schema)
    for name, node in nodes:
        graph.add_node(name, node)
    graph.add_edge(START, nodes[0][0])
    for (first, _), (second, _) in pairwise(nodes):
        graph.add_edge(first, second)
    return graph.compile(**kept) if kept else graph


def goto() -> Any:
    def first(state: Log) -> Any:
        touch("first")
        count = state["log"].count("first")
        where = ["left", Send("right", {"log": [f"sent{count}"]})] if count < 2 else END
        return Command(update={"log": ["first"]}, goto=where)

    def right(state: Log) -> Any:
        touch(f"right{len(state['log'])}")
        return Command(update={"log": [f"right of {state['log']}"]}, goto="first")

    graph = StateGraph(Log).add_node("first", first, destinations=("left", "right"))
    return graph.add_node("left", say("left")).add_node("right", right).add_edge(START, "first")


def parent() -> Any:
    def leave(state: Log) -> Any:
        touch("leave")
        return Command(graph=Command.PARENT, goto="after", update={"log": ["left"]})

    inner = line(("x", say("x")), ("leave", leave), ("never", say("never"))).compile()
    graph = StateGraph(Log).add_node("inner", inner).add_node("other", say("other")).add_node("after", say("after"))
    return graph.add_edge(START, "inner").add_edge("inner", "other")


def parent_of_two() -> Any:
    """From a graph in a graph, into the one in between."""

    def leave(state: Log) -> Any:
        touch("leave")
        return [Command(graph=Command.PARENT, goto="end", update={"log": ["left"]})]

    deep = line(("leave", leave)).compile()
    middle = StateGraph(Log).add_node("deep", deep).add_node("end", say("end")).add_edge(START, "deep")
    return line(("a", say("a")), ("middle", middle.compile()), ("z", say("z")))


def closure() -> Any:
    graphs = {"one": line(("x", say("x")), ("asks", ask("asks"))).compile()}

    def node(state: Log) -> Any:
        touch("node")
        return {"log": graphs["one"].invoke({"log": []})["log"]}

    return line(("a", say("a")), ("node", node), ("z", say("z")))


def two_closures() -> Any:
    """A node that runs one stateless graph twice, in turn."""
    inner = line(("x", say("x")), checkpointer=False)

    def node(state: Log) -> Any:
        return {"log": [*inner.invoke({"log": ["1"]})["log"], *inner.invoke({"log": ["2"]})["log"]]}

    return line(("node", node), ("z", say("z")))


def remembering() -> Any:
    """A subgraph that keeps its state between the invocations of its thread."""
    inner = line(("x", say("x", n=1)), ("y", ask("y")), checkpointer=True)
    return line(("a", say("a")), ("inner", inner), ("z", say("z")))


def deferred() -> Any:
    graph = StateGraph(Log)
    for name in ("a", "b", "b2", "c"):
        graph.add_node(name, say(name))
    graph.add_node("d", say("d"), defer=True)
    graph.add_edge(START, "a").add_edge("a", "b").add_edge("a", "c").add_edge("b", "b2")
    return graph.add_edge("b2", "d").add_edge("c", "d")


def asking_sends() -> Any:
    def each(state: Any) -> Any:
        touch(f"each{state['n']}")
        return {"log": [f"{state['n']}: {interrupt(state['n'])}" if state["n"] % 2 else f"{state['n']}"]}

    graph = StateGraph(Log).add_node("a", say("a")).add_node("each", each).add_node("z", say("z"))
    graph.add_edge(START, "a").add_edge("each", "z")
    return graph.add_conditional_edges("a", lambda state: [Send("each", {"n": i}) for i in range(4)], ["each"])


def sent_graphs() -> Any:
    inner = line(("x", say("x")), ("asks", ask("asks"))).compile()
    graph = StateGraph(Log).add_node("inner", inner).add_node("z", say("z")).add_edge("inner", "z")
    return graph.add_conditional_edges(
        START, lambda state: [Send("inner", {"log": [str(i)]}) for i in range(2)], ["inner"]
    )


def merge(left: dict[str, int] | None, right: dict[str, int] | None) -> dict[str, int]:
    return {**(left or {}), **(right or {})}


def largest(left: int, right: int) -> int:
    return max(left, right)


class Channels(TypedDict, total=False):
    log: Annotated[list[str], operator.add]
    last: str
    most: Annotated[int, largest]
    merged: Annotated[dict[str, int], merge]
    topic: Annotated[list[str], Topic]
    passing: Annotated[str, EphemeralValue]
    open: Annotated[Any, UntrackedValue]


def channels() -> Any:
    def a(state: Channels) -> Any:
        touch("a")
        return {"log": ["a"], "most": 3, "merged": {"a": 1}, "passing": "now", "open": "held", "topic": "t"}

    def b(state: Channels) -> Any:
        return {"log": [f"{state.get('passing')} {state.get('open')} {state.get('topic')}"], "merged": {"b": 2}}

    def c(state: Channels) -> Any:
        touch("c")
        return {"last": "c", "most": 2, "log": [str(state.get("passing"))]}

    def over(state: Channels) -> Any:
        return {"log": Overwrite(["anew"]), "last": None}

    graph = StateGraph(Channels)
    for name, node in {"a": a, "b": b, "c": c, "over": over}.items():
        graph.add_node(name, node)
    return graph.add_edge(START, "a").add_edge("a", "b").add_edge("a", "c").add_edge(["b", "c"], "over")


class Last(TypedDict):
    log: str


def two_last_values() -> Any:
    graph = StateGraph(Last).add_node("a", say("a")).add_node("b", say("b"))
    return graph.add_edge(START, "a").add_edge(START, "b")


def refuses(left: list[str], right: list[str]) -> list[str]:
    if "b" in right:
        raise KeyError("no b")
    return left + right


class Refusing(TypedDict):
    log: Annotated[list[str], refuses]


def failing_reducer() -> Any:
    return line(("a", say("a")), ("b", say("b")), ("c", say("c")), schema=Refusing)


class Checked(pydantic.BaseModel):
    log: Annotated[list[str], operator.add] = []
    n: int = 0


def invalid() -> Any:
    return line(("a", say("a", n="many")), ("b", say("b")), schema=Checked)


def private() -> Any:
    class Given(TypedDict):
        log: Annotated[list[str], operator.add]

    class Hidden(TypedDict):
        secret: str

    class Shown(TypedDict):
        shown: str

    class All(Given, Hidden, Shown):
        pass

    def a(state: Given) -> Any:
        touch("a")
        return {"secret": "s"}

    def b(state: Hidden) -> Any:
        touch("b")
        return {"shown": state["secret"], "log": ["b"]}

    graph = StateGraph(All, input_schema=Given, output_schema=Shown).add_node("a", a).add_node("b", b)
    return graph.add_edge(START, "a").add_edge("a", "b")


def runnables() -> Any:
    class Node:
        def __call__(self, state: Log) -> Any:
            touch("object")
            return {"log": ["object"]}

    chain = RunnableLambda(say("one")) | RunnableLambda(lambda update: {"log": [*update["log"], "two"]})
    return line(("chain", chain), ("object", Node()), ("lambda", RunnableLambda(say("lambda"))))


def context() -> Any:
    class Context(TypedDict):
        who: str

    def node(state: Log, runtime: Runtime[Context]) -> Any:
        touch("node")
        runtime.stream_writer({"who": runtime.context["who"]})
        assert runtime.store is None
        return {"log": [runtime.context["who"], str(runtime.previous)]}

    return StateGraph(Log, context_schema=Context).add_node(node).add_edge(START, "node")


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


def endless() -> Any:
    graph = StateGraph(Log).add_node("a", say("a")).add_node("b", say("b"))
    return graph.add_edge(START, "a").add_edge("a", "b").add_edge("b", "a")


def slow() -> Any:
    async def sleeps(state: Log) -> Any:
        touch("sleeps")
        await asyncio.sleep(30)

    graph = StateGraph(Log).add_node("a", say("a")).add_node("sleeps", sleeps, timeout=0.05)
    return graph.add_edge(START, "a").add_edge("a", "sleeps")


def messages() -> Any:
    def drop(state: MessagesState) -> Any:
        touch("drop")
        return {"messages": [RemoveMessage(id="h"), AIMessage("new", id="n")]}

    def replace(state: MessagesState) -> Any:
        return {"messages": [AIMessage("newer", id="n"), ("user", "and?")][:1]}

    return line(("drop", drop), ("replace", replace), schema=MessagesState)


def streaming_model() -> Any:
    def node(state: MessagesState) -> Any:
        model = GenericFakeChatModel(messages=iter([AIMessage("some words in turn", id="m")]))
        touch("node")
        return {"messages": [model.invoke(state["messages"])]}

    return line(("node", node), schema=MessagesState)


class Scripted(FakeMessagesListChatModel):
    def bind_tools(self, tools: Any, **options: Any) -> Any:
        return self


def calls(*named: tuple[str, dict[str, Any]]) -> AIMessage:
    made = [{"name": name, "args": args, "id": f"call-{name}-{i}"} for i, (name, args) in enumerate(named)]
    return AIMessage("", id=f"m-{'-'.join(name for name, _ in named)}", tool_calls=made)


@tool
def write(path: str) -> str:
    """Write a file."""
    touch(path)
    return f"wrote {path}"


@tool
def confirm(what: str) -> str:
    """Ask a person."""
    touch("asked")
    return str(interrupt(what))


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


def flow() -> Any:
    @task
    def double(n: int) -> int:
        touch(f"double{n}")
        return 2 * n

    tries: list[int] = []

    @task(retry_policy=RETRY)
    def flaky(n: int) -> int:
        tries.append(n)
        if len(tries) == 1:
            raise OSError("again")
        return n

    @entrypoint()
    def whole(given: int, *, previous: int | None = None) -> Any:
        both = [double(given), double(given + 1)]
        total = sum(one.result() for one in both) + flaky(1).result()
        answer = interrupt({"total": total})
        get_stream_writer()({"answer": answer})
        return entrypoint.final(value=(total, answer, previous), save=total)

    return whole


def async_flow() -> Any:
    @task
    async def double(n: int) -> int:
        touch(f"double{n}")
        if n == 3:
            interrupt("three?")
        return 2 * n

    @entrypoint()
    async def whole(given: int, *, previous: Any = None) -> Any:
        inner = line(("x", say("x"))).compile()
        return [*await asyncio.gather(*(double(given + i) for i in range(3))), (await inner.ainvoke({"log": []}))]

    return whole


def failing_flow() -> Any:
    @task
    def fails(n: int) -> int:
        raise ValueError("no")

    @entrypoint()
    def whole(given: int) -> Any:
        try:
            fails(given).result()
        except ValueError:
            touch("caught")
        return fails(given).result()

    return whole


def branches() -> Any:
    graph = StateGraph(Log)
    for name in ("a", "b", "c", "d"):
        graph.add_node(name, say(name))
    graph.add_conditional_edges(START, lambda state: "one", {"one": "a", "two": "d"})
    graph.add_conditional_edges("a", lambda state: ["b", "c"]).add_edge(["b", "c"], "d")
    return graph.add_conditional_edges("d", lambda state: len(state["log"]) < 7, {True: "a", False: END})


def static_inside() -> Any:
    inner = line(("x", say("x")), ("y", say("y")), interrupt_before=["y"])
    return line(("a", say("a")), ("inner", inner), ("z", say("z")))


def plain_line() -> Any:
    return line(("a", say("a")), ("b", say("b")), ("c", say("c")))


def twice_asking() -> Any:
    return line(("a", ask("a", 2)), ("b", ask("b")))


def both_asking() -> Any:
    graph = StateGraph(Log)
    for name in ("a", "b"):
        graph.add_node(name, line((f"{name}1", say(f"{name}1")), (f"{name}2", ask(f"{name}2"))).compile())
        graph.add_edge(START, name)
    return graph.add_node("z", say("z")).add_edge(["a", "b"], "z")


@dataclass
class Data:
    log: Annotated[list[str], operator.add] = field(default_factory=list)
    messages: Annotated[list[AnyMessage], add_messages] = field(default_factory=list)


def data() -> Any:
    return line(("a", say("a")), ("asks", ask("asks")), schema=Data)


HUMAN = {"messages": [HumanMessage("hi", id="h")]}
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
