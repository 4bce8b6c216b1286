"""The command, its socket, and the browser that it starts."""

from __future__ import annotations

import asyncio
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import httpx
import pytest

from ramify import paths
from ramify.browse.web import server
from ramify.browse.web.responses import CannotListen
from ramify.browse.web.server import serving
from ramify.fork_engine.store import SnapshotStore
from ramify.runtime.store import RunStore
from ramify.serving.gateway.http.connections import SlowClientProtocol


def test_the_command_serves_until_it_is_interrupted(looked_at: tuple[Path, str]) -> None:
    home, run = looked_at
    command = [sys.executable, "-m", "ramify.cli.main", "--home", str(home), "browse", run[:6], "--web", "--no-open"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            said = process.stdout.readline()
            found = re.fullmatch(r"the page is at (http://127\.0\.0\.1:\d+/[\w-]{32}/)#/(\w+)/graph\n", said)
            assert found is not None, (said, process.poll())
            assert found[2] == run
            with urllib.request.urlopen(found[1] + "api/runs", timeout=30) as answer:
                assert run in answer.read().decode()
            with pytest.raises(urllib.error.HTTPError, match="404"):
                urllib.request.urlopen(found[1][:-2] + "/", timeout=30)
        finally:
            process.send_signal(signal.SIGINT)
            _, said = process.communicate(timeout=60)
        assert process.returncode == 0
        assert "Traceback" not in said


async def test_slow_and_leaving_clients(
    looked_at: tuple[Path, str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """One that never ends a request is sent away, and one that leaves within its body is no error."""
    monkeypatch.setattr(SlowClientProtocol, "head_s", 0.3)
    home, _ = looked_at
    async with (
        RunStore(paths.database(home), clock=time.time) as store,
        serving(store, SnapshotStore(paths.snapshots(home)), str) as address,
    ):
        port = httpx.URL(address).port
        slow, leaving = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
        slow[1].write(b"GET / HTTP/1.1\r\nx: ")
        assert (await asyncio.wait_for(slow[0].read(), 30)).startswith(b"HTTP/1.1 408")
        token = httpx.URL(address).path.strip("/")
        head = f"POST /{token}/api/answers HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\nx-ramify-token: {token}\r\n"
        leaving[1].write(f"{head}content-type: application/json\r\ncontent-length: 99\r\n\r\n{{".encode())
        await leaving[1].drain()
        await asyncio.sleep(0.1)
        leaving[1].transport.abort()
        async with httpx.AsyncClient(base_url=address) as client:
            assert (await client.get("api/runs")).status_code == 200
            slow[1].close()
    assert "Exception" not in caplog.text


async def test_a_port_that_is_taken_is_said(looked_at: tuple[Path, str]) -> None:
    home, _ = looked_at
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        async with RunStore(paths.database(home), clock=time.time) as store:
            with pytest.raises(CannotListen, match=f"127.0.0.1:{port}.*--port"):
                async with serving(store, SnapshotStore(paths.snapshots(home)), str, port=port):
                    pass


def test_browser_gets_a_private_file_name(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setenv("DISPLAY", ":9")
    monkeypatch.setattr(server.webbrowser, "open", asked.append)
    with server.opened("http://127.0.0.1:1/token/#/run/graph"):
        (address,) = asked
        file = Path(address.removeprefix("file://"))
        assert "token" not in address
        assert 'url=http://127.0.0.1:1/token/#/run/graph"' in file.read_text()
        assert file.parent.stat().st_mode & 0o077 == 0
    assert not file.exists()


def test_without_a_screen_no_browser_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DISPLAY", raising=False)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(server.webbrowser, "open", lambda address: pytest.fail(address))
    with server.opened("http://127.0.0.1:1/token/"):
        pass
