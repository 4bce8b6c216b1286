"""Fakes for tests, ours and yours: a scripted model, in place of an httpx transport or behind a port.

model = ScriptedModel(lambda request: "fix line 3")
async with LLMClient("http://model", transport=model) as client: ...

async with ScriptedServer(ScriptedModel(script, slots=2)) as server:
    ...  # any OpenAI client at server.base_url, or a gateway in front of it
"""

from __future__ import annotations

import asyncio
import inspect
import math
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping
from contextlib import aclosing, suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from http import HTTPStatus
from typing import Self

import httpx

from ramify.serving.http_guard import JSON, AccessPolicy, AccessRefusal
from ramify.serving.protocol import wire
from ramify.serving.testing_wire import (
    as_messages,
    body_of,
    encoded,
    response_of,
    response_stream_of,
    stream_of,
    tokens,
)
from ramify.serving.types import ChatRequest, ChatResult, TokenLogprobs

# What a script returns: the text; or the weight of each possible first token ({"A": 3, "B": 1}; the heaviest is the
# text); or the whole result.
Scripted = str | Mapping[str, float] | ChatResult
Script = Callable[[ChatRequest], Scripted | Awaitable[Scripted]]
_ACCESS = AccessPolicy()  # even a fake is a server on a loopback port


class Endpoint(StrEnum):
    """OpenAI's three endpoints that give an answer, by their paths."""

    CHAT = "/chat/completions"
    TEXT = "/completions"
    RESPONSES = "/responses"

    @property
    def prompt(self) -> str:
        return {Endpoint.TEXT: "prompt", Endpoint.RESPONSES: "input"}.get(self, "messages")


class Fault(StrEnum):
    """A fault that befalls one request."""

    REFUSE = "refuse"  # no connection
    ERROR_500 = "error_500"
    BUSY_429 = "busy_429"  # with Retry-After: 1
    HANG = "hang"  # never answers
    CUT = "cut"  # stops in the middle of the answer
    GARBAGE = "garbage"  # 200 with a body that is not an answer


@dataclass(frozen=True, slots=True)
class Call:
    """One completion that was requested, as it came in."""

    request: ChatRequest
    headers: Mapping[str, str]
    body: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class _Reply:
    status: int
    content_type: str
    chunks: AsyncGenerator[bytes, None]
    headers: tuple[tuple[str, str], ...] = ()


class ScriptedModel(httpx.AsyncBaseTransport):
    """An OpenAI-compatible server without a model.

    script: makes the answer to a request. A coroutine function can hold an answer back until the test wants it.
    faults: befall the first requests, one each.
    slots: limits how many requests it works on at once.
    delay_s: seconds that each request takes. token_s: seconds for each streamed token after the first.
    endpoints: those that it has.

    `calls` are the completions requested, `finished` those fully answered, in that order. `peak` is the largest
    number of requests worked on at once."""

    def __init__(
        self,
        script: Script,
        *,
        faults: Iterable[Fault] = (),
        slots: int | None = None,
        delay_s: float = 0.0,
        token_s: float = 0.0,
        name: str = "scripted",
        endpoints: Collection[Endpoint] = tuple(Endpoint),
    ) -> None:
        self.calls: list[Call] = []
        self.finished: list[ChatRequest] = []
        self.active = 0
        self.peak = 0
        self.name = name
        self._script = script
        self._faults = iter(faults)
        self._slots = asyncio.Semaphore(slots) if slots else None
        self._delay_s = delay_s
        self._token_s = token_s
        self._endpoints = endpoints

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        body = await request.aread()
        reply = await self.respond(request.method, request.url.path, dict(request.headers), body)
        headers = [("content-type", reply.content_type), *reply.headers]
        return httpx.Response(reply.status, headers=headers, stream=_Stream(reply.chunks), request=request)

    async def respond(self, method: str, path: str, headers: Mapping[str, str], body: bytes) -> _Reply:
        """Answer one HTTP request. Raises httpx's errors where the connection is to break."""
        if method == "GET" and path.endswith("/models"):
            return _json(
                200,
                {"object": "list", "data": [{"id": self.name, "object": "model", "created": 1, "owned_by": "tests"}]},
            )
        endpoint = next((e for e in self._endpoints if path.endswith(f"/v1{e}")), None)
        if method != "POST" or endpoint is None:
            return _json(404, {"error": {"message": f"no such path: {path}", "type": "invalid_request_error"}})
        try:
            asked = wire.parse_object(body)
            said = asked.get(endpoint.prompt)
            listed = endpoint is Endpoint.CHAT or (endpoint is Endpoint.RESPONSES and isinstance(said, list))
            request = wire.from_body({**asked, "messages": said if listed else as_messages(said)})
        except wire.Malformed as error:
            return _json(400, {"error": {"message": str(error), "type": "invalid_request_error"}})
        self.calls.append(Call(request, dict(headers), asked))
        fault = next(self._faults, None)
        match fault:
            case Fault.REFUSE:
                raise httpx.ConnectError("connection refused (scripted)")
            case Fault.ERROR_500:
                return _json(500, {"error": {"message": "scripted failure", "type": "server_error"}})
            case Fault.BUSY_429:
                busy = _json(429, {"error": {"message": "scripted: too busy", "type": "rate_limit"}})
                return replace(busy, headers=(("retry-after", "1"),))
            case Fault.GARBAGE:
                return _Reply(200, "application/json", _chunks(b"<html>not what you asked for"))
            case Fault.HANG:
                await asyncio.Event().wait()
        options = asked.get("stream_options")
        usage = isinstance(options, Mapping) and options.get("include_usage") is True
        cut = fault is Fault.CUT
        chunks = self._answer(request, endpoint, stream=bool(asked.get("stream")), usage=usage, cut=cut)
        return _Reply(200, "text/event-stream" if asked.get("stream") else "application/json", chunks)

    async def _answer(
        self, request: ChatRequest, endpoint: Endpoint, *, stream: bool, usage: bool, cut: bool
    ) -> AsyncGenerator[bytes, None]:
        if self._slots:
            await self._slots.acquire()
        self.active += 1
        self.peak = max(self.peak, self.active)
        try:
            await asyncio.sleep(self._delay_s)
            said = self._script(request)
            result = _as_result(await said if inspect.isawaitable(said) else said, request, self.name)
            parts = _parts(result, endpoint, stream=stream, usage=usage)
            whole = b"".join(parts)
            if cut:
                yield whole[: len(whole) // 2]
                raise httpx.RemoteProtocolError("peer closed the connection before the answer's end (scripted)")
            for number, part in enumerate(parts):
                if number:
                    await asyncio.sleep(self._token_s)
                yield part
            self.finished.append(request)
        finally:
            self.active -= 1
            if self._slots:
                self._slots.release()


class ScriptedServer:
    """A ScriptedModel behind a loopback port, in the running event loop. An async context manager."""

    def __init__(self, model: ScriptedModel | Script) -> None:
        self.model = model if isinstance(model, ScriptedModel) else ScriptedModel(model)
        self.base_url = ""
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._connection, "127.0.0.1", 0, backlog=4096)
        self.base_url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/v1"
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._server:
            self._server.close()
        for task in tuple(self._open):
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one request per connection. A client that leaves ends the work for it, as in a real engine."""
        task = asyncio.current_task()
        assert task is not None
        self._open.add(task)
        try:
            await self._exchange(reader, writer)
        finally:
            self._open.discard(task)
            writer.close()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            method, path, version = head[0].split(" ", 2)
            said = [(k.lower(), v.strip()) for k, _, v in (line.partition(":") for line in head[1:] if line)]
            headers = dict(said)
            asgi = [(k.encode("latin-1"), v.encode("latin-1")) for k, v in said]
            refusal = _ACCESS.refusal(method, asgi, version.removeprefix("HTTP/"))
            body = await reader.readexactly(int(headers.get("content-length", "0")))
            answer = asyncio.ensure_future(self._reply(method, path, headers, body, writer, refusal))
            gone = asyncio.ensure_future(reader.read(1))
            try:
                await asyncio.wait({answer, gone}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                answer.cancel()
                gone.cancel()
                await asyncio.gather(answer, gone, return_exceptions=True)

    async def _reply(
        self,
        method: str,
        path: str,
        headers: Mapping[str, str],
        body: bytes,
        writer: asyncio.StreamWriter,
        refusal: AccessRefusal | None,
    ) -> None:
        try:
            if refusal is None:
                reply = await self.model.respond(method, path, headers, body)
            else:
                reply = _Reply(refusal.status, JSON, _chunks(refusal.body()))
            head = (
                f"HTTP/1.1 {reply.status} {HTTPStatus(reply.status).phrase}\r\ncontent-type: {reply.content_type}\r\n"
            )
            head += "".join(f"{k}: {v}\r\n" for k, v in reply.headers)
            writer.write(f"{head}connection: close\r\ntransfer-encoding: chunked\r\n\r\n".encode())
            async with aclosing(reply.chunks) as chunks:
                async for chunk in chunks:
                    writer.write(b"%x\r\n%b\r\n" % (len(chunk), chunk))
                    await writer.drain()
            writer.write(b"0\r\n\r\n")
            await writer.drain()
        except httpx.TransportError:
            writer.transport.abort()


class _Stream(httpx.AsyncByteStream):
    def __init__(self, chunks: AsyncGenerator[bytes, None]) -> None:
        self._chunks = chunks

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self._chunks

    async def aclose(self) -> None:
        await self._chunks.aclose()


def _as_result(said: Scripted, request: ChatRequest, model: str) -> ChatResult:
    if isinstance(said, ChatResult):
        return said
    if isinstance(said, str):
        said_logprobs: tuple[TokenLogprobs, ...] = ()
        text = said
        if request.top_logprobs:
            said_logprobs = tuple(TokenLogprobs(token, 0.0, ((token, 0.0),)) for token in tokens(said))
    else:
        total = math.fsum(said.values())
        ranked = sorted(((t, math.log(w / total)) for t, w in said.items()), key=lambda pair: -pair[1])
        text = ranked[0][0]
        said_logprobs = (TokenLogprobs(text, ranked[0][1], tuple(ranked[: request.top_logprobs])),)
    prompt_tokens = sum(len(m.content.split()) for m in request.messages)
    return ChatResult(text, "stop", model, prompt_tokens, len(tokens(text)), said_logprobs)


def _parts(result: ChatResult, endpoint: Endpoint, *, stream: bool, usage: bool) -> list[bytes]:
    if endpoint is Endpoint.RESPONSES:
        return response_stream_of(result) if stream else [encoded(response_of(result))]
    chat = endpoint is Endpoint.CHAT
    return stream_of(result, chat, usage=usage) if stream else [encoded(body_of(result, chat))]


async def _chunks(*chunks: bytes) -> AsyncGenerator[bytes, None]:
    for chunk in chunks:
        yield chunk


def _json(status: int, value: object) -> _Reply:
    return _Reply(status, "application/json", _chunks(encoded(value)))
