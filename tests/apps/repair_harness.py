"""The repair example's whole life: killed at random, resumed, collected, checked, replayed. Prints one object.

It is killed a moment after it has done some operations more: a fast machine's run does not end before its last kill,
and a slow one's is not killed before it has begun.

Usage: repair_harness.py FOLDER SANDBOX KILLS SEED    (FOLDER/programs is the workspace)
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from examples.repair.suite import find_programs
from examples.repair.workflow import repair
from ramify import Runtime, paths
from ramify.fork_engine.gc_pins import Pins
from ramify.runtime.events import Event, LLMDone, OpDone
from ramify.runtime.execution.driver import drive
from ramify.runtime.records import OpStatus, RunId, RunStatus, RunUpdate
from ramify.runtime.worlds.garbage_collection import EvictionMarks, collect
from ramify.serving.client import LLMClient
from ramify.serving.testing import ScriptedModel
from ramify.serving.types import ChatRequest


def script(request: ChatRequest) -> str:
    """Prefers the second option, and writes nothing that is an edit."""
    return "B" if request.max_tokens == 1 else "pass"


@dataclass
class Kill:
    """SIGALRM, whose default nobody changed, `delay_s` after so many operations were done. None: never."""

    done: int | None = None
    delay_s: float = 0.0

    def observe(self, event: Event) -> None:
        if self.done is not None and isinstance(event, OpDone | LLMDone) and not event.replayed:
            self.done -= 1
            if self.done == 0:
                signal.setitimer(signal.ITIMER_REAL, self.delay_s)


async def work(folder: Path, sandbox: str, run_id: str | None, kill: Kill) -> None:
    async with (
        LLMClient("http://model.test/v1", transport=ScriptedModel(script)) as client,
        Runtime(home=folder / "home", sandbox=sandbox, llm=client, observer=kill.observe) as runtime,
    ):
        if run_id is None:
            await runtime.run(repair, find_programs(folder / "programs"), workspace=folder / "programs")
        else:
            await runtime.resume(run_id)
    (folder / "done").touch()


def lived(folder: Path, sandbox: str, run_id: str | None, kill: Kill) -> bool:
    """Whether a process that goes on with the run came to its end: it was not killed."""
    pid = os.fork()
    if pid == 0:
        try:
            asyncio.run(work(folder, sandbox, run_id, kill))
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) != -signal.SIGALRM


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
        marks = EvictionMarks(paths.evicted(home))
        collected = await collect(
            runtime.store, runtime.snapshots, Pins(paths.locks(home)), marks, budget=0, grace_s=0
        )
        report = runtime.snapshots.fsck(expected=await runtime.store.live_snapshots() - marks.all())
        await runtime.store.commit(run_id, update=RunUpdate(status=RunStatus.RUNNING))  # the result is read again
        again = await drive(runtime.services(), record, repair.__wrapped__)
        return {
            "status": record.status.value,
            "report": str(again),
            "repaired": [row.repaired for row in again.rows],
            "edits": [len(row.edits) for row in again.rows],
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
        kill = Kill(chance.randint(1, 4), chance.uniform(0.001, 0.1)) if killed < kills else Kill()
        killed += not lived(folder, sandbox, run_id, kill)
        run_id = asyncio.run(newest(folder))
    assert run_id is not None
    print(json.dumps({"killed": killed, **asyncio.run(afterwards(folder, sandbox, run_id))}))


if __name__ == "__main__":
    main()
