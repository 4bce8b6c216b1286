"""The repair example's whole life: killed at random, resumed, collected, checked, replayed. Prints one object.

Usage: repair_harness.py FOLDER SANDBOX KILLS SEED    (FOLDER/programs is the workspace)
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sys
import time
from pathlib import Path
from typing import Any

from examples.repair.suite import find_programs
from examples.repair.workflow import repair
from ramify import Runtime, paths
from ramify.runtime.collect import Marks, collect
from ramify.runtime.driver import drive
from ramify.runtime.events import Event, LLMDone, OpDone
from ramify.runtime.pins import Pins
from ramify.runtime.records import OpStatus, RunId
from ramify.serving.client import LLMClient
from ramify.serving.testing import ScriptedModel
from ramify.serving.types import ChatRequest


def script(request: ChatRequest) -> str:
    """Prefers the second option, and writes nothing that is an edit."""
    return "B" if request.max_tokens == 1 else "pass"


async def work(folder: Path, sandbox: str, run_id: str | None) -> None:
    async with (
        LLMClient("http://model.test/v1", transport=ScriptedModel(script)) as client,
        Runtime(home=folder / "home", sandbox=sandbox, llm=client) as runtime,
    ):
        if run_id is None:
            await runtime.run(repair, find_programs(folder / "programs"), workspace=folder / "programs")
        else:
            await runtime.resume(run_id)
    (folder / "done").touch()


def spawn(folder: Path, sandbox: str, run_id: str | None) -> int:
    pid = os.fork()
    if pid == 0:
        try:
            asyncio.run(work(folder, sandbox, run_id))
        finally:
            os._exit(0)
    return pid


async def newest(folder: Path) -> RunId | None:
    async with Runtime(home=folder / "home") as runtime:
        runs = await runtime.store.runs()
        return runs[0].id if runs else None


async def afterwards(folder: Path, sandbox: str, run_id: RunId) -> dict[str, Any]:
    heard: list[OpDone | LLMDone] = []

    def hear(event: Event) -> None:
        if isinstance(event, OpDone | LLMDone):
            heard.append(event)

    home = folder / "home"
    async with Runtime(home=home, sandbox=sandbox, observer=hear) as runtime:
        record = await runtime.record(run_id)
        rows = [row for row in await runtime.journal(run_id) if row.status is OpStatus.DONE]
        marks = Marks(paths.evicted(home))
        collected = await collect(
            runtime.store, runtime.snapshots, Pins(paths.locks(home)), marks, budget=0, grace_s=0
        )
        report = runtime.snapshots.fsck(expected=await runtime.store.live_snapshots() - marks.all())
        again = await drive(runtime.services(), record, repair.__wrapped__)
        return {
            "status": record.status.value,
            "report": str(again),
            "repaired": [row.repaired for row in again.rows],
            "keys": [row.key for row in rows],
            "evicted": len(collected.evicted),
            "problems": [str(problem) for problem in report.problems],
            "heard": len(heard),
            "not_replayed": sum(not event.replayed for event in heard),
        }


def main() -> None:
    folder, sandbox, kills, seed = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    chance, run_id, killed = random.Random(seed), None, 0
    while not (folder / "done").exists():
        pid = spawn(folder, sandbox, run_id)
        if killed < kills:
            deadline = time.monotonic() + chance.uniform(0.3, 2.5)
            while time.monotonic() < deadline and os.waitpid(pid, os.WNOHANG) == (0, 0):
                time.sleep(0.02)
            if time.monotonic() >= deadline:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
                killed += 1
        else:
            os.waitpid(pid, 0)
        run_id = asyncio.run(newest(folder))
    assert run_id is not None
    print(json.dumps({"killed": killed, **asyncio.run(afterwards(folder, sandbox, run_id))}))


if __name__ == "__main__":
    main()
