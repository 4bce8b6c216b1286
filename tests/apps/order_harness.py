"""Kills flows of ordered_app at crash points and resumes them: HOME SHAPE TASKS TRIALS.

The points are spread evenly over the run. Each process is a fork of this one. Prints one JSON object a trial, first
that of a run that was not killed.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import traceback
from pathlib import Path
from typing import Any

import ordered_app

import ramify.compiler.frontend.python.workflow_reader
import ramify.compiler.pipeline
import ramify.runtime.execution.driver
import ramify.runtime.store.upgrade  # noqa: F401  warm: imported before the first fork
from ramify import Runtime
from ramify.fork_engine import crash_points

home, shape, tasks = Path(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3])


def process(folder: Path, kill_at: int | None, *, resume: bool) -> int:
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    code = 1
    try:
        ordered_app.LOG, passed = folder / "log", [0]

        def at(name: str) -> None:
            passed[0] += 1
            if passed[0] == kill_at:
                os._exit(77)

        crash_points.at = at

        async def main() -> None:
            async with Runtime(home=folder / "home", sandbox="copy") as runtime:
                known = await runtime.store.runs() if resume else []
                if not known:
                    result = await runtime.run(ordered_app.flow, shape, tasks)
                else:
                    record = known[0]
                    async with asyncio.timeout(60):
                        result = await runtime.resume(record.id)
                rows = len(await runtime.store.ops((await runtime.store.runs())[0].id))
                (folder / "result").write_text(json.dumps([result, passed[0], rows]))

        asyncio.run(main())
        code = 0
    except BaseException:  # noqa: BLE001  told, and nothing of the parent goes on here
        traceback.print_exc()
    finally:
        os._exit(code)


def trial(name: str, kill_at: int | None) -> dict[str, Any]:
    folder = home / name
    folder.mkdir(parents=True)
    (folder / "log").touch()
    killed = process(folder, kill_at, resume=False)
    before = (folder / "log").read_text()
    code = process(folder, None, resume=True) if killed == 77 else killed
    after = (folder / "log").read_text()[len(before) :]
    return {"code": code, "before": before.splitlines(), "after": after.splitlines()} | {
        "result": json.loads((folder / "result").read_text()) if code == 0 else None
    }


whole = trial("whole", None)
print(json.dumps(whole), flush=True)
points, trials = whole["result"][1], int(sys.argv[4])
for number in range(trials):
    kill_at = 1 + points * (number + 1) // (trials + 1)
    print(json.dumps(trial(str(kill_at), kill_at)), flush=True)
