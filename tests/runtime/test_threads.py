"""Threads of synchronous steps: their results, their errors, and that nobody waits for what was cancelled."""

from __future__ import annotations

import asyncio
import contextvars
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from ramify.runtime.threads import in_thread

SEEN: contextvars.ContextVar[str] = contextvars.ContextVar("SEEN")
CTRL_C = """
import time
from pathlib import Path
from ramify import step, workflow

@step(effect="pure")
def sleeps(flag: str) -> None:
    Path(flag).touch()
    time.sleep(600)

@workflow
async def sleepy(flag: str) -> None:
    await sleeps(flag)
"""


async def test_results_errors_and_context_pass() -> None:
    SEEN.set("here")
    assert await in_thread(lambda more: SEEN.get() + more, "!") == "here!"
    with pytest.raises(ZeroDivisionError):
        await in_thread(lambda: 1 / 0)
    with pytest.raises(RuntimeError, match="StopIteration"):
        await in_thread(next, iter(()))


async def test_a_cancelled_call_ends_at_its_next_instruction() -> None:
    begun, ended = threading.Event(), threading.Event()

    def busy() -> None:
        begun.set()
        try:
            while True:
                pass
        finally:
            ended.set()

    task = asyncio.ensure_future(in_thread(busy))
    assert await asyncio.to_thread(begun.wait, 10)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await asyncio.to_thread(ended.wait, 10)


def test_ctrl_c_waits_for_no_synchronous_step(tmp_path: Path) -> None:
    (tmp_path / "sleepy.py").write_text(CTRL_C)
    flag = tmp_path / "flag"
    words = [
        sys.executable,
        "-m",
        "ramify.cli.main",
        "--home",
        str(tmp_path / "home"),
        "run",
        "sleepy.py:sleepy",
        str(flag),
    ]
    child = subprocess.Popen(words, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        while not flag.exists():
            assert child.poll() is None, child.communicate()
            signal.sigtimedwait([], 0.02)
        child.send_signal(signal.SIGINT)
        _, said = child.communicate(timeout=60)
    finally:
        child.kill()
    assert child.returncode == 130
    assert "ramify resume" in said
