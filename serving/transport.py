"""Tags for clients that know nothing of them: one header on what any httpx client sends to the gateway.

    transport = TaggingTransport(httpx.AsyncHTTPTransport(), gateway.base_url)
    http = httpx.AsyncClient(transport=transport)
    client = AsyncOpenAI(base_url=gateway.base_url, api_key="none", http_client=http)
    with tagged(lambda: SLOTags(compound_id=run, compound_deadline_s=left())):
        await client.chat.completions.create(…)

Outside of `tagged`, for other origins, and where the client has set the header by itself, a request goes as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import httpx

from ramify.serving.protocol import wire
from ramify.serving.protocol.tags import HEADER, SLOTags

Tags = Callable[[], SLOTags]
_current: ContextVar[Tags | None] = ContextVar("ramify_tags", default=None)


@contextmanager
def tagged(tags: Tags) -> Iterator[None]:
    """While this is entered, in this task and those that it starts, requests to a gateway carry `tags()`.

    Asked anew for each request, since what is left of a deadline changes.
    """
    token = _current.set(tags)
    try:
        yield
    finally:
        _current.reset(token)


class TaggingTransport(httpx.AsyncBaseTransport, httpx.BaseTransport):
    """Around a transport, asynchronous or not. `gateway`: its base URL; nothing is added for any other origin."""

    def __init__(self, inner: httpx.AsyncBaseTransport | httpx.BaseTransport, gateway: str) -> None:
        self._inner = inner
        self._origin = _origin(httpx.URL(wire.api_root(gateway)))

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if not isinstance(self._inner, httpx.AsyncBaseTransport):
            raise TypeError(f"{type(self._inner).__name__} is no transport of an httpx.AsyncClient")
        self._tag(request)
        return await self._inner.handle_async_request(request)

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        if not isinstance(self._inner, httpx.BaseTransport):
            raise TypeError(f"{type(self._inner).__name__} is no transport of an httpx.Client")
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
