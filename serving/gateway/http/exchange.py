"""One client's request and response: read and check the request, send the answer back."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Callable, Mapping

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from ramify.serving.errors import BadTags
from ramify.serving.gateway import sse
from ramify.serving.gateway.dialects import CHAT, RESPONSES, Dialect
from ramify.serving.gateway.errors import STOPPING, ApiError, bad_request
from ramify.serving.gateway.formats.apis import ErrorFormat
from ramify.serving.gateway.formats.llama_cpp_request import check_characters
from ramify.serving.gateway.gateway import BODY_S, UnfinishedBodies
from ramify.serving.gateway.records.call_records import owned
from ramify.serving.http_guard import REQUEST_ID, request_id
from ramify.serving.protocol.agent_hints import read_hints, with_hints
from ramify.serving.protocol.tags import HEADER, SLOTags, _no_twins, is_tag

MAX_BODY = 8 * 1024 * 1024
MAX_PARTS = 500_000  # objects and arrays: parsing so many blocks the event loop for half a second
LARGE_BODY = 256 * 1024
"""Bytes above which a body is parsed and checked in a thread, so that other calls go on meanwhile."""
_MAX_DRAIN = 64 * 1024 * 1024  # bytes of a too long body that are read, so that its sender sees the answer
_SAYS_TOO = ("instructions", "previous_response_id", "conversation", "prompt")  # a response's other kinds of input
_SSE = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # nginx would hold the stream back
]
_TRACES = ("traceparent", "tracestate")  # W3C Trace Context


class JsonResponse(Response):
    """A JSON object in ASCII: clients can send half a surrogate pair, which has no UTF-8."""

    media_type = "application/json"

    def render(self, content: Mapping[str, object]) -> bytes:
        return sse.encode(content)


def error_response(error: ApiError, format_: ErrorFormat, request_id: str | None = None) -> JsonResponse:
    return JsonResponse(format_.body(error, request_id), error.status, dict(error.headers))


def refusal_response(request: Request, error: ApiError, format_: ErrorFormat) -> JsonResponse:
    """The response to a request that became no call, with the headers that name it."""
    trace = traced(request)
    response = error_response(error, format_, trace[REQUEST_ID])
    response.headers.update({**trace, format_.request_id_header: trace[REQUEST_ID]})
    return response


class ClientResponse:
    """The response to one client. Its status is sent with the first thing that there is to say, not before."""

    def __init__(
        self, scope: Scope, receive: Receive, send: Send, trace: Mapping[str, str], errors: ErrorFormat
    ) -> None:
        self._asgi = (scope, receive, send)
        self._send = send
        self._id = trace[REQUEST_ID]
        self._errors = errors
        self._headers = {**trace, errors.request_id_header: self._id}
        self._one_at_a_time = asyncio.Lock()
        self._sent = asyncio.Event()  # something, since `keep_alive` last looked
        self._over = False
        self.begun = False

    async def keep_alive(self, every_s: float) -> None:
        """Send a comment whenever the stream has had no byte for so long, from its beginning on: proxies end a
        connection that is silent. Clients do not see comments. A refusal that comes later is an event."""
        while not self._over:
            self._sent.clear()
            try:
                async with asyncio.timeout(every_s):
                    await self._sent.wait()
            except TimeoutError:
                if not self._over:
                    await self.bytes(b": waiting\n\n")

    async def whole(self, body: Mapping[str, object]) -> None:
        self.begun = True
        await JsonResponse(body, headers=self._headers)(*self._asgi)

    async def bytes(self, data: bytes) -> None:
        """Send a part of a stream of events."""
        self._sent.set()
        async with self._one_at_a_time:
            if not self.begun:
                self.begun = True
                headers = [*_SSE, *((name.encode(), value.encode()) for name, value in self._headers.items())]
                await self._send({"type": "http.response.start", "status": 200, "headers": headers})
            await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def end(self) -> None:
        self._over = True
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def error(self, error: ApiError) -> None:
        """Send an error: as a response, or, once the answer has begun, as an event without `[DONE]`."""
        self._over = True
        if self.begun:
            await self.bytes(self._errors.event(error, self._id))
            await self.end()
        else:
            response = error_response(error, self._errors, self._id)
            response.headers.update(self._headers)
            await response(*self._asgi)


async def body_of(request: Request, unfinished: UnfinishedBodies) -> Mapping[str, object]:
    """Read the JSON object of a request. Raises ApiError, which says what is wrong. `unfinished`: all bodies that the
    gateway is reading."""
    encoding = request.headers.get("content-encoding", "identity")
    if encoding.lower() != "identity":
        raise bad_request(
            "content-encoding", f"content-encoding: {encoding[:40]!r} is not supported: send it plain", status=415
        )
    try:
        async with unfinished.reading(BODY_S) as note:
            kept = await _read(request, note)
    except TimeoutError:
        if unfinished.stopped:
            raise STOPPING from None
        raise bad_request(
            "body", f"body: it did not arrive within {BODY_S:g} s, or before too many others", status=408
        ) from None
    except ClientDisconnect:
        raise bad_request("body", "body: the client left before its end") from None
    return _parsed(kept) if len(kept) <= LARGE_BODY else await asyncio.to_thread(_parsed, kept)


def is_large(request: Request) -> bool:
    """Whether to check a body in a thread. A body of unknown length counts as large."""
    said = request.headers.get("content-length", "")
    return not said.isdecimal() or int(said) > LARGE_BODY


def _parsed(kept: bytes) -> Mapping[str, object]:
    if (parts := kept.count(b"{") + kept.count(b"[")) > MAX_PARTS:
        raise bad_request(
            "body", f"body: {parts} opening brackets: at most {MAX_PARTS} objects and arrays are allowed"
        )
    try:
        body = json.loads(
            kept.decode("utf-8"), parse_constant=_no_constant, parse_float=_finite, object_pairs_hook=_no_twins
        )
    except BadTags as error:
        said = str(error).encode("ascii", "backslashreplace").decode()  # a field name can be half a surrogate pair
        raise bad_request(error.field, said) from error
    except UnicodeDecodeError as error:
        raise bad_request("body", f"body: not UTF-8 at byte {error.start}") from error
    except RecursionError as error:
        raise bad_request("body", "body: nested too deeply") from error
    except ValueError as error:
        raise bad_request("body", f"body: not JSON: {error}") from error
    if not isinstance(body, dict):
        raise bad_request("body", "body: must be a JSON object")
    return body


def tags_of(request: Request, body: Mapping[str, object], client: str = "") -> SLOTags:
    """The tags of all routes together, with the client's names as the gateway has them.

    Raises ApiError, which names the field, also for a tag in the URL: nobody reads it there.
    """
    for name in request.query_params:
        if is_tag(name):
            raise bad_request(name, f"{name}: not read from a URL: put it into the body, or into the header {HEADER}")
    try:
        tags = SLOTags.from_body(body)
        for header in request.headers.getlist(HEADER):
            tags = tags.merged(SLOTags.from_header(header))
        tags = owned(with_hints(tags, read_hints(body, request.headers)), client)
    except BadTags as error:
        raise bad_request(error.field, str(error)) from error
    return tags


def check_prompt(dialect: Dialect, body: Mapping[str, object], *, llama_cpp: bool = False) -> None:
    """Refuse a chat without a message, as OpenAI does, and characters that the engine cannot read. Raises ApiError.
    Some engines make a prompt of nothing, after which the model writes anything, at length."""
    if llama_cpp:
        check_characters(body)
    if dialect is CHAT and body.get(CHAT.prompt_field) == []:
        raise ApiError(400, "empty_array", "messages: must hold at least one message", "messages")
    if dialect is RESPONSES and body.get(RESPONSES.prompt_field) == [] and not any(body.get(n) for n in _SAYS_TOO):
        raise ApiError(400, "empty_array", "input: must hold at least one item", "input")


def flag_in(body: Mapping[str, object], name: str) -> bool:
    """The value of a flag. Raises ApiError, which names the field."""
    value = body.get(name)
    if value is None:
        return False
    if not isinstance(value, bool):
        raise bad_request(name, f"{name}: must be true or false")
    return value


async def _read(request: Request, note: Callable[[int], None]) -> bytes:
    kept, size = bytearray(), 0
    async for chunk in request.stream():
        size += len(chunk)
        if size <= MAX_BODY:
            note(len(chunk))
            kept += chunk
        elif size > _MAX_DRAIN:
            break
    if size > MAX_BODY:
        raise bad_request("body", f"body: longer than {MAX_BODY} bytes", status=413)
    return bytes(kept)


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is no JSON number")


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError(f"{text[:40]} is beyond what a number can hold")
    return value


def traced(request: Request) -> dict[str, str]:
    """The headers that name a request: for the engine, and back to the client."""
    found = {name: value for name in _TRACES if (value := request.headers.get(name)) and len(value) <= 512}
    return {**found, REQUEST_ID: request_id(request.scope["headers"])}


async def client_left(receive: Receive) -> None:
    """Returns when the client has left."""
    while (await receive())["type"] != "http.disconnect":
        pass
