"""Files of workflows that tests edit between a run's begin and its resume."""

from __future__ import annotations

import importlib
import linecache
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from ramify import Runtime
from ramify.runtime.errors import (
    RunError,
    StepFailed,
)
from tests.runtime.execution.edited_code.shown_changes import resume_as_shown

HEAD = """
import asyncio
from pathlib import Path
import ramify
from ramify import Sandbox, fork, interrupt, step, workflow

LOG, FLAG = Path(__file__).with_name("log"), Path(__file__).with_name("flag")

def log(text):
    with LOG.open("a") as file:
        file.write(text + "\\n")

@step(effect="irreversible")
async def pay(who):
    log(f"pay {who}")
    return who

@step(effect="irreversible")
async def next_id():
    log("id")
    return LOG.read_text().splitlines().count("id")

@step
async def look():
    log("look")
    return LOG.read_text().splitlines().count("look")

@step(effect="pure")
async def extra(text):
    log("extra")
    return text

@step
async def die():
    if FLAG.exists():
        raise OSError("the flag is there")

"""
THREE = """
@workflow
async def flow():
    out = [await pay("a"), await pay("b")]
    ada = await next_id()
    bob = await next_id()
    cyd = await next_id()
    await die()
    return [out, ada, bob, cyd]
"""
DONE = [["a", "b"], 1, 2, 3]
ONCE = ["pay a", "pay b", "id", "id", "id"]


class App:
    """A file that is written, imported anew and run."""

    def __init__(self, folder: Path, runtime: Runtime) -> None:
        self.folder, self.runtime = folder, runtime
        (folder / "flag").touch()

    def load(self, text: str, helpers: str = "") -> ModuleType:
        for name, source in (("edited_code", HEAD + text), ("edited_code_helpers", helpers)):
            if source:
                (self.folder / f"{name}.py").write_text(source)
            sys.modules.pop(name, None)
        linecache.clearcache()
        importlib.invalidate_caches()
        return importlib.import_module("edited_code")

    async def begin(self, text: str, helpers: str = "", error: type[RunError] = StepFailed) -> None:
        with pytest.raises(error):
            await self.runtime.run(self.load(text, helpers).flow)
        (self.folder / "flag").unlink()

    async def resume(self, text: str, helpers: str = "", **how: Any) -> Any:
        self.load(text, helpers)
        run_id = str(self.runtime.last_run_id)
        return await resume_as_shown(self.runtime, run_id, accepts=how.pop("accept_changes", False), **how)

    async def changes(self, text: str) -> Any:
        self.load(text)
        return await self.runtime.changes_of_code(str(self.runtime.last_run_id))

    @property
    def log(self) -> list[str]:
        return (self.folder / "log").read_text().splitlines()
