"""The gateway: an OpenAI-compatible server that lets calls into an engine by their deadlines.

A call comes in with its tags, waits in the admission policy's order for one of the engine's slots, and is passed
on; the answer goes back as the engine gives it, with one addition: the `ramify` object (types.Ledger), in a whole
answer's body, or in one more chunk without choices before `[DONE]`. The first token is measured where the client
can first see one: in a stream when it passes, in a whole answer at its end.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import asdict, replace

import httpx
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from ramify.serving import wire
from ramify.serving.gateway.admission import Admission, Refused
from ramify.serving.gateway.errors import ApiError, bad_request, infeasible
from ramify.serving.gateway.exchange import Out, body_of, left, tags_of
from ramify.serving.gateway.records import Call, Outcome, Records
from ramify.serving.gateway.upstream import Upstream
from ramify.serving.policy.edf import EarliestDeadlineFirst
from ramify.serving.policy.types import AdmissionPolicy
from ramify.serving.tags import without_tags

_STOPPING = ApiError(503, "stopping", "the gateway is stopping: try again when it is back")


def create_gateway(
    upstream: str,
    *,
    slots: int,
    policy: AdmissionPolicy | None = None,
    clock: Callable[[], float] = time.monotonic,
    wall: Callable[[], float] = time.time,
    transport: httpx.AsyncBaseTransport | None = None,
    api_key: str | None = None,
    upstream_key: str | None = None,
    forward_xargs: bool = False,
    hang_s: float = 120.0,
) -> Starlette:
    """The gateway as an ASGI application.

    At most `slots` calls are in the engine at `upstream`. With `api_key` clients must show it. Tags stay here,
    since most servers refuse fields that they do not know, unless `forward_xargs` says that the engine reads them.
    """
    gateway = Gateway(
        Upstream(upstream, key=upstream_key, hang_s=hang_s, transport=transport),
        Admission(policy or EarliestDeadlineFirst(), slots, clock),
        Records(clock, wall),
        api_key,
        forward_xargs,
    )

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        try:
            yield
        finally:
            await gateway.upstream.aclose()

    app = Starlette(
        routes=[
            Route("/v1/chat/completions", _Completions(gateway, "/chat/completions"), methods=["POST"]),
            Route("/v1/completions", _Completions(gateway, "/completions"), methods=["POST"]),
            Route("/v1/models", gateway.models),
            Route("/v1/ramify/requests", gateway.requests),
            Route("/health", gateway.health),
            Route("/ready", gateway.ready),
        ],
        exception_handlers={ApiError: _on_api_error, HTTPException: _on_http_error},
        lifespan=lifespan,
    )
    app.state.gateway = gateway
    return app


class Gateway:
    """What all calls share. `app.state.gateway` of what create_gateway returns."""

    def __init__(
        self, upstream: Upstream, admission: Admission, records: Records, api_key: str | None, forward_xargs: bool
    ) -> None:
        self.upstream = upstream
        self.admission = admission
        self.records = records
        self.forward_xargs = forward_xargs
        self.answers: set[asyncio.Task[None]] = set()
        self.stopping = False
        self._api_key = api_key

    async def drain(self, seconds: float) -> None:
        """Take no more calls, let those in progress end for so long, and break off the rest."""
        self.stopping = True
        if self.answers:
            await asyncio.wait(self.answers, timeout=seconds)
        self.abort()

    def abort(self) -> None:
        """Break off every call: its client is told."""
        for answer in self.answers:
            answer.cancel()

    def authorise(self, request: Request) -> None:
        shown = request.headers.get("authorization", "")
        if self._api_key and not hmac.compare_digest(shown.encode(), f"Bearer {self._api_key}".encode()):
            raise ApiError(401, "invalid_api_key", "the API key is missing or wrong: send Authorization: Bearer KEY")

    async def models(self, request: Request) -> Response:
        self.authorise(request)
        return JSONResponse(dict(await self.upstream.get("/models")))

    async def requests(self, request: Request) -> Response:
        self.authorise(request)
        return JSONResponse(self.records.snapshot(request.query_params.get("compound_id")))

    async def health(self, _: Request) -> Response:
        return JSONResponse({"status": "ok", "running": self.admission.running, "waiting": self.admission.waiting})

    async def ready(self, _: Request) -> Response:
        await self.upstream.get("/models")
        return JSONResponse({"status": "ready"})


class _Completions:
    """One completion endpoint, as plain ASGI: it must hear at any moment that its client has left."""

    def __init__(self, gateway: Gateway, path: str) -> None:
        self._gateway = gateway
        self._path = path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        self._gateway.authorise(request)
        body = await body_of(request)
        tags = tags_of(request, body)
        stream = body.get("stream") or False
        if not isinstance(stream, bool):
            raise bad_request("stream", "stream: must be true or false")
        if self._gateway.stopping:
            raise _STOPPING
        out = Out(scope, receive, send)
        call = self._gateway.records.open(self._path, tags)
        answer = asyncio.create_task(self._answer(call, body, stream, out))
        gone = asyncio.create_task(left(receive))
        self._gateway.answers.add(answer)
        try:
            await asyncio.wait({answer, gone}, return_when=asyncio.FIRST_COMPLETED)
            if answer.cancelled() and not gone.done():
                await out.error(_STOPPING)
        finally:
            self._gateway.records.close(call, Outcome.GONE if gone.done() else Outcome.FAILED)
            self._gateway.answers.discard(answer)
            answer.cancel()
            gone.cancel()
            await asyncio.gather(answer, gone, return_exceptions=True)
        if not answer.cancelled():
            answer.result()

    async def _answer(self, call: Call, body: Mapping[str, object], stream: bool, out: Out) -> None:
        records = self._gateway.records
        try:
            async with self._gateway.admission.slot(call.view()):
                records.admit(call)
                await (self._stream if stream else self._whole)(call, self._forwarded(call, body), out)
        except Refused as refused:
            records.close(call, Outcome.REFUSED)
            refusal = refused.refusal
            await out.error(infeasible(f"not started: {refusal.reason}", refusal.earliest_feasible_s))
        except ApiError as error:
            records.close(call, Outcome.FAILED)
            await out.error(error)
        except wire.Malformed as error:
            records.close(call, Outcome.FAILED)
            await out.error(ApiError(502, "upstream_failed", f"the engine's answer cannot be read: {error}"))

    async def _whole(self, call: Call, body: Mapping[str, object], out: Out) -> None:
        answer = await self._gateway.upstream.post(self._path, body)
        self._gateway.records.close(call, Outcome.DONE)
        await out.whole({**answer, wire.LEDGER_KEY: self._ledger(call)})

    async def _stream(self, call: Call, body: Mapping[str, object], out: Out) -> None:
        head: dict[str, object] = {}
        finished = False
        async with aclosing(self._gateway.upstream.stream(self._path, body)) as events:
            async for data in events:
                if data == wire.DONE:
                    break
                chunk = wire.parse_object(data)
                if "error" in chunk:
                    raise ApiError(502, "upstream_failed", f"the engine broke off its answer: {chunk['error']}")
                head = head or {k: chunk[k] for k in ("id", "object", "created", "model") if k in chunk}
                brings, ends = _contents(chunk)
                finished = finished or ends
                if brings:
                    call.token(self._gateway.records.clock())
                await out.event(data)
        if not finished:
            raise ApiError(502, "upstream_failed", "the engine ended its stream before the answer's end")
        self._gateway.records.close(call, Outcome.DONE)
        await out.event(json.dumps({**head, "choices": [], wire.LEDGER_KEY: self._ledger(call)}))
        await out.event(wire.DONE)
        await out.end()

    def _ledger(self, call: Call) -> dict[str, object]:
        return asdict(call.ledger(self._gateway.records.clock()))

    def _forwarded(self, call: Call, body: Mapping[str, object]) -> dict[str, object]:
        """The body that the engine gets: without our tags, or with what is left of them."""
        plain = without_tags(body)
        if not self._gateway.forward_xargs:
            return plain
        now = self._gateway.records.clock()
        left = call.tags.aged(now - call.arrived)
        if call.compound and call.compound.deadline is not None and call.tags.compound_deadline_s is not None:
            left = replace(left, compound_deadline_s=max(0.0, call.compound.deadline - now))
        theirs = plain.get("vllm_xargs")
        return {**plain, "vllm_xargs": {**(theirs if isinstance(theirs, dict) else {}), **left.to_xargs()}}


def _contents(chunk: Mapping[str, object]) -> tuple[bool, bool]:
    """Does a chunk bring something that the client can see, and does it end the answer?"""
    brings = ends = False
    choices = chunk.get("choices")
    for choice in choices if isinstance(choices, list) else []:
        if isinstance(choice, Mapping):
            delta = choice.get("delta")
            said = (
                [v for k, v in delta.items() if k != "role"] if isinstance(delta, Mapping) else [choice.get("text")]
            )
            brings = brings or any(said)
            ends = ends or choice.get("finish_reason") is not None
    return brings, ends


async def _on_api_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return JSONResponse(error.body(), error.status, dict(error.headers))


async def _on_http_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return JSONResponse(bad_request("path", error.detail).body(), error.status_code)
