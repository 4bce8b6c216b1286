"""A gateway without a free descriptor says so: nobody waits for an answer that cannot come.

Clients that do not read their answers do not hold an engine's slot for ever.
"""

from __future__ import annotations

import asyncio
import errno
import json
import socket
from pathlib import Path
from typing import Any

import httpx
import pytest
from uvicorn.protocols.http.flow_control import FlowControl

from ramify.serving.gateway.http.app import create_gateway
from ramify.serving.gateway.http.connections import ConnectionRoom, Listener, SlowClientProtocol
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


async def test_client_that_does_not_read_loses_its_slot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SlowClientProtocol, "unread_s", 0.05)
    long = " ".join(["w" * 2**20] * 15)  # more than any buffer on the way holds
    model = ScriptedModel(lambda request: long if request.messages[-1].content == "long" else "short")
    async with (
        ScriptedServer(model) as engine,
        LocalGateway(home=tmp_path, upstream=engine.base_url, slots=1) as gateway,
        httpx.AsyncClient(base_url=gateway.base_url, trust_env=False, timeout=60) as client,
    ):
        body = json.dumps({"messages": [{"role": "user", "content": "long"}], "stream": True}).encode()
        with socket.socket() as idle:
            idle.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            idle.setblocking(False)
            port = int(gateway.base_url.split(":")[2].split("/")[0])
            loop = asyncio.get_running_loop()
            await loop.sock_connect(idle, ("127.0.0.1", port))
            head = "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
            head += f"content-length: {len(body)}\r\n\r\n"
            await loop.sock_sendall(idle, head.encode() + body)
            async with asyncio.timeout(60):
                while not model.calls:  # noqa: ASYNC110
                    await asyncio.sleep(0.005)
            short = {"messages": [{"role": "user", "content": "short"}]}
            assert (await client.post("/chat/completions", json=short)).status_code == 200
            seen = (await client.get("/ramify/requests")).json()["requests"]
    assert [r["outcome"] for r in seen] == ["gone", "done"]
    assert model.active == 0


class Pipe:
    """A transport, as far as it is asked how much of what was written is still there."""

    def __init__(self, sizes: list[int]) -> None:
        self._sizes = iter(sizes)
        self.aborted = False

    def get_write_buffer_size(self) -> int:
        return next(self._sizes)

    def abort(self) -> None:
        self.aborted = True


class Timers:
    def __init__(self) -> None:
        self.due: list[Any] = []

    def call_later(self, _: float, look: Any) -> Any:
        self.due.append(look)
        return self

    def cancel(self) -> None:
        self.due.clear()


def test_slowly_reading_client_is_not_cut_off() -> None:
    protocol, pipe, timers = SlowClientProtocol.__new__(SlowClientProtocol), Pipe([90, 80, 80, 80, 70]), Timers()
    parts: Any = {"transport": pipe, "loop": timers, "flow": FlowControl(pipe)}  # type: ignore[arg-type]
    for name, part in parts.items():
        setattr(protocol, name, part)
    protocol.pause_writing()
    timers.due.pop()()
    assert not pipe.aborted and len(timers.due) == 1, "some was taken"
    timers.due.pop()()
    assert pipe.aborted, "none was"
    protocol.pause_writing()
    protocol.resume_writing()
    assert not timers.due, "all was"
