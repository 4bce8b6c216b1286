"""Clients that do not read their answers do not hold an engine's slot for ever."""

from __future__ import annotations

import asyncio
import json
import socket
from pathlib import Path
from typing import Any

import httpx
import pytest
from uvicorn.protocols.http.flow_control import FlowControl

from ramify.serving.gateway.http.connections import SlowClientProtocol
from ramify.serving.gateway.server import LocalGateway
from ramify.serving.testing import ScriptedModel, ScriptedServer


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
