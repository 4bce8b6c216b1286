"""The model client: chat calls to any OpenAI-compatible server, with deadline tags, retries and typed errors.

Start at `LLMClient.chat`. Every call is streamed on the wire, even where the caller wants the whole answer: that way
the first token is measured when it comes, a server that stops in the middle is noticed, and there is one way to read
an answer.
"""

from __future__ import annotations

import asyncio
import math
import os
import random
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from typing import Self, TypeVar

import httpx

from ramify.fork_engine.close_on_fork import refuse_in_child
from ramify.serving.errors import (
    DeadlineInfeasible,
    LLMError,
    LLMRejected,
    LLMTimeout,
    LLMUnavailable,
    UsedAfterFork,
)
from ramify.serving.pacing import Pacer, paced, tokens_to_read
from ramify.serving.protocol import wire
from ramify.serving.protocol.tags import HEADER, SLOTags
from ramify.serving.types import ChatRequest, ChatResult, Message


class PrefixHints:
    """Sends prefix hints to one server, if it is a Ramify gateway. The list of its models says so; it is asked
    once."""

    def __init__(self, http: httpx.AsyncClient, base_url: str) -> None:
        self._http = http
        self._base_url = base_url
        self._taken: bool | None = None

    async def send(self, messages: Sequence[Message], *, model: str) -> str:
        """Returns "" once the prefix is read, else the reason why it will not be.

        Network errors become such a reason, and so does a text that has no UTF-8 (half a surrogate pair).
        """
        try:
            if self._taken is None:
                listed = await self._http.get(f"{self._base_url}/models")
                if listed.status_code >= 400:
                    return f"the server answered {listed.status_code} when asked for its models"
                self._taken = wire.GATEWAY_HEADER in listed.headers
            if not self._taken:
                return "the server is not a Ramify gateway"
            said = [{"role": one.role, "content": one.content} for one in messages]
            answer = await self._http.post(
                f"{self._base_url}{wire.PREFIX_PATH}", json={"model": model, "messages": said}
            )
            body = wire.parse_object(answer.content)
        except (httpx.RequestError, wire.Malformed, UnicodeEncodeError) as error:
            return str(error) or type(error).__name__
        if body.get("read") is True:
            return ""
        return str(body.get("why") or f"the gateway answered {answer.status_code}")


_T = TypeVar("_T")
_CONNECT_S = 10.0
_RELEASE_S = 2.0
_BACKOFF_BASE_S = 0.25
_BACKOFF_CAP_S = 8.0
_RETRYABLE = frozenset({408, 409, 425, 429})
_ERROR_BODY_BYTES = 64 * 1024


class _Retryable(Exception):
    """An attempt failed in a way that a retry may fix."""

    def __init__(self, problem: str, *, after_s: float = 0.0, hung: bool = False) -> None:
        self.problem = problem
        self.after_s = after_s
        self.hung = hung
        super().__init__(problem)


class LLMClient:
    """Calls one OpenAI-compatible server. An async context manager; one instance serves any number of calls at once.

    base_url: the address before `/chat/completions`; `/v1` is added to a bare host.
    model: the model to ask where a request says "default".
    timeout_s: limit in seconds for a call without a deadline, retries included.
    hang_s: after so many seconds of silence the server is considered hung, and the call is retried. None: only the
        time of the whole call limits the silence. A call that waits at a gateway hears nothing either, and the
        gateway itself notices an engine that hangs.
    retries: how often a failed call is tried again.
    send_xargs: put the tags into the body too, for a vLLM that is asked directly. They always go into a header, which
        other servers ignore.
    honours_seed: the server gives the same answer to the same request with a seed at temperature 0.
    """

    def __init__(
        self,
        base_url: str,
        *,
        api_key: str | None = None,
        model: str | None = None,
        timeout_s: float = 600,
        hang_s: float | None = None,
        retries: int = 8,
        send_xargs: bool = False,
        transport: httpx.AsyncBaseTransport | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        rng: random.Random | None = None,
        honours_seed: bool = False,
    ) -> None:
        self.honours_seed = honours_seed
        self.base_url = wire.api_root(base_url)
        self._api_key = (api_key or "").strip()
        self._model = model or "default"
        self._timeout_s = timeout_s
        self._hang_s = math.inf if hang_s is None else hang_s
        self._retries = retries
        self._send_xargs = send_xargs
        self._clock = clock
        self._sleep = sleep
        self._rng = rng or random.Random()
        self._shown_url = wire.redacted(self.base_url)
        self._http = httpx.AsyncClient(
            transport=transport,
            timeout=httpx.Timeout(None, connect=_CONNECT_S),
            limits=httpx.Limits(max_connections=None),
            trust_env=not wire.is_loopback(self.base_url),
            auth=self._authorised if self._api_key else None,
        )
        self._hints = PrefixHints(self._http, self.base_url)
        self._owner: int | None = None  # the process that opened the connections; None before the first request

    @property
    def whom(self) -> tuple[str, str | None]:
        """The server's address without secrets, and the model that "default" means (None: the server's own
        choice)."""
        return self._shown_url, None if self._model == "default" else self._model

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._owner in (None, os.getpid()):  # in a forked child, the parent closes its connections
            await self._http.aclose()

    async def chat(
        self, request: ChatRequest, *, tags: SLOTags | None = None, deadline_s: float | None = None
    ) -> ChatResult:
        """Return one whole answer within `deadline_s` seconds from now (else the tags' deadline, else `timeout_s`).

        Raises LLMUnavailable or LLMTimeout if retries did not help in time, LLMRejected if the server refused the
        request, and DeadlineInfeasible if the gateway says that the deadline cannot be met.
        """
        stream = ChatStream(self._pieces(request, tags or SLOTags(), deadline_s, restart=True))
        async with stream:
            async for _ in stream:
                pass
        return stream.result

    def stream(
        self,
        request: ChatRequest,
        *,
        tags: SLOTags | None = None,
        deadline_s: float | None = None,
        pace_tbt_s: float | None = None,
    ) -> ChatStream:
        """Stream the answer's text: `async with client.stream(r) as s: async for piece in s: …; s.result`.

        With `pace_tbt_s`, pieces that come faster than one in so many seconds are given out at that pace.
        Raises the errors of `chat`, and does not retry an answer that breaks after its first piece.
        """
        pieces = self._pieces(request, tags or SLOTags(), deadline_s, restart=False)
        if pace_tbt_s is not None:
            pieces = paced(pieces, Pacer(pace_tbt_s), self._clock, self._sleep, _tokens_to_read)
        return ChatStream(pieces)

    async def hint(self, messages: Sequence[Message], *, model: str = "default") -> str:
        """Ask a Ramify gateway to let an idle engine prefill the beginning of future calls; other servers get
        nothing.

        Returns "" once the prefix is read, else the reason why it will not be. A failure counts as a reason.
        """
        self._refuse_in_child()
        return self._scrubbed(await self._hints.send(messages, model=self._model if model == "default" else model))

    async def release(self, compound_id: str, branches: Sequence[str] | None = None) -> None:
        """Tell a Ramify gateway that no call will continue these branches of a workflow (None: the whole workflow),
        so that engines let go of their KV at once. Only a gateway may be told. A failure is ignored: an engine that
        hears nothing gives the KV up when it needs the room.
        """
        self._refuse_in_child()
        body = {"compound_id": compound_id, **({} if branches is None else {"branches": list(branches)})}
        with suppress(httpx.RequestError):
            await self._http.post(f"{self.base_url}{wire.RELEASE_PATH}", json=body, timeout=_RELEASE_S)

    async def models(self) -> tuple[str, ...]:
        """The names of the models that the server serves. Asks once, without retries. Raises the errors of `chat`."""
        started = self._clock()
        expires = started + min(self._timeout_s, _CONNECT_S)
        try:
            response = await self._send(self._http.build_request("GET", f"{self.base_url}/models"), expires)
            try:
                body = wire.parse_object(await self._within(response.aread(), expires))
            finally:
                await response.aclose()
            listed = body.get("data")
            if not isinstance(listed, list):
                raise wire.Malformed("no list of models")
            return tuple(str(m["id"]) for m in listed if isinstance(m, Mapping) and "id" in m)
        except _Retryable as failure:
            raise self._given_up(failure, attempts=1, took_s=self._clock() - started) from failure
        except (wire.Malformed, httpx.RequestError) as error:
            raise LLMUnavailable(
                f"{self._shown_url}/models: {_told(error)}. Is it an OpenAI-compatible server?"
            ) from error

    async def _pieces(
        self, request: ChatRequest, tags: SLOTags, deadline_s: float | None, *, restart: bool
    ) -> AsyncGenerator[str | ChatResult, None]:
        """Try until one answer is whole. Yields its pieces of text (of the last attempt only, unless `restart`), then
        its result."""
        started = self._clock()
        limit = next(s for s in (deadline_s, tags.deadline_left(time.time()), self._timeout_s) if s is not None)
        expires = started + limit
        attempt, given_out = 0, False
        while True:
            attempt += 1
            answer = wire.Answer()
            try:
                async with aclosing(
                    self._exchange(request, tags.aged(self._clock() - started), expires, answer)
                ) as new:
                    async for piece in new:
                        given_out = given_out or not restart
                        yield piece
                yield answer.result(attempts=attempt)
                return
            except (httpx.RequestError, wire.Malformed) as error:
                failure = _Retryable(self._scrubbed(_told(error)))
            except _Retryable as error:
                failure = error
            pause = max(failure.after_s, self._jitter(attempt))
            if given_out or attempt > self._retries or self._clock() + pause >= expires:
                raise self._given_up(failure, attempts=attempt, took_s=self._clock() - started) from failure
            await self._sleep(pause)

    async def _exchange(
        self, request: ChatRequest, tags: SLOTags, expires: float, answer: wire.Answer
    ) -> AsyncGenerator[str, None]:
        """Send one request and read its answer into `answer`. Yields the text as it comes."""
        model = self._model if request.model == "default" else request.model
        body = wire.to_body(request, model=model)
        xargs = tags.to_xargs()
        if self._send_xargs and xargs:
            body["vllm_xargs"] = xargs
        post = self._http.build_request(
            "POST",
            f"{self.base_url}/chat/completions",
            json=body,
            headers={HEADER: tags.to_header()} if xargs else {},
        )
        response = await self._send(post, expires)
        try:
            if not response.headers.get("content-type", "").startswith("text/event-stream"):
                whole = await self._within(response.aread(), expires)
                yield answer.add(wire.parse_object(whole))
                return
            async with aclosing(wire.sse_data(response.aiter_bytes())) as events:
                while (data := await self._within(_next(events), expires)) not in (None, wire.DONE):
                    chunk = wire.parse_object(data or "")
                    if "error" in chunk:
                        raise self._refused(200, chunk)
                    if piece := answer.add(chunk):
                        yield piece
        finally:
            await response.aclose()

    async def _send(self, request: httpx.Request, expires: float) -> httpx.Response:
        """Send a request. Raises the error that an error status stands for."""
        self._refuse_in_child()
        response = await self._within(self._http.send(request, stream=True), expires)
        if response.status_code < 400:
            return response
        try:
            text = b""
            async with aclosing(response.aiter_bytes()) as chunks:  # type: ignore[type-var]
                while len(text) < _ERROR_BODY_BYTES and (chunk := await self._within(_next(chunks), expires)):
                    text += chunk
        finally:
            await response.aclose()
        try:
            body = wire.parse_object(text)
        except wire.Malformed:
            body = {"error": {"message": text[:200].decode("utf-8", "replace")}}
        raise self._refused(response.status_code, body, response.headers.get("retry-after"))

    def _refuse_in_child(self) -> None:
        """Raise UsedAfterFork in a forked child: two processes on one connection would read each other's answers."""
        self._owner = self._owner or os.getpid()
        refuse_in_child(self._owner, f"the client for {self._shown_url}", UsedAfterFork)

    def _refused(self, status: int, body: Mapping[str, object], retry_after: str | None = None) -> Exception:
        """The exception that an error body stands for: _Retryable, or an LLMError."""
        error = body.get("error")
        said = error if isinstance(error, Mapping) else {"message": error or body.get("detail") or "no reason given"}
        code = said.get("code")
        message = self._scrubbed(str(said.get("message") or "no reason given"))
        if code == "deadline_infeasible":
            earliest = said.get("earliest_feasible_s")
            return DeadlineInfeasible(
                f"{self._shown_url} refused the call: {message}. Give it a later deadline",
                earliest_feasible_s=earliest if isinstance(earliest, int | float) else None,
            )
        if status in _RETRYABLE or status >= 500 or status < 400:
            where = f"answered {status}" if status >= 400 else "broke off its answer"
            return _Retryable(f"it {where}: {message}", after_s=_seconds_of(retry_after))
        return LLMRejected(
            f"{self._shown_url} refused the request ({status}): {message}. "
            + ("Give the right API key" if status in (401, 403) else "Check the model's name and the request"),
            status=status,
            code=code if isinstance(code, str) else None,
        )

    async def _within(self, work: Awaitable[_T], expires: float) -> _T:
        """Await one step of an exchange. Raises _Retryable if the server hangs."""
        left = expires - self._clock()
        try:
            async with asyncio.timeout(max(0.0, min(self._hang_s, left))):
                return await work
        except TimeoutError:
            waited = "before the deadline" if left <= self._hang_s else f"for {self._hang_s:g} s"
            raise _Retryable(f"it sent nothing {waited}", hung=True) from None

    def _given_up(self, failure: _Retryable, *, attempts: int, took_s: float) -> LLMError:
        text = (
            f"no answer from {self._shown_url} after {attempts} attempt(s) in {took_s:.1f} s: {failure.problem}. "
            "Check that the server runs and is reachable" + (", or allow more time" if failure.hung else "")
        )
        return LLMTimeout(text) if failure.hung else LLMUnavailable(text)

    def _authorised(self, request: httpx.Request) -> httpx.Request:
        request.headers["authorization"] = f"Bearer {self._api_key}"
        return request

    def _jitter(self, attempt: int) -> float:
        return self._rng.uniform(0.0, min(_BACKOFF_CAP_S, _BACKOFF_BASE_S * 2 ** (attempt - 1)))

    def _scrubbed(self, text: str) -> str:
        return text.replace(self._api_key, "***") if self._api_key else text


class ChatStream:
    """An answer that is being streamed: iterate over its pieces of text; then `result` is the whole."""

    def __init__(self, pieces: AsyncGenerator[str | ChatResult, None]) -> None:
        self._pieces = pieces
        self._result: ChatResult | None = None

    @property
    def result(self) -> ChatResult:
        if self._result is None:
            raise RuntimeError("the answer is not complete yet: read the stream to its end first")
        return self._result

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._pieces.aclose()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> str:
        item = await anext(self._pieces)
        if isinstance(item, ChatResult):
            self._result = item
            raise StopAsyncIteration
        return item


async def _next(items: AsyncIterator[_T]) -> _T | None:
    return await anext(items, None)


def _told(error: Exception) -> str:
    return str(error) or type(error).__name__


def _seconds_of(retry_after: str | None) -> float:
    """The seconds of a Retry-After header; 0 for its date form, which model servers rarely send."""
    try:
        return max(0.0, float(retry_after or 0.0))
    except ValueError:
        return 0.0


def _tokens_to_read(piece: str | ChatResult) -> float:
    return tokens_to_read(piece) if isinstance(piece, str) else 0.0
