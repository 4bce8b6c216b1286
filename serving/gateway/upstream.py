"""The engine behind the gateway, over HTTP: whole answers and streams, and every failure as an ApiError."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Mapping
from contextlib import aclosing, asynccontextmanager
from typing import TypeVar

import httpx

from ramify.serving import wire
from ramify.serving.gateway.errors import ApiError

_T = TypeVar("_T")
_CONNECT_S = 10.0


class Upstream:
    """One OpenAI-compatible server. `hang_s` of silence and it is taken for hung."""

    def __init__(
        self, base_url: str, *, key: str | None, hang_s: float, transport: httpx.AsyncBaseTransport | None
    ) -> None:
        self._root = wire.api_root(base_url)
        self._shown = wire.redacted(self._root)
        self._hang_s = hang_s
        self._key = (key or "").strip()
        self._http = httpx.AsyncClient(
            transport=transport,
            timeout=httpx.Timeout(None, connect=_CONNECT_S),
            limits=httpx.Limits(max_connections=None),
            trust_env=not wire.is_loopback(self._root),
            auth=self._authorised if self._key else None,
        )

    async def aclose(self) -> None:
        await self._http.aclose()

    async def get(self, path: str) -> Mapping[str, object]:
        async with self._opened(self._http.build_request("GET", self._root + path)) as response:
            return await self._whole(response)

    async def post(self, path: str, body: Mapping[str, object]) -> Mapping[str, object]:
        """The whole JSON answer."""
        async with self._opened(self._http.build_request("POST", self._root + path, json=body)) as response:
            return await self._whole(response)

    async def stream(self, path: str, body: Mapping[str, object]) -> AsyncGenerator[str, None]:
        """The `data:` of each event, up to and with `[DONE]`. Raises ApiError where it ends before that."""
        async with self._opened(self._http.build_request("POST", self._root + path, json=body)) as response:
            if not response.headers.get("content-type", "").startswith("text/event-stream"):
                raise self._broken("it does not stream")
            async with aclosing(wire.sse_data(response.aiter_bytes())) as events:
                while (data := await self._within(_next(events))) is not None:
                    yield data
                    if data == wire.DONE:
                        return
            raise self._broken("it ended its stream before the answer's end")

    @asynccontextmanager
    async def _opened(self, request: httpx.Request) -> AsyncGenerator[httpx.Response, None]:
        try:
            response = await self._within(self._http.send(request, stream=True))
            try:
                if response.status_code >= 400:
                    raise await self._refused(response)
                yield response
            finally:
                await response.aclose()
        except httpx.ConnectError as error:
            raise ApiError(503, "upstream_unavailable", f"no engine at {self._shown}: {_told(error)}") from error
        except (httpx.RequestError, wire.Malformed) as error:
            raise self._broken(_told(error)) from error

    async def _whole(self, response: httpx.Response) -> Mapping[str, object]:
        return wire.parse_object(await self._within(response.aread()))

    async def _refused(self, response: httpx.Response) -> ApiError:
        """The engine's own refusal goes through; its failures are ours, and invite a retry."""
        status = response.status_code
        text = await self._within(response.aread())
        try:
            said = wire.parse_object(text).get("error")
        except wire.Malformed:
            said = None
        detail = said if isinstance(said, Mapping) else {"message": text[:200].decode("utf-8", "replace")}
        message, code = str(detail.get("message") or "no reason given"), detail.get("code")
        if self._key:
            message = message.replace(self._key, "***")
        if status >= 500:
            return ApiError(502, "upstream_failed", f"the engine at {self._shown} answered {status}: {message}")
        after = response.headers.get("retry-after")
        param = detail.get("param")
        return ApiError(
            status,
            code if isinstance(code, str) else "upstream_refused",
            message,
            param if isinstance(param, str) else None,
            headers={"retry-after": after} if after else {},
        )

    async def _within(self, work: Awaitable[_T]) -> _T:
        try:
            async with asyncio.timeout(self._hang_s):
                return await work
        except TimeoutError:
            raise ApiError(
                504, "upstream_timeout", f"the engine at {self._shown} sent nothing for {self._hang_s:g} s"
            ) from None

    def _broken(self, problem: str) -> ApiError:
        return ApiError(502, "upstream_failed", f"the engine at {self._shown} broke its answer: {problem}")

    def _authorised(self, request: httpx.Request) -> httpx.Request:
        request.headers["authorization"] = f"Bearer {self._key}"
        return request


async def _next(events: AsyncGenerator[str, None]) -> str | None:
    return await anext(events, None)


def _told(error: Exception) -> str:
    return str(error) or type(error).__name__
