"""Model calls of nodes are tagged and recorded, and served from the record when the node runs again."""

from __future__ import annotations

import asyncio
import operator
import time
from typing import Annotated, Any, TypedDict

import httpx
import pytest
from langgraph.channels import UntrackedValue
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph
from langgraph.types import Command, RetryPolicy, interrupt

from ramify import llm, slo
from ramify.runtime.codec import codec
from ramify.runtime.errors import NotInARun
from ramify.serving.client import LLMClient
from ramify.serving.protocol.tags import HEADER, SLOTags
from ramify.serving.testing import ScriptedModel
from ramify.serving.transport import TaggingTransport

CONFIG = {"configurable": {"thread_id": "1"}}


class State(TypedDict, total=False):
    said: Annotated[list[str], operator.add]


class Open(TypedDict, total=False):
    handle: Annotated[Any, UntrackedValue]


def only(function: Any, **options: Any) -> StateGraph[State]:
    return StateGraph(State).add_node("only", function, **options).add_edge(START, "only")


async def test_calls_carry_the_deadline_and_the_run(compile_graph: Any, kept: Any) -> None:
    async def asks(state: State) -> State:
        both = await asyncio.gather(llm.chat("one"), llm.chat("two"))
        return {"said": [each.text for each in both]}

    app = compile_graph(only(asks), deadline="90s")
    assert (await app.ainvoke({}))["said"] == ["said one", "said two"]
    for row in kept(app).llm:
        tags = codec.decode(row.tags_json)
        assert tags["compound_id"] == kept(app).runs[0].id
        assert 0 < tags["slo_deadline_s"] <= 90
        assert (row.op_id, row.branch) == ("run.only", "root")


async def test_a_node_says_which_calls_a_person_reads(compile_graph: Any, kept: Any) -> None:
    heard: list[SLOTags] = []

    def model(request: httpx.Request) -> httpx.Response:
        heard.append(SLOTags.from_header(request.headers[HEADER]))
        return httpx.Response(200, json={})

    transport = TaggingTransport(httpx.MockTransport(model), "http://gateway/v1")

    async def asks(state: State) -> State:
        async with httpx.AsyncClient(transport=transport) as client:
            with slo(stream=True, per_token=0.2, weight=2):
                await client.post("http://gateway/v1/chat/completions", json={})
                said = await llm.chat("one")
            await client.post("http://gateway/v1/chat/completions", json={})
        return {"said": [said.text]}

    app = compile_graph(only(asks), deadline="90s")
    await app.ainvoke({})
    (row,) = kept(app).llm
    own = codec.decode(row.tags_json)
    shown = [(tags.slo_class, tags.slo_tbt_s, tags.goodput_weight) for tags in heard]
    assert shown == [("stream", 0.2, 2), ("compound", None, None)]
    assert (own["slo_class"], own["slo_tbt_s"], own["goodput_weight"]) == ("stream", 0.2, 2)
    assert {tags.compound_id for tags in heard} == {own["compound_id"]}


def test_a_client_of_the_nodes_own_carries_the_runs_deadline(compile_graph: Any, kept: Any) -> None:
    heard: list[SLOTags] = []

    def model(request: httpx.Request) -> httpx.Response:
        heard.append(SLOTags.from_header(request.headers[HEADER]))
        return httpx.Response(200, json={})

    transport = TaggingTransport(httpx.MockTransport(model), "http://gateway/v1")

    def asks(state: State) -> State:
        with httpx.Client(transport=transport) as client:
            client.post("http://gateway/v1/chat/completions", json={})
        return {"said": []}

    app = compile_graph(only(asks), deadline="90s")
    before = time.time()
    app.invoke({})
    (tags,) = heard
    assert tags.compound_id == kept(app).runs[0].id
    assert tags.compound_deadline_at is not None and before < tags.compound_deadline_at <= time.time() + 90


def test_a_synchronous_node_asks_too(compile_graph: Any) -> None:
    def asks(state: State) -> State:
        return {"said": [asyncio.run(llm.chat("one")).text]}

    assert compile_graph(only(asks)).invoke({})["said"] == ["said one"]


def test_a_node_that_runs_again_is_served_its_calls(compile_graph: Any, scripted: Any) -> None:
    async def asks(state: State) -> State:
        first = (await llm.chat("one")).text
        return {"said": [first, interrupt("and?"), (await llm.chat("two")).text]}

    app = compile_graph(only(asks), checkpointer=InMemorySaver())

    async def both() -> Any:
        await app.ainvoke({}, CONFIG)
        return await app.ainvoke(Command(resume="this"), CONFIG)

    assert asyncio.run(both())["said"] == ["said one", "this", "said two"]
    assert [call.request.messages[-1].content for call in scripted.calls] == ["one", "two"]


def test_a_retry_calls_the_model_again(compile_graph: Any, scripted: Any) -> None:
    async def asks(state: State) -> State:
        said = (await llm.chat("one")).text
        if len(scripted.calls) < 2:
            raise OSError("again")
        return {"said": [said]}

    policy = RetryPolicy(initial_interval=0.0, jitter=False, retry_on=OSError)
    app = compile_graph(only(asks, retry_policy=policy))
    assert asyncio.run(app.ainvoke({}))["said"] == ["said one"]
    assert len(scripted.calls) == 2


def test_every_invocation_of_a_thread_has_the_whole_deadline(compile_graph: Any, kept: Any) -> None:
    async def asks(state: State) -> State:
        await asyncio.sleep(0.05)
        return {"said": [(await llm.chat("one")).text]}

    app = compile_graph(only(asks), deadline="60s", checkpointer=InMemorySaver())
    asyncio.run(app.ainvoke({}, CONFIG))
    between = time.time()
    asyncio.run(app.ainvoke({}, CONFIG))
    first, second = (codec.decode(row.tags_json) for row in kept(app).llm)
    assert first["compound_deadline_at"] < between + 60 <= second["compound_deadline_at"]
    assert all(tags["slo_deadline_s"] < 59.96 for tags in (first, second)), "what is left, at the call"


def test_answers_after_a_change_of_model_are_not_reused_by_other_runs(
    compile_graph: Any, kept: Any, scripted: ScriptedModel
) -> None:
    """The run's settings name the model with which it began, and other runs reuse only answers of the model that
    theirs name."""

    async def asks(state: State) -> State:
        return {"said": [(await llm.chat("one")).text]}

    saver = InMemorySaver()
    for model, mixed in ((None, False), (None, False), ("other", True), (None, True)):
        client = LLMClient("http://model.test/v1", transport=scripted, model=model)
        app = compile_graph(only(asks), checkpointer=saver, name="told", llm=client)
        asyncio.run(app.ainvoke({}, CONFIG))
        (run,) = kept(app).runs
        assert run.settings.mixed is mixed


async def test_values_that_langgraph_cannot_store_are_allowed_in_untracked_channels(
    compile_graph: Any, kept: Any
) -> None:
    def opens(state: Open) -> Open:
        return {"handle": object()}

    graph = StateGraph(Open).add_node("only", opens).add_edge(START, "only")
    app = compile_graph(graph, checkpointer=InMemorySaver())
    await app.ainvoke({"handle": None}, CONFIG)
    assert kept(app).ops[-1].result_json == "null"


def test_the_model_is_out_of_reach_outside_a_node() -> None:
    with pytest.raises(NotInARun):
        llm.chat("one")


async def test_an_invocation_may_have_a_deadline_of_its_own(compile_graph: Any, kept: Any) -> None:
    async def asks(state: State) -> State:
        return {"said": [(await llm.chat("one")).text]}

    app = compile_graph(only(asks), deadline="90s", checkpointer=InMemorySaver())
    config: Any = {"configurable": {"thread_id": "1", "ramify_deadline": "10s"}}
    chunks = [chunk async for chunk in app.astream({}, config, stream_mode=["debug", "updates"])]
    assert "ramify_deadline" not in str(chunks)
    (row,) = kept(app).llm
    assert 0 < codec.decode(row.tags_json)["slo_deadline_s"] <= 10
