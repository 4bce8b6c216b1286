"""Kills runs at crash points and resumes them: HOME JOBS, a JSON list of [name, app, workflow, arguments, trials].

`app` is a module of this folder; its LOG and RESUMED are set, and its client(), if it has one, is the model. Each
question is answered with its id. The points are spread over the run, most of them late. Each process
is a fork of this one. Prints one JSON object a trial; the first of a job is of a run that was not killed.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import sys
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ramify.compiler.frontend.python.workflow_reader
import ramify.compiler.pipeline
import ramify.runtime.execution.driver
import ramify.runtime.store.migrate  # noqa: F401  warm: imported before the first fork
from ramify import Runtime
from ramify.fork_engine import crash_points
from ramify.runtime.errors import RunWaiting


@dataclass
class Job:
    name: str
    app: Any
    workflow: str
    arguments: list[Any]
    trials: int

    def process(self, folder: Path, kill_at: int | None, *, resume: bool) -> int:
        child = os.fork()
        if child:
            return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        code = 1
        try:
            self.app.LOG, self.app.RESUMED, passed = folder / "log", resume, [0]

            def at(name: str) -> None:
                passed[0] += 1
                if passed[0] == kill_at:
                    os._exit(77)

            crash_points.at = at

            async def main() -> None:
                client = self.app.client() if hasattr(self.app, "client") else None
                async with Runtime(home=folder / "home", sandbox="copy", llm=client) as runtime, asyncio.timeout(60):
                    result = await self.result(runtime, resume=resume)
                    (folder / "result").write_text(json.dumps([result, passed[0]]))

            asyncio.run(main())
            code = 0
        except BaseException:  # noqa: BLE001  told, and nothing of the parent goes on here
            traceback.print_exc()
        finally:
            os._exit(code)

    async def result(self, runtime: Runtime, *, resume: bool) -> Any:
        """Run or resume the workflow, and answer what it asks."""
        known = await runtime.store.runs() if resume else []
        work = (
            runtime.resume(known[0].id) if known else runtime.run(getattr(self.app, self.workflow), *self.arguments)
        )
        while True:
            try:
                return await work
            except RunWaiting as asked:
                answers = {one.id: one.id for one in asked.questions}
                work = runtime.resume(str(runtime.last_run_id), answers=answers)

    def trial(self, home: Path, kill_at: int | None) -> dict[str, Any]:
        folder = home / f"{self.name}{kill_at or ''}"
        folder.mkdir(parents=True)
        (folder / "log").touch()
        killed = self.process(folder, kill_at, resume=False)
        before = (folder / "log").read_text()
        code = self.process(folder, None, resume=True) if killed == 77 else killed
        after = (folder / "log").read_text()[len(before) :]
        result = json.loads((folder / "result").read_text()) if code == 0 else None
        told = {"job": self.name, "kill_at": kill_at, "code": code, "result": result}
        return told | {"before": before.splitlines(), "after": after.splitlines()}

    def run(self, home: Path) -> None:
        whole = self.trial(home, None)
        print(json.dumps(whole), flush=True)
        points = whole["result"][1]
        trials = min(self.trials, points)
        for number in range(trials):
            kill_at = 1 + points * (2 * number + 3) // (2 * trials + 2)
            print(json.dumps(self.trial(home, kill_at)), flush=True)


for name, app, workflow, arguments, trials in json.loads(sys.argv[2]):
    Job(name, importlib.import_module(app), workflow, arguments, trials).run(Path(sys.argv[1]))
