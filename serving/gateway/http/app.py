"""The gateway as an ASGI application: an OpenAI-compatible server that lets calls into engines by their deadlines.

A call arrives with its tags, waits in the policy's order for a slot of an engine, and is passed on. The engine's
answer goes back unchanged, except for one addition: the `ramify` object (`types.Ledger`), in the body of a whole
answer and in the last object of a stream (`formats.apis`). The first token is measured where the client can
first see it: in a stream when it passes, in a whole answer at its end.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager

import httpx
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ramify.serving.errors import BadTags
from ramify.serving.gateway.admission.admission import Admission, OneQueue
from ramify.serving.gateway.admission.prefix_hints import hint_of
from ramify.serving.gateway.admission.replica_queues import ReplicaQueues
from ramify.serving.gateway.engines.constraint_checks import check_constraints
from ramify.serving.gateway.engines.replicas import EngineTraits, Replica, Replicas
from ramify.serving.gateway.engines.upstream import HANG_S, WHOLE_S, Upstream
from ramify.serving.gateway.errors import STOPPING, Aborted, ApiError, bad_request
from ramify.serving.gateway.formats.apis import APIS, MESSAGES, errors_at
from ramify.serving.gateway.formats.messages import chat_of_messages
from ramify.serving.gateway.formats.model_list import ANTHROPIC_VERSION, model_info, model_page
from ramify.serving.gateway.gateway import Gateway
from ramify.serving.gateway.http.endpoint import Endpoint
from ramify.serving.gateway.http.exchange import JsonResponse, body_of, client_left, refusal_response
from ramify.serving.gateway.records import metrics
from ramify.serving.gateway.records.call_records import Records, owned_name
from ramify.serving.policy.registry import make_live_policy
from ramify.serving.policy.types import Policy
from ramify.serving.protocol import wire
from ramify.serving.protocol.releases import release_of


def create_gateway(
    upstream: str | Sequence[Replica],
    *,
    slots: int = 32,
    policy: Policy | Sequence[Policy] | None = None,
    k: int | None = 2,
    clock: Callable[[], float] = time.monotonic,
    wall: Callable[[], float] = time.time,
    transport: httpx.AsyncBaseTransport | None = None,
    api_keys: Sequence[str] = (),
    upstream_key: str | None = None,
    forward_xargs: bool = False,
    hang_s: float = HANG_S,
    whole_s: float = WHOLE_S,
    keepalive_s: float | None = None,
    pace: bool = False,
    allow_fields: Collection[str] = (),
) -> Starlette:
    """The gateway as an ASGI application.

    upstream: replicas, or the base URL of one engine that takes at most `slots` calls.
    policy: one policy makes one queue in front of all replicas. A policy for each replica makes a queue for each; a
        call then stands in `k` of them (None: in all) until one lets it in.
    api_keys: if given, clients must show one of them.
    forward_xargs: the engine reads our tags (`traits.reads_tags` of a replica). Otherwise tags are removed, because
        most servers refuse unknown fields.
    keepalive_s: a stream gets a comment after so many seconds without a byte; None: it never does.
    allow_fields: fields of requests that clients may send to engines although they reach beyond their own call
        (`engine_fields`).
    pace: give the tokens of calls of the class `stream` out at their readers' pace (`Gateway.delivery`).
    hang_s, whole_s: seconds of silence allowed on a stream, and before a whole answer (see `Upstream`).
    """
    if isinstance(upstream, str):
        one = Upstream(
            upstream,
            key=upstream_key,
            hang_s=hang_s,
            whole_s=whole_s,
            queues=forward_xargs,
            transport=transport,
        )
        upstream = [Replica(0, slots, one, EngineTraits(reads_tags=forward_xargs))]
    replicas, figures = Replicas(upstream), metrics.Metrics()
    admission: Admission
    if isinstance(policy, Sequence):
        admission = ReplicaQueues(policy, replicas, clock, figures.verdict, k=k)
    else:
        admission = OneQueue(policy or make_live_policy(), replicas, clock, figures.verdict)
    gateway = Gateway(replicas, admission, Records(clock, wall), figures, api_keys, keepalive_s, pace, allow_fields)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        try:
            yield
        finally:
            await gateway.aclose()

    control = _Control(gateway)
    app = Starlette(
        routes=[
            *(Route(f"/v1{api.path}", Endpoint(gateway, api), methods=["POST"]) for api in APIS),
            Route(f"/v1{MESSAGES.path}/count_tokens", control.count_tokens, methods=["POST"]),
            Route("/v1/models", control.models),
            Route("/v1/models/{model:path}", control.model),
            Route("/v1/ramify/requests", control.requests),
            Route("/v1/ramify/apps", control.apps),
            Route(f"/v1{wire.HISTORY_PATH}", control.history),
            Route(f"/v1{wire.RELEASE_PATH}", control.release, methods=["POST"]),
            Route("/v1/ramify/cancel", control.cancel, methods=["POST"]),
            Route(f"/v1{wire.PREFIX_PATH}", control.prefix, methods=["POST"]),
            Route("/health", control.health),
            Route("/ready", control.ready),
            Route("/metrics", control.metrics),
        ],
        exception_handlers={ApiError: _on_api_error, HTTPException: _on_http_error, Exception: _on_bug},
        lifespan=lifespan,
    )
    app.state.gateway = gateway
    return app


class _Control:
    """The routes that give no model answer: models, records, history, cancel, prefix hints, health, metrics."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def models(self, request: Request) -> Response:
        self._gateway.authorise(request)
        listed = await self._gateway.models()
        said = model_page(_entries(listed), request.query_params) if ANTHROPIC_VERSION in request.headers else listed
        return JsonResponse(said, headers={wire.GATEWAY_HEADER: "1"})

    async def model(self, request: Request) -> Response:
        self._gateway.authorise(request)
        asked = request.path_params["model"]
        for one in _entries(await self._gateway.models()):
            if one.get("id") == asked:
                return JsonResponse(model_info(one) if ANTHROPIC_VERSION in request.headers else one)
        raise ApiError(404, "model_not_found", f"model: {asked[:200]!r} is not served here: see /v1/models", "model")

    async def count_tokens(self, request: Request) -> Response:
        """How many tokens a request for messages would have, by the engine's own count."""
        self._gateway.authorise(request)
        asked = await body_of(request, self._gateway.bodies)
        chat_of_messages({"max_tokens": 1, **asked})
        return JsonResponse(await self._gateway.count_tokens(asked))

    async def requests(self, request: Request) -> Response:
        client = self._gateway.authorise(request)
        gateway = self._gateway
        run = _owned(request.query_params.get("compound_id"), client)
        return JsonResponse(gateway.records.snapshot(run, gateway.step_of, client))

    async def apps(self, request: Request) -> Response:
        """The client's applications, their calls, and how well the forecasts of their lengths held."""
        client = self._gateway.authorise(request)
        return JsonResponse({"apps": await self._gateway.apps(client)})

    async def history(self, request: Request) -> Response:
        """The stages that a workflow (`app_id`) will have, by its past runs; for use before its first call."""
        client = self._gateway.authorise(request)
        if not (app := request.query_params.get("app_id")):
            raise bad_request("app_id", "app_id: name the workflow, as in ?app_id=NAME")
        analysis = self._gateway.analysis
        found = None if analysis is None else await analysis.history(owned_name(app, client))
        stages = (
            []
            if found is None
            else [
                {
                    "calls": stage.calls,
                    "prefill": stage.prefill,
                    "output": stage.output_median,
                    "tools_s": stage.tool_s_before,
                    "seconds": max(0.0, found.times[at] - stage.tool_s_before),
                    "share": found.share(at),
                }
                for at, stage in enumerate(found.rest)
            ]
        )
        return JsonResponse({"app_id": app, "stages": stages})

    async def cancel(self, request: Request) -> Response:
        """Cancel calls that a workflow no longer needs: `{"compound_id": …, "fork_group": …}`, one of them or
        both."""
        client = self._gateway.authorise(request)
        body = await body_of(request, self._gateway.bodies)
        for name, value in body.items():
            if name not in ("compound_id", "fork_group") or not isinstance(value, str) or not value:
                raise bad_request(name, f"{name}: give compound_id, fork_group or both, each as a string")
        if not body:
            raise bad_request("fork_group", "fork_group: say what to cancel, by compound_id or fork_group")
        chosen = self._gateway.records.open_calls(
            compound_id=_owned(body.get("compound_id"), client), fork_group=_owned(body.get("fork_group"), client)
        )
        for call in chosen:
            call.interrupt(Aborted())
        return JsonResponse({"cancelled": len(chosen)})

    async def release(self, request: Request) -> Response:
        """Say that no call will continue some branches of a workflow, or that it is over, so that engines let go of
        their KV: `{"compound_id": …, "branches": […]}`. Calls in progress go on."""
        client = self._gateway.authorise(request)
        body = await body_of(request, self._gateway.bodies)
        try:
            run, branches = release_of(body)
        except BadTags as error:
            raise bad_request(error.field, str(error)) from error
        return JsonResponse({"engines": await self._gateway.engines.release(owned_name(run, client), branches)})

    async def prefix(self, request: Request) -> Response:
        """Let an idle engine prefill the beginning of future calls: `{"model": …, "messages": […], "tools": […]}`.

        Answers 200 when it is read, 202 with the reason when it is not. Cancelled when the client leaves.
        """
        client = self._gateway.authorise(request)
        hint = hint_of(await body_of(request, self._gateway.bodies))
        check_constraints(hint, llama_cpp=self._gateway.replicas.llama_cpp)
        if self._gateway.stopping:
            raise STOPPING
        reading = asyncio.create_task(self._gateway.hint(hint, client))
        gone = asyncio.create_task(client_left(request.receive))
        try:
            await asyncio.wait({reading, gone}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            reading.cancel()
            gone.cancel()
            await asyncio.gather(reading, gone, return_exceptions=True)
        if reading.cancelled():
            return Response(status_code=499)  # the client has left
        said = reading.result().body()
        return JsonResponse(said, 200 if said["read"] else 202)

    async def health(self, _: Request) -> Response:
        """Liveness of the gateway itself."""
        admission = self._gateway.admission
        return JsonResponse({"status": "ok", "running": admission.running, "waiting": admission.waiting})

    async def ready(self, request: Request) -> Response:
        """Readiness: the gateway takes calls, and an engine answers. Each question reaches an engine."""
        self._gateway.authorise(request)
        if self._gateway.stopping:
            raise ApiError(503, "stopping", "the gateway is stopping")
        await self._gateway.asked("/models")
        return JsonResponse({"status": "ready"})

    async def metrics(self, request: Request) -> Response:
        self._gateway.authorise(request)
        gateway, now = self._gateway, self._gateway.records.clock()
        for one in await gateway.analysis.coverage() if gateway.analysis else ():
            gateway.metrics.coverage(one.generated, one.covered)
        text = gateway.metrics.text(
            running=gateway.admission.running,
            waiting=gateway.admission.waiting,
            up=[one.up(now) for one in gateway.replicas.all],
            infeasible=gateway.records.infeasible(gateway.step_of),
        )
        return Response(text, media_type=metrics.CONTENT_TYPE)


def _entries(listed: Mapping[str, object]) -> list[Mapping[str, object]]:
    data = listed["data"]
    return data if isinstance(data, list) else []


def _owned(name: object, client: str) -> str | None:
    return owned_name(name, client) if isinstance(name, str) else None


async def _on_api_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return refusal_response(request, error, errors_at(request.url.path, request.headers))


async def _on_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    asked, detail = f"{request.method} {request.url.path}"[:200], error.detail
    if error.status_code in (404, 405):
        there = ", ".join(f"POST /v1{api.path}" for api in APIS)
        detail = f"path: there is no {asked} here: use {there}, or list the models with GET /v1/models"
    refusal = bad_request("path", detail, status=error.status_code)
    refusal.headers = error.headers or {}  # with the methods that there are
    return refusal_response(request, refusal, errors_at(request.url.path, request.headers))


async def _on_bug(request: Request, error: Exception) -> Response:
    """Answer 500 for a bug of the gateway. Starlette raises the error again after this answer, and logs it."""
    failed = ApiError(500, "internal_error", f"the gateway failed: {type(error).__name__}")
    return refusal_response(request, failed, errors_at(request.url.path, request.headers))
