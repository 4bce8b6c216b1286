"""Engines at URLs hear of released branches by their own servers, if they take that; no other server does."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
import uvicorn
from starlette.applications import Starlette

from ramify.serving.engine.contract import EngineSpec
from ramify.serving.gateway.engine_messages import EngineMessages
from ramify.serving.gateway.engines.release_route import ReleaseRoute
from ramify.serving.gateway.engines.upstream import Upstream
from ramify.serving.gateway.server import LocalGateway
from ramify.serving.gateway.settings import GatewaySettings
from ramify.serving.protocol import wire
from ramify.serving.testing import ScriptedModel, ScriptedServer
from ramify.serving.vllm_plugin.messages_and_reports import GatewayMessages, Release
from tests.serving.vllm_plugin.test_release_endpoint import server


@asynccontextmanager
async def listening(app: Starlette) -> AsyncIterator[str]:
    """Serve the app on a port."""

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            up.set()

    up, made = asyncio.Event(), Server(uvicorn.Config(app, port=0, log_config=None))
    running = asyncio.create_task(made.serve())
    await up.wait()
    try:
        yield f"http://127.0.0.1:{made.servers[0].sockets[0].getsockname()[1]}/v1"
    finally:
        made.should_exit = True
        await running


def in_front_of(home: Path, *urls: str, forward: bool = True) -> LocalGateway:
    engines = tuple(EngineSpec.parse(url) for url in urls)
    return LocalGateway(GatewaySettings(home=home, engines=engines, forward_xargs=forward))


async def released(gateway: LocalGateway, branches: Sequence[str] | None = None) -> object:
    body = {"compound_id": "run", **({} if branches is None else {"branches": branches})}
    async with httpx.AsyncClient(base_url=gateway.base_url) as client:
        said = await client.post(wire.RELEASE_PATH, json=body)
    assert said.status_code == 200
    return said.json()["engines"]


class Noting(ScriptedModel):
    """A server without our plug-in, which notes what it is asked."""

    def __init__(self) -> None:
        super().__init__(lambda _: "said")
        self.asked: list[tuple[str, str]] = []

    async def respond(self, method: str, path: str, *rest: object) -> object:  # type: ignore[override]
        self.asked.append((method, path))
        return await super().respond(method, path, *rest)  # type: ignore[arg-type]


async def test_an_engine_at_a_url_hears_of_a_release_without_a_call(tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    engine = GatewayMessages(path)
    async with (
        listening(server({"ramify": {"socket": path}})) as url,
        in_front_of(tmp_path, url) as gateway,
        in_front_of(tmp_path, gateway.base_url, forward=False) as front,  # it finds out by itself: a gateway
    ):
        assert await released(gateway, ["a", "b"]) == 1
        assert await released(front) == 1
    assert list(engine.take()) == [Release("run", ("a", "b")), Release("run", None)]
    engine.close()


async def test_a_server_without_the_plug_in_is_told_nothing(tmp_path: Path) -> None:
    model = Noting()
    async with ScriptedServer(model) as plain, in_front_of(tmp_path, plain.base_url) as gateway:
        assert await released(gateway) == 0
        assert await released(gateway, ["a"]) == 0
    assert ("GET", "/v1/models") in model.asked
    assert not [path for method, path in model.asked if method == "POST" or path.endswith(wire.RELEASE_PATH)]


async def test_an_engine_without_tags_is_told_nothing(tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    engine = GatewayMessages(path)
    async with (
        listening(server({"ramify": {"socket": path}})) as url,
        in_front_of(tmp_path, url, forward=False) as gateway,
    ):
        assert await released(gateway) == 0
    assert list(engine.take()) == []
    engine.close()


async def test_an_engine_that_fails_is_no_error_for_a_client(tmp_path: Path) -> None:
    async with in_front_of(tmp_path, "http://127.0.0.1:9/v1") as gateway:
        assert await released(gateway) == 0


async def test_an_engine_that_changed_is_asked_again() -> None:
    takes, posted = True, list[str]()

    class Engine(httpx.AsyncBaseTransport):
        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            if request.method == "POST":
                posted.append(request.url.path)
                return httpx.Response(200 if takes else 404)
            return httpx.Response(200, headers={wire.RELEASES_HEADER: "1"} if takes else {})

    upstream = Upstream("http://engine", transport=Engine())
    route = ReleaseRoute(upstream)
    assert await route("run", None)
    takes = False  # another server stands there now
    assert not await route("run", None) and len(posted) == 2
    assert not await route("run", None) and len(posted) == 2, "it is not told what it does not take"
    assert not upstream.suspect
    await upstream.aclose()


async def test_many_releases_are_told_one_after_the_other_and_no_backlog_grows_without_end() -> None:
    here, most, asked = 0, 0, list[str]()
    go = asyncio.Event()

    class Engine(httpx.AsyncBaseTransport):
        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            nonlocal here, most
            here, most = here + 1, max(most, here + 1)
            await go.wait()
            here -= 1
            asked.append(request.method)
            return httpx.Response(200, headers={wire.RELEASES_HEADER: "1"}, json={"engines": 1})

    upstream = Upstream("http://engine", transport=Engine())
    route = ReleaseRoute(upstream)
    telling = [asyncio.create_task(route(f"run {i}", None)) for i in range(1000)]
    await asyncio.sleep(0)
    go.set()
    heard = await asyncio.gather(*telling)
    assert most == 1 and asked.count("GET") == 1
    assert sum(heard) == asked.count("POST") == 256
    assert await route("later", None), "and it goes on"
    await upstream.aclose()


async def test_what_an_engine_did_not_hear_does_not_count_and_long_lists_come_in_parts() -> None:
    engines, told = 0, list[str]()

    class Engine(httpx.AsyncBaseTransport):
        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            if request.method == "POST":
                said = json.loads(await request.aread())
                told.extend(said["branches"])
                assert len(said["branches"]) <= 1000
            return httpx.Response(200, headers={wire.RELEASES_HEADER: "1"}, json={"engines": engines})

    upstream = Upstream("http://engine", transport=Engine())
    route, names = ReleaseRoute(upstream), [f"branch {i}" for i in range(2500)]
    assert not await route("run", names)
    engines = 1
    assert await route("run", names) and told == [*names, *names]
    assert not await route("run", []), "nothing to say"
    await upstream.aclose()


async def test_a_slow_engine_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ramify.serving.gateway.engine_messages._SOON_S", 0.01)
    go, heard = asyncio.Event(), list[str]()

    async def slow(compound_id: str, branches: Sequence[str] | None) -> bool:
        await go.wait()
        heard.append(compound_id)
        return True

    async def quick(compound_id: str, branches: Sequence[str] | None) -> bool:
        return True

    messages = EngineMessages({}, [slow, quick])
    assert await messages.release("run", None) == 1
    go.set()
    await messages.aclose()
    assert heard == ["run"], "it hears of it later"
