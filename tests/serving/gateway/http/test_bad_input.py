"""Whatever input comes, the server survives and answers with an OpenAI-shaped error or as documented."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ramify.serving.gateway.engines.replicas import EngineTraits, Replica
from ramify.serving.gateway.engines.upstream import Upstream
from ramify.serving.gateway.http import exchange
from ramify.serving.gateway.http.app import create_gateway
from ramify.serving.gateway.http.connections import MAX_FRAMING, MAX_HEAD, SlowClientProtocol
from ramify.serving.gateway.server import LocalGateway
from ramify.serving.protocol.tags import HEADER
from ramify.serving.testing import ScriptedModel, ScriptedServer
from tests.samples import sample

PATHS = ("/v1/chat/completions", "/v1/completions", "/v1/responses")
FIELDS = (
    *("model", "messages", "prompt", "input", "stream", "background", "n", "max_tokens", "seed", "tools"),
    *("deadline", "target_ttft", "target_tbt", "waiting_time", "vllm_xargs", "previous_response_id"),
)
XARGS = ("slo_deadline_s", "slo_class", "compound_id", "compound_stage", "plan_rest", "fork_group", "fork_size")

values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**6), 10**20)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=20)
    | st.sampled_from(["\ud800", "\x00", "latency", "user"]),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from([*XARGS, "role", "content", ""]), inner, max_size=4)
    ),
    max_leaves=12,
)
bodies = st.dictionaries(st.sampled_from(FIELDS) | st.text(max_size=5), values, max_size=8)


def well_shaped(response: httpx.Response) -> bool:
    """An error as OpenAI's clients read it."""
    error = response.json()["error"]
    return (
        isinstance(error["message"], str)
        and error["type"] in ("invalid_request_error", "server_error")
        and {"param", "code"} <= error.keys()
    )


@settings(
    max_examples=sample(20, 60),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(st.sampled_from(PATHS), bodies, st.none() | st.text('{}[]":,0123456789abcslo_deadline\x7f', max_size=40))
def test_any_body_gets_an_answer_or_a_well_formed_error(
    path: str, body: dict[str, object], header: str | None
) -> None:
    model = ScriptedModel(lambda _: "ok")

    async def ask() -> None:
        app = create_gateway("http://engine/v1", transport=model, slots=2)
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://gateway") as client:
            headers = {} if header is None else {HEADER: header}
            response = await client.post(path, content=json.dumps(body), headers=headers)
            assert response.status_code < 500 or response.json()["error"]["code"] == "upstream_failed"
            assert response.status_code == 200 or well_shaped(response)
            health = (await client.get("/health")).json()
            assert (health["running"], health["waiting"]) == (0, 0)

    asyncio.run(ask())


@settings(max_examples=sample(25, 100), deadline=None)
@given(st.binary(max_size=200) | st.text(max_size=100).map(str.encode))
def test_any_bytes_get_a_well_formed_error(content: bytes) -> None:
    async def ask() -> None:
        app = create_gateway("http://engine/v1", transport=ScriptedModel(lambda _: "ok"))
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://gateway") as client:
            response = await client.post(PATHS[0], content=content)
            assert response.status_code in (400, 200) and (response.status_code == 200 or well_shaped(response))

    asyncio.run(ask())


POST = b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
ASK = {"messages": [{"role": "user", "content": "hi"}]}
DEEP = b'{"messages": [{}], "x": ' + b"[" * 900 + b"]" * 900 + b"}"

DEEPER = b'{"messages": ' + b"[" * 900 + b"]" * 900 + b"}"


@pytest.mark.parametrize(
    ("content", "param"),
    [
        (b'{"deadline": 5, "deadline": 6}', "deadline"),
        (b'{"messages": [{"role": "user", "role": "user"}]}', "role"),
        (b'{"temperature": 1e999}', "body"),
        (b'{"max_tokens": ' + b"9" * 5000 + b"}", "body"),
        (b'{"deadline": "NaN"}', "deadline"),
        (b'{"target_ttft": -1}', "target_ttft"),
        (b'{"target_tbt": 1e12}', "target_tbt"),
        (b'{"waiting_time": [1]}', "waiting_time"),
        (b'{"background": true}', "background"),
        (b'{"vllm_xargs": {"slo_deadlin_s": 1}}', "slo_deadlin_s"),
        (b'{"vllm_xargs": {"length_quantiles": [3, 2, 1]}}', "length_quantiles"),
        (b"\xef\xbb\xbf{}", "body"),
    ],
)
async def test_invalid_values_are_refused_by_field(content: bytes, param: str) -> None:
    app = create_gateway("http://engine", transport=ScriptedModel(lambda _: "never"))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://gateway") as client:
        response = await client.post(PATHS[0], content=content)
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)


@pytest.mark.parametrize("stream", [False, True])
async def test_chat_without_messages_is_refused_like_openai(stream: bool) -> None:
    """Whatever the engine would make of it: the embedded one talked on to the end of its context."""
    model = ScriptedModel(lambda _: "never")
    app = create_gateway("http://engine", transport=model)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://gateway") as client:
        response = await client.post(PATHS[0], json={"messages": [], "stream": stream})
        seen = (await client.get("/v1/ramify/requests")).json()["requests"]
    error = response.json()["error"]
    assert (response.status_code, error["param"], error["code"]) == (400, "messages", "empty_array")
    assert not model.calls and not seen


@pytest.mark.parametrize(("more", "status"), [({}, 400), ({"instructions": "Say hi."}, 200), ({"input": "hi"}, 200)])
async def test_response_without_input_is_refused_like_openai(more: dict[str, object], status: int) -> None:
    app = create_gateway("http://engine", transport=ScriptedModel(lambda _: "ok"))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://gateway") as client:
        response = await client.post(PATHS[2], json={"input": [], **more})
    assert response.status_code == status
    if status == 400:
        error = response.json()["error"]
        assert (error["param"], error["code"]) == ("input", "empty_array")


async def test_unknown_endpoint_error_lists_known_ones() -> None:
    app = create_gateway("http://engine", transport=ScriptedModel(lambda _: "never"))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://gateway") as client:
        embeddings = await client.post("/v1/embeddings", json={"input": "x"})
        listed = await client.get(PATHS[0])
        packed = await client.post(PATHS[0], content=b"\x1f\x8b", headers={"content-encoding": "gzip"})
    said = [(r.status_code, r.json()["error"]["param"]) for r in (embeddings, listed, packed)]
    assert said == [(404, "path"), (405, "path"), (415, "content-encoding")]
    assert listed.headers["allow"] == "POST"
    for response, asked in ((embeddings, "POST /v1/embeddings"), (listed, f"GET {PATHS[0]}")):
        message = response.json()["error"]["message"]
        assert asked in message and all(path in message for path in PATHS)


@pytest.mark.parametrize("name", ["deadline", "target_ttft", "slo_deadline_s", "vllm_xargs"])
async def test_tag_in_the_url_is_refused(name: str) -> None:
    app = create_gateway("http://engine", transport=ScriptedModel(lambda _: "ok"))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://gateway") as client:
        response = await client.post(f"{PATHS[0]}?api-version=1&{name}=-1", json=ASK)
        assert (response.status_code, response.json()["error"]["param"]) == (400, name)
        assert (await client.post(f"{PATHS[0]}?api-version=1", json=ASK)).status_code == 200


@pytest.mark.parametrize(
    "body",
    [DEEP, DEEPER, b'{"messages": [{"role": "user", "content": "\\ud800"}]}', b'{"\\ud800": 1, "messages": [{}]}'],
)
async def test_odd_but_valid_json_is_passed_on(body: bytes) -> None:
    got: list[Any] = []

    def engine(request: httpx.Request) -> httpx.Response:
        got.append(json.loads(request.content))
        return httpx.Response(
            200, json={"id": "x", "choices": [{"index": 0, "message": {"role": "assistant", "content": "ok"}}]}
        )

    app = create_gateway("http://engine", transport=httpx.MockTransport(engine))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://gateway") as client:
        assert (await client.post(PATHS[0], content=body)).json()["id"] == "x"
    assert got == [json.loads(body)]


@pytest.mark.parametrize(
    ("body", "param"), [({**ASK, "stop": "\udfff"}, "stop"), ({"messages": ["\ud800"]}, "messages")]
)
async def test_character_that_the_embedded_engine_cannot_read_is_refused_by_field(
    body: dict[str, Any], param: str
) -> None:
    upstream = Upstream("http://engine/v1", transport=ScriptedModel(lambda _: "ok"))
    app = create_gateway([Replica(0, 1, upstream, EngineTraits(llama_cpp=True))])
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://gateway") as client:
        answer = await client.post(PATHS[0], content=json.dumps(body).encode())
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
    assert "surrogate" in answer.json()["error"]["message"]


CHAT, TEXT, ANSWERS, MESSAGES = (f"/v1/{at}" for at in ("chat/completions", "completions", "responses", "messages"))


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (CHAT, {"messages": [{"role": "user", "content": "x" * 6}] * 2}, "messages"),
        (CHAT, {"messages": [{"role": "user", "content": [{"type": "text", "text": "x" * 11}]}]}, "messages"),
        (TEXT, {"prompt": "x" * 11}, "prompt"),
        (TEXT, {"prompt": ["x", "x" * 11]}, "prompt"),
        (ANSWERS, {"input": "x" * 11}, "input"),
        (MESSAGES, {"model": "m", "max_tokens": 1, "messages": [{"role": "user", "content": "x" * 11}]}, None),
        (CHAT, {"messages": [{"role": "user", "content": "x" * 5}] * 2}, ""),
        (TEXT, {"prompt": ["x" * 10, "x" * 10]}, ""),
        (TEXT, {"prompt": list(range(40))}, ""),
    ],
)
async def test_prompt_that_cannot_fit_takes_no_slot(path: str, body: dict[str, Any], param: str | None) -> None:
    """llama.cpp would count its tokens first, for many seconds."""
    asked: list[str] = []

    def engine(request: httpx.Request) -> httpx.Response:
        asked.append(request.url.path)
        if json.loads(request.content).get("stream"):  # several answers at once
            return httpx.Response(200, headers={"content-type": "text/event-stream"}, content=b"data: [DONE]\n\n")
        return httpx.Response(200, json={"id": "x", "choices": []})

    upstream = Upstream("http://engine/v1", transport=httpx.MockTransport(engine))
    app = create_gateway([Replica(0, 1, upstream, EngineTraits(llama_cpp=True, most_characters=10))])
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://gateway") as client:
        answer = await client.post(path, json=body)
    if param == "":
        assert (answer.status_code, len(asked)) == (200, 1)
        return
    error = answer.json()["error"]
    assert (answer.status_code, asked) == (400, [])
    assert "at most 10 can fit" in error["message"]
    assert path == MESSAGES or (error["code"], error["param"]) == ("context_length_exceeded", param)


@asynccontextmanager
async def on_a_port(home: Path) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter, str]]:
    """A gateway, and a raw connection to it."""
    async with ScriptedServer(lambda _: "ok") as engine, LocalGateway(home=home, upstream=engine.base_url) as gateway:
        port = int(gateway.base_url.split(":")[2].split("/")[0])
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            yield reader, writer, gateway.base_url
        finally:
            writer.close()


async def stands(url: str) -> bool:
    async with httpx.AsyncClient(trust_env=False) as client:
        body = {"messages": [{"role": "user", "content": "hi"}]}
        return (await client.post(f"{url}/chat/completions", json=body)).status_code == 200


@pytest.mark.parametrize(
    "begun",
    [b"", POST + b"x-slow: "],
)
async def test_slow_request_head_times_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, begun: bytes) -> None:
    monkeypatch.setattr(SlowClientProtocol, "head_s", 0.05)
    async with on_a_port(tmp_path) as (reader, writer, url):
        writer.write(begun)
        said = await asyncio.wait_for(reader.read(), 20)
        assert (
            said.startswith(b"HTTP/1.1 408 ")
            and json.loads(said.partition(b"\r\n\r\n")[2])["error"]["param"] == "head"
        )
        monkeypatch.undo()
        assert await stands(url)


async def test_endless_request_head_is_refused(tmp_path: Path) -> None:
    async with on_a_port(tmp_path) as (reader, writer, url):
        writer.write(b"POST / HTTP/1.1\r\nx-long: " + b"a" * (2 * MAX_HEAD))
        try:
            said = await asyncio.wait_for(reader.read(), 20)
        except ConnectionResetError:  # it was closed while there was still something to read
            said = b""
        assert said == b"" or said.startswith(b"HTTP/1.1 431 ")
        assert await stands(url)


CHUNKED = POST + b"transfer-encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    ("begun", "more"),
    [
        (CHUNKED + b"1;", b"a" * 1000),
        (CHUNKED + b"0\r\n", b"x-a: a\r\n" * 100),
        (CHUNKED + b"1;a=b\r\n{\r\n0\r\n", b"x-b: " + b"a" * 1000 + b"\r\n"),
    ],
)
async def test_endless_framing_of_a_body_is_refused(tmp_path: Path, begun: bytes, more: bytes) -> None:
    """Chunk extensions and trailers belong to no body, and no header of the head."""
    async with on_a_port(tmp_path) as (reader, writer, url):
        writer.write(begun)
        with suppress(ConnectionResetError):  # what is closed while something is still to be read
            for _ in range(2 * MAX_FRAMING // len(more)):
                writer.write(more)
                await writer.drain()
        try:
            said = await asyncio.wait_for(reader.read(), 20)
        except ConnectionResetError:
            said = b""
        assert said == b"" or said.startswith(b"HTTP/1.1 400 ")
        assert await stands(url)


async def test_slow_body_times_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "BODY_S", 0.05)
    async with on_a_port(tmp_path) as (reader, writer, url):
        writer.write(POST + b"content-length: 100\r\n\r\n{")
        head = await asyncio.wait_for(reader.readline(), 20)
        assert head.startswith(b"HTTP/1.1 408 ")
        monkeypatch.undo()
        assert await stands(url)


@pytest.mark.parametrize(
    "head",
    [
        b"GET /health HTTP/1.1\r\nhost: localhost\r\nx-a: b\rc: d\r\n\r\n",
        b"GET /hea\x00lth HTTP/1.1\r\nhost: localhost\r\n\r\n",
        POST + b"content-length: 3\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00",
        POST + b"content-length: -5\r\n\r\n",
        POST + b"content-length: 99999999999999999999\r\n\r\n",
        POST + b"transfer-encoding: chunked\r\n\r\nZZ\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ],
    ids=["bare return", "null in the path", "two lengths", "tls", "below", "beyond", "no chunk", "http 2"],
)
async def test_non_http_bytes_are_refused(tmp_path: Path, head: bytes) -> None:
    async with on_a_port(tmp_path) as (reader, writer, url):
        writer.write(head)
        said = await asyncio.wait_for(reader.read(), 20)
        assert said.startswith(b"HTTP/1.1 4") and b"\r\nx-request-id: req_" in said
        assert json.loads(said.partition(b"\r\n\r\n")[2])["error"]["type"] == "invalid_request_error"
        assert await stands(url)


@pytest.mark.parametrize("stream", [False, True])
async def test_http_1_0_client_gets_whole_answers_only(tmp_path: Path, stream: bool) -> None:
    """HTTP/1.0 has no chunks."""
    async with on_a_port(tmp_path) as (reader, writer, _):
        body = json.dumps({"messages": [{"role": "user", "content": "hi"}], "stream": stream}).encode()
        writer.write(
            b"POST /v1/chat/completions HTTP/1.0\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
            % len(body)
            + body
        )
        head, _, answer = (await asyncio.wait_for(reader.read(), 20)).partition(b"\r\n\r\n")
    assert b"transfer-encoding" not in head and head.startswith(b"HTTP/1.1 400 " if stream else b"HTTP/1.1 200 ")
    said = json.loads(answer)
    assert said["error"]["param"] == "stream" if stream else said["choices"][0]["message"]["content"] == "ok"


async def test_upgrade_is_not_followed(tmp_path: Path) -> None:
    async with on_a_port(tmp_path) as (reader, writer, url):
        writer.write(b"GET /health HTTP/1.1\r\nhost: localhost\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n")
        assert (await asyncio.wait_for(reader.readline(), 20)).startswith(b"HTTP/1.1 200 ")
        assert await stands(url)


async def test_request_that_would_rather_speak_http_2_is_answered_whole(tmp_path: Path) -> None:
    """As Java's client sends its first one. Its body may come later, and another request after it."""
    wish = b"connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AAEAAEAAAAIAAAAB\r\n"
    body = json.dumps(ASK).encode()
    async with on_a_port(tmp_path) as (reader, writer, _):
        writer.write(POST + wish + b"content-length: %d\r\n\r\n" % len(body))
        await writer.drain()
        writer.write(body[:5])
        await writer.drain()
        writer.write(body[5:] + POST + b"connection: close\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
        said = await asyncio.wait_for(reader.read(), 20)
    assert said.count(b"HTTP/1.1 200 OK") == said.count(b'"content":"ok"') == 2


async def test_connect_is_refused(tmp_path: Path) -> None:
    async with on_a_port(tmp_path) as (reader, writer, url):
        writer.write(b"CONNECT example.org:443 HTTP/1.1\r\nhost: example.org:443\r\n\r\n")
        assert (await asyncio.wait_for(reader.readline(), 20)).startswith(b"HTTP/1.1 400 ")
        assert await stands(url)


@pytest.mark.parametrize("kind", ["\ud800", "response.a\nevent: x", "a\r\n", 5, None])
async def test_engine_cannot_inject_events(kind: object) -> None:
    last = {"type": "response.completed", "response": {"id": "r"}}
    sent = b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in ({"type": kind}, last))
    sse = {"content-type": "text/event-stream"}
    engine = httpx.MockTransport(lambda _: httpx.Response(200, headers=sse, content=sent))
    app = create_gateway("http://engine", transport=engine)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://gateway") as client:
        response = await client.post("/v1/responses", json={"input": "hi", "stream": True})
    assert response.status_code == 200 and "event: x" not in response.text.splitlines()
    assert "event: response.completed" in response.text.splitlines()


async def test_engine_cannot_inject_a_header() -> None:
    refusal = {"error": {"message": "no\r\nset-cookie: a=b", "code": "no\r\nx: y", "param": "a\r\nb: c"}}
    app = create_gateway("http://engine", transport=httpx.MockTransport(lambda _: httpx.Response(429, json=refusal)))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://gateway") as client:
        response = await client.post(PATHS[0], json=ASK)
    assert response.status_code == 429
    assert set(response.headers) <= {"content-length", "content-type", "x-request-id", "retry-after"}
    assert response.json()["error"]["message"] == refusal["error"]["message"]
