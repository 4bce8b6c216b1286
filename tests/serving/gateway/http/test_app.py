"""The ASGI application: what it refuses, what it passes on, what a client sees."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from ramify.serving.gateway.engines.replicas import EngineTraits, Replica
from ramify.serving.gateway.engines.upstream import Upstream
from ramify.serving.gateway.http.app import create_gateway
from ramify.serving.gateway.http.exchange import MAX_BODY
from ramify.serving.policy.types import Verdict
from ramify.serving.protocol import wire
from ramify.serving.protocol.tags import HEADER
from ramify.serving.testing import ScriptedModel
from ramify.serving.types import ChatResult
from tests.serving.gateway.http.gateway_in_process import MESSAGES, client_of, events, gateway


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
    async with client_of(gateway(model, allow_fields=["vllm_xargs.kv"])) as client:
        await client.post("/chat/completions", json=asked)
    assert model.calls[0].body == {"messages": MESSAGES, "tools": [{"x": 1}], "vllm_xargs": {"kv": 1}}


async def test_engine_that_reads_tags_gets_remaining_times() -> None:
    now = [100.0]
    model = ScriptedModel(lambda _: "ok")
    app = gateway(model, forward_xargs=True, clock=lambda: now[0], allow_fields=["vllm_xargs.kv"])
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


@pytest.mark.parametrize("path", ["/chat/completions", "/messages"])
async def test_an_answer_goes_on_from_the_beginning_that_the_client_gave(path: str) -> None:
    """llama.cpp repeats that beginning in whole answers."""
    message = {"role": "assistant", "content": "The city is Bern."}
    said = {"id": "x", "choices": [{"index": 0, "finish_reason": "stop", "message": message}]}
    llama_cpp = Upstream("http://engine", transport=httpx.MockTransport(lambda _: httpx.Response(200, json=said)))
    app = create_gateway([Replica(0, 1, llama_cpp, EngineTraits(llama_cpp=True))])
    begun = [*MESSAGES, {"role": "assistant", "content": "The city is"}]
    async with client_of(app) as client:
        answer = (await client.post(path, json={"messages": begun, "max_tokens": 9})).json()
    text = answer["content"][0]["text"] if path == "/messages" else answer["choices"][0]["message"]["content"]
    assert text == " Bern."


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


async def test_a_request_that_becomes_no_call_is_named_too() -> None:
    async with client_of(gateway(ScriptedModel(lambda _: "ok"))) as client:
        for path, body in (("/chat/completions", {"messages": []}), ("/messages", {}), ("/none", {})):
            refused = await client.post(path, json=body, headers={"x-request-id": "mine"})
            assert refused.status_code in (400, 404)
            assert refused.headers["x-request-id"] == "mine"
            if path == "/messages":
                assert refused.headers["request-id"] == refused.json()["request_id"] == "mine"


@pytest.mark.parametrize(
    ("body", "param"),
    [({}, "compound_id"), ({"compound_id": 3}, "compound_id"), ({"compound_id": "r", "branches": "b"}, "branches")],
)
async def test_a_release_names_a_workflow_and_its_branches(body: dict[str, Any], param: str) -> None:
    async with client_of(gateway(ScriptedModel(lambda _: "never"))) as client:
        response = await client.post(wire.RELEASE_PATH, json=body)
        assert (response.status_code, response.json()["error"]["param"]) == (400, param)
        assert (await client.post(wire.RELEASE_PATH, json={"compound_id": "r"})).json() == {"engines": 0}
