"""Runs a workflow, kills it at a named point, edits its code, resumes it, and judges what is left.

Each part in a fork of this process, which has no event loop of its own. The judge knows nothing of Ramify: it reads
the log that the steps write outside, and the result.
"""

from __future__ import annotations

import asyncio
import gc
import importlib
import json
import linecache
import os
import shutil
import sys
import threading
import traceback
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from changes import EDITS, Edit, Files  # noqa: F401
from flows import FLOWS, Flow

import ramify.code_changes
import ramify.compiler.frontend.python.workflow_reader
import ramify.compiler.pipeline
import ramify.compiler.plan_matching
import ramify.runtime.execution.driver
import ramify.runtime.store.migrate  # noqa: F401  warm: imported before the first fork
from ramify import Runtime
from ramify.fork_engine import crash_points
from ramify.runtime.errors import RunError, RunWaiting

KILLED, REFUSED, WAITS = 77, "refused", "waits"


@dataclass(frozen=True)
class Left:
    """What a process left. `status`: "done", "refused", "waits", "killed", or the exception raised."""

    status: str
    result: Any = None
    error: str = ""


def warm(folder: Path) -> None:
    """Run a workflow in this process, so that its forks begin with every module loaded."""
    write(folder, FLOWS[0].files)
    sys.path.insert(0, str(folder))
    try:
        left = _drive(folder, importlib.import_module("edited_app").flow, _begin)
    finally:
        sys.path.remove(str(folder))
        del sys.modules["edited_app"]
    if left.status != "done":
        raise RuntimeError(f"the first flow ends as {left}")
    for thread in threading.enumerate():
        if thread is not threading.main_thread():
            thread.join(10)  # a database's thread, which ends shortly after the database was closed
    gc.collect()
    gc.freeze()  # the collector ignores existing objects, so that forks share their memory


def points(folder: Path) -> int:
    """Return how many crash points an unkilled run passes, to its end or to its question."""
    write(folder, {})
    left = _in_a_fork(folder, lambda flow: _drive(folder, flow, _begin), None, counted=True)
    return int(left.result)


def run(folder: Path, kill_at: int) -> Left:
    """Begin the workflow, and end the process at the `kill_at`th crash point."""
    return _in_a_fork(folder, lambda flow: _drive(folder, flow, _begin), kill_at)


async def _begin(runtime: Runtime, flow: Any) -> Any:
    return await runtime.run(flow)


def resume(folder: Path, *, accept: bool = False, answer: str | None = None, forked: bool = False) -> Left:
    async def go_on(runtime: Runtime, _: Any) -> Any:
        (record, *_) = await runtime.store.runs()
        if forked:
            last = (await runtime.store.checkpoints(record.id))[-1]
            record = await runtime.fork(last.id, for_real=True)
        given = {} if answer is None else {"answer": answer}
        try:
            return await runtime.resume(record.id, accept_changes=accept, **given)
        except RunWaiting:
            return await runtime.resume(record.id, answer="ada")

    return _in_a_fork(folder, lambda flow: _drive(folder, flow, go_on), None)


def _drive(folder: Path, flow: Any, work: Callable[[Runtime, Any], Awaitable[Any]]) -> Left:
    async def main() -> Any:
        async with Runtime(home=folder / "home", sandbox="copy") as runtime:
            return await work(runtime, flow)

    try:
        return Left("done", asyncio.run(main()))
    except RunWaiting:
        return Left(WAITS)
    except RunError as error:
        cause = error.__cause__ if isinstance(error.__cause__, RunError) else error
        names = ("WorkflowChanged", "Diverged", "EffectNotMet", "CallNotTold")
        refused = type(cause).__name__ in names
        return Left(REFUSED if refused else type(cause).__name__, error=f"{type(cause).__name__}: {cause}")


def _in_a_fork(folder: Path, work: Callable[[Any], Left], kill_at: int | None, *, counted: bool = False) -> Left:
    """Return what `work` returns for the workflow. `counted`: return the number of points it passed instead."""
    reader, writer = os.pipe()
    child = os.fork()
    if child:
        os.close(writer)
        with os.fdopen(reader) as pipe:
            said = pipe.read()
        _, status = os.waitpid(child, 0)
        code = os.waitstatus_to_exitcode(status)
        if code == KILLED:
            return Left("killed")
        return Left(**json.loads(said)) if said else Left(f"exit {code}")
    code = 1
    try:
        os.close(reader)
        passed = 0

        def at(name: str) -> None:
            nonlocal passed
            passed += 1
            if passed == kill_at:
                os._exit(KILLED)

        crash_points.at = at
        sys.dont_write_bytecode = True
        sys.path.insert(0, str(folder))
        linecache.clearcache()
        importlib.invalidate_caches()
        left = work(importlib.import_module("edited_app").flow)
        with os.fdopen(writer, "w") as pipe:
            result = passed if counted else left.result
            pipe.write(json.dumps({"status": left.status, "result": result, "error": left.error}))
        code = 0
    except BaseException:  # noqa: BLE001  told, and nothing of the parent's goes on here
        traceback.print_exc()
    finally:
        os._exit(code)


def write(folder: Path, files: Files) -> None:
    for name, text in files.items():
        (folder / name).write_text(text)


def effects(folder: Path) -> list[list[str]]:
    log = folder / "log"
    return [line.split("|") for line in log.read_text().splitlines()] if log.exists() else []


def keep(folder: Path, copy: Path) -> None:
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(folder, copy, symlinks=True, ignore=shutil.ignore_patterns("worlds"))  # it has pipes


def judge(
    flow: Flow, before: list[list[str]], after: list[list[str]], result: Any, *, swapped: bool = False
) -> list[str]:
    """Return what is wrong: a repeated effect, a swapped id, a result that does not fit the code."""
    found = repeated(after)
    labels = list(flow.labels)
    done = sum(line[0] == "ID" for line in before)
    order = labels[:done]  # the people whose ids were requested before the edit
    rest = labels[done:]
    if swapped and done == 0:
        rest = [labels[1], labels[0], *labels[2:]]
    expected = {label: number for number, label in enumerate([*order, *rest], 1)}
    if result["ids"] != expected:
        found.append(f"ids {result['ids']}, not {expected}")
    if result["rest"] != json.loads(flow.rest):
        found.append(f"{result['rest']}, not {flow.rest}")
    return found


def repeated(after: list[list[str]]) -> list[str]:
    """Each payment and each id must occur once."""
    times = Counter((line[0], line[1]) for line in after)
    return [f"repeated: {' '.join(one)}" for one, count in times.items() if count > 1]
