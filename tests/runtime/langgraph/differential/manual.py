"""What LangGraph's manual does with a graph, page by page, apart from streaming. Each scenario is a graph and a
conversation with it, and returns everything that its caller sees."""

from __future__ import annotations

import asyncio
import operator
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from langchain.agents import create_agent
from langchain_core.messages import AIMessage
from langchain_core.runnables import RunnableConfig, RunnableGenerator, RunnableLambda
from langchain_core.tools import tool
from langgraph.cache.memory import InMemoryCache
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.config import get_store
from langgraph.graph import END, START, StateGraph
from langgraph.runtime import Runtime, get_runtime
from langgraph.store.base import BaseStore
from langgraph.store.memory import InMemoryStore
from langgraph.types import (
    CachePolicy,
    Command,
    RetryPolicy,
    Send,
    StateUpdate,
    StreamWriter,
    TimeoutPolicy,
    interrupt,
)
from typing_extensions import TypedDict

from tests.runtime.langgraph.differential.pieces import HUMAN, RETRY, Log, Scripted, ask, calls, line, say
from tests.runtime.langgraph.differential.shapes import touch

ONE: Any = {"configurable": {"thread_id": "1"}}
TWO: Any = {"configurable": {"thread_id": "2"}}
Talk = Callable[[Any], Awaitable[list[Any]]]


@dataclass(frozen=True)
class Scenario:
    make: Callable[[], Any]
    talk: Talk
    options: Callable[[], dict[str, Any]] = field(default=lambda: {"checkpointer": InMemorySaver()})


SCENARIOS: dict[str, Scenario] = {}


def scenario(
    name: str, make: Callable[[], Any], options: Callable[[], dict[str, Any]] | None = None
) -> Callable[[Talk], Talk]:
    def keep(talk: Talk) -> Talk:
        SCENARIOS[name] = Scenario(make, talk) if options is None else Scenario(make, talk, options)
        return talk

    return keep


def tried(call: Callable[[], Any]) -> Any:
    """Return the result, or the error that was raised."""
    try:
        return call()
    except Exception as error:  # noqa: BLE001  # the other graph has to raise the same
        return f"{type(error).__name__}: {error}"


def told(state: Any) -> list[Any]:
    tasks = [(one.name, one.error, one.result, one.interrupts) for one in state.tasks]
    return [state.values, state.next, state.metadata, tasks, state.parent_config is None]


def bare() -> dict[str, Any]:
    return {}


def kept_with_a_store() -> dict[str, Any]:
    return {"checkpointer": InMemorySaver(), "store": InMemoryStore()}


def abc() -> Any:
    return line(("a", say("a")), ("b", say("b")), ("c", say("c")))


@scenario("persistence", abc)
async def _(graph: Any) -> list[Any]:
    seen = [graph.invoke({"log": ["1"]}, ONE), graph.invoke({"log": ["2"]}, ONE), graph.invoke({"log": []}, TWO)]
    seen += [told(graph.get_state(ONE)), told(await graph.aget_state(TWO))]
    history = list(graph.get_state_history(ONE))
    seen += [told(one) for one in history]
    seen += [told(one) for one in graph.get_state_history(ONE, limit=2)]
    seen += [told(one) for one in graph.get_state_history(ONE, filter={"source": "input"})]
    seen += [told(one) for one in graph.get_state_history(ONE, before=history[3].config)]
    seen += [told(one) async for one in graph.aget_state_history(TWO)]
    seen += [told(graph.get_state({"configurable": {"thread_id": "none"}}))]
    seen += [tried(lambda: graph.invoke(None, {"configurable": {"thread_id": "none"}}))]
    seen += [tried(lambda: graph.invoke({"log": []})), tried(lambda: graph.get_state({}))]
    return seen


@scenario("time travel", abc)
async def _(graph: Any) -> list[Any]:
    graph.invoke({"log": []}, ONE)
    before = {one.next: one.config for one in graph.get_state_history(ONE)}
    seen = [graph.invoke(None, before["b",]), told(graph.get_state(ONE))]
    seen += [graph.invoke({"log": ["anew"]}, before["b",])]
    forked = graph.update_state(before["c",], {"log": ["edited"]})
    seen += [told(graph.get_state(forked)), graph.invoke(None, forked)]
    forked = graph.update_state(before["b",], {"log": ["as a"]}, as_node="a")
    seen += [told(graph.get_state(forked)), graph.invoke(None, forked)]
    forked = await graph.aupdate_state(before["c",], None, as_node=END)
    seen += [told(graph.get_state(forked)), graph.invoke(None, forked)]
    copied = graph.update_state(before["b",], None, as_node="__copy__")
    seen += [told(graph.get_state(copied)), graph.invoke(None, copied)]
    seen += [tried(lambda: graph.update_state(ONE, {"log": []}, as_node="nobody"))]
    return [*seen, *(told(one) for one in graph.get_state_history(ONE))]


@scenario("bulk updates", abc)
async def _(graph: Any) -> list[Any]:
    steps = [[StateUpdate({"log": ["x"]}, "a")], [StateUpdate({"log": ["y"]}, "b"), StateUpdate({"log": ["z"]}, "b")]]
    graph.bulk_update_state(ONE, steps[:1])
    seen = [told(graph.get_state(ONE)), graph.invoke(None, ONE)]
    graph.bulk_update_state(TWO, [[StateUpdate({"log": ["in"]}, "__input__")], *steps])
    return [*seen, told(graph.get_state(TWO)), graph.invoke(None, TWO), *map(told, graph.get_state_history(TWO))]


@scenario("before and after, by call", abc)
async def _(graph: Any) -> list[Any]:
    seen = [graph.invoke({"log": []}, ONE, interrupt_before=["b"]), told(graph.get_state(ONE))]
    graph.update_state(ONE, {"log": ["a person"]})
    seen += [graph.invoke(None, ONE, interrupt_after="*"), told(graph.get_state(ONE)), graph.invoke(None, ONE)]
    seen += [graph.invoke({"log": []}, TWO, stream_mode=["updates", "values"], output_keys="log")]
    seen += [
        list(graph.stream({"log": []}, TWO, stream_mode=mode)) for mode in ("values", "updates", "tasks", "debug")
    ]
    return seen


@scenario("durability", abc)
async def _(graph: Any) -> list[Any]:
    seen = []
    for number, durability in enumerate(("sync", "async")):
        at: Any = {"configurable": {"thread_id": str(number)}}
        seen += [graph.invoke({"log": []}, at, durability=durability), *map(told, graph.get_state_history(at))]
        seen += [await graph.ainvoke({"log": []}, at, durability=durability)]
    return seen


@scenario("without a checkpointer", abc, bare)
async def _(graph: Any) -> list[Any]:
    seen = [graph.invoke({"log": []}), await graph.ainvoke({"log": []})]
    seen += [graph.batch([{"log": ["1"]}, {"log": ["2"]}]), await graph.abatch([{"log": ["1"]}, {"log": ["2"]}])]
    seen += [list(graph.stream({"log": []}, stream_mode=["debug", "updates"]))]
    seen += [
        tried(lambda: graph.get_state(ONE)),
        tried(lambda: graph.invoke({"wrong": 1})),
        tried(lambda: graph.invoke(7)),
    ]
    chain = RunnableLambda(lambda log: {"log": log}) | graph | RunnableLambda(lambda state: len(state["log"]))
    seen += [chain.invoke(["x"]), await chain.ainvoke(["y"])]
    seen += [graph.with_config(tags=["t"]).invoke({"log": []}), graph.with_config(recursion_limit=1).name]
    seen += [tried(lambda: graph.with_config(recursion_limit=2).invoke({"log": []}))]
    bound = graph.with_retry(stop_after_attempt=1).with_fallbacks([graph])
    return [*seen, bound.invoke({"log": []}), graph.pick("log").invoke({"log": []})]


@scenario("version 2", lambda: line(("a", ask("a")), ("b", say("b"))))
async def _(graph: Any) -> list[Any]:
    modes = ["values", "updates", "tasks", "checkpoints", "debug", "messages", "custom"]
    seen = list(graph.stream({"log": []}, ONE, stream_mode=modes, version="v2"))
    seen += [graph.invoke(Command(resume="yes"), ONE, version="v2")]
    asked = await graph.ainvoke({"log": []}, TWO, version="v2")
    seen += [asked.value, asked.interrupts, asked]
    seen += [part async for part in graph.astream(Command(resume="no"), TWO, stream_mode=modes, version="v2")]
    return seen


@scenario("drawn", lambda: line(("a", say("a")), ("inner", abc().compile()), ("z", say("z"))))
async def _(graph: Any) -> list[Any]:
    seen = [graph.get_graph(xray=xray).draw_mermaid() for xray in (False, True)]
    seen += [[name for name, _ in graph.get_subgraphs(recurse=True)], graph.get_input_jsonschema()]
    seen += [graph.get_output_jsonschema(), graph.get_context_jsonschema(), graph.name, graph.get_name()]
    seen += [graph.input_channels, graph.output_channels, graph.stream_channels_list, sorted(graph.nodes)]
    return [*seen, graph.builder is not None]


@scenario("several interrupts", lambda: line(("a", ask("a", 3)), ("b", ask("b"))))
async def _(graph: Any) -> list[Any]:
    seen = [graph.invoke({"log": []}, ONE)]
    for answer in ("1", "2", "3", "4"):
        seen += [told(graph.get_state(ONE)), graph.invoke(Command(resume=answer), ONE)]
    seen += [told(graph.get_state(ONE))]
    seen += [tried(lambda: graph.invoke(Command(resume="nobody asks"), ONE)), told(graph.get_state(ONE))]
    return [*seen, tried(lambda: graph.invoke(Command(resume="x"), TWO))]


def both_ask() -> Any:
    graph = StateGraph(Log).add_node("a", ask("a")).add_node("b", ask("b")).add_node("z", say("z"))
    return graph.add_edge(START, "a").add_edge(START, "b").add_edge(["a", "b"], "z")


@scenario("answers by id", both_ask)
async def _(graph: Any) -> list[Any]:
    asked = (await graph.ainvoke({"log": []}, ONE))["__interrupt__"]
    asked = sorted(asked, key=lambda one: one.value)
    seen = [[one.value for one in asked]]
    seen += [tried(lambda: graph.invoke(Command(resume="which?"), ONE))]
    half = await graph.ainvoke(Command(resume={asked[0].id: "one"}), ONE)
    seen += [half["log"], [one.value for one in half["__interrupt__"]]]
    whole = await graph.ainvoke(Command(resume={asked[1].id: "two"}), ONE)
    return [*seen, whole]


def human_tool() -> Any:
    @tool
    def transfer(amount: int) -> str:
        """Transfer money."""
        touch("transfer")
        said = interrupt({"action": "transfer", "amount": amount})
        return f"transferred {said.get('amount', amount)}" if said["type"] != "reject" else "refused"

    said = [calls(("transfer", {"amount": 5})), AIMessage("done", id="m-end")]
    return create_agent(Scripted(responses=said), [transfer])


@scenario("a tool that asks", human_tool)
async def _(graph: Any) -> list[Any]:
    seen = [await graph.ainvoke(HUMAN, ONE), told(graph.get_state(ONE))]
    return [
        *seen,
        await graph.ainvoke(Command(resume={"type": "edit", "amount": 3}), ONE),
        told(graph.get_state(ONE)),
    ]


def validated() -> Any:
    def age(state: Any) -> Any:
        question = "How old?"
        while True:
            touch("asked")
            said = interrupt(question)
            if isinstance(said, int) and said > 0:
                return {"age": said}
            question = f"{said!r} is no age"

    return line(("age", age), schema=TypedDict("Aged", {"age": int}))


@scenario("validated answers", validated)
async def _(graph: Any) -> list[Any]:
    seen = [graph.invoke({"age": 0}, ONE)]
    return [*seen, *(graph.invoke(Command(resume=said), ONE) for said in ("x", -1, 30))]


class Asked(TypedDict):
    ok: bool


def schemed() -> Any:
    def node(state: Log) -> Any:
        return {"log": [str(interrupt("sure?", response_schema=Asked))]}

    return line(("node", node))


@scenario("an answer with a schema", schemed)
async def _(graph: Any) -> list[Any]:
    seen = [graph.invoke({"log": []}, ONE), told(graph.get_state(ONE))]
    seen += [tried(lambda: graph.invoke(Command(resume={"ok": [1]}), ONE)), told(graph.get_state(ONE))]
    return [*seen, tried(lambda: graph.invoke(Command(resume={"ok": True}), ONE))]


class Jokes(TypedDict, total=False):
    topic: str
    subjects: list[str]
    jokes: Annotated[list[str], operator.add]
    best: str


def jokes() -> Any:
    def topics(state: Jokes) -> Any:
        return {"subjects": ["lions", "elephants", "penguins"]}

    def joke(state: Any) -> Any:
        touch(f"joke-{state['subject']}")
        return {"jokes": [f"about {state['subject']}"]}

    def best(state: Jokes) -> Any:
        touch("best")
        return {"best": state["jokes"][0]}

    def each(state: Jokes) -> Any:
        return [Send("joke", {"subject": subject}) for subject in state["subjects"]]

    graph = StateGraph(Jokes).add_node(topics).add_node(joke).add_node(best)
    return graph.add_edge(START, "topics").add_conditional_edges("topics", each, ["joke"]).add_edge("joke", "best")


@scenario("map and reduce", jokes)
async def _(graph: Any) -> list[Any]:
    seen = [graph.invoke({"topic": "animals"}, ONE), await graph.ainvoke({"topic": "animals"}, TWO)]
    return [*seen, *map(told, graph.get_state_history(TWO))]


def hops() -> Any:
    def hop(state: Log) -> Command[Literal["inner", "__end__"]]:
        touch("hop")
        return Command(goto="inner" if len(state["log"]) < 5 else END, update={"log": ["hop"]})

    def leave(state: Log) -> Any:
        touch("leave")
        sends = [Send("each", {"log": [f"{i}"]}) for i in range(2)]
        return Command(graph=Command.PARENT, goto=[*sends, "hop"], update={"log": ["left"]})

    def each(state: Log) -> Any:
        touch(f"each{state['log'][-1]}")
        return {"log": [f"each {state['log'][-1]}"]}

    inner = line(("x", say("x")), ("leave", leave)).compile()
    graph = StateGraph(Log).add_node("hop", hop).add_node("inner", inner).add_node("each", each)
    return graph.add_edge(START, "hop")


@scenario("commands to the graph above", hops)
async def _(graph: Any) -> list[Any]:
    return [
        graph.invoke({"log": []}, ONE),
        await graph.ainvoke({"log": []}, TWO),
        *map(told, graph.get_state_history(ONE)),
    ]


class Context(TypedDict):
    user: str


def with_context() -> Any:
    def node(state: Log, runtime: Runtime[Context], config: RunnableConfig, writer: StreamWriter) -> Any:
        touch("node")
        writer({"for": runtime.context["user"]})
        again = get_runtime(Context).context["user"]
        keys = sorted(key for key in config["configurable"] if not key.startswith("__"))
        info = runtime.execution_info
        assert info is not None
        return {"log": [again, *keys, str(info.node_attempt), str(config["metadata"].get("langgraph_step"))]}

    async def asynchronous(state: Log, *, store: BaseStore, runtime: Runtime[Context]) -> Any:
        touch("asynchronous")
        await store.aput(("memories", runtime.context["user"]), "k", {"n": len(state["log"])})
        found = await get_store().asearch(("memories",))
        return {"log": [str(sorted((item.namespace, item.key, tuple(item.value)) for item in found))]}

    graph = StateGraph(Log, context_schema=Context).add_node("node", node).add_node("asynchronous", asynchronous)
    return graph.add_edge(START, "node").add_edge("node", "asynchronous")


@scenario("context, store, writer", with_context, kept_with_a_store)
async def _(graph: Any) -> list[Any]:
    seen = [await graph.ainvoke({"log": []}, {**ONE, "metadata": {"mine": "m"}}, context={"user": "ann"})]
    seen += [chunk async for chunk in graph.astream({"log": []}, TWO, context={"user": "bob"}, stream_mode="custom")]
    return [*seen, told(graph.get_state(ONE)), [i.key for i in graph.store.search(("memories",))]]


def generators() -> Any:
    def pieces(given: Any) -> Any:
        for state in given:
            touch("pieces")
            yield {"log": [f"{len(state['log'])}"]}

    async def apieces(given: Any) -> Any:
        async for state in given:
            touch("pieces")
            yield {"log": [f"{len(state['log'])}"]}

    return line(("one", RunnableGenerator(pieces, apieces)), ("two", RunnableGenerator(pieces, apieces)))


@scenario("generators as nodes", generators)
async def _(graph: Any) -> list[Any]:
    return [await graph.ainvoke({"log": []}, ONE), graph.invoke({"log": []}, ONE)]


def cached() -> Any:
    def slow(state: Log) -> Any:
        return {"log": [f"slow {len(state['log'])}"]}

    graph = StateGraph(Log).add_node("slow", slow, cache_policy=CachePolicy(ttl=60))
    return graph.add_edge(START, "slow")


@scenario("cached", cached, lambda: {"cache": InMemoryCache()})
async def _(graph: Any) -> list[Any]:
    seen = [graph.invoke({"log": []}), graph.invoke({"log": []}), await graph.ainvoke({"log": ["other"]})]
    graph.clear_cache()
    return [*seen, graph.invoke({"log": []})]


def inspected() -> Any:
    inner = line(("x", say("x")), ("asks", ask("asks"))).compile()
    return line(("a", say("a")), ("inner", inner), ("z", say("z")))


@scenario("the state of a subgraph", inspected)
async def _(graph: Any) -> list[Any]:
    seen = [graph.invoke({"log": []}, ONE), told(graph.get_state(ONE))]
    below = graph.get_state(ONE, subgraphs=True).tasks[0].state
    seen += [told(below)]
    graph.update_state(below.config, {"log": ["by hand"]})
    seen += [told(graph.get_state(ONE, subgraphs=True).tasks[0].state)]
    seen += [graph.invoke(Command(resume="yes"), ONE), told(graph.get_state(ONE))]
    graph.invoke({"log": []}, TWO)
    below = graph.get_state(TWO, subgraphs=True).tasks[0].state
    graph.update_state(below.config, {"log": ["as x"]}, as_node="asks")
    return [*seen, graph.invoke(None, TWO), *map(told, graph.get_state_history(TWO))]


def defaults() -> Any:
    tries: list[int] = []

    def flaky(state: Log) -> Any:
        tries.append(1)
        touch(f"try{len(tries)}")
        if len(tries) < 3:
            raise OSError("again")
        return {"log": ["at last"]}

    def handler(state: Log, error: Any) -> Any:
        return {"log": [f"{type(error).__name__}"]}

    def fails(state: Log) -> Any:
        raise ValueError("no")

    graph = StateGraph(Log).set_node_defaults(retry_policy=RETRY, error_handler=handler)
    graph.add_node("flaky", flaky).add_node("fails", fails)
    return graph.add_edge(START, "flaky").add_edge("flaky", "fails")


@scenario("defaults of nodes", defaults)
async def _(graph: Any) -> list[Any]:
    return [tried(lambda: graph.invoke({"log": []}, ONE)), told(graph.get_state(ONE))]


def timed() -> Any:
    async def beats(state: Log, runtime: Runtime[Any]) -> Any:
        for _ in range(3):
            await asyncio.sleep(0.01)
            runtime.heartbeat()
        touch("beats")
        return {"log": ["beats"]}

    async def stalls(state: Log) -> Any:
        await asyncio.sleep(30)

    graph = StateGraph(Log).add_node("beats", beats, timeout=TimeoutPolicy(idle_timeout=20.0))
    graph.add_node(
        "stalls", stalls, timeout=TimeoutPolicy(run_timeout=0.05), retry_policy=RetryPolicy(max_attempts=1)
    )
    return graph.add_edge(START, "beats").add_edge("beats", "stalls")


@scenario("timeouts", timed)
async def _(graph: Any) -> list[Any]:
    try:
        await graph.ainvoke({"log": []}, ONE)
    except Exception as error:  # noqa: BLE001
        return [type(error).__name__, told(graph.get_state(ONE))[1]]
    return []


def routed() -> Any:
    async def route(state: Log) -> list[Any]:
        return ["a", Send("b", {"log": ["sent"]})]

    graph = StateGraph(Log).add_node("a", say("a")).add_node("b", say("b")).add_node("z", say("z"), defer=True)
    graph.add_conditional_edges(START, route, ["a", "b"]).add_edge("a", "z").add_edge("b", "z")
    return graph.set_finish_point("z")


@scenario("asynchronous routes", routed)
async def _(graph: Any) -> list[Any]:
    found = await asyncio.gather(*(graph.ainvoke({"log": []}, at) for at in (ONE, TWO)))
    return [
        *found,
        *[told(one) async for one in graph.aget_state_history(TWO)],
        tried(lambda: graph.invoke({"log": []}, ONE)),
    ]
