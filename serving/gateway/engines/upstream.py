"""An engine behind the gateway, over HTTP: whole answers and streams, and every failure as an ApiError."""

from __future__ import annotations

import asyncio
import errno
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from typing import TypeVar

import httpx

from ramify.serving.gateway import sse
from ramify.serving.gateway.engines.liveness import STOOD_STILL, ConstrainedCalls
from ramify.serving.gateway.errors import ApiError, field_named_in, is_request_fault
from ramify.serving.protocol import wire
from ramify.serving.stall_clock import StallAwareClock, StallAwareTimeout

_T = TypeVar("_T")
HANG_S = 120.0
WHOLE_S = 600.0  # then OpenAI's own clients leave, unless told otherwise
_CONNECT_S = 10.0
_LEFT_S = 5.0  # of silence: a call that is left after that tells of its engine
_HEALTH_S = 5.0  # less, so that a connection that is slow to be made is no dead engine
_OUR_OWN = {errno.EMFILE, errno.ENFILE, errno.EADDRNOTAVAIL, errno.ENOBUFS, errno.ENOMEM}
_MOST_STATUS = 64 * 1024  # of what a server says of its own health: that it says it is what counts
_MOST_METRICS = 16 * 1024 * 1024
_MOST_ERROR = 1024 * 1024
_MOST_ANSWER = 256 * 1024 * 1024  # twenty times 4,096 tokens with as many log-probabilities as there are
_JSON = {"content-type": "application/json"}
_PLAIN = {"accept-encoding": "identity"}  # a stream is passed on as it comes, so it must come uncompressed


class Upstream:
    """One OpenAI-compatible server. `hang_s` of silence and it is taken for hung: of silence on a stream, or, where
    it `queues` calls inside and may pause them, of silence on all of them.

    An answer that does not stream is silent until its end, however hard the engine works on it: it has `whole_s`, or
    `hang_s` where that is more (docs/decisions/060). Time that this loop was held up for is nobody's silence. Where
    an engine that queues works for others, a call that it does not know any more is lost after `whole_s` (283).

    `loops`: it works on all calls in one loop, which also answers for its metrics. While a call with a shape may hold
    that loop up, these tell whether it turns; its `/health`, which llama.cpp answers from other threads, does not.
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
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._root = wire.api_root(base_url)
        self.shown = wire.redacted(self._root)
        self.hang_s, self.whole_s = hang_s, max(hang_s, whole_s)
        self.queues = queues
        self._loops = loops
        self.shaped = ConstrainedCalls()
        self.stood_still = False
        self._gateway: bool | None = None  # not known yet
        self._tools: bool | None = None
        self.awake = StallAwareClock()
        self._heard = 0.0  # when a part of any answer came last, or was seen to be in the making: by that clock
        self._worked: tuple[bytes, ...] = ()  # by the engine's own count
        self._counted = 0.0  # when that was asked last
        self._given = 0  # calls that it has
        self._tells = False  # how many it has, by its own count
        self._had_all = 0.0  # when that was last as many as it was given
        self._waits: set[asyncio.Timeout] = set()  # for a part of an answer
        self._over = False
        self.suspect = False  # it was silent for too long to a call, and nobody has looked since why
        self.working = 0  # on whole answers, which are silent until their end
        self.reading = 0  # prompts of streams of which nothing has come yet
        self._key = (key or "").strip()
        self._http = httpx.AsyncClient(
            transport=transport or _transport(trust_env=not wire.is_loopback(self._root)),
            timeout=httpx.Timeout(None, connect=_CONNECT_S),
            auth=self._authorised if self._key else None,
        )

    async def aclose(self) -> None:
        """Calls that are in it are lost at once: a connection that is closed here need not tell who reads from it."""
        self._over = True
        now = asyncio.get_running_loop().time()
        for limit in self._waits:
            if not limit.expired():
                limit.reschedule(now)
        await self._http.aclose()

    async def get(self, path: str) -> Mapping[str, object]:
        async with self._opened(self._http.build_request("GET", self._root + path)) as response:
            return await self._whole(response)

    async def is_gateway(self) -> bool:
        """Is it a gateway like this one? It says so beside its models, and is asked until it has answered."""
        if self._gateway is None:
            request = self._http.build_request("GET", self._root + "/models")
            try:
                async with self._opened(request, _HEALTH_S) as response:
                    self._gateway = wire.GATEWAY_HEADER in response.headers
            except ApiError:
                return False
        return self._gateway

    async def shows_tools(self) -> bool:
        """Has its model's template a place for tools? llama.cpp says so, and is asked until it has answered."""
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
        """Does its server take connections, and not say itself that its engine is dead? One that is too busy to
        answer lives."""
        for _ in range(2):  # a connection that was kept open too long says nothing
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
                return False  # its life was over while we asked
        return False

    async def answers(self, within_s: float) -> bool:
        """Does its server say in that time that it is well? One that has no such question is well, too."""
        try:
            async with self.awake.timeout(within_s):
                return await self._is_well()
        except TimeoutError:
            return False
        except httpx.RequestError as error:
            return _for_want_of_our_own(error)

    async def count(self, within_s: float) -> None:
        """Ask it what its model has done. Where that is more than when it was asked last, and nobody has heard of it
        since, it has spoken, though to no call yet: whole answers grow so. And how many calls it has."""
        given = self._given
        try:
            async with self.awake.timeout(within_s):
                status, said = await self._asked("/metrics", _MOST_METRICS)
        except (TimeoutError, httpx.RequestError):
            return
        whole = status == 200 and len(said) <= _MOST_METRICS  # of a line that is cut the number is another one
        has = calls_held(said) if whole else None
        self._tells = has is not None
        if has is not None and has >= min(given, self._given):
            self._had_all = self.awake.time()
        worked = work_counters(said) if whole else ()
        if not worked:  # that it does not say is no work
            return
        if worked != self._worked and self._worked and self._counted >= self._heard:
            self._speaks()
        self._worked, self._counted = worked, self.awake.time()

    @property
    def awaited(self) -> bool:
        """Does any call wait for a part of its answer?"""
        return bool(self._waits)

    async def post(self, path: str, body: bytes) -> Mapping[str, object]:
        """The whole JSON answer."""
        self.working += 1
        self._given += 1
        try:
            async with self._opened(self._post(path, body), self.whole_s) as response:
                whole = await self._whole(response, self.whole_s)
        finally:
            self.working -= 1
            self._given -= 1
        self._speaks()
        return whole

    async def stream(self, path: str, body: bytes) -> AsyncGenerator[list[sse.Event], None]:
        """The events, as many at a time as came together. Its end is for the caller to judge."""
        silent = 1  # of those; none once it has spoken
        self.reading += silent
        self._given += 1
        try:
            async with self._opened(self._post(path, body)) as response:
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

    def _post(self, path: str, body: bytes) -> httpx.Request:
        return self._http.build_request("POST", self._root + path, content=body, headers={**_JSON, **_PLAIN})

    @asynccontextmanager
    async def _opened(
        self, request: httpx.Request, silent_s: float | None = None
    ) -> AsyncGenerator[httpx.Response, None]:
        try:
            response = await self._within(self._http.send(request, stream=True), silent_s)
            try:
                if response.status_code >= 400:
                    raise await self._refused(response, request.url.path)
                yield response
            finally:
                await response.aclose()
        except httpx.ConnectError as error:
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
        """By what its server says of itself; one that has no such question is."""
        of_its_loop, gone = self._loops and self.shaped.suspected, self.shaped.asking()
        status, _ = await self._asked("/metrics" if of_its_loop else "/health", _MOST_STATUS)
        if of_its_loop:
            self.shaped.turned(gone)
        return status not in (500, 503)

    async def _asked(self, path: str, most: int) -> tuple[int, bytes]:
        """Status and text of a page beside the API, of that no more than a little beyond `most`."""
        request = self._http.build_request("GET", self._root.removesuffix("/v1") + path)
        response = await self._http.send(request, stream=True)
        try:
            return response.status_code, await _begun(response, most)
        finally:
            await response.aclose()

    async def _refused(self, response: httpx.Response, path: str) -> ApiError:
        """The engine's own refusal goes through; its failures are ours, and invite a retry."""
        status = response.status_code
        text = await self._within(_begun(response, _MOST_ERROR))
        try:
            said = wire.parse_object(text).get("error")
        except wire.Malformed:
            said = None
        detail = said if isinstance(said, Mapping) else {"message": text[:200].decode("utf-8", "replace")}
        message, code = str(detail.get("message") or "no reason given"), detail.get("code")
        if self._key:
            message = message.replace(self._key, "***")
        if status == 500 and is_request_fault(message):
            status = 400
        if status >= 500 and status != 501:
            said_by = f"the engine at {self.shown} answered {status}: {message}"
            return ApiError(502, "upstream_failed", said_by, lost=True)
        endpoint = path[path.rfind("/v1/") :]
        names_a_field = isinstance(detail.get("param"), str) or code == "model_not_found" or "model" in message
        if status in (404, 405, 501) and not names_a_field:
            said_by = f"the engine at {self.shown} has no {endpoint} ({status}: {message}): use another endpoint"
            return ApiError(404, "endpoint_unsupported", said_by, "path")
        after = response.headers.get("retry-after")
        param = detail.get("param")
        again = response.headers.get("x-should-retry")
        least = {"earliest_feasible_s": detail["earliest_feasible_s"]} if "earliest_feasible_s" in detail else {}
        return ApiError(
            status,
            code if isinstance(code, str) else "upstream_refused",
            message,
            param if isinstance(param, str) else field_named_in(message),
            least,
            {k: v for k, v in (("retry-after", after), ("x-should-retry", again)) if v is not None},
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
                self.suspect = True  # its client left, and nobody would find out why
            raise
        except TimeoutError:
            if self.stood_still:
                said = f"the engine at {self.shown} stood still over one of its calls, and was ended"
                raise ApiError(502, STOOD_STILL, said, lost=True) from None
            if self._over:
                raise self.broken("it was ended") from None
            if self._serves_others():
                said = f"the engine at {self.shown} works for others, and has lost this call: nothing for"
                raise ApiError(504, "upstream_timeout", f"{said} {self.whole_s:g} s", lost=True) from None
            self.suspect = True
            said = f"the engine at {self.shown} sent nothing for {silent_s:g} s"
            raise ApiError(504, "upstream_timeout", said, lost=True) from None

    def _speaks(self) -> None:
        """The model itself, and not the server before it: that one lists its models while the engine is stuck."""
        self._heard = self.awake.time()

    def heard_since(self, then: float) -> bool:
        """Has its model been seen to work since? By the time of `awake`."""
        return self._heard > then

    def _serves_others(self) -> bool:
        return self.queues and self.awake.time() < self._heard + self.hang_s

    def _waited_for(self, since: float, begun: bool) -> Callable[[], float]:
        """Until when, by what is known then, a call that has had nothing `since` waits for more, where calls share
        one queue inside it: while anybody has a word of it. But it may have lost this one: where it has fewer calls
        than it was given, and also where it does not tell, if the answer had begun."""

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


_COUNTS = (  # of what a model has done, in the metrics of vLLM, ours or not, and of llama.cpp
    b"vllm:generation_tokens_total",
    b"vllm:prompt_tokens_total",
    b"vllm:kv_cache_usage_perc",  # a prompt that is read in pieces counts only once it is read; its KV grows
    b"llamacpp:n_decode_total",
)


_HELD = re.compile(  # calls that wait or run, in the metrics of vLLM and of a gateway like this one
    rb"^(?:vllm:num_requests_(?:running|waiting)|ramify_(?:running|waiting))(?:\{[^}\n]*\})?[ \t]+([0-9.e+]+)", re.M
)


def calls_held(metrics: bytes) -> float | None:
    """How many calls it has, paused ones too; None where it does not say."""
    counts = _HELD.findall(metrics)
    try:
        return sum(map(float, counts)) if counts else None
    except ValueError:
        return None


def work_counters(metrics: bytes) -> tuple[bytes, ...]:
    """The lines that say what a model has done; none where it does not say."""
    return tuple(line for line in metrics.splitlines() if line.startswith(_COUNTS))


def _transport(*, trust_env: bool) -> httpx.AsyncBaseTransport:
    from ramify.serving.gateway.engines.aiohttp_transport import AiohttpTransport

    return AiohttpTransport(connect_s=_CONNECT_S, trust_env=trust_env)


def _for_want_of_our_own(error: httpx.RequestError) -> bool:
    """Nobody could be asked, since this machine had no descriptor, port or memory left: that says nothing of whom."""
    return isinstance(error.__cause__, OSError) and error.__cause__.errno in _OUR_OWN


async def _begun(response: httpx.Response, most: int) -> bytes:
    """What it brings; of a longer one only so much that this is seen."""
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
