"""The client against a scripted model: what it sends, what it retries, what it never returns as done."""

from __future__ import annotations

import asyncio
import json
import random

import httpx
import pytest

from ramify.serving.client import LLMClient
from ramify.serving.errors import DeadlineInfeasible, LLMRejected, LLMTimeout, LLMUnavailable
from ramify.serving.protocol.tags import HEADER, SLOTags
from ramify.serving.testing import Fault, ScriptedModel, ScriptedServer
from ramify.serving.types import ChatRequest, ChatResult, Ledger, TokenLogprobs, user

URL = "http://user:hunter2@model.test/v1"
ASK = ChatRequest(user("What is it?", system="Be brief."), max_tokens=9, seed=3, stop=("END",))


class Clock:
    """Time that passes only where someone sleeps."""

    def __init__(self) -> None:
        self.now = 100.0
        self.slept: list[float] = []

    def __call__(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


def client_of(transport: httpx.AsyncBaseTransport, clock: Clock | None = None, **options: object) -> LLMClient:
    clock = clock or Clock()
    options = {"clock": clock, "sleep": clock.sleep, "rng": random.Random(1), **options}
    return LLMClient(URL, transport=transport, **options)  # type: ignore[arg-type]


def answering(status: int, body: object, **headers: str) -> httpx.MockTransport:
    return httpx.MockTransport(lambda _: httpx.Response(status, json=body, headers=headers))


async def test_chat_sends_every_field_and_reads_the_whole_answer() -> None:
    model = ScriptedModel(lambda _: "It is\u2028fine.")
    async with client_of(model, model="tiny", api_key="sk-1") as client:
        result = await client.chat(ASK, tags=SLOTags(slo_deadline_s=5.0, compound_id="run-1"))
    assert result == ChatResult("It is\u2028fine.", "stop", "scripted", prompt_tokens=5, completion_tokens=3)
    call = model.calls[0]
    assert call.request == ChatRequest(ASK.messages, model="tiny", max_tokens=9, seed=3, stop=("END",))
    assert "vllm_xargs" not in call.body
    assert call.headers["authorization"] == "Bearer sk-1"
    assert json.loads(call.headers[HEADER]) == {"slo_deadline_s": 5.0, "compound_id": "run-1"}


async def test_xargs_are_sent_if_asked_for() -> None:
    model = ScriptedModel(lambda _: "yes")
    async with client_of(model, send_xargs=True) as client:
        await client.chat(ASK, tags=SLOTags(slo_deadline_s=5.0))
        await client.chat(ASK)
    assert model.calls[0].body["vllm_xargs"] == {"slo_deadline_s": 5.0}
    assert "vllm_xargs" not in model.calls[1].body
    assert HEADER not in model.calls[1].headers


async def test_logprobs_are_returned_by_position() -> None:
    said = (TokenLogprobs("A", -0.5, (("A", -0.5), ("B", -1.0))), TokenLogprobs(" b", -2.0, ((" b", -2.0),)))
    model = ScriptedModel(lambda _: ChatResult("A b", "length", "m", 1, 2, said))
    async with client_of(model) as client:
        result = await client.chat(ChatRequest(user("?"), top_logprobs=2))
    assert (result.text, result.finish_reason, result.logprobs) == ("A b", "length", said)


async def test_stream_gives_pieces_then_the_result() -> None:
    async with client_of(ScriptedModel(lambda _: "one two three")) as client, client.stream(ASK) as stream:
        with pytest.raises(RuntimeError, match="not complete yet"):
            _ = stream.result
        pieces = [piece async for piece in stream]
        assert pieces == ["one", " two", " three"]
        assert stream.result.text == "one two three"


@pytest.mark.parametrize("fault", [f for f in Fault if f is not Fault.HANG])
async def test_transient_fault_is_retried(fault: Fault) -> None:
    clock = Clock()
    model = ScriptedModel(lambda _: "at last", faults=[fault, fault])
    async with client_of(model, clock) as client:
        result = await client.chat(ASK, tags=SLOTags(slo_deadline_s=50.0))
    assert result.text == "at last"
    assert len(model.calls) == 3
    assert len(clock.slept) == 2
    left = [json.loads(call.headers[HEADER])["slo_deadline_s"] for call in model.calls]
    assert left[0] == 50.0
    assert left[2] == pytest.approx(50.0 - sum(clock.slept)), "each attempt says what is left"
    if fault is Fault.BUSY_429:
        assert min(clock.slept) >= 1.0, "Retry-After is kept"


@pytest.mark.parametrize("fault", [f for f in Fault if f is not Fault.HANG])
async def test_lasting_fault_is_a_typed_error_within_the_deadline(fault: Fault) -> None:
    clock = Clock()
    model = ScriptedModel(lambda _: "never", faults=[fault] * 1000)
    async with client_of(model, clock, api_key="sk-secret", retries=1000) as client:
        with pytest.raises(LLMUnavailable) as caught:
            await client.chat(ASK, deadline_s=7.0)
    assert sum(clock.slept) < 7.0
    assert len(model.calls) > 2
    assert not model.finished
    assert "http://model.test/v1" in str(caught.value)
    assert "hunter2" not in str(caught.value)
    assert "Check that the server runs" in str(caught.value)


async def test_number_of_retries_is_bounded() -> None:
    model = ScriptedModel(lambda _: "never", faults=[Fault.REFUSE] * 1000)
    async with client_of(model, retries=3) as client:
        with pytest.raises(LLMUnavailable, match=r"after 4 attempt\(s\)"):
            await client.chat(ASK)


async def test_hung_server_is_retried() -> None:
    model = ScriptedModel(lambda _: "awake", faults=[Fault.HANG])
    async with client_of(model, hang_s=0.02) as client:
        assert (await client.chat(ASK)).text == "awake"


async def test_permanently_hung_server_times_out() -> None:
    model = ScriptedModel(lambda _: "never", faults=[Fault.HANG] * 1000)
    async with LLMClient(URL, transport=model) as client:
        with pytest.raises(LLMTimeout, match="sent nothing before the deadline"):
            await client.chat(ASK, tags=SLOTags(slo_deadline_s=0.05))


async def test_stream_cut_after_its_first_piece_is_not_retried() -> None:
    model = ScriptedModel(lambda _: "a b c d e f g h", faults=[Fault.CUT])
    async with client_of(model) as client, client.stream(ASK) as stream:
        seen = []
        with pytest.raises(LLMUnavailable, match="closed the connection"):
            async for piece in stream:
                seen.append(piece)
        assert seen and len(model.calls) == 1
        with pytest.raises(RuntimeError):
            _ = stream.result


async def test_answer_without_finish_reason_is_not_done() -> None:
    cut = {"choices": [{"index": 0, "message": {"content": "half an ans"}, "finish_reason": None}]}
    async with client_of(answering(200, cut), retries=0) as client:
        with pytest.raises(LLMUnavailable, match="cut before its end"):
            await client.chat(ASK)


async def test_whole_body_instead_of_a_stream_is_accepted() -> None:
    whole = {
        "model": "m",
        "choices": [{"index": 0, "message": {"content": "all"}, "finish_reason": "stop"}],
        "ramify": {"queue_s": 0.5, "first_token_s": 1.0, "total_s": 2.0, "deadline_s": 3.0, "met": True, "new": 1},
    }
    async with client_of(answering(200, whole)) as client:
        result = await client.chat(ASK)
    assert result.text == "all"
    assert result.ledger == Ledger(0.5, 1.0, 2.0, deadline_s=3.0, met=True, attempts=1)


@pytest.mark.parametrize(("status", "advice"), [(400, "Check the model"), (401, "right API key"), (404, "Check the")])
async def test_refusal_is_final_and_hides_the_key(status: int, advice: str) -> None:
    body = {"error": {"message": "no good: sk-secret", "code": "bad_thing"}}
    clock = Clock()
    async with client_of(answering(status, body), clock, api_key="sk-secret") as client:
        with pytest.raises(LLMRejected, match=advice) as caught:
            await client.chat(ASK)
    assert (caught.value.status, caught.value.code) == (status, "bad_thing")
    assert "sk-secret" not in str(caught.value)
    assert not clock.slept


async def test_infeasible_deadline_has_its_own_error() -> None:
    body = {"error": {"message": "too late", "code": "deadline_infeasible", "earliest_feasible_s": 12.5}}
    async with client_of(answering(422, body)) as client:
        with pytest.raises(DeadlineInfeasible, match="too late") as caught:
            await client.chat(ASK)
    assert caught.value.earliest_feasible_s == 12.5


async def test_error_event_inside_a_stream_is_retried() -> None:
    bodies = iter(['data: {"error": {"message": "engine died"}}\n\n', _sse("fine")])
    transport = httpx.MockTransport(
        lambda _: httpx.Response(200, text=next(bodies), headers={"content-type": "text/event-stream"})
    )
    async with client_of(transport) as client:
        assert (await client.chat(ASK)).text == "fine"


async def test_models_are_listed_or_the_error_says_why() -> None:
    async with client_of(ScriptedModel(lambda _: "", name="tiny")) as client:
        assert await client.models() == ("tiny",)
    async with client_of(answering(200, {"hello": "world"})) as client:
        with pytest.raises(LLMUnavailable, match="OpenAI-compatible"):
            await client.models()


async def test_cancelled_call_frees_the_server() -> None:
    began, ended = asyncio.Event(), asyncio.Event()

    async def script(_: ChatRequest) -> str:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        return "never"

    async with ScriptedServer(script) as server, LLMClient(server.base_url) as client:
        call = asyncio.create_task(client.chat(ASK))
        await began.wait()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        async with asyncio.timeout(30):
            await ended.wait()
    assert not server.model.active


async def test_refused_connection_on_a_real_port_is_retried() -> None:
    model = ScriptedModel(lambda _: "yes", faults=[Fault.REFUSE, Fault.CUT])
    clock = Clock()
    async with ScriptedServer(model) as server, LLMClient(server.base_url, sleep=clock.sleep) as client:
        assert (await client.chat(ASK)).text == "yes"
    assert len(model.calls) == 3


@pytest.mark.parametrize("url", ["", "localhost:80", "ftp://x", "http://"])
def test_bad_base_url_is_named(url: str) -> None:
    with pytest.raises(ValueError, match="is not a base URL"):
        LLMClient(url)


def _sse(text: str) -> str:
    first = json.dumps({"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": "stop"}]})
    return f": a comment\n\ndata: {first}\n\ndata: [DONE]\n\n"
