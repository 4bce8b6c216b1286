"""The route of vLLM's server for releases: what it passes on, and whom it refuses."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from ramify.serving.protocol import wire
from ramify.serving.vllm_plugin.messages_and_reports import GatewayMessages, Release
from ramify.serving.vllm_plugin.release_endpoint import ReleaseEndpoint


def server(options: object, *inner: Middleware) -> Starlette:
    """A server as vLLM's: its configuration stands in the app's state."""

    async def models(_: Request) -> Response:
        return JSONResponse({"object": "list", "data": []})

    app = Starlette(routes=[Route("/v1/models", models)], middleware=[Middleware(ReleaseEndpoint), *inner])
    app.state.vllm_config = SimpleNamespace(additional_config=options)
    return app


class KeyNeeded:
    """Lets in who shows the key, as vLLM's own middleware does."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        shown = dict(scope["headers"]).get(b"authorization")
        answer = JSONResponse({"error": "Unauthorized"}, 401)
        await (self._app if shown == b"Bearer secret" else answer)(scope, receive, send)


async def passed_through(request: Request, call_next: Any) -> Any:
    return await call_next(request)


@asynccontextmanager
async def client_of(app: Starlette) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://vllm/v1") as client:
        yield client


@pytest.fixture
def engine(tmp_path: Path) -> Any:
    made = GatewayMessages(str(tmp_path / "s"))
    yield made
    made.close()


async def test_a_release_reaches_the_scheduler(engine: GatewayMessages, tmp_path: Path) -> None:
    wrapped = Middleware(BaseHTTPMiddleware, dispatch=passed_through)  # one that streams what it passes on
    async with client_of(server({"ramify": {"socket": str(tmp_path / "s")}}, wrapped)) as client:
        assert wire.RELEASES_HEADER in (await client.get("/models")).headers
        said = await client.post(wire.RELEASE_PATH, json={"compound_id": "run", "branches": ["a", "b"]})
        assert (said.status_code, said.json()) == (200, {"engines": 1})
        await client.post(wire.RELEASE_PATH, json={"compound_id": "run"})
        assert (await client.get(wire.RELEASE_PATH)).status_code == 405
    assert list(engine.take()) == [Release("run", ("a", "b")), Release("run", None)]


async def test_who_may_not_list_models_may_not_release(engine: GatewayMessages, tmp_path: Path) -> None:
    async with client_of(server({"ramify": {"socket": str(tmp_path / "s")}}, Middleware(KeyNeeded))) as client:
        refused = await client.post(wire.RELEASE_PATH, json={"compound_id": "run"})
        assert (refused.status_code, refused.json()) == (401, {"error": "Unauthorized"})
        key = {"authorization": "Bearer secret"}
        assert (await client.post(wire.RELEASE_PATH, json={"compound_id": "r"}, headers=key)).status_code == 200
    assert list(engine.take()) == [Release("r", None)]


@pytest.mark.parametrize(
    ("body", "content_type", "status"),
    [
        (b'{"compound_id": "r"}', "text/plain", 415),
        (b"{", "application/json", 400),
        (b"[1]", "application/json", 400),
        (b"[" * 100_000, "application/json", 400),
        (b'{"compound_id": 3}', "application/json", 400),
        (b'{"compound_id": "r", "branches": "b"}', "application/json", 400),
        (b'{"compound_id": "r", "branches": ["a\\nb"]}', "application/json", 400),
        (b'{"compound_id": "%s"}' % (b"r" * 2_000_000), "application/json", 400),
    ],
)
async def test_anything_else_is_refused(
    engine: GatewayMessages, tmp_path: Path, body: bytes, content_type: str, status: int
) -> None:
    async with client_of(server({"ramify": {"socket": str(tmp_path / "s")}})) as client:
        said = await client.post(wire.RELEASE_PATH, content=body, headers={"content-type": content_type})
    assert said.status_code == status and "message" in json.loads(said.content)["error"]
    assert list(engine.take()) == []


@pytest.mark.parametrize("options", [None, {}, {"ramify": {"socket": "/nowhere/s"}}, {"ramify": {"socket": 3}}])
async def test_a_server_whose_scheduler_does_not_listen_says_nothing(options: object) -> None:
    async with client_of(server(options)) as client:
        assert wire.RELEASES_HEADER not in (await client.get("/models")).headers
        assert (await client.post(wire.RELEASE_PATH, json={"compound_id": "r"})).status_code == 404


@pytest.mark.vllm
async def test_vllms_own_key_guards_the_route(engine: GatewayMessages, tmp_path: Path) -> None:
    from vllm.entrypoints.serve.middleware.authenticate import AuthenticationMiddleware

    guard = Middleware(AuthenticationMiddleware, tokens=["secret"])
    async with client_of(server({"ramify": {"socket": str(tmp_path / "s")}}, guard)) as client:
        assert (await client.post(wire.RELEASE_PATH, json={"compound_id": "r"})).status_code == 401
        key = {"authorization": "Bearer secret"}
        assert (await client.post(wire.RELEASE_PATH, json={"compound_id": "r"}, headers=key)).status_code == 200
    assert list(engine.take()) == [Release("r", None)]
