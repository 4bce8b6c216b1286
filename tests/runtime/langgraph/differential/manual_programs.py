"""Pages of the manual on functions, agents and tokens; `manual.py` has those on graphs."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

from langchain.agents import create_agent
from langchain.agents.middleware import (
    TodoListMiddleware,
    ToolRetryMiddleware,
    after_agent,
    before_model,
    dynamic_prompt,
    wrap_model_call,
    wrap_tool_call,
)
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import tool
from langgraph.channels import DeltaChannel
from langgraph.config import get_config, get_stream_writer
from langgraph.func import entrypoint, task
from langgraph.graph import MessagesState
from langgraph.runtime import Runtime
from langgraph.store.base import BaseStore
from langgraph.types import (
    Command,
    StreamWriter,
    interrupt,
)
from typing_extensions import TypedDict

from tests.runtime.langgraph.differential.manual import ONE, TWO, abc, kept_with_a_store, scenario, told
from tests.runtime.langgraph.differential.pieces import HUMAN, RETRY, Log, Scripted, calls, confirm, line, say, write
from tests.runtime.langgraph.differential.shapes import touch


def essay() -> Any:
    @task
    def write_essay(topic: str) -> str:
        touch("essay")
        return f"an essay on {topic}"

    @task(retry_policy=RETRY)
    async def polish(text: str) -> str:
        touch("polish")
        return f"{text}!"

    @entrypoint()
    async def whole(topic: str, *, previous: Any = None, writer: StreamWriter, config: RunnableConfig) -> Any:
        draft = await write_essay(topic)
        writer({"draft": draft})
        approved = interrupt({"essay": draft, "action": "approve or reject"})
        done = await asyncio.gather(*(polish(f"{draft}{i}") for i in range(2)))
        return entrypoint.final(value={"essay": done, "approved": approved, "previous": previous}, save=topic)

    return whole


@scenario("functional", essay)
async def _(graph: Any) -> list[Any]:
    seen = [await graph.ainvoke("cats", ONE), told(await graph.aget_state(ONE))]
    seen += [await graph.ainvoke(Command(resume=True), ONE), told(await graph.aget_state(ONE))]
    seen += [chunk async for chunk in graph.astream("dogs", ONE, stream_mode=["updates", "custom"])]
    last = [chunk async for chunk in graph.astream(Command(resume=False), ONE, stream_mode=["updates", "values"])]
    at = [place for place, (mode, data) in enumerate(last) if mode == "updates" and "polish" in data]
    for place, chunk in zip(at, sorted((last[place] for place in at), key=repr), strict=True):
        last[place] = chunk  # the two run at once, and either may end first
    return [*seen, *last, *[told(one) async for one in graph.aget_state_history(ONE)]]


def tasks_in_nodes() -> Any:
    @task
    def twice(n: int) -> int:
        touch(f"twice{n}")
        return 2 * n

    @task(name="other")
    def both(n: int) -> int:
        return twice(n).result() + twice(n + 1).result()

    def node(state: Log) -> Any:
        futures = [twice(i) for i in range(3)]
        return {"log": [str([one.result() for one in futures]), str(both(5).result())]}

    return line(("node", node), ("z", say("z")))


@scenario("tasks in nodes", tasks_in_nodes)
async def _(graph: Any) -> list[Any]:
    return [graph.invoke({"log": []}, ONE), told(graph.get_state(ONE)), await graph.ainvoke({"log": []}, TWO)]


def plain_functions() -> Any:
    inner = abc().compile()

    @entrypoint()
    def below(n: int, *, store: BaseStore) -> int:
        store.put(("n",), str(n), {"n": n})
        return n + len(store.search(("n",)))

    @entrypoint()
    def whole(n: int, *, runtime: Runtime[Any]) -> Any:
        return [below.invoke(n), inner.invoke({"log": []})["log"], runtime.previous]

    return whole


@scenario("entrypoints and graphs in an entrypoint", plain_functions, kept_with_a_store)
async def _(graph: Any) -> list[Any]:
    return [graph.invoke(1, ONE), graph.invoke(2, ONE), *map(told, graph.get_state_history(ONE))]


def tokens() -> Any:
    def model(text: str) -> Any:
        return GenericFakeChatModel(messages=iter([AIMessage(text, id=f"m-{text[:3]}")]))

    def joke(state: MessagesState) -> Any:
        touch("joke")
        return {"messages": [model("why did it cross").with_config(tags=["joke"]).invoke(state["messages"])]}

    async def poem(state: MessagesState) -> Any:
        return {"messages": [await model("roses are red").with_config(tags=["poem"]).ainvoke("x")]}

    return line(("joke", joke), ("poem", poem), schema=MessagesState)


@scenario("tokens", tokens)
async def _(graph: Any) -> list[Any]:
    seen = []
    async for message, metadata in graph.astream(HUMAN, ONE, stream_mode="messages"):
        seen += [message.content, metadata["langgraph_node"], metadata.get("tags"), sorted(metadata)]
    async for event in graph.astream_events(HUMAN, TWO, version="v2"):
        seen += [event["event"], event["name"], event["tags"]]
    return seen


def weather() -> Any:
    @before_model
    def note(state: Any, runtime: Any) -> Any:
        touch(f"before{len(state['messages'])}")
        return None

    @after_agent
    def last(state: Any, runtime: Any) -> Any:
        return {"messages": [AIMessage("and that is all", id="m-last")]}

    @dynamic_prompt
    def prompt(request: Any) -> str:
        return f"There are {len(request.messages)} messages."

    @wrap_model_call
    async def again(request: Any, handler: Any) -> Any:
        found = await handler(request)
        get_stream_writer()({"system": request.system_prompt})
        return found

    @wrap_tool_call
    async def guarded(request: Any, handler: Any) -> Any:
        touch(f"guarded-{request.tool_call['name']}")
        return await handler(request)

    tries: list[int] = []

    @tool
    async def flaky(city: str) -> str:
        """Tell the weather."""
        tries.append(1)
        touch(f"flaky{len(tries)}")
        if len(tries) == 1:
            raise OSError("no")
        get_stream_writer()(f"looking at {city}")
        return f"sunny in {city} for {get_config()['metadata'].get('who')}"

    said = [
        calls(("write_todos", {"todos": [{"content": "look", "status": "in_progress"}]})),
        calls(("flaky", {"city": "sf"}), ("write", {"path": "x"})),
        AIMessage("done", id="m-end"),
    ]
    steady = ToolRetryMiddleware(max_retries=1, initial_delay=0.0, jitter=False)
    middleware = [note, last, prompt, again, TodoListMiddleware(), steady, guarded]
    return create_agent(Scripted(responses=said), [flaky, write], middleware=middleware, system_prompt="Be kind.")


@scenario("an agent with middleware", weather)
async def _(graph: Any) -> list[Any]:
    config = {**ONE, "metadata": {"who": "me"}}
    modes = ["updates", "custom", "values"]
    seen = [chunk async for chunk in graph.astream(HUMAN, config, stream_mode=modes, durability="sync")]
    return [*sorted(map(repr, seen)), told(graph.get_state(ONE))]


def remembering_agents() -> Any:
    """A subagent that keeps its own memory, called by a tool."""
    replies = [AIMessage(f"reply {i}", id=f"r{i}") for i in range(4)]
    fruit = create_agent(Scripted(responses=replies), [], name="fruit", checkpointer=True)

    @tool
    async def ask_fruit(question: str) -> str:
        """Ask about fruit."""
        touch(f"asked-{question}")
        found = await fruit.ainvoke({"messages": [HumanMessage(question, id=f"q-{question}")]})
        return f"{found['messages'][-1].content} of {len(found['messages'])}"

    said = [calls(("ask_fruit", {"question": "apple"})), AIMessage("done", id="e1"),
            calls(("ask_fruit", {"question": "pear"})).model_copy(update={"id": "c2"}),
            AIMessage("done", id="e2")]  # fmt: skip
    return create_agent(Scripted(responses=said), [ask_fruit])


@scenario("a subagent that remembers", remembering_agents)
async def _(graph: Any) -> list[Any]:
    seen = [await graph.ainvoke(HUMAN, ONE)]
    return [
        *seen,
        await graph.ainvoke({"messages": [HumanMessage("more", id="h2")]}, ONE),
        told(graph.get_state(ONE)),
    ]


def asking_flow() -> Any:
    @task
    def step(n: int) -> str:
        touch(f"step{n}")
        return f"{n}: {interrupt(n)}"

    @entrypoint()
    def whole(n: int) -> Any:
        futures = [step(i) for i in range(n)]
        return [one.result() for one in futures]

    return whole


@scenario("tasks that ask", asking_flow)
async def _(graph: Any) -> list[Any]:
    asked = graph.invoke(2, ONE)["__interrupt__"]
    seen = [sorted(one.value for one in asked)]
    return [*seen, graph.invoke(Command(resume={one.id: f"answer {one.value}" for one in asked}), ONE)]


@scenario(
    "tools by themselves",
    lambda: create_agent(Scripted(responses=[calls(("confirm", {"what": "?"})), AIMessage("e", id="e")]), [confirm]),
)
async def _(graph: Any) -> list[Any]:
    seen = [graph.invoke(HUMAN, ONE)]
    seen += [graph.invoke({"messages": [HumanMessage("never mind", id="h9")]}, ONE), told(graph.get_state(ONE))]
    return seen


class Deltas(TypedDict, total=False):
    log: Annotated[
        list[str], DeltaChannel(lambda left, right: [*left, *(x for one in right for x in one)], snapshot_frequency=3)
    ]


def deltas() -> Any:
    return line(*((name, say(name)) for name in "abcde"), schema=Deltas)


@scenario("delta channels", deltas)
async def _(graph: Any) -> list[Any]:
    seen = [graph.invoke({"log": ["1"]}, ONE), graph.invoke({"log": ["2"]}, ONE)]
    seen += map(told, graph.get_state_history(ONE))
    before = next(one.config for one in graph.get_state_history(ONE) if one.next == ("c",))
    return [*seen, graph.invoke(None, before), told(graph.get_state(ONE))]
