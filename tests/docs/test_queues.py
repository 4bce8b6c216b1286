"""The worker of the page on queues, killed in the middle of a run and started again."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from blocks import ROOT, blocks

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("dbos") is None, reason="needs DBOS (ramify[bench])"),
    pytest.mark.timeout(240),  # its processes take seconds to start on slow machines
]
LONGEST_S = 100.0
FLOW = """
import asyncio
from pathlib import Path

from ramify import step, workflow


@step(effect="irreversible")
async def send(word: str) -> None:
    with open("sent", "a") as log:
        log.write(f"{word}\\n")


@step
async def wait() -> None:
    Path("waits").touch()
    while not Path("gate").exists():
        await asyncio.sleep(0.02)


@workflow
async def mend(issue: str) -> str:
    await send(issue)
    await wait()
    await send("done")
    return issue.upper()
"""


def until(there: Callable[[], bool]) -> None:
    end = time.monotonic() + LONGEST_S
    while not there():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_a_job_whose_worker_was_killed_is_done_once(tmp_path: Path) -> None:
    worker, client = [one.text for one in blocks(ROOT / "docs" / "how-to" / "queues.md") if one.needs == "dbos"]
    for name, text in (("flow", FLOW), ("worker", worker), ("client", client)):
        (tmp_path / f"{name}.py").write_text(text)
    env = {
        **os.environ,
        "RAMIFY_HOME": str(tmp_path / "home"),
        "RAMIFY_SANDBOX": "copy",
        "DBOS_SYSTEM_DATABASE_URL": f"sqlite:///{tmp_path}/queue.db",
    }

    def started(name: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, f"{name}.py"], cwd=tmp_path, env=env, stdout=subprocess.PIPE, text=True
        )

    first = started("worker")
    assert first.stdout is not None
    assert "waits for jobs\n" in first.stdout  # reads on until it says so
    asking, second = started("client"), None
    try:
        until((tmp_path / "waits").exists)
        first.send_signal(signal.SIGKILL)
        first.wait()
        (tmp_path / "gate").touch()
        second = started("worker")
        told = asking.communicate(timeout=LONGEST_S)[0]
    finally:
        for process in (first, asking, second):
            if process is not None:
                process.kill()
                process.communicate()
    assert "THE BUILD FAILS ON ARM" in told
    assert (tmp_path / "sent").read_text() == "the build fails on ARM\ndone\n"
