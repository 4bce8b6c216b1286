"""Runs `search` once unkilled, then kills it at random moments and resumes it, in forks of one warm process. A moment
is one of its CPU time, between its first call of the model and its end, by a kernel timer whose signal nobody
handles: how busy the machine is changes little, and a run that ended before its kill says how much.
Prints one JSON object a trial: what the journal holds in the end, and how the trial went.

Usage: kill_harness.py FOLDER SANDBOX TRIALS SEED [learned]
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

import daring
import search_app

import ramify.new_runs
import ramify.runtime.execution.driver
import ramify.serving.testing
from ramify import Runtime
from ramify.runtime.records import OpStatus, RunStatus
from ramify.serving.client import LLMClient
from ramify.serving.testing import ScriptedModel
from ramify.serving.types import ChatRequest

NAMES = ["ann", "bob", "cyd"]


asked: list[float] = []  # CPU seconds of this process at each call of the model


def script(request: ChatRequest) -> str:
    asked.append(time.process_time())
    return "B" if request.max_tokens == 1 else f"w{request.seed}"


async def work(folder: Path, sandbox: str, run_id: str | None) -> dict[str, Any]:
    model = ScriptedModel(script)
    async with (
        LLMClient("http://model.test/v1", transport=model) as client,
        Runtime(home=folder / "home", sandbox=sandbox, llm=client) as runtime,
    ):
        if run_id is None:
            result = await runtime.run(search_app.search, NAMES, workspace=folder / "workspace")
        else:
            result = await runtime.resume(run_id)
        ended = time.process_time()
        run = await runtime.record()
        rows = [r for r in await runtime.journal() if r.status is OpStatus.DONE]
        calls = await runtime.llm_calls()
        last = [c for c in await runtime.store.checkpoints(run.id) if c.branch == "root"][-1]
        return {
            "result": result,
            "rows": sorted((r.key, r.result_digest) for r in rows),
            "calls": sorted((c.key, c.result_digest) for c in calls),
            "tree": last.content_key,
            "status": run.status,
            "between": (asked[0] if asked else ended, ended),
        }


def spawn(folder: Path, sandbox: str, run_id: str | None, kill_after_s: float = 0.0) -> int:
    pid = os.fork()
    if pid:
        return pid
    try:
        signal.setitimer(signal.ITIMER_PROF, kill_after_s)
        done = asyncio.run(work(folder, sandbox, run_id))
        (folder / "done.json").write_text(json.dumps(done))
    finally:
        os._exit(0 if (folder / "done.json").exists() else 1)


async def unfinished(folder: Path) -> str | None:
    async with Runtime(home=folder / "home") as runtime:
        runs = await runtime.store.runs()
        return runs[0].id if runs and runs[0].status is RunStatus.RUNNING else None


def make(folder: Path) -> None:
    (folder / "workspace").mkdir(parents=True)
    (folder / "workspace" / "hello.txt").write_text("hello\n")


def trial(folder: Path, sandbox: str, kill_after_s: float) -> dict[str, Any]:
    make(folder)
    os.waitpid(spawn(folder, sandbox, None, kill_after_s), 0)
    resumed = False
    if not (folder / "done.json").exists():
        run_id = asyncio.run(unfinished(folder))
        resumed = run_id is not None
        os.waitpid(spawn(folder, sandbox, run_id), 0)  # killed before its first row: simply run again
    return {"resumed": resumed, **json.loads((folder / "done.json").read_text())}


def main() -> None:
    folder, sandbox, trials, seed = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    if sys.argv[5:] == ["learned"]:
        ramify.new_runs.learned = daring.learned  # type: ignore[assignment]
    chance = random.Random(seed)
    whole = trial(folder / "whole", sandbox, 0.0)
    print(json.dumps(whole), flush=True)
    between, fell_inside = whole["between"], 0
    for number in range(4 * trials):
        if number >= trials and fell_inside >= max(1, trials // 4):
            break  # a busy machine needs more of them
        one = trial(folder / str(number), sandbox, chance.uniform(*between))
        between = between if one["resumed"] else one["between"]  # a whole run's: what it takes by now, caches warm
        fell_inside += one["resumed"]
        print(json.dumps(one), flush=True)


if __name__ == "__main__":
    main()
