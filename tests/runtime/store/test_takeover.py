"""A process that was stopped (SIGSTOP) loses its run to another one, and does no more than say so when it wakes."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import stopped_app

from ramify import Runtime
from ramify.compiler.plan import OpKind
from ramify.runtime.errors import RunLocked


def stopped(words: list[str], env: dict[str, str]) -> subprocess.Popen[str]:
    """Start a process and wait until it has stopped itself."""
    child = subprocess.Popen(words, env=env, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    _, status = os.waitpid(child.pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status), child.communicate()
    return child


@pytest.mark.parametrize("place", ["in a step", "idle"])
async def test_a_stopped_process_does_nothing_twice(
    address: str, tmp_path: Path, place: str, monkeypatch: pytest.MonkeyPatch, change_leases: Callable[[str], None]
) -> None:
    outbox = tmp_path / "outbox"
    monkeypatch.setenv(stopped_app.OUTBOX, str(outbox))
    folder = str(Path(stopped_app.__file__).parent)
    env = {**os.environ, "PYTHONPATH": folder, stopped_app.STOPS: place}
    words = [sys.executable, stopped_app.__file__, str(tmp_path / "home"), address]
    child = await asyncio.to_thread(stopped, words, env)
    try:
        async with Runtime(home=tmp_path / "home", database=address, sandbox="copy") as runtime:
            (run,) = await runtime.store.runs()
            with pytest.raises(RunLocked, match=f"process {child.pid} on"):
                await runtime.resume(run.id)
            change_leases("renewed_at = renewed_at - 7200")
            assert await runtime.resume(run.id) == "sent 6"
            child.send_signal(signal.SIGCONT)
            _, said = await asyncio.to_thread(child.communicate, timeout=60)
            assert child.returncode == 1
            assert f"LeaseLost: this process did not renew its lease in time, and process {os.getpid()} on" in said
            rows = [op for op in await runtime.store.ops(run.id) if op.kind is OpKind.RUN]
            assert sorted(op.result_json or "" for op in rows if op.step == "write") == ["0", "1", "2", "3"]
            assert [effect.attempt for effect in await runtime.store.effects(run.id)] == [1]
            assert (await runtime.store.run(run.id)).status == "done"
    finally:
        child.kill()
        child.wait()
    assert outbox.read_text().split() == ["6"]
