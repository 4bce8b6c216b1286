"""What a client sees of an engine that fails, hangs, breaks off or refuses."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable

import httpx
import pytest

from ramify.serving.gateway.engines.replicas import Replica
from ramify.serving.gateway.engines.upstream import Upstream
from ramify.serving.gateway.http.app import create_gateway
from ramify.serving.testing import Fault, ScriptedModel
from tests.serving.gateway.http.gateway_in_process import MESSAGES, client_of, events, gateway


@pytest.mark.parametrize(
    ("fault", "status", "code"),
    [
        (Fault.REFUSE, 503, "upstream_unavailable"),
        (Fault.ERROR_500, 502, "upstream_failed"),
        (Fault.BUSY_429, 429, "upstream_refused"),
        (Fault.GARBAGE, 502, "upstream_failed"),
        (Fault.HANG, 504, "upstream_timeout"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_engine_failure_is_an_error_that_invites_a_retry(
    fault: Fault, status: int, code: str, stream: bool
) -> None:
    app = gateway(ScriptedModel(lambda _: "ok", faults=[fault]), hang_s=0.05, whole_s=0.05)
    async with client_of(app) as client:
        response = await client.post("/chat/completions", json={"messages": MESSAGES, "stream": stream})
        assert (response.status_code, response.json()["error"]["code"]) == (status, code)
        assert response.headers.get("retry-after") == ("1" if fault is Fault.BUSY_429 else None)
        seen = (await client.get("/ramify/requests")).json()["requests"]
    assert [r["outcome"] for r in seen] == ["failed"]


async def test_cut_answer_is_a_502_before_its_first_token_and_an_event_after() -> None:
    app = gateway(ScriptedModel(lambda _: "a b c d e f", faults=[Fault.CUT, Fault.CUT]))
    async with client_of(app) as client:
        whole = await client.post("/chat/completions", json={"messages": MESSAGES})
        stream = await client.post("/chat/completions", json={"messages": MESSAGES, "stream": True})
    assert whole.status_code == 502
    *_, last = events(stream)
    assert stream.status_code == 200
    assert json.loads(last)["error"]["code"] == "upstream_failed"
    assert "[DONE]" not in stream.text and "ramify" not in stream.text


async def test_engine_refusal_passes_through() -> None:
    async with client_of(gateway(ScriptedModel(lambda _: "ok"))) as client:
        response = await client.post("/chat/completions", json={"messages": 3})
    assert (response.status_code, response.json()["error"]["code"]) == (400, "upstream_refused")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", ["/chat/completions", "/completions", "/responses"])
@pytest.mark.parametrize(
    "said",
    [
        httpx.Response(302, headers={"location": "http://elsewhere/"}, json={}),
        httpx.Response(304, json={"choices": []}),
        httpx.Response(200, json={"error": {"message": "out of order"}}),
        httpx.Response(200, json={}),
    ],
    ids=["redirect", "unchanged", "error", "nothing"],
)
async def test_what_is_no_answer_is_none(said: httpx.Response, path: str, stream: bool) -> None:
    """Redirects are not followed, and no server says an error with status 200 in vain."""
    if path == "/responses" and said.status_code == 200 and not stream:
        pytest.skip("a response has no field that all servers send")
    body = {"messages": MESSAGES, "prompt": "hi", "input": "hi", "stream": stream}
    async with client_of(gateway(httpx.MockTransport(lambda _: said))) as client:
        response = await client.post(path, json=body)
    assert (response.status_code, response.json()["error"]["code"]) == (502, "upstream_failed")
    assert ("out of order" in response.text) == ("out of order" in said.text and not stream)


async def test_stalled_stream_is_an_error_event_and_closes_the_request() -> None:
    closed = asyncio.Event()

    async def stalls() -> AsyncIterator[bytes]:
        try:
            yield b'data: {"choices": [{"index": 0, "delta": {"content": "a"}, "finish_reason": null}]}\n\n'
            await asyncio.Event().wait()
        finally:
            closed.set()

    sse = {"content-type": "text/event-stream"}
    engine = httpx.MockTransport(lambda _: httpx.Response(200, headers=sse, content=stalls()))
    async with client_of(gateway(engine, hang_s=0.05)) as client:
        response = await client.post("/chat/completions", json={"messages": MESSAGES, "stream": True})
        health = (await client.get("http://gateway/health")).json()
    first, last = events(response)
    assert '"content": "a"' in first
    assert json.loads(last)["error"]["code"] == "upstream_timeout"
    assert closed.is_set() and (health["running"], health["waiting"]) == (0, 0)


async def test_call_waiting_in_a_working_engine_is_not_hung() -> None:
    """A scheduler inside may hold a call back for long; what is silent then is the call, not the engine."""
    done = asyncio.Event()

    async def busy() -> AsyncIterator[bytes]:
        for _ in range(20):
            await asyncio.sleep(0.1)
            yield b'data: {"choices": [{"index": 0, "delta": {"content": "a"}, "finish_reason": null}]}\n\n'
        yield b'data: {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}\n\n'
        done.set()
        yield b"data: [DONE]\n\n"

    async def engine(request: httpx.Request) -> httpx.Response:
        if b"held back" in request.content:
            await done.wait()
            return httpx.Response(200, json={"choices": [{"index": 0, "message": {"content": "at last"}}]})
        return httpx.Response(200, headers={"content-type": "text/event-stream"}, content=busy())

    app = gateway(httpx.MockTransport(engine), forward_xargs=True, hang_s=1.5, whole_s=1.5)
    async with client_of(app) as client, asyncio.TaskGroup() as tasks:
        held = {"messages": [{"role": "user", "content": "held back"}]}
        waits = tasks.create_task(client.post("/chat/completions", json=held))
        streams = tasks.create_task(client.post("/chat/completions", json={"messages": MESSAGES, "stream": True}))
    assert waits.result().status_code == 200
    assert events(streams.result())[-1] == "[DONE]"


@pytest.mark.parametrize("forward_xargs", [False, True])
async def test_whole_answer_may_be_silent_longer_than_a_stream(forward_xargs: bool) -> None:
    """It says nothing before its end: the engine works, and a stream that is as silent is cut meanwhile."""
    streamed = asyncio.Event()

    async def engine(request: httpx.Request) -> httpx.Response:
        if b'"stream":true' in request.content.replace(b" ", b""):
            await asyncio.Event().wait()
        await streamed.wait()
        return httpx.Response(200, json={"choices": [{"index": 0, "message": {"content": "at last"}}]})

    app = gateway(httpx.MockTransport(engine), forward_xargs=forward_xargs, hang_s=0.05, whole_s=600)
    async with client_of(app) as client:
        whole = asyncio.create_task(client.post("/chat/completions", json={"messages": MESSAGES}))
        cut = await client.post("/chat/completions", json={"messages": MESSAGES, "stream": True})
        streamed.set()
        answer = await whole
    assert (cut.status_code, cut.json()["error"]["message"][-23:]) == (504, "sent nothing for 0.05 s")
    assert answer.json()["choices"][0]["message"]["content"] == "at last"


async def test_whole_answer_never_gets_less_time_than_a_stream() -> None:
    async def engine(_: httpx.Request) -> httpx.Response:
        await asyncio.Event().wait()
        raise AssertionError

    async with client_of(gateway(httpx.MockTransport(engine), hang_s=0.2, whole_s=0.01)) as client:
        response = await client.post("/chat/completions", json={"messages": MESSAGES})
    assert response.json()["error"]["message"].endswith("sent nothing for 0.2 s")


async def test_engine_that_still_lists_models_can_be_hung() -> None:
    async def engine(request: httpx.Request) -> httpx.Response:
        if request.method == "GET":
            return httpx.Response(200, json={"object": "list", "data": []})
        await asyncio.Event().wait()
        raise AssertionError

    app = gateway(httpx.MockTransport(engine), forward_xargs=True, hang_s=0.3, whole_s=0.3)
    async with client_of(app) as client:
        call = asyncio.create_task(client.post("/chat/completions", json={"messages": MESSAGES}))
        async with asyncio.timeout(60):
            while not call.done():
                assert (await client.get("/models")).status_code == 200
                await asyncio.sleep(0.05)
    assert (call.result().status_code, call.result().json()["error"]["code"]) == (504, "upstream_timeout")


REFUSAL = "deadline_infeasible: it is too late [earliest_feasible_s=4.5]"


def _by_abort(stream: bool) -> httpx.Response:
    """vLLM 0.32's scheduler can say why only in the `stop_reason` of an aborted choice."""
    choice = {"index": 0, "finish_reason": "abort", "stop_reason": REFUSAL}
    if stream:
        return _event({"id": "x", "choices": [{**choice, "delta": {}}]})
    return httpx.Response(
        200, json={"id": "x", "choices": [{**choice, "message": {"role": "assistant", "content": ""}}]}
    )


def _by_error(stream: bool) -> httpx.Response:
    """0.33 has an error for it: a 400, or in a stream an event."""
    error = {"error": {"message": REFUSAL, "type": "BadRequestError", "param": None, "code": 400}}
    return _event(error) if stream else httpx.Response(400, json=error)


def _event(said: object) -> httpx.Response:
    content = b"data: " + json.dumps(said).encode() + b"\n\n"
    return httpx.Response(200, headers={"content-type": "text/event-stream"}, content=content)


@pytest.mark.parametrize("version", [_by_abort, _by_error], ids=["0.32", "0.33"])
async def test_engine_scheduler_refusal_becomes_the_gateways_422(
    version: Callable[[bool], httpx.Response],
) -> None:
    def engine(request: httpx.Request) -> httpx.Response:
        return version(bool(json.loads(request.content).get("stream")))

    async with client_of(gateway(httpx.MockTransport(engine))) as client:
        for stream in (False, True):
            body = {"messages": MESSAGES, "stream": stream, "deadline": 9}
            response = await client.post("/chat/completions", json=body)
            error = response.json()["error"]
            assert (response.status_code, response.headers["x-should-retry"]) == (422, "false")
            assert (error["code"], error["earliest_feasible_s"]) == ("deadline_infeasible", 4.5)
        seen = (await client.get("/ramify/requests")).json()["requests"]
    assert [r["outcome"] for r in seen] == ["refused", "refused"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("status", "answer", "headers", "told"),
    [
        (401, {"error": {"message": "bad key"}}, {}, (502, "upstream_auth_failed", "gateway's key")),
        (403, {"detail": "no"}, {}, (502, "upstream_auth_failed", "gateway's key")),
        (503, {"error": {"message": "later"}}, {"retry-after": "7"}, (503, "upstream_busy", "later")),
        (503, {"error": {"message": "dying"}}, {}, (502, "upstream_failed", "dying")),
        (529, {"error": {"message": "full"}}, {"retry-after": "7"}, (502, "upstream_failed", "full")),
        (404, {"detail": "model 'x' is not here"}, {}, (404, "upstream_refused", "model 'x' is not here")),
        (422, {"detail": [{"loc": ["body", "n"], "msg": "too big"}]}, {}, (422, "upstream_refused", "n: too big")),
        (
            400,
            {"error": {"message": "request (9031 tokens) exceeds", "type": "exceed_context_size_error"}},
            {},
            (400, "context_length_exceeded", "9031"),
        ),
    ],
)
async def test_refusals_of_an_engine_are_told_as_what_they_are(
    status: int, answer: dict[str, object], headers: dict[str, str], told: tuple[int, str, str], stream: bool
) -> None:
    engine = httpx.MockTransport(lambda _: httpx.Response(status, json=answer, headers=headers))
    async with client_of(gateway(engine)) as client:
        response = await client.post("/chat/completions", json={"messages": MESSAGES, "stream": stream})
    error = response.json()["error"]
    assert (response.status_code, error["code"]) == told[:2]
    assert told[2] in error["message"] and "{" not in error["message"]
    assert response.headers.get("retry-after") == headers.get("retry-after")


@pytest.mark.parametrize("keys", [(), ("ours",)])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("fault", [Fault.REFUSE, Fault.ERROR_500, Fault.CUT])
async def test_clients_with_keys_see_no_address_of_an_engine(
    keys: tuple[str, ...], stream: bool, fault: Fault
) -> None:
    model = ScriptedModel(lambda _: "one two three", faults=[fault])
    app = gateway(model, api_keys=keys)
    async with client_of(app, authorization="Bearer ours") as client:
        response = await client.post("/chat/completions", json={"messages": MESSAGES, "stream": stream})
    assert "upstream_" in response.text
    assert ("http://engine" in response.text) is not bool(keys)


@pytest.mark.parametrize("stream", [False, True])
async def test_nobody_sees_the_address_of_an_engine_that_ramify_started(stream: bool) -> None:
    model = ScriptedModel(lambda _: "ok", faults=[Fault.REFUSE, Fault.ERROR_500, Fault.GARBAGE, Fault.HANG])
    one = Replica(0, 1, Upstream("http://engine:9/v1", transport=model, ours=True, hang_s=0.05, whole_s=0.05))
    async with client_of(create_gateway([one])) as client:
        for status in (503, 502, 502, 504):
            answer = await client.post("/chat/completions", json={"messages": MESSAGES, "stream": stream})
            assert answer.status_code == status and "engine:9" not in answer.text, answer.text
