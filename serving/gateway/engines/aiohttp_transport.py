"""aiohttp under httpx: the gateway's transport to its engines.

httpx's own transport spends about 0.1 ms of CPU on each chunk of a stream, which is most of what a streamed token may
cost the gateway; aiohttp's parser is written in C. The rest of the gateway sees only httpx, so that its tests can use
a scripted transport.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace

import aiohttp
import httpx

from ramify.serving.stall_clock import TICK_S, StallAwareClock

_DIALS = 64  # connections opened at the same time


class AiohttpTransport(httpx.AsyncBaseTransport):
    """Any number of kept-alive connections; unread bodies are never pooled. Raises httpx's errors."""

    def __init__(self, *, connect_s: float, trust_env: bool) -> None:
        self._timeout = aiohttp.ClientTimeout(total=None, sock_connect=connect_s, connect=None, sock_read=None)
        self._trust_env = trust_env
        self._awake = StallAwareClock()
        self._session: aiohttp.ClientSession | None = None

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        try:
            response = await self._sent(request)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise _as_httpx(error) from error
        headers = [(name.encode(), value.encode()) for name, value in response.headers.items()]
        return httpx.Response(response.status, headers=headers, stream=_Body(response), request=request)

    async def _sent(self, request: httpx.Request) -> aiohttp.ClientResponse:
        """Send a request. Retry if the time to connect ran out while this event loop was blocked: the connection may
        have been made."""
        loop = asyncio.get_running_loop()
        while True:
            with self._awake as clock:
                held_up = loop.time() - clock.time()
                try:
                    return await self._opened().request(
                        request.method,
                        str(request.url.copy_with(userinfo=b"")),  # httpx has moved user and password into a header
                        headers=request.headers.multi_items(),
                        data=request.content or None,
                        allow_redirects=False,
                        timeout=self._timeout,
                    )
                except aiohttp.ConnectionTimeoutError:
                    if loop.time() - clock.time() - held_up < TICK_S:
                        raise

    async def aclose(self) -> None:
        if self._session is not None:
            await self._session.close()

    def _opened(self) -> aiohttp.ClientSession:
        if self._session is None:  # not before the first request, because it needs a running loop
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0),
                auto_decompress=False,
                trust_env=self._trust_env,
                cookie_jar=aiohttp.DummyCookieJar(),
                trace_configs=[_in_turn(_DIALS)],
            )
        return self._session


def _in_turn(most: int) -> aiohttp.TraceConfig:
    """Limit how many connections are being opened at once; the others wait without a limit. If thousands were opened
    together, the loop would return to the last ones after their time to connect, and call a live engine dead."""
    turns = asyncio.Semaphore(most)

    async def begin(_: aiohttp.ClientSession, call: SimpleNamespace, __: object) -> None:
        await turns.acquire()
        call.dials = True

    async def end(_: aiohttp.ClientSession, call: SimpleNamespace, __: object) -> None:
        if getattr(call, "dials", False):
            call.dials = False
            turns.release()

    trace = aiohttp.TraceConfig()
    trace.on_connection_create_start.append(begin)
    trace.on_connection_create_end.append(end)
    trace.on_request_exception.append(end)
    return trace


class _Body(httpx.AsyncByteStream):
    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            async for chunk in self._response.content.iter_any():
                yield chunk
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise _as_httpx(error) from error

    async def aclose(self) -> None:
        self._response.close()  # does nothing after the last byte, when the connection has returned to the pool


def _as_httpx(error: Exception) -> httpx.TransportError:
    """ConnectError if the server could not be reached, ReadError if it broke off."""
    kinds = (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError, aiohttp.ClientProxyConnectionError)
    kind = httpx.ConnectError if isinstance(error, kinds) else httpx.ReadError
    if isinstance(error, aiohttp.ClientPayloadError):  # aiohttp's text is for those who wrote the server
        return kind("its connection ended in the middle")
    return kind(str(error) or type(error).__name__)
