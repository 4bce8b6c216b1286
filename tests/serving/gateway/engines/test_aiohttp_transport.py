"""The transport to the engines on real sockets: many connections at once, and no connection turn is lost."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import aiohttp
import httpx
import pytest

from ramify.serving.gateway.engines import aiohttp_transport
from ramify.serving.gateway.engines.aiohttp_transport import AiohttpTransport
from ramify.serving.testing import ScriptedServer
from tests.serving.stalled_loop import Ahead


async def test_connection_attempts_are_limited_and_failures_release_their_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(aiohttp_transport, "_DIALS", 1)
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        nobody = f"http://127.0.0.1:{closed.getsockname()[1]}/v1/models"
        way = AiohttpTransport(connect_s=10.0, trust_env=False)
        async with ScriptedServer(lambda _: "ok") as server, httpx.AsyncClient(transport=way) as client:
            for _ in range(3):
                with pytest.raises(httpx.ConnectError):
                    await client.get(nobody)
            async with asyncio.timeout(20):
                answers = await asyncio.gather(*(client.get(f"{server.base_url}/models") for _ in range(50)))
    assert {answer.status_code for answer in answers} == {200}


async def test_user_and_password_in_a_url_are_sent_to_the_engine() -> None:
    way = AiohttpTransport(connect_s=10.0, trust_env=False)
    async with ScriptedServer(lambda _: "ok") as server, httpx.AsyncClient(transport=way) as client:
        address = server.base_url.replace("http://", "http://user:p%20w@")
        answer = await client.post(f"{address}/chat/completions", json={"messages": []})
    assert answer.status_code == 200
    assert server.model.calls[0].headers["authorization"] == "Basic dXNlcjpwIHc="


async def test_cancelling_while_connecting_releases_the_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aiohttp_transport, "_DIALS", 1)
    begun = asyncio.Event()

    async def never(*_: object, **__: object) -> None:
        begun.set()
        await asyncio.Event().wait()

    way = AiohttpTransport(connect_s=10.0, trust_env=False)
    async with ScriptedServer(lambda _: "ok") as server, httpx.AsyncClient(transport=way) as client:
        with monkeypatch.context() as patched:
            patched.setattr(asyncio.get_running_loop(), "create_connection", never)
            patched.setattr(asyncio.get_running_loop(), "sock_connect", never)
            leaver = asyncio.create_task(client.get(f"{server.base_url}/models"))
            await begun.wait()
            leaver.cancel()
            await asyncio.gather(leaver, return_exceptions=True)
        async with asyncio.timeout(20):
            assert (await client.get(f"{server.base_url}/models")).status_code == 200


@pytest.mark.parametrize("held_up", [True, False])
async def test_a_connect_timeout_during_a_blocked_loop_is_retried(
    held_up: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    ahead, connect = Ahead(monkeypatch), aiohttp.ClientSession.request
    tries = []

    async def slow(session: aiohttp.ClientSession, *said: Any, **more: Any) -> aiohttp.ClientResponse:
        tries.append(said)
        if len(tries) == 1:
            await (ahead.held_up(1000) if held_up else ahead.ran(20))
            raise aiohttp.ConnectionTimeoutError("connection timeout")
        return await connect(session, *said, **more)

    monkeypatch.setattr(aiohttp.ClientSession, "request", slow)
    way = AiohttpTransport(connect_s=10.0, trust_env=False)
    async with ScriptedServer(lambda _: "ok") as server, httpx.AsyncClient(transport=way) as client:
        if held_up:
            assert (await client.get(f"{server.base_url}/models")).status_code == 200
        else:
            with pytest.raises(httpx.ConnectError):
                await client.get(f"{server.base_url}/models")
    assert len(tries) == 1 + held_up
