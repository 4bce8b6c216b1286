"""One client's side of a call: its request read and checked, and the way back to it."""

from __future__ import annotations

import json
from collections.abc import Mapping

from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from ramify.serving.errors import BadTags
from ramify.serving.gateway.errors import ApiError, bad_request
from ramify.serving.tags import HEADER, SLOTags

MAX_BODY = 8 * 1024 * 1024
_MAX_DRAIN = 64 * 1024 * 1024  # how much of a body that is too long is read, so that its sender hears the answer


class Out:
    """The way back to one client: a status is sent with the first thing that there is to say, not before."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._asgi = (scope, receive, send)
        self._send = send
        self._begun = False

    async def whole(self, body: Mapping[str, object]) -> None:
        await JSONResponse(dict(body))(*self._asgi)

    async def event(self, data: str) -> None:
        if not self._begun:
            self._begun = True
            headers = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]
            await self._send({"type": "http.response.start", "status": 200, "headers": headers})
        await self._send({"type": "http.response.body", "body": f"data: {data}\n\n".encode(), "more_body": True})

    async def end(self) -> None:
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def error(self, error: ApiError) -> None:
        """As a response; as an event, and no `[DONE]`, where the answer has begun."""
        if self._begun:
            await self.event(json.dumps(error.body()))
            await self.end()
        else:
            await JSONResponse(error.body(), error.status, dict(error.headers))(*self._asgi)


async def body_of(request: Request) -> Mapping[str, object]:
    """The JSON object that was sent. Raises ApiError, naming what is wrong."""
    kept, size = bytearray(), 0
    async for chunk in request.stream():
        size += len(chunk)
        if size <= MAX_BODY:
            kept += chunk
        elif size > _MAX_DRAIN:
            break
    if size > MAX_BODY:
        raise bad_request("body", f"body: longer than {MAX_BODY} bytes", status=413)
    try:
        body = json.loads(kept.decode("utf-8"), parse_constant=_no_constant)
    except UnicodeDecodeError as error:
        raise bad_request("body", f"body: not UTF-8 at byte {error.start}") from error
    except (ValueError, RecursionError) as error:
        raise bad_request("body", f"body: not JSON: {error}") from error
    if not isinstance(body, dict):
        raise bad_request("body", "body: must be a JSON object")
    return body


def tags_of(request: Request, body: Mapping[str, object]) -> SLOTags:
    """The tags of all routes together. Raises ApiError, naming the field."""
    try:
        tags = SLOTags.from_body(body)
        for header in request.headers.getlist(HEADER):
            tags = tags.merged(SLOTags.from_header(header))
    except BadTags as error:
        raise bad_request(error.field, str(error)) from error
    return tags


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is no JSON number")


async def left(receive: Receive) -> None:
    """Returns when the client has gone."""
    while (await receive())["type"] != "http.disconnect":
        pass
