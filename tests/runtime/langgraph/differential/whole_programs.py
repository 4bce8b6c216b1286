"""Programs as people build them with LangChain and LangGraph, to compare plain graphs with graphs over worlds.

`gallery.py` has one feature per graph; these are whole kinds of programs: agents, hand-overs, memory, research.
"""

from __future__ import annotations

import asyncio
import operator
from typing import Annotated, Any, Literal

import pydantic
from langchain.agents import AgentState, create_agent
from langchain.agents.middleware import AgentMiddleware, HumanInTheLoopMiddleware, ModelCallLimitMiddleware
from langchain.agents.structured_output import ToolStrategy
from langchain.tools import InjectedState, InjectedStore, InjectedToolCallId
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, HumanMessage, RemoveMessage, ToolMessage, trim_messages
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.config import get_store, get_stream_writer
from langgraph.func import entrypoint, task
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.graph.message import REMOVE_ALL_MESSAGES
from langgraph.managed import RemainingSteps
from langgraph.prebuilt import ToolNode, tools_condition
from langgraph.store.base import BaseStore
from langgraph.store.memory import InMemoryStore
from langgraph.types import Command, RetryPolicy, Send, StreamWriter, interrupt
from typing_extensions import TypedDict

from tests.runtime.langgraph.differential.pieces import (
    HUMAN,
    RETRY,
    Log,
    Piece,
    Scripted,
    calls,
    confirm,
    line,
    say,
    write,
)
from tests.runtime.langgraph.differential.shapes import touch


class Verdict(pydantic.BaseModel):
    """A review's outcome."""

    good: bool
    score: Annotated[int, pydantic.Field(ge=0, le=10)]


def structured() -> Any:
    """An agent whose first answer does not fit its schema."""
    said = [
        calls(("write", {"path": "x"})),
        calls(("Verdict", {"good": True, "score": 11})),
        calls(("Verdict", {"good": True, "score": 9})).model_copy(update={"id": "second"}),
    ]
    return create_agent(Scripted(responses=said), [write], response_format=ToolStrategy(Verdict))


def guarded() -> Any:
    """Middleware: hooks, a wrapped tool call, a limit, and a person who decides on tool calls."""

    class Hooks(AgentMiddleware):
        def before_model(self, state: AgentState[Any], runtime: Any) -> Any:
            get_stream_writer()({"before": len(state["messages"])})
            touch(f"before{len(state['messages'])}")

        def after_model(self, state: AgentState[Any], runtime: Any) -> Any:
            return {"jump_to": "end"} if len(state["messages"]) > 8 else None

        def wrap_tool_call(self, request: Any, handler: Any) -> Any:
            found = handler(request)
            return found.model_copy(update={"content": f"<{found.content}>"})

    said = [calls(("write", {"path": "x"}), ("write", {"path": "y"})), calls(("confirm", {"what": "?"})),
            AIMessage("done", id="m-end")]  # fmt: skip
    person = HumanInTheLoopMiddleware(interrupt_on={"write": True})
    limit = ModelCallLimitMiddleware(run_limit=5)
    return create_agent(Scripted(responses=said), [write, confirm], middleware=[Hooks(), person, limit])


def decided(*kinds: str) -> Command[Any]:
    return Command(resume={"decisions": [{"type": kind} for kind in kinds]})


def hand_over(agent: str) -> Any:
    @tool(f"to_{agent}")
    def to(state: Annotated[Any, InjectedState], tool_call_id: Annotated[str, InjectedToolCallId]) -> Command[Any]:
        """Hand over."""
        touch(f"to_{agent}")
        told = ToolMessage(f"over to {agent}", tool_call_id=tool_call_id, id=f"t-{tool_call_id}")
        update = {"messages": [*state["messages"], told], "active": agent}
        return Command(graph=Command.PARENT, goto=agent, update=update)

    return to


class Team(MessagesState, total=False):
    active: str


def supervisor() -> Any:
    """An agent that hands over to two others in turn, each of which reports back to it."""
    said = [
        calls(("to_coder", {})),
        calls(("to_tester", {})),
        AIMessage("all done", id="m-end"),
    ]
    boss = create_agent(Scripted(responses=said), [hand_over("coder"), hand_over("tester")], name="boss")
    coder = create_agent(
        Scripted(responses=[calls(("write", {"path": "code"})), AIMessage("coded", id="c")]), [write], name="coder"
    )
    tester = create_agent(
        Scripted(responses=[calls(("confirm", {"what": "run?"})), AIMessage("tested", id="t")]),
        [confirm],
        name="tester",
    )
    graph = StateGraph(Team).add_node("boss", boss, destinations=("coder", "tester", END))
    graph.add_node("coder", coder).add_node("tester", tester).add_edge(START, "boss")
    return graph.add_edge("coder", "boss").add_edge("tester", "boss")


def swarm() -> Any:
    """Agents that hand over to each other; the next message goes to the one that was last active."""
    alice = create_agent(
        Scripted(responses=[calls(("to_bob", {})), AIMessage("alice again", id="a2")]), [hand_over("bob"), write]
    )
    bob = create_agent(
        Scripted(responses=[AIMessage("bob here", id="b1"), calls(("to_alice", {})), AIMessage("no", id="b3")]),
        [hand_over("alice"), write],
    )
    graph = StateGraph(Team).add_node("alice", alice, destinations=("bob",)).add_node("bob", bob)
    return graph.add_conditional_edges(START, lambda state: state.get("active", "alice"), ["alice", "bob"])


class Research(TypedDict, total=False):
    topics: list[str]
    found: Annotated[list[str], operator.add]
    log: Annotated[list[str], operator.add]
    report: str


def map_reduce() -> Any:
    """`Send`s to a graph for each topic, which has its own retry, and a node that gathers the results."""
    tries: set[str] = set()

    class One(TypedDict, total=False):
        topic: str
        found: Annotated[list[str], operator.add]

    def look(state: One) -> Any:
        topic = state["topic"]
        touch(f"notes-{topic}")
        if topic == "b" and topic not in tries:
            tries.add(topic)
            raise OSError("try again")
        return {"found": [f"on {topic}"]}

    def check(state: One) -> Any:
        return {"found": ["checked"]}

    inner = StateGraph(One).add_node("look", look, retry_policy=RETRY).add_node("check", check)
    inner.add_edge(START, "look").add_edge("look", "check")
    graph = StateGraph(Research).add_node("plan", lambda state: {"topics": ["a", "b", "c"]})
    graph.add_node("one", inner.compile()).add_node("write", lambda state: {"report": "; ".join(state["found"])})
    graph.add_edge(START, "plan").add_edge("one", "write")
    return graph.add_conditional_edges("plan", lambda s: [Send("one", {"topic": t}) for t in s["topics"]], ["one"])


def own_checkpointer() -> Any:
    """A graph with its own checkpointer and thread, called by a node."""
    inner = line(("x", say("x", n=1)), ("asks", say("asks")), checkpointer=InMemorySaver(), interrupt_before=["asks"])

    def node(state: Log) -> Any:
        own = {"configurable": {"thread_id": "inner"}}
        inner.invoke({"log": ["in"]}, own)
        seen = inner.get_state(own).next
        found = inner.invoke(None, own)
        return {"log": [str(seen), *found["log"], str(found["n"])]}

    return line(("a", say("a")), ("node", node), ("again", node))


def asking_tools(bare: bool = False) -> Any:
    """Parallel tool calls, two of which ask a person. `bare`: their result is not an update dictionary."""
    said = iter([calls(("write", {"path": "x"}), ("confirm", {"what": "1"}), ("confirm", {"what": "2"})),
                 AIMessage("done", id="m-end")])  # fmt: skip

    def model(state: MessagesState) -> Any:
        return {"messages": [next(said)]}

    graph = StateGraph(MessagesState).add_node("model", model).add_node("tools", ToolNode([write, confirm]))
    graph.add_edge(START, "model").add_edge("tools", "model")

    def each(state: MessagesState) -> Any:
        last: Any = state["messages"][-1]
        each = [last.model_copy(update={"tool_calls": [call]}) for call in last.tool_calls]
        if bare:
            return Send("tools", each[:1])
        return [Send("tools", {"messages": [one]}) for one in each] or END

    return graph.add_conditional_edges("model", each, ["tools", END])


def agent_as_tool() -> Any:
    """An agent that calls another one as a tool, which asks a person."""
    inner = create_agent(
        Scripted(responses=[calls(("confirm", {"what": "deep?"})), AIMessage("inner done", id="i")]), [confirm, write]
    )

    @tool
    def expert(question: str) -> str:
        """Ask an expert."""
        touch("expert")
        found = inner.invoke({"messages": [HumanMessage(question, id="q")]})
        return str(found["messages"][-1].content)

    said = [calls(("expert", {"question": "why"})), AIMessage("outer done", id="o")]
    return create_agent(Scripted(responses=said), [expert])


def flow() -> Any:
    """The functional API: a store, a writer, the previous value, a task that is retried, and one that fails."""
    tries: list[int] = []

    @task(retry_policy=RetryPolicy(initial_interval=0.0, jitter=False, max_attempts=2, retry_on=ValueError))
    async def fetch(n: int) -> int:
        touch(f"fetch{n}")
        tries.append(n)
        if tries.count(n) < 2:
            raise ValueError("not yet")
        return n * n

    @task
    async def nested(n: int) -> list[int]:
        return [await fetch(n), await fetch(n + 1)]

    @entrypoint(store=InMemoryStore())
    async def whole(
        given: int, *, previous: list[int] | None, store: BaseStore, writer: StreamWriter, config: RunnableConfig
    ) -> Any:
        squares = await nested(given)
        writer({"squares": squares, "thread": config["configurable"]["thread_id"]})
        await store.aput(("seen", str(given)), "squares", {"of": squares})
        kept = [item.value for item in await store.asearch(("seen",))]
        return entrypoint.final(value={"kept": kept, "before": previous}, save=squares)

    return whole


class Checked(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(validate_assignment=True)
    log: Annotated[list[str], operator.add] = []
    name: str = "x"
    count: int = 0

    @pydantic.field_validator("name")
    @classmethod
    def shorten(cls, name: str) -> str:
        if not name:
            raise ValueError("a name is needed")
        return name.strip().lower()

    @pydantic.model_validator(mode="after")
    def bounded(self) -> Checked:
        if self.count > 2:
            raise ValueError("too many")
        return self


def validated() -> Any:
    def count(state: Checked) -> Any:
        touch(f"count{state.count}")
        return {"count": state.count + 1, "log": [f"{state.name}{state.count}"], "name": f" N{state.count} "}

    graph = StateGraph(Checked).add_node("count", count).add_edge(START, "count")
    return graph.add_conditional_edges("count", lambda state: "count", ["count", END])


def trimming() -> Any:
    """Old messages are trimmed before the model call, summarised, and then removed."""

    class State(MessagesState, total=False):
        summary: str

    def model(state: State) -> Any:
        kept = trim_messages(state["messages"], max_tokens=2, token_counter=len, strategy="last", start_on="human")
        touch(f"turn{len(state['messages'])}")
        return {
            "messages": [AIMessage(f"of {len(state['messages'])} saw {len(kept)}", id=f"a{len(state['messages'])}")]
        }

    def sum_up(state: State) -> Any:
        last = state["messages"][-1]
        return {"summary": f"{len(state['messages'])}", "messages": [RemoveMessage(id=REMOVE_ALL_MESSAGES), last]}

    graph = StateGraph(State).add_node("model", model).add_node("sum_up", sum_up).add_edge(START, "model")
    return graph.add_conditional_edges("model", lambda s: "sum_up" if len(s["messages"]) > 4 else END)


def memory() -> Any:
    """A store with namespaces, read and written by nodes and by a tool."""

    @tool
    def recall(key: str, store: Annotated[Any, InjectedStore()]) -> str:
        """Recall."""
        touch("recall")
        item = store.get(("user", "1"), key)
        return str(item.value if item else None)

    def learn(state: MessagesState, *, store: BaseStore) -> Any:
        touch("learn")
        store.put(("user", "1"), "colour", {"is": "blue"})
        store.put(("user", "2"), "colour", {"is": "red"}, ttl=None)
        found = [item.namespace for item in get_store().search(("user",))]
        return {"messages": [AIMessage(str(sorted(found)), id="found"), calls(("recall", {"key": "colour"}))]}

    graph = StateGraph(MessagesState).add_node("learn", learn).add_node("tools", ToolNode([recall]))
    return graph.add_edge(START, "learn").add_conditional_edges("learn", tools_condition)


def is_key_error(error: Exception) -> bool:
    return isinstance(error, KeyError)


def policies() -> Any:
    """Several retry policies: the first one that matches applies."""
    tries: list[str] = []

    def flaky(state: Log) -> Any:
        tries.append("flaky")
        touch(f"try{len(tries)}")
        if len(tries) < 3:
            raise OSError("again") if len(tries) % 2 else KeyError("and again")
        return {"log": ["at last"]}

    def fatal(state: Log) -> Any:
        touch("fatal")
        raise TypeError("no policy")

    fast = {"initial_interval": 0.0, "jitter": False}
    policy = [RetryPolicy(retry_on=OSError, **fast), RetryPolicy(retry_on=is_key_error, **fast)]
    graph = StateGraph(Log).add_node("flaky", flaky, retry_policy=policy)
    graph.add_node("fatal", fatal, retry_policy=policy)
    return graph.add_edge(START, "flaky").add_edge("flaky", "fatal")


def talking() -> Any:
    """Tokens of several models in a graph in a graph, one of which must not be streamed."""

    def model(text: str, tags: list[str] | None = None) -> Any:
        return GenericFakeChatModel(messages=iter([AIMessage(text, id=f"m-{text[:4]}")]), tags=tags)

    async def inner(state: MessagesState) -> Any:
        touch("inner")
        return {"messages": [await model("inner words come").ainvoke(state["messages"])]}

    async def outer(state: MessagesState) -> Any:
        silent = await model("not shown at all", ["nostream"]).ainvoke("x")
        pieces = [chunk.content async for chunk in model("outer words too").astream(state["messages"])]
        return {"messages": [AIMessage(f"{len(pieces)} {silent.content}", id="sum")]}

    below = line(("inner", inner), schema=MessagesState).compile()
    return line(("below", below), ("outer", outer), schema=MessagesState)


class Counting(TypedDict, total=False):
    log: Annotated[list[str], operator.add]
    left: RemainingSteps


def managed() -> Any:
    """A loop that ends when its steps run out, and a node that waits for all others."""

    def work(state: Counting) -> Command[Literal["work", "end"]]:
        touch(f"left{state['left']}")
        return Command(update={"log": [f"left {state['left']}"]}, goto="end" if state["left"] < 6 else "work")

    graph = StateGraph(Counting).add_node("work", work).add_node("end", say("end"), defer=True)
    return graph.add_edge(START, "work")


def racing() -> Any:
    """Async nodes that end in another order than they began, and so do their tasks."""

    def slowly(name: str, seconds: float) -> Any:
        async def node(state: Log) -> Any:
            await asyncio.sleep(seconds)
            touch(name)
            return {"log": [name]}

        return node

    graph = StateGraph(Log).add_sequence([("a", slowly("a", 0.01)), ("b", slowly("b", 0.0))])
    graph.add_node("c", slowly("c", 0.0)).add_node("join", say("join"))
    return graph.add_edge(START, "a").add_edge(START, "c").add_edge(["b", "c"], "join")


def failing_edge() -> Any:
    def edge(state: Log) -> str:
        raise LookupError("no way on")

    return line(("a", say("a")), ("b", say("b"))).add_conditional_edges("b", edge, ["a", END])


def reviewed() -> Any:
    """A draft that a person sends back until it is accepted: an interrupt in a loop, checked inside the node."""

    def draft(state: Log) -> Any:
        touch(f"draft{len(state['log'])}")
        return {"log": ["draft"]}

    def review(state: Log) -> Any:
        while not isinstance(said := interrupt({"drafts": state["log"].count("draft")}), str):
            touch("never")
        enough = state["log"].count("draft") > 2
        return Command(goto=END if enough else "draft", update={"log": [said]})

    return StateGraph(Log).add_node("draft", draft).add_node("review", review, destinations=("draft", END)).add_edge(
        START, "draft").add_edge("draft", "review")  # fmt: skip


KINDS: dict[str, Piece] = {
    "structured output": Piece(structured, (HUMAN,)),
    "guarded agent": Piece(guarded, (HUMAN, decided("approve", "reject"), Command(resume="go on"))),
    "supervisor": Piece(supervisor, (HUMAN,), calls={"subgraphs": True}),
    "swarm": Piece(swarm, (HUMAN, {"messages": [("user", "and now?")]}, {"messages": [("user", "?")]})),
    "map and reduce": Piece(map_reduce, ({},), is_racy=True),
    "own checkpointer": Piece(own_checkpointer),
    "asking tools": Piece(asking_tools, (HUMAN,), is_racy=True),
    "no update": Piece(lambda: asking_tools(bare=True), (HUMAN,)),
    "failing edge": Piece(failing_edge),
    "agent as tool": Piece(agent_as_tool, (HUMAN,)),
    "functional": Piece(flow, (1, 3), needs_loop=True, at_once=True),
    "validated": Piece(validated, ({"name": " Bob "}, {"name": ""})),
    "trimming": Piece(trimming, tuple({"messages": [HumanMessage(str(i), id=f"h{i}")]} for i in range(4))),
    "memory": Piece(memory, (HUMAN,), {"store": InMemoryStore()}),
    "policies": Piece(policies),
    "talking": Piece(talking, (HUMAN,), needs_loop=True),
    "managed": Piece(managed),
    "racing": Piece(racing, needs_loop=True),
    "reviewed": Piece(reviewed),
}
