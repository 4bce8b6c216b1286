"""DBOS on SQLite with the same workload as our runs: a loop of steps that is killed, recovered and forked."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ID = "the-loop"


@contextmanager
def _opened(path: Path, calls: list[float], hang: Path | None) -> Iterator[Any]:
    """Open DBOS and define the workflow. Opening recovers what was pending. `hang`: the last step touches this file
    and blocks."""
    from dbos import DBOS

    DBOS(config={"name": "bench", "system_database_url": f"sqlite:///{path}", "log_level": "CRITICAL"})

    @DBOS.step(name="tick")
    def tick(number: int) -> int:
        calls.append(time.perf_counter())
        return number

    @DBOS.step(name="hang")
    def hanging() -> None:
        calls.append(time.perf_counter())
        if hang is not None:
            hang.touch()
            threading.Event().wait()

    @DBOS.workflow(name="many")
    def many(count: int) -> int:
        for number in range(count):
            tick(number)
        hanging()
        return count

    DBOS.launch()
    try:
        yield DBOS, many
    finally:
        DBOS.destroy(destroy_registry=True)


def _until_killed(folder: Path, count: int) -> None:
    from dbos import SetWorkflowID

    with _opened(folder / "dbos.db", [], folder / "dbos-hangs") as (_, many), SetWorkflowID(ID):
        many(count)


def resume(folder: Path, count: int, rounds: int) -> list[float]:
    """Return the seconds from opening DBOS after a SIGKILL to the first step that was not done."""
    child = multiprocessing.get_context("spawn").Process(target=_until_killed, args=(folder, count))
    child.start()
    while not (folder / "dbos-hangs").exists():
        if not child.is_alive():
            raise RuntimeError("DBOS's process ended before it could be killed")
        time.sleep(0.05)
    os.kill(child.pid or 0, signal.SIGKILL)
    child.join()
    took = []
    for number in range(rounds):
        for left in folder.glob("dbos.db*"):
            shutil.copy(left, folder / left.name.replace("dbos", f"dbos{number}"))
        calls: list[float] = []
        begun = time.perf_counter()
        with _opened(folder / f"dbos{number}.db", calls, None) as (dbos, _):
            dbos.retrieve_workflow(ID).get_result()
        took.append(calls[0] - begun)
    return took


def forks(folder: Path, count: int, at: int) -> list[float]:
    """Return the milliseconds of `fork_workflow` at that step of a finished workflow."""
    from dbos import SetWorkflowID

    took = []
    with _opened(folder / "dbos-forks.db", [], None) as (dbos, many):
        with SetWorkflowID(ID):
            many(count)
        for _ in range(20):
            begun = time.perf_counter()
            handle = dbos.fork_workflow(ID, at)
            took.append((time.perf_counter() - begun) * 1000)
            handle.get_result()
    return took
