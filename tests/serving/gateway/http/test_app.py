"""The ASGI application: what it refuses, what it passes on, what a client sees."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette

from ramify.serving.gateway.http.app import create_gateway
from ramify.serving.gateway.http.exchange import MAX_BODY
from ramify.serving.policy.types import Verdict
from ramify.serving.protocol import wire
from ramify.serving.protocol.tags import HEADER
from ramify.serving.testing import Fault, ScriptedModel
from ramify.serving.types import ChatResult

MESSAGES = [{"role": "user", "content": "hi"}]


def client_of(app: Starlette, **headers: str) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://gateway/v1", headers=headers)


def gateway(model: httpx.AsyncBaseTransport, **options: object) -> Starlette:
    return create_gateway("http://engine", slots=2, transport=model, **options)  # type: ignore[arg-type]


def events(response: httpx.Response) -> list[str]:
    return [line.removeprefix("data: ") for line in response.text.split("\n\n") if line]


@pytest.mark.parametrize(
    ("content", "param"),
    [
        (b"{", "body"),
        (b"[1]", "body"),
        (b'{"messages": "\xff"}', "body"),
        (b'{"temperature": NaN}', "body"),
        (b"[" * 100_000, "body"),
        (b'{"stream": "yes"}', "stream"),
        (b'{"deadline": "soon"}', "deadline"),
        (b'{"deadline": -1}', "deadline"),
        (b'{"vllm_xargs": {"slo_ttft_s": 1e99}}', "slo_ttft_s"),
        (b'{"vllm_xargs": {"compound_id": ""}}', "compound_id"),
        (b'{"vllm_xargs": {"plan_rest": [1e308, 1, 1, 1]}}', "plan_rest"),
        (b'{"vllm_xargs": {"plan_rest": [1, 1, 1, 1%s]}}' % (b"0" * 400), "plan_rest"),
        (b'{"vllm_xargs": {"length_quantiles": [%s]}}' % b",".join([b"1e308"] * 32), "length_quantiles"),
        (b'{"vllm_xargs": "x"}', "vllm_xargs"),
        (b'{"deadline": 1, "vllm_xargs": {"slo_deadline_s": 2}}', "slo_deadline_s"),
    ],
)
async def test_malformed_request_is_refused_by_field(content: bytes, param: str) -> None:
    model = ScriptedModel(lambda _: "never")
    async with client_of(gateway(model)) as client:
        response = await client.post("/chat/completions", content=content)
    error = response.json()["error"]
    assert (response.status_code, error["type"], error["param"]) == (400, "invalid_request_error", param)
    assert error["message"].startswith(param)
    assert not model.calls


async def test_header_that_contradicts_the_body_is_refused() -> None:
    async with client_of(gateway(ScriptedModel(lambda _: "never"))) as client:
        headers = {HEADER: '{"slo_deadline_s": 5}'}
        response = await client.post("/chat/completions", json={"deadline": 6, "messages": MESSAGES}, headers=headers)
        assert (response.status_code, response.json()["error"]["param"]) == (400, "slo_deadline_s")
        response = await client.post("/chat/completions", json={}, headers={HEADER: "nonsense"})
        assert (response.status_code, response.json()["error"]["param"]) == (400, HEADER)


async def test_too_long_body_is_refused() -> None:
    async with client_of(gateway(ScriptedModel(lambda _: "never"))) as client:
        response = await client.post("/chat/completions", content=b" " * (MAX_BODY + 1))
    assert (response.status_code, response.json()["error"]["param"]) == (413, "body")


async def test_client_key_is_required_and_the_engine_gets_its_own() -> None:
    model = ScriptedModel(lambda _: "ok")
    app = gateway(model, api_keys=["old", "ours"], upstream_key="theirs")
    async with client_of(app) as client:
        for path in ("/models", "/ramify/requests"):
            assert (await client.get(path)).json()["error"]["code"] == "invalid_api_key"
        for path in ("/metrics", "/ready"):
            assert (await client.get(f"http://gateway{path}")).status_code == 401
        assert (await client.get("http://gateway/health")).status_code == 200
        assert (await client.post("/chat/completions", json={"messages": MESSAGES})).status_code == 401
    async with client_of(app, authorization="Bearer ours") as client:
        assert (await client.post("/chat/completions", json={"messages": MESSAGES})).status_code == 200
    assert [call.headers["authorization"] for call in model.calls] == ["Bearer theirs"]


@pytest.mark.parametrize(
    ("shown", "status"),
    [
        *((shown, 200) for shown in ("Bearer ours", "bearer ours", "BEARER   ours")),
        *(
            (shown, 401)
            for shown in ("ours", "Basic ours", "Bearer", "Bearer ", "Bearer our", "Bearer ours theirs", "")
        ),
    ],
)
async def test_authorization_scheme_is_case_insensitive(shown: str, status: int) -> None:
    async with client_of(gateway(ScriptedModel(lambda _: "ok"), api_keys=["ours"]), authorization=shown) as client:
        assert (await client.get("/models")).status_code == status


@pytest.mark.parametrize("tokens", [-5, True, 10**400, 2.5, "7"])
@pytest.mark.parametrize("stream", [False, True])
async def test_nonsense_token_counts_do_not_lose_an_answer(tokens: object, stream: bool) -> None:
    said: Any = tokens
    result = ChatResult("ok", "stop", "m", prompt_tokens=said, completion_tokens=said)
    async with client_of(gateway(ScriptedModel(lambda _: result))) as client:
        answer = await client.post("/chat/completions", json={"messages": MESSAGES, "stream": stream})
    assert answer.status_code == 200
    assert wire.LEDGER_KEY in answer.text


async def test_tags_are_removed_and_everything_else_passes() -> None:
    model = ScriptedModel(lambda _: "ok")
    asked = {"messages": MESSAGES, "deadline": 9, "tools": [{"x": 1}], "vllm_xargs": {"compound_id": "r", "kv": 1}}
    async with client_of(gateway(model)) as client:
        await client.post("/chat/completions", json=asked)
    assert model.calls[0].body == {"messages": MESSAGES, "tools": [{"x": 1}], "vllm_xargs": {"kv": 1}}


async def test_engine_that_reads_tags_gets_remaining_times() -> None:
    now = [100.0]
    model = ScriptedModel(lambda _: "ok")
    app = gateway(model, forward_xargs=True, clock=lambda: now[0])
    tags = {"slo_deadline_s": 9, "compound_id": "r", "compound_deadline_s": 20}
    async with client_of(app) as client:
        await client.post("/chat/completions", json={"messages": MESSAGES, "vllm_xargs": {**tags, "kv": 1}})
        now[0] += 5
        await client.post("/chat/completions", json={"messages": MESSAGES, "vllm_xargs": tags})
    assert model.calls[0].body["vllm_xargs"] == {**tags, "compound_stage": 0, "kv": 1}
    assert model.calls[1].body["vllm_xargs"] == {**tags, "compound_stage": 1, "compound_deadline_s": 15}


@pytest.mark.parametrize("path", ["/chat/completions", "/completions"])
async def test_whole_answer_is_the_engines_plus_the_ledger(path: str) -> None:
    model = ScriptedModel(lambda _: "one two")
    async with client_of(gateway(model)) as client:
        asked = {"messages": MESSAGES} if "chat" in path else {"prompt": "hi"}
        answer = (await client.post(path, json=asked)).json()
    ledger = answer.pop("ramify")
    assert ledger["first_token_s"] == ledger["total_s"] >= ledger["queue_s"]
    choice = answer["choices"][0]
    assert (choice.get("text") or choice["message"]["content"], answer["usage"]["completion_tokens"]) == (
        "one two",
        2,
    )


@pytest.mark.parametrize("path", ["/chat/completions", "/completions"])
@pytest.mark.parametrize("usage", [True, False])
async def test_stream_is_the_engines_with_the_ledger_on_its_last_chunk(path: str, usage: bool) -> None:
    model = ScriptedModel(lambda _: "one two")
    asked = {"messages": MESSAGES, "prompt": "hi", "stream": True, "stream_options": {"include_usage": usage}}
    async with client_of(gateway(model)) as client:
        theirs = httpx.AsyncClient(transport=model, base_url="http://engine/v1")
        plain = events(await theirs.post(path, json=asked))
        response = await client.post(path, json=asked)
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    *chunks, last, done = events(response)
    assert [*chunks, done] == [*plain[:-2], plain[-1]]
    ended = json.loads(last)
    assert ended.pop("ramify")["met"] is None
    assert ended == json.loads(plain[-2])
    assert all(json.loads(chunk)["choices"] for chunk in chunks)
    assert bool(ended["choices"]) is not usage


async def test_a_chunk_that_follows_the_end_of_another_answer_is_in_its_place() -> None:
    """Two answers in one stream: the first one's end is not held back beyond the second one's next token."""

    def chunk(index: int, text: str, end: str | None = None) -> dict[str, object]:
        return {"id": "x", "choices": [{"index": index, "delta": {"content": text}, "finish_reason": end}]}

    said = [chunk(0, "a"), chunk(0, "b", "stop"), chunk(1, "c"), chunk(1, "d", "stop")]
    sent = b"".join(b"data: " + json.dumps(one).encode() + b"\n\n" for one in said) + b"data: [DONE]\n\n"
    sse = {"content-type": "text/event-stream"}
    engine = httpx.MockTransport(lambda _: httpx.Response(200, headers=sse, content=sent))
    async with client_of(gateway(engine)) as client:
        response = await client.post("/chat/completions", json={"messages": MESSAGES, "stream": True, "n": 2})
    chunks = [json.loads(one) for one in events(response)[:-1]]
    assert [{k: v for k, v in one.items() if k != "ramify"} for one in chunks] == said
    assert ["ramify" in one for one in chunks] == [False, False, False, True]


async def test_one_model_by_its_id() -> None:
    async with client_of(gateway(ScriptedModel(lambda _: "never", name="org/scripted"))) as client:
        found = await client.get("/models/org/scripted")
        missing = await client.get("/models/another")
    assert (found.status_code, found.json()["id"]) == (200, "org/scripted")
    assert (missing.status_code, missing.json()["error"]["code"]) == (404, "model_not_found")


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


async def test_policy_refusal_tells_the_client_not_to_retry() -> None:
    async with client_of(gateway(ScriptedModel(lambda _: "ok"))) as client:
        response = await client.post("/chat/completions", json={"messages": MESSAGES, "deadline": 0})
        seen = (await client.get("/ramify/requests")).json()["requests"]
    error = response.json()["error"]
    assert (response.status_code, response.headers["x-should-retry"]) == (422, "false")
    assert (error["code"], error["param"]) == ("deadline_infeasible", "deadline")
    assert 0 < error["earliest_feasible_s"] < 60
    assert [(r["outcome"], r["met"]) for r in seen] == [("refused", False)]


async def test_bug_is_reported_in_openai_format_and_raised() -> None:
    class Broken:
        def decide(self, view: object, now: float) -> Verdict:
            raise ZeroDivisionError

        def observe(self, done: object) -> None: ...

    app = gateway(ScriptedModel(lambda _: "ok"), policy=Broken())
    quiet = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=quiet, base_url="http://gateway/v1") as client, asyncio.timeout(20):
        response = await client.post("/chat/completions", json={"messages": MESSAGES})
    assert (response.status_code, response.json()["error"]["code"]) == (500, "internal_error")
    async with client_of(app) as client:
        with pytest.raises(ZeroDivisionError):
            await client.post("/chat/completions", json={"messages": MESSAGES})


@pytest.mark.parametrize(("method", "path", "status"), [("GET", "/nowhere", 404), ("GET", "/chat/completions", 405)])
async def test_unknown_path_is_reported_in_openai_format(method: str, path: str, status: int) -> None:
    async with client_of(gateway(ScriptedModel(lambda _: "ok"))) as client:
        response = await client.request(method, path)
    assert (response.status_code, response.json()["error"]["param"]) == (status, "path")


async def test_client_that_leaves_mid_stream_ends_the_engines_work() -> None:
    closed = asyncio.Event()

    async def endless() -> AsyncIterator[bytes]:
        try:
            yield b'data: {"choices": [{"index": 0, "delta": {"content": "a"}, "finish_reason": null}]}\n\n'
            await asyncio.Event().wait()
        finally:
            closed.set()

    sse = {"content-type": "text/event-stream"}
    app = gateway(httpx.MockTransport(lambda _: httpx.Response(200, headers=sse, content=endless())))
    body = json.dumps({"messages": MESSAGES, "stream": True}).encode()
    received = asyncio.Queue[dict[str, object]]()
    received.put_nowait({"type": "http.request", "body": body, "more_body": False})
    sent = []

    async def send(message: object) -> None:
        sent.append(message)
        if len(sent) == 2:  # the head and the first piece
            received.put_nowait({"type": "http.disconnect"})

    scope = {"type": "http", "method": "POST", "path": "/v1/chat/completions", "headers": [], "query_string": b""}
    await app(scope, received.get, send)  # type: ignore[arg-type]
    assert closed.is_set()
    async with client_of(app) as client:
        assert (await client.get("/ramify/requests")).json()["requests"][0]["outcome"] == "gone"
        health = (await client.get("http://gateway/health")).json()
    assert (health["running"], health["waiting"]) == (0, 0)


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


async def test_request_and_trace_ids_pass_through_both_ways() -> None:
    model = ScriptedModel(lambda _: "ok")
    named = {"x-request-id": "mine", "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
    async with client_of(gateway(model)) as client:
        for stream in (False, True):
            body = {"messages": MESSAGES, "stream": stream}
            answer = await client.post("/chat/completions", json=body, headers=named)
            assert {name: answer.headers[name] for name in named} == named
        ids = [(await client.post("/chat/completions", json=body)).headers["x-request-id"] for _ in range(2)]
    assert all({name: call.headers[name] for name in named} == named for call in model.calls[:2])
    assert ids == [call.headers["x-request-id"] for call in model.calls[2:]]
    assert ids[0] != ids[1] and all(one.startswith("req_") for one in ids)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("status", "answer", "headers", "told"),
    [
        (401, {"error": {"message": "bad key"}}, {}, (502, "upstream_auth_failed", "gateway's key")),
        (403, {"detail": "no"}, {}, (502, "upstream_auth_failed", "gateway's key")),
        (503, {"error": {"message": "later"}}, {"retry-after": "7"}, (503, "upstream_busy", "later")),
        (503, {"error": {"message": "dying"}}, {}, (502, "upstream_failed", "dying")),
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
