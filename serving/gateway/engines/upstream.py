"""An engine behind the gateway, over HTTP: whole answers and streams; every failure becomes an ApiError."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from typing import TypeVar

import httpx

from ramify.serving.gateway import sse
from ramify.serving.gateway.engines.client_isolation import Isolation, isolation_of
from ramify.serving.gateway.engines.liveness import STOOD_STILL, ConstrainedCalls, calls_held, work_counters
from ramify.serving.gateway.errors import (
    ApiError,
    error_detail,
    field_named_in,
    is_request_fault,
    is_too_long,
    no_descriptor,
)
from ramify.serving.protocol import wire
from ramify.serving.stall_clock import StallAwareClock, StallAwareTimeout

_T = TypeVar("_T")
HANG_S = 120.0
WHOLE_S = 600.0  # OpenAI's own clients give up after this time, unless told otherwise
_CONNECT_S = 10.0
_LEFT_S = 5.0  # seconds of silence: a client that leaves after that makes the engine suspect
_HEALTH_S = 5.0  # less than _CONNECT_S, so that an engine whose connection is slow does not count as dead
_NO_DESCRIPTOR = {errno.EMFILE, errno.ENFILE}
_OUR_OWN = {*_NO_DESCRIPTOR, errno.EADDRNOTAVAIL, errno.ENOBUFS, errno.ENOMEM}
_MOST_STATUS = 64 * 1024  # bytes read of a health page: that the server answers is what counts
_MOST_METRICS = 16 * 1024 * 1024
_MOST_ERROR = 1024 * 1024
_MOST_ANSWER = 256 * 1024 * 1024  # twenty times 4,096 tokens with the most log-probabilities that there are
_RETRY = ("retry-after", "retry-after-ms", "x-should-retry")  # headers of a refusal that the client gets
_JSON = {"content-type": "application/json"}
_NONE: Mapping[str, str] = {}
_PLAIN = {"accept-encoding": "identity"}  # a stream is passed on as it comes, so it must come uncompressed


class Upstream:
    """One OpenAI-compatible server.

    hang_s: after so many seconds of silence the server is considered hung. Silence on one stream counts; but if the
        server `queues` calls inside and may pause them, only silence on all of them.
    whole_s: the same for an answer that does not stream, which is silent until its end however hard the engine works
        on it; at least `hang_s` (docs/decisions/060). If an engine that queues serves other calls but no longer knows
        a call, that call counts as lost after `whole_s` (docs/decisions/060).
    loops: the engine works on all calls in one loop, which also serves its metrics. While a call with an output
        constraint may block that loop, the metrics show whether it turns; its `/health` does not, because llama.cpp
        answers that from other threads.

    ours: Ramify started it. Then nobody needs its address.

    Time in which this process's event loop was blocked does not count as silence.
    """

    def __init__(
        self,
        base_url: str,
        *,
        key: str | None = None,
        hang_s: float = HANG_S,
        whole_s: float = WHOLE_S,
        queues: bool = False,
        loops: bool = False,
        ours: bool = False,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._root = wire.api_root(base_url)
        self.shown = wire.redacted(self._root)
        self.hang_s, self.whole_s = hang_s, max(hang_s, whole_s)
        self.queues, self.ours = queues, ours
        self._loops = loops
        self.constrained = ConstrainedCalls()
        self.stood_still = False
        self._gateway: bool | None = None  # None: not known yet
        self.isolation: Isolation | None = None  # the same; see `keeps_apart`
        self._tools: bool | None = None
        self.awake = StallAwareClock()
        self._heard = 0.0  # when a part of any answer last came, or was seen to be made; by `awake`
        self._worked: tuple[bytes, ...] = ()  # the engine's own counters of its work
        self._counted = 0.0  # when they were last read
        self._given = 0  # calls sent to it and not ended
        self._tells = False  # its metrics say how many calls it has
        self._had_all = 0.0  # when that was last as many as it was given
        self._waits: set[asyncio.Timeout] = set()  # of calls that wait for a part of an answer
        self._over = False
        self.suspect = False  # it was silent for too long to a call, and nobody has looked since why
        self.working = 0  # whole answers in progress, which are silent until their end
        self.reading = 0  # streams in progress of which nothing has come yet
        self._key = (key or "").strip()
        self._http = httpx.AsyncClient(
            transport=transport or _transport(trust_env=not wire.is_loopback(self._root)),
            timeout=httpx.Timeout(None, connect=_CONNECT_S),
            auth=self._authorised if self._key else None,
        )

    async def aclose(self) -> None:
        """Close it. Calls inside are lost at once: closing a connection does not wake up who reads from it."""
        self._over = True
        now = asyncio.get_running_loop().time()
        for limit in self._waits:
            if not limit.expired():
                limit.reschedule(now)
        await self._http.aclose()

    async def get(self, path: str) -> Mapping[str, object]:
        async with self._opened(self._http.build_request("GET", self._root + path)) as response:
            return await self._whole(response)

    async def beside_calls(
        self, path: str, body: bytes | None = None, *, within_s: float
    ) -> tuple[httpx.Response, bytes] | None:
        """The answer to a message that is no call, and its beginning; None if none came in that time. Says nothing
        about the engine: neither an answer nor its absence counts."""
        url = self._root + path
        request = self._http.build_request("GET", url) if body is None else self._post(path, body, _NONE)
        try:
            async with self.awake.timeout(within_s):
                response = await self._http.send(request, stream=True)
                try:
                    return response, await _begun(response, _MOST_STATUS)
                finally:
                    await response.aclose()
        except (TimeoutError, httpx.RequestError):
            return None
        except RuntimeError:
            if not self._http.is_closed:
                raise
            return None

    async def is_gateway(self) -> bool:
        """Is it a Ramify gateway? A header of its list of models says so. Asked again until it has answered."""
        if self._gateway is None:
            await self._identify()
        return bool(self._gateway)

    async def keeps_apart(self) -> Isolation:
        """How it can keep the prompts of several clients apart. Asked again until it has answered."""
        if self.isolation is None:
            await self._identify()
        return self.isolation or Isolation.NONE

    async def _identify(self) -> None:
        request = self._http.build_request("GET", self._root + "/models")
        try:
            async with self._opened(request, _HEALTH_S) as response:
                self._gateway = wire.GATEWAY_HEADER in response.headers
                listed = await self._whole(response, _HEALTH_S)
                self.isolation = isolation_of(listed, gateway=self._gateway)
        except ApiError as error:
            if error.status == 404:  # it lists none
                self.isolation = Isolation.NONE

    async def shows_tools(self) -> bool:
        """Does its model's template have a place for tools? llama.cpp says so. Asked again until it has answered."""
        if self._tools is None:
            try:
                async with self.awake.timeout(_HEALTH_S):
                    said = wire.parse_object((await self._asked("/props", _MOST_ERROR))[1])
            except (TimeoutError, httpx.RequestError, wire.Malformed):
                return True
            caps = said.get("chat_template_caps")
            self._tools = not isinstance(caps, Mapping) or caps.get("supports_tools") is not False
        return self._tools

    async def lives(self) -> bool:
        """Does its server accept connections, without saying that its engine is dead? A server that is too busy to
        answer counts as alive."""
        for _ in range(2):  # the failure of a connection that was kept open too long means nothing
            try:
                async with asyncio.timeout(_HEALTH_S):
                    return await self._is_well()
            except TimeoutError:
                return True
            except httpx.ConnectError as error:
                return _for_want_of_our_own(error)
            except httpx.RequestError:
                continue
            except RuntimeError:
                if not self._http.is_closed:
                    raise
                return False  # this Upstream was closed while we asked
        return False

    async def answers(self, within_s: float) -> bool:
        """Does its server say within that time that it is well? True for one without a health page."""
        try:
            async with self.awake.timeout(within_s):
                return await self._is_well()
        except TimeoutError:
            return False
        except httpx.RequestError as error:
            return _for_want_of_our_own(error)

    async def count(self, within_s: float) -> None:
        """Read the engine's counters. If they have grown since the last reading and no call has heard anything since,
        the engine has worked: whole answers grow in this way. Also note how many calls it has."""
        given = self._given
        try:
            async with self.awake.timeout(within_s):
                status, said = await self._asked("/metrics", _MOST_METRICS)
        except (TimeoutError, httpx.RequestError):
            return
        whole = status == 200 and len(said) <= _MOST_METRICS  # in a line that was cut off, the number is wrong
        has = calls_held(said) if whole else None
        self._tells = has is not None
        if has is not None and has >= min(given, self._given):
            self._had_all = self.awake.time()
        worked = work_counters(said) if whole else ()
        if not worked:  # it reports no counters, which does not mean that it did not work
            return
        if worked != self._worked and self._worked and self._counted >= self._heard:
            self._speaks()
        self._worked, self._counted = worked, self.awake.time()

    @property
    def awaited(self) -> bool:
        """True while any call waits for a part of its answer."""
        return bool(self._waits)

    async def post(self, path: str, body: bytes, headers: Mapping[str, str] = _NONE) -> Mapping[str, object]:
        """Send a request and return the whole JSON answer. `headers`: of the client, to pass on."""
        self.working += 1
        self._given += 1
        try:
            async with self._opened(self._post(path, body, headers), self.whole_s) as response:
                whole = await self._whole(response, self.whole_s)
        finally:
            self.working -= 1
            self._given -= 1
        self._speaks()
        return whole

    async def stream(
        self, path: str, body: bytes, headers: Mapping[str, str] = _NONE
    ) -> AsyncGenerator[list[sse.Event], None]:
        """Yield the events of a stream, grouped as they came. The caller judges whether the end is complete."""
        silent = 1  # 0 once it has sent something
        self.reading += silent
        self._given += 1
        try:
            async with self._opened(self._post(path, body, headers)) as response:
                if not response.headers.get("content-type", "").startswith("text/event-stream"):
                    raise self.broken("it does not stream")
                async with aclosing(sse.events(response.aiter_bytes())) as events:
                    while (found := await self._within(_next(events), begun=not silent)) is not None:
                        self._speaks()
                        self.reading, silent = self.reading - silent, 0
                        yield found
        finally:
            self.reading -= silent
            self._given -= 1

    def broken(self, problem: str) -> ApiError:
        return ApiError(502, "upstream_failed", f"the engine at {self.shown} broke its answer: {problem}", lost=True)

    def _post(self, path: str, body: bytes, headers: Mapping[str, str]) -> httpx.Request:
        sent = {**headers, **_JSON, **_PLAIN}
        return self._http.build_request("POST", self._root + path, content=body, headers=sent)

    @asynccontextmanager
    async def _opened(
        self, request: httpx.Request, silent_s: float | None = None
    ) -> AsyncGenerator[httpx.Response, None]:
        try:
            response = await self._within(self._http.send(request, stream=True), silent_s)
            try:
                if not response.is_success:
                    raise await self._refused(response, request.url.path)
                yield response
            finally:
                await response.aclose()
        except httpx.ConnectError as error:
            if isinstance(error.__cause__, OSError) and error.__cause__.errno in _NO_DESCRIPTOR:
                raise no_descriptor("reach the engine") from error
            said = f"no engine at {self.shown}: {_told(error)}"
            raise ApiError(503, "upstream_unavailable", said, lost=True) from error
        except (httpx.RequestError, wire.Malformed) as error:
            raise self.broken(_told(error)) from error

    async def _whole(self, response: httpx.Response, silent_s: float | None = None) -> Mapping[str, object]:
        said = await self._within(_begun(response, _MOST_ANSWER), silent_s)
        if len(said) > _MOST_ANSWER:
            raise wire.Malformed(f"an answer longer than {_MOST_ANSWER} bytes")
        return wire.parse_object(said)

    async def _is_well(self) -> bool:
        """True by what its server says of itself, and for a server without such a page."""
        of_its_loop, gone = self._loops and self.constrained.suspected, self.constrained.asking()
        status, _ = await self._asked("/metrics" if of_its_loop else "/health", _MOST_STATUS)
        if of_its_loop:
            self.constrained.turned(gone)
        return status not in (500, 503)

    async def _asked(self, path: str, most: int) -> tuple[int, bytes]:
        """The status and text of a page beside the API. The text is cut a little beyond `most` bytes."""
        request = self._http.build_request("GET", self._root.removesuffix("/v1") + path)
        response = await self._http.send(request, stream=True)
        try:
            return response.status_code, await _begun(response, most)
        finally:
            await response.aclose()

    async def _refused(self, response: httpx.Response, path: str) -> ApiError:
        """The error for an error status. The engine's refusals pass through; its failures are ours and invite a
        retry."""
        status = response.status_code
        if status < 400:
            return self.broken(f"it answered {status} and sends its callers elsewhere")
        text = await self._within(_begun(response, _MOST_ERROR))
        detail = error_detail(text)
        message, code = str(detail.get("message") or "no reason given"), detail.get("code")
        if self._key:
            message = message.replace(self._key, "***")
        if status == 500 and is_request_fault(message):
            status = 400
        headers = {name: response.headers[name] for name in _RETRY if name in response.headers}
        if status in (401, 403):  # about the gateway's key: the client's was right
            said_by = f"the engine at {self.shown} does not accept the gateway's key ({status}): set --api-key"
            return ApiError(502, "upstream_auth_failed", said_by, headers={"x-should-retry": "false"})
        if status == 503 and "retry-after" in headers:
            said_by = f"the engine at {self.shown} is busy: {message}"
            return ApiError(503, "upstream_busy", said_by, headers=headers, lost=True)
        if status >= 500 and status != 501:
            said_by = f"the engine at {self.shown} answered {status}: {message}"
            return ApiError(502, "upstream_failed", said_by, headers=headers, lost=True)
        if is_too_long(detail):
            code = "context_length_exceeded"
        endpoint = path[path.rfind("/v1/") :]
        names_a_field = isinstance(detail.get("param"), str) or code == "model_not_found" or "model" in message
        if status in (404, 405, 501) and not names_a_field:
            said_by = f"the engine at {self.shown} has no {endpoint} ({status}: {message}): use another endpoint"
            return ApiError(404, "endpoint_unsupported", said_by, "path")
        param = detail.get("param")
        least = {"earliest_feasible_s": detail["earliest_feasible_s"]} if "earliest_feasible_s" in detail else {}
        return ApiError(
            status,
            code if isinstance(code, str) else "upstream_refused",
            message,
            param if isinstance(param, str) else field_named_in(message),
            least,
            headers,
            lost=status == 429,
        )

    async def _within(self, work: Awaitable[_T], silent_s: float | None = None, *, begun: bool = False) -> _T:
        silent_s = self.hang_s if silent_s is None else silent_s
        since = self.awake.time()
        try:
            async with asyncio.timeout(None) as limit:
                until = since + (0 if self._over else silent_s)
                with StallAwareTimeout(self.awake, limit, until, self._waited_for(since, begun)):
                    self._waits.add(limit)
                    try:
                        return await work
                    finally:
                        self._waits.discard(limit)
        except asyncio.CancelledError:
            if self.awake.time() > since + _LEFT_S and not self.heard_since(since):
                self.suspect = True  # its client left, so nobody would find out why
            raise
        except TimeoutError:
            if self.stood_still:
                said = f"the engine at {self.shown} got stuck on one of its calls, and was restarted"
                raise ApiError(502, STOOD_STILL, said, lost=True) from None
            if self._over:
                raise self.broken("it was stopped") from None
            if self._serves_others():
                said = f"the engine at {self.shown} serves other calls, and has lost this one: nothing for"
                raise ApiError(504, "upstream_timeout", f"{said} {self.whole_s:g} s", lost=True) from None
            self.suspect = True
            said = f"the engine at {self.shown} sent nothing for {silent_s:g} s"
            raise ApiError(504, "upstream_timeout", said, lost=True) from None

    def _speaks(self) -> None:
        """Note that the model itself has worked. A sign from its server alone does not count: a server still lists
        its models while the engine is stuck."""
        self._heard = self.awake.time()

    def heard_since(self, then: float) -> bool:
        """Has its model been seen to work since `then` (a time of `awake`)?"""
        return self._heard > then

    def _serves_others(self) -> bool:
        return self.queues and self.awake.time() < self._heard + self.hang_s

    def _waited_for(self, since: float, begun: bool) -> Callable[[], float]:
        """A function that returns how long a call may wait that has had nothing since `since`; for engines that
        queue.

        It waits as long as any call hears something. But the engine may have lost this call: if it has fewer calls
        than it was given, or, where it does not say how many it has, if the answer had begun.
        """

        def until() -> float:
            if not self.queues or self._over:
                return 0.0
            hung = self._heard + self.hang_s
            if not (begun or self._tells):
                return hung
            return min(hung, max(since + self.whole_s, self._had_all + self.hang_s))

        return until

    def _authorised(self, request: httpx.Request) -> httpx.Request:
        request.headers["authorization"] = f"Bearer {self._key}"
        return request


def _transport(*, trust_env: bool) -> httpx.AsyncBaseTransport:
    from ramify.serving.gateway.engines.aiohttp_transport import AiohttpTransport

    return AiohttpTransport(connect_s=_CONNECT_S, trust_env=trust_env)


def _for_want_of_our_own(error: httpx.RequestError) -> bool:
    """True if the request failed because this machine ran out of descriptors, ports or memory: that says nothing
    about the engine."""
    return isinstance(error.__cause__, OSError) and error.__cause__.errno in _OUR_OWN


async def _begun(response: httpx.Response, most: int) -> bytes:
    """The body of a response, cut a little beyond `most` bytes."""
    said = bytearray()
    async for part in response.aiter_bytes():
        said += part
        if len(said) > most:
            break
    return bytes(said)


async def _next(events: AsyncGenerator[list[sse.Event], None]) -> list[sse.Event] | None:
    return await anext(events, None)


def _told(error: Exception) -> str:
    return str(error) or type(error).__name__
