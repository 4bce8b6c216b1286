"""Add Ramify's tags to the requests of any httpx client, for libraries that know nothing of them.

    transport = TaggingTransport(httpx.AsyncHTTPTransport(), gateway.base_url)
    http = httpx.AsyncClient(transport=transport)
    client = AsyncOpenAI(base_url=gateway.base_url, api_key="none", http_client=http)
    with tagged(lambda: SLOTags(compound_id=run, compound_deadline_s=left())):
        await client.chat.completions.create(…)

A request goes out unchanged outside of `tagged`, to any other origin, and where the client set the header itself.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar, Token

import httpx

from ramify.serving.protocol import wire
from ramify.serving.protocol.tags import HEADER, SLOTags

Tags = Callable[[], SLOTags]
_current: ContextVar[Tags | None] = ContextVar("ramify_tags", default=None)


def tag(tags: Tags) -> Token[Tags | None]:
    """Begin what `tagged` does, until `untag` is called with what this returns."""
    return _current.set(tags)


untag = _current.reset


class tagged:
    """While entered, requests of this task, and of tasks that it starts, carry `tags()` to the gateway.

    `tags` is called for each request, because the remaining time changes.
    """

    __slots__ = ("_tags", "_token")

    def __init__(self, tags: Tags) -> None:
        self._tags = tags

    def __enter__(self) -> None:
        self._token = tag(self._tags)

    def __exit__(self, *raised: object) -> None:
        untag(self._token)


class TaggingTransport(httpx.AsyncBaseTransport, httpx.BaseTransport):
    """An httpx transport, sync or async, that tags requests to `gateway` (its base URL) and to no other origin."""

    def __init__(self, inner: httpx.AsyncBaseTransport | httpx.BaseTransport, gateway: str) -> None:
        self._inner = inner
        self._origin = _origin(httpx.URL(wire.api_root(gateway)))

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if not isinstance(self._inner, httpx.AsyncBaseTransport):
            raise TypeError(f"{type(self._inner).__name__} is not a transport of an httpx.AsyncClient")
        self._tag(request)
        return await self._inner.handle_async_request(request)

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        if not isinstance(self._inner, httpx.BaseTransport):
            raise TypeError(f"{type(self._inner).__name__} is not a transport of an httpx.Client")
        self._tag(request)
        return self._inner.handle_request(request)

    async def aclose(self) -> None:
        if isinstance(self._inner, httpx.AsyncBaseTransport):
            await self._inner.aclose()

    def close(self) -> None:
        if isinstance(self._inner, httpx.BaseTransport):
            self._inner.close()

    def _tag(self, request: httpx.Request) -> None:
        tags = _current.get()
        if tags is None or HEADER in request.headers or _origin(request.url) != self._origin:
            return
        said = tags()
        if said != SLOTags():
            request.headers[HEADER] = said.to_header()


def _origin(url: httpx.URL) -> tuple[str, str, int | None]:
    return url.scheme, url.host, url.port  # httpx leaves out a scheme's own port
