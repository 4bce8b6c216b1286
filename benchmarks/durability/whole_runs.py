"""Whole runs: steps that change files, forks of long threads, many concurrent branches, resume after a kill."""

from __future__ import annotations

import asyncio
import ctypes
import importlib.util
import itertools
import multiprocessing
import os
import shutil
import signal
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypedDict

from langgraph.graph import START, StateGraph

from benchmarks.durability import concurrent_branches, dbos_peer
from benchmarks.durability.step_starts import STARTED
from benchmarks.durability.supersteps import row
from benchmarks.rows import Row
from ramify import Runtime, Sandbox, Saver, step, workflow
from ramify import graph as worlds
from ramify.compiler import pipeline as _warm  # noqa: F401  imported by the first run; the peers' imports are done, too
from ramify.fork_engine.store import SnapshotStore
from ramify.sandboxes.contract import WorldSpec
from ramify.sandboxes.selection import open_backend

LONG = 500


def rows(quick: bool, sandbox: str) -> list[Row]:
    return [
        _ten_files(sandbox, 12 if quick else 60),
        *_fork_of_a_thread(sandbox),
        *concurrent_branches.rows(quick, sandbox),
        *_resume(quick),
    ]


@step
async def ten_files(sandbox: Sandbox, number: int) -> None:
    STARTED.append(time.perf_counter())
    for at in range(10):
        (sandbox.path / f"f{at}").write_text(f"{number} {at}")


@workflow
async def files(count: int) -> None:
    for number in range(count):
        await ten_files(number)


def _ten_files(sandbox: str, count: int) -> Row:
    with tempfile.TemporaryDirectory(prefix="ramify-bench-") as folder:
        asyncio.run(_in_runtime(Path(folder), sandbox, lambda runtime, w: runtime.run(files, count, workspace=w)))
        gaps = [(b - a) * 1000 for a, b in itertools.pairwise(STARTED[1:])]
        floor = [_floor(Path(folder), number) for number in range(count)]
    return row(
        "superstep with 10 changed files", gaps, "ms", "floor: 10 files, their folder and a row flushed", floor, None
    )


def _floor(folder: Path, number: int) -> float:
    """Time the system calls of the same work: ten new files, one flush of the file system, one of a database."""
    begun = time.perf_counter()
    where = folder / f"floor{number}"
    where.mkdir()
    for at in range(10):
        (where / f"f{at}").write_text(f"{number} {at}")
    _syncfs(where)
    with (folder / "row").open("ab") as log:
        log.write(b"x" * 4096)
        log.flush()
        os.fsync(log.fileno())
    return (time.perf_counter() - begun) * 1000


def _syncfs(folder: Path) -> None:
    disk = os.open(folder, os.O_RDONLY)
    try:
        if ctypes.CDLL(None, use_errno=True).syncfs(disk) != 0:
            raise OSError(ctypes.get_errno(), "syncfs", str(folder))
    finally:
        os.close(disk)


async def _in_runtime(folder: Path, sandbox: str, work: Callable[[Runtime, Path], Any]) -> Any:
    (folder / "w").mkdir(exist_ok=True)
    async with Runtime(home=folder / "home", sandbox=sandbox) as runtime:
        return await work(runtime, folder / "w")


def _fork_of_a_thread(sandbox: str) -> list[Row]:
    """Compare `update_state` at step 25 of 50 (ours also mounts its world) with DBOS's `fork_workflow`."""

    class State(TypedDict):
        left: int

    def node(state: State, sandbox: Sandbox) -> dict[str, int]:
        (sandbox.path / "left").write_text(str(state["left"]))
        return {"left": state["left"] - 1}

    def bare(state: State) -> dict[str, int]:
        return {"left": state["left"] - 1}

    def graph(function: Any) -> Any:
        made = StateGraph(State)
        made.add_node("node", function)
        made.add_edge(START, "node")
        made.add_conditional_edges("node", lambda state: "node" if state["left"] > 0 else "__end__")
        return made

    config: Any = {"configurable": {"thread_id": "t"}, "recursion_limit": 60}
    with tempfile.TemporaryDirectory(prefix="ramify-bench-") as name:
        folder = Path(name)
        (folder / "w").mkdir()
        with Saver.open(f"sqlite:///{folder}/ours.db") as saver:
            app = worlds.compile(graph(node), folder / "w", checkpointer=saver, home=folder / "home", sandbox=sandbox)
            app.invoke({"left": 50}, config, durability="sync")
            at = next(s for s in app.get_state_history(config) if s.values.get("left") == 25)
            snapshot = worlds.snapshot_of(app, at.config)
            ours = asyncio.run(_forks(app, at.config, folder, snapshot, sandbox))
        from langgraph.checkpoint.sqlite import SqliteSaver

        with SqliteSaver.from_conn_string(f"{folder}/theirs.db") as other:
            plain = graph(bare).compile(checkpointer=other)
            plain.invoke({"left": 50}, config, durability="sync")
            at = next(s for s in plain.get_state_history(config) if s.values.get("left") == 25)
            theirs = [_timed(lambda: plain.update_state(at.config, {"left": 9})) for _ in range(20)]
        peers = {"update_state (no world)": theirs}
        if importlib.util.find_spec("dbos") is not None:
            peers["DBOS fork_workflow (no world)"] = dbos_peer.forks(folder, 50, 25)
    title, met = (
        "fork a 50-step thread at step 25, world mounted",
        {"target": 10, "met": statistics.median(ours) <= 10},
    )
    return [row(title, ours, "ms", peer, took, None) | met for peer, took in peers.items()]


async def _forks(app: Any, config: Any, folder: Path, snapshot: Any, sandbox: str) -> list[float]:
    store = SnapshotStore(folder / "home" / "store")
    spec = WorldSpec(mount_at=folder / "w", env={"PATH": os.environ["PATH"]})
    took = []
    async with open_backend(sandbox, store, folder / "worlds") as backend:
        state = store.get(snapshot)
        for _ in range(21):
            begun = time.perf_counter()
            await asyncio.to_thread(app.update_state, config, {"left": 9})
            world = await backend.materialise(state, spec)
            took.append((time.perf_counter() - begun) * 1000)
            await world.close()
    return took[1:]


def _timed(work: Callable[[], object]) -> float:
    begun = time.perf_counter()
    work()
    return (time.perf_counter() - begun) * 1000


@step
async def tick(number: int) -> int:
    STARTED.append(time.perf_counter())
    return number


@workflow
async def many(count: int) -> int:
    for number in range(count):
        await tick(number)
    await hang()
    return count


@step
async def hang() -> None:
    STARTED.append(time.perf_counter())
    if flag := os.environ.get("RAMIFY_BENCH_HANG"):
        Path(flag).touch()
        await asyncio.sleep(3600)


def _resume(quick: bool) -> list[Row]:
    """Time from opening to the first step that was not done, in a run killed by SIGKILL. Each round uses a fresh copy
    of what the kill left. All imports are done before."""
    count, rounds = (100, 3) if quick else (LONG, 20)
    with tempfile.TemporaryDirectory(prefix="ramify-bench-") as name:
        folder = Path(name)
        _killed(_until_killed, folder, count)
        took = []
        for _ in range(rounds):
            shutil.rmtree(folder / "home", ignore_errors=True)
            subprocess.run(["cp", "-a", folder / "killed", folder / "home"], check=True)  # it contains pipes
            STARTED.clear()
            begun = time.perf_counter()
            asyncio.run(_in_runtime(folder, "copy", _go_on))
            took.append(STARTED[0] - begun)
        peers = {"LangGraph SqliteSaver": _langgraph_resume(folder, count, rounds)}
        if importlib.util.find_spec("dbos") is not None:
            peers["DBOS, SQLite"] = dbos_peer.resume(folder, count, rounds)
    title = f"resume of a killed {count}-step run, to its first new step"
    met = {"target": 1.0, "met": statistics.median(took) <= 1.0}
    return [row(title, took, "s", peer, theirs, None) | met for peer, theirs in peers.items()]


def _killed(work: Callable[[Path, int], None], folder: Path, count: int) -> None:
    """Run `work` in a process, kill it once it says that it hangs, and leave its files in `killed`."""
    child = multiprocessing.get_context("fork").Process(target=work, args=(folder, count))
    child.start()
    while not (folder / "hangs").exists():
        if not child.is_alive():
            raise RuntimeError(f"the run of {count} steps ended before it could be killed")
        time.sleep(0.05)
    os.kill(child.pid or 0, signal.SIGKILL)
    child.join()
    (folder / "home").rename(folder / "killed")


def _until_killed(folder: Path, count: int) -> None:
    os.environ["RAMIFY_BENCH_HANG"] = str(folder / "hangs")

    asyncio.run(_in_runtime(folder, "copy", lambda runtime, w: runtime.run(many, count, workspace=w)))


async def _go_on(runtime: Runtime, _: Path) -> None:
    (run,) = await runtime.store.runs()
    await runtime.resume(run.id)


def _langgraph_resume(folder: Path, count: int, rounds: int) -> list[float]:
    """End the thread with an error at the step at which ours was killed: the durable state is the same."""
    from langgraph.checkpoint.sqlite import SqliteSaver

    class State(TypedDict):
        left: int

    first: list[float] = []
    broken = [True]

    def node(state: State) -> dict[str, int]:
        first.append(time.perf_counter())
        if state["left"] == 0 and broken:
            raise RuntimeError("stop here")
        return {"left": state["left"] - 1}

    graph = StateGraph(State)
    graph.add_node("node", node)
    graph.add_edge(START, "node")
    graph.add_conditional_edges("node", lambda state: "node" if state["left"] >= 0 else "__end__")
    config: Any = {"configurable": {"thread_id": "t"}, "recursion_limit": count + 10}
    with SqliteSaver.from_conn_string(f"{folder}/theirs.db") as saver, suppress(RuntimeError):
        graph.compile(checkpointer=saver).invoke({"left": count}, config, durability="sync")
    broken.clear()
    took = []
    for number in range(rounds):
        shutil.copy(folder / "theirs.db", folder / f"theirs{number}.db")
        first.clear()
        begun = time.perf_counter()
        with SqliteSaver.from_conn_string(f"{folder}/theirs{number}.db") as saver:
            graph.compile(checkpointer=saver).invoke(None, config, durability="sync")
        took.append(first[0] - begun)
    return took
