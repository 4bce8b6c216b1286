"""Pages of the manual on listeners (events, callbacks), on callers of graphs (chains, tools, other graphs), and on
what nodes pass on."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Annotated, Any

import pydantic
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage
from langchain_core.runnables import RunnableLambda, RunnablePassthrough
from langgraph.callbacks import GraphCallbackHandler
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.func import entrypoint, task
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.runtime import RunControl, Runtime
from langgraph.types import Command, Send, interrupt
from typing_extensions import TypedDict

from tests.runtime.langgraph.differential.manual import ONE, TWO, scenario, told, tried
from tests.runtime.langgraph.differential.observing import CONFIG, Comparable, answer, streamed
from tests.runtime.langgraph.differential.pieces import HUMAN, Log, ask, line, say
from tests.runtime.langgraph.differential.shapes import touch


def model(text: str) -> Any:
    return GenericFakeChatModel(messages=iter([AIMessage(text, id=f"m-{text[:5]}")] * 4))


def listened() -> Any:
    """A chain, a generator, a graph, and a graph in a closure: listeners see each as another kind of run."""
    below = RunnableLambda(lambda s: s["messages"]) | model("words below") | added
    inner = line(("say", below), schema=MessagesState).compile()

    async def closure(state: MessagesState) -> Any:
        touch("closure")
        return await inner.ainvoke(state)

    async def pieces(state: MessagesState) -> Any:
        yield {"messages": []}
        yield {"messages": [AIMessage("last", id="last")]}

    async def route(state: MessagesState) -> str:
        return "pieces"

    chain = RunnableLambda(lambda s: s["messages"]) | model("words of a chain") | added
    graph = StateGraph(MessagesState).add_node("chain", chain, metadata={"mine": 1}).add_node("inner", inner)
    tagged = RunnableLambda(pieces).with_config(tags=["t"], run_name="P")
    graph.add_node("closure", closure).add_node("pieces", tagged)
    graph.add_edge(START, "chain").add_edge("chain", "inner").add_edge("inner", "closure")
    return graph.add_conditional_edges("closure", route, ["pieces"])


def added(message: AIMessage) -> Any:
    touch("added")
    return {"messages": [message]}


def told_of(event: Any) -> list[Any]:
    return [*(event[key] for key in ("event", "name", "tags", "metadata", "data")), len(event["parent_ids"])]


@scenario("events", listened)
async def _(graph: Any) -> list[Any]:
    seen = [told_of(event) async for event in graph.astream_events(HUMAN, ONE, version="v2")]
    only: Any = {"include_types": ["chat_model"], "include_names": ["P"]}
    return [*seen, *[told_of(event) async for event in graph.astream_events(HUMAN, TWO, version="v2", **only)]]


class Runs(BaseCallbackHandler):
    def __init__(self) -> None:
        self.seen: list[Any] = []

    def on_chain_start(self, serialized: Any, inputs: Any, **told: Any) -> None:
        kept = ("name", "run_id", "parent_run_id", "tags", "metadata")
        self.seen.append([inputs, *(told.get(key) for key in kept)])

    def on_chain_end(self, outputs: Any, **told: Any) -> None:
        self.seen.append([outputs, told["run_id"]])


class Questions(GraphCallbackHandler):
    def __init__(self) -> None:
        self.seen: list[Any] = []

    def on_interrupt(self, event: Any) -> None:
        self.seen.append(["asked", event.status, event.checkpoint_ns, [one.value for one in event.interrupts]])

    def on_resume(self, event: Any) -> None:
        self.seen.append(["resumed", event.status, event.checkpoint_ns])


@scenario("callbacks", listened)
async def _(graph: Any) -> list[Any]:
    runs = Runs()
    await graph.ainvoke(HUMAN, {**ONE, "callbacks": [runs], "tags": ["root"], "run_name": "mine"})
    graph.update_state(ONE, {"messages": []}, as_node="chain")
    return runs.seen


def asked_below() -> Any:
    inner = line(("x", say("x")), ("asks", ask("asks"))).compile()
    return line(("a", say("a")), ("called", lambda state: inner.invoke({"log": []})), ("sub", inner))


@scenario("callbacks of questions", asked_below)
async def _(graph: Any) -> list[Any]:
    questions = Questions()
    config = {**ONE, "callbacks": [questions]}
    for given in ({"log": []}, Command(resume="1"), Command(resume="2")):
        graph.invoke(given, config)
    return questions.seen


@scenario("called without a config", lambda: line(("a", say("a")), ("asks", ask("asks"))))
async def _(graph: Any) -> list[Any]:
    """Its thread is that of its caller."""

    async def called(given: Any) -> Any:
        return await graph.ainvoke(given)

    seen = [RunnableLambda(graph.invoke).invoke({"log": []}, ONE), told(graph.get_state(ONE))]
    seen += [await RunnableLambda(called).ainvoke(Command(resume="yes"), ONE)]
    return [*seen, await (RunnablePassthrough() | graph).ainvoke({"log": []}, {**TWO, "tags": ["t"]})]


@scenario("in a plain graph", lambda: line(("a", say("a")), ("asks", ask("asks"))), dict)
async def _(graph: Any) -> list[Any]:
    """As a node, and called by a node's code: asked there, it continues there."""

    async def called(state: Log) -> Any:
        return {"log": (await graph.ainvoke({"log": ["called"]}))["log"]}

    outer = line(("pre", say("pre")), ("sub", graph), ("called", called), checkpointer=InMemorySaver())
    given, seen, round_, same = {"log": ["in"]}, [], 0, Comparable()
    while given is not None:
        chunks = await streamed(outer, given, CONFIG, is_async=True)
        seen += map(same, chunks)
        given, round_ = answer(chunks, round_), round_ + 1
    return [*seen, *(told(state) for state in outer.get_state_history(ONE))]


def remembered_twice() -> Any:
    """LangGraph takes the second of two calls of a graph that keeps its state for a resumed call, once a thread has a
    second turn that asks: it runs nothing and returns what it found in the first turn."""
    kept = line(("x", say("x", n=1)), ("asks", ask("asks")), checkpointer=True)

    def node(state: Log) -> Any:
        one = kept.invoke({"log": ["1"]})
        touch("between")
        return {"log": [*one["log"], *kept.invoke({"log": ["2"]})["log"]]}

    return line(("node", node), ("z", say("z")))


@scenario("a graph that keeps its state, twice a turn", remembered_twice)
async def _(graph: Any) -> list[Any]:
    seen = []
    for turn in ("one", "two"):
        said = graph.invoke({"log": [turn]}, ONE)
        while "__interrupt__" in said:
            said = graph.invoke(Command(resume=turn), ONE)
        seen += [said, told(graph.get_state(ONE, subgraphs=True))]
    return seen


@dataclass
class Job:
    n: int


class Checked(pydantic.BaseModel):
    n: int


def sends_of_anything() -> Any:
    def job(given: Job) -> Any:
        touch(f"job{given if isinstance(given, dict) else given.n}")
        return {"log": [repr(given)]}

    def raw(given: Any) -> Any:
        return [{"log": [repr(given)]}, Command(update=[("log", ["pair"])], goto="z")]

    def checked(given: Checked) -> Any:
        return {"log": [repr(given)]}

    graph = StateGraph(Log).add_node("job", job).add_node("raw", raw).add_node("checked", checked)
    graph.add_node("z", say("z"), defer=True)
    sent = [Send("job", Job(1)), Send("raw", 3), "raw", Send("raw", None), Send("job", {"n": 2}), Send("raw", ["x"]),
            Send("checked", {"n": "4"}), Send("checked", Checked(n=5))]  # fmt: skip
    return graph.add_conditional_edges(START, lambda state: sent, ["job", "raw", "checked"])


@scenario("sends of anything", sends_of_anything)
async def _(graph: Any) -> list[Any]:
    return [chunk async for chunk in graph.astream({"log": ["in"]}, CONFIG, stream_mode=["updates", "tasks"])]


@scenario("up to several", lambda: up_to(["b", "c"]))
@scenario("up to sends", lambda: up_to([Send("b", {"log": ["sent"]}), Send("c", {"log": []}), "z"]))
async def _(graph: Any) -> list[Any]:
    return [chunk async for chunk in graph.astream({"log": []}, CONFIG, stream_mode="updates", subgraphs=True)]


def up_to(goto: Any) -> Any:
    def leave(state: Log) -> Any:
        touch("leave")
        return Command(graph=Command.PARENT, goto=goto, update={"log": ["left"]})

    inner = line(("x", say("x")), ("leave", leave)).compile()

    async def called(state: Log) -> Any:
        touch("called")
        return await inner.ainvoke(state)

    graph = StateGraph(Log).add_node("called", called, destinations=("b", "c", "z"))
    for name in "bcz":
        graph.add_node(name, say(name))
    return graph.add_edge(START, "called").add_edge("b", "z").add_edge("c", "z")


def stopping() -> Any:
    def stops(state: Log, runtime: Runtime) -> Any:
        touch("stops")
        assert runtime.control is not None
        runtime.control.request_drain("enough")
        return {"log": ["stops"]}

    return line(("stops", stops), ("z", say("z")))


@scenario("drained", stopping)
async def _(graph: Any) -> list[Any]:
    control = RunControl()
    control.request_drain()
    seen = [tried(lambda: graph.invoke({"log": []}, ONE)), told(graph.get_state(ONE)), graph.invoke(None, ONE)]
    return [*seen, tried(lambda: graph.invoke({"log": []}, TWO, control=control)), told(graph.get_state(TWO))]


class Odd(TypedDict, total=False):
    sets: Annotated[set[str], operator.or_]
    pairs: Annotated[tuple[str, ...], operator.add]
    log: Annotated[list[str], "its reducer is the last", operator.add]
    any: Any


def odd_channels() -> Any:
    def one(state: Odd) -> Any:
        touch("one")
        return {"sets": {"a"}, "pairs": ("a",), "log": ["a"], "any": Job(1)}

    return line(("one", one), ("two", lambda s: {"sets": {"b"}, "pairs": ("b",), "any": str(s["any"])}), schema=Odd)


@scenario("odd channels", odd_channels)
async def _(graph: Any) -> list[Any]:
    return [graph.invoke({"log": ["in"]}, ONE), *(told(state) for state in graph.get_state_history(ONE))]


def nested_flows() -> Any:
    @task
    def note(n: int) -> int:
        touch(f"note{n}")
        return n

    @entrypoint()
    def inner(n: int) -> Any:
        return [note(n).result(), interrupt("inner?")]

    @entrypoint()
    def outer(n: int) -> Any:
        return [note(0).result(), inner.invoke(n), note(9).result()]

    return outer


@scenario("entrypoints in entrypoints", nested_flows)
async def _(graph: Any) -> list[Any]:
    seen = [graph.invoke(1, ONE), told(graph.get_state(ONE))]
    return [*seen, graph.invoke(Command(resume="yes"), ONE), told(graph.get_state(ONE))]
