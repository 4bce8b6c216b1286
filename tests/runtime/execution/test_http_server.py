"""Workflows inside a real HTTP server: uvicorn as installed by `uvicorn[standard]`, on uvloop with httptools."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.samples import PATIENT

APPS = Path(__file__).parents[2] / "apps"


@contextmanager
def served(folder: Path, sandbox: str, loop: str) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """The server's process and its socket, once it answers."""
    socket, log = folder / "socket", folder / "log"
    command = ["uvicorn", "served_app:app", "--uds", str(socket), "--loop", loop, "--http", "httptools"]
    with log.open("wb") as out:
        server = subprocess.Popen(
            [sys.executable, "-m", *command],
            cwd=APPS,
            env={**os.environ, "RAMIFY_HOME": str(folder / "home"), "RAMIFY_SANDBOX": sandbox},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
        )
    try:
        for _ in range(600):
            assert server.poll() is None, log.read_text()
            if b"running on unix socket" in log.read_bytes():
                break
            time.sleep(0.1)
        yield server, socket
    finally:
        server.kill()
        server.wait()


@pytest.mark.parametrize(
    ("sandbox", "loop"),
    [
        ("copy", "uvloop"),
        pytest.param("namespaces", "asyncio", marks=pytest.mark.linux_ns),
        *([("copy", "asyncio")] if PATIENT else []),
        *([pytest.param("namespaces", "uvloop", marks=pytest.mark.linux_ns)] if PATIENT else []),
    ],
)
async def test_requests_run_worlds(tmp_path: Path, sandbox: str, loop: str) -> None:
    if loop == "uvloop":
        pytest.importorskip("uvloop")
    with served(tmp_path, sandbox, loop) as (server, socket):
        transport = httpx.AsyncHTTPTransport(uds=str(socket))
        async with httpx.AsyncClient(transport=transport, base_url="http://served", timeout=100) as client:
            names = [f"n{number}" for number in range(4)]
            for answer, name in zip(
                await asyncio.gather(*(client.get(f"/run/{name}") for name in names)), names, strict=True
            ):
                assert answer.status_code == 200, (tmp_path / "log").read_text()
                assert answer.json()["result"] == [name, name + "x", name + "y", name]
                assert answer.json()["loop"].startswith(loop)
            beside = await client.get("/beside/z")
            assert beside.json() == {"result": ["z", "zx", "zy", "z"]}, (tmp_path / "log").read_text()
        server.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(server.wait, 100) in (0, -signal.SIGTERM), (tmp_path / "log").read_text()
    log = (tmp_path / "log").read_text()
    assert "Traceback" not in log
    assert "Finished server process" in log
