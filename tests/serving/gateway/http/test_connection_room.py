"""A gateway without a free descriptor says so: nobody waits for an answer that cannot come."""

from __future__ import annotations

import errno
import socket
from pathlib import Path
from typing import Any

import httpx
import pytest

from ramify.serving.gateway.http.app import create_gateway
from ramify.serving.gateway.http.connections import ConnectionRoom, Listener
from ramify.serving.gateway.server import LocalGateway
from ramify.serving.testing import ScriptedModel, ScriptedServer


@pytest.mark.parametrize(
    ("allowed", "inside", "most"), [(1024, 32, 928), (1024, 500, 480), (256, 1000, 96), (20, 1, 9), (1, 32, 1)]
)
def test_room_leaves_descriptors_for_the_calls_in_engines(
    monkeypatch: pytest.MonkeyPatch, allowed: int, inside: int, most: int
) -> None:
    monkeypatch.setattr("resource.getrlimit", lambda _: (allowed, allowed))
    assert ConnectionRoom.of_process(inside).most == most


async def test_connection_beyond_the_room_gets_a_typed_503_whatever_it_sends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ConnectionRoom, "of_process", lambda *_: ConnectionRoom(most=1))
    async with (
        ScriptedServer(ScriptedModel(lambda _: "one two")) as engine,
        LocalGateway(home=tmp_path, upstream=engine.base_url) as gateway,
        httpx.AsyncClient(base_url=gateway.base_url, trust_env=False) as first,
        httpx.AsyncClient(base_url=gateway.base_url, trust_env=False) as second,
    ):
        ask = {"messages": [{"role": "user", "content": "hi"}]}
        assert (await first.post("/chat/completions", json=ask)).status_code == 200
        long = {"messages": [{"role": "user", "content": "word " * 400_000}]}
        for body in (ask, long):
            refused = await second.post("/chat/completions", json=body)
            assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
            assert refused.json()["error"]["code"] == "too_many_connections"
        assert (await first.post("/chat/completions", json=ask)).status_code == 200


@pytest.mark.parametrize("out_of_files", [False, True], ids=["nearly all taken", "all taken"])
def test_listener_answers_instead_of_leaving_clients_in_its_queue(
    monkeypatch: pytest.MonkeyPatch, out_of_files: bool
) -> None:
    accept, failed = socket.socket.accept, []

    def without_descriptors(self: socket.socket) -> Any:
        if out_of_files and not failed:
            failed.append(True)
            raise OSError(errno.EMFILE, "Too many open files")
        return accept(self)

    monkeypatch.setattr(socket.socket, "accept", without_descriptors)
    with Listener(socket.create_server(("127.0.0.1", 0))) as listener:
        listener.setblocking(False)
        if not out_of_files:
            listener.highest = 0
        with socket.create_connection(listener.getsockname(), timeout=20) as client:
            client.sendall(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n")
            with pytest.raises(BlockingIOError):
                listener.accept()
            assert client.makefile("rb").readline() == b"HTTP/1.1 503 Service Unavailable\r\n"


async def test_engine_that_cannot_be_reached_for_want_of_descriptors_is_not_called_dead() -> None:
    async def no_socket(_: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("Too many open files") from OSError(errno.EMFILE, "Too many open files")

    app = create_gateway("http://engine/v1", transport=httpx.MockTransport(no_socket))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost/v1") as client:
        answer = await client.post("/chat/completions", json={"messages": [{"role": "user", "content": "hi"}]})
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "too_many_connections")
    assert answer.headers["retry-after"] == "1"
