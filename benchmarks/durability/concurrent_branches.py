"""Many branches: 200 at the same time, and 1,000 that queue for 200 places.

A process of its own does the work, so that only it and its worlds are measured. Every branch waits in its step, with
its world alive, until all are there, which proves that they are concurrent. Then nothing runs for a while, and the
idle row is the share of a core that all processes use meanwhile. Memory is the proportional set size of that process
and all its descendants while all worlds are alive.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.durability.supersteps import row
from benchmarks.rows import Row
from ramify import Runtime, Sandbox, fork, step, workflow

IDLE_S = 5.0


@dataclass
class Room:
    """A barrier for branches: the last of `places` to arrive opens it."""

    places: int
    here: int = 0
    open: asyncio.Event | None = None

    async def meet(self) -> None:
        if self.open is None:
            self.open = asyncio.Event()
        self.here += 1
        if self.here == self.places:
            self.measured = await measured()
            self.open.set()
        await self.open.wait()

    measured: tuple[float, float] = (0.0, 0.0)  # the share of a core, and GB


ROOM = Room(0)


@step
async def small(sandbox: Sandbox, number: int) -> int:
    done = await sandbox.run(f"echo {number} > n; cat n", check=True)
    if ROOM.here < ROOM.places:
        await ROOM.meet()
    return int(done.stdout)


@workflow
async def branching(count: int, at_once: int) -> list[int]:
    async with fork(list(range(count))) as branches:
        return [int(outcome.value) for outcome in await branches.map(small, concurrency=at_once)]


async def measured() -> tuple[float, float]:
    """Measure what all processes from this one down use of a core while idle, and the GB that they hold."""
    await asyncio.sleep(1.0)  # earlier work has finished
    before, begun = _cpu_s(), time.perf_counter()
    await asyncio.sleep(IDLE_S)
    share = (_cpu_s() - before) / (time.perf_counter() - begun)
    return share, sum(_pss(pid) for pid in _below(os.getpid())) / 1e9


def _below(root: int) -> set[int]:
    """Return a process and all its descendants."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (stat := _stat(int(entry.name))) is not None:
            parents[int(entry.name)] = int(stat[1])
    found, grew = {root}, True
    while grew:
        more = {pid for pid, parent in parents.items() if parent in found} - found
        found, grew = found | more, bool(more)
    return found


def _stat(pid: int) -> list[str] | None:
    """Return the fields of /proc/PID/stat after the name, which may hold anything; None if the process has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None


def _cpu_s() -> float:
    stats = [stat for pid in _below(os.getpid()) if (stat := _stat(pid)) is not None]
    return sum(int(stat[11]) + int(stat[12]) for stat in stats) / os.sysconf("SC_CLK_TCK")


def _pss(pid: int) -> int:
    """Return the proportional set size in bytes, or all resident memory if the kernel does not report it."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))
    except PermissionError:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (FileNotFoundError, ProcessLookupError, StopIteration):
        return 0  # it has ended, or is a zombie


def _work(folder: Path, sandbox: str, count: int, at_once: int, answers: Any) -> None:
    ROOM.places = at_once
    begun = time.perf_counter()
    got = asyncio.run(_branching(folder, sandbox, count, at_once))
    answers.send((got, time.perf_counter() - begun - IDLE_S - 1.0, *ROOM.measured))


async def _branching(folder: Path, sandbox: str, count: int, at_once: int) -> list[int]:
    (folder / "w").mkdir()
    async with Runtime(home=folder / "home", sandbox=sandbox) as runtime:
        result: list[int] = await runtime.run(branching, count, at_once, workspace=folder / "w")
        return result


def rows(quick: bool, sandbox: str) -> list[Row]:
    made: list[Row] = []
    for count, at_once in ((20, 20), (40, 20)) if quick else ((200, 200), (1000, 200)):
        ours, theirs = multiprocessing.get_context("spawn").Pipe()
        with tempfile.TemporaryDirectory(prefix="ramify-bench-") as folder:
            words = (Path(folder), sandbox, count, at_once, theirs)
            child = multiprocessing.get_context("spawn").Process(target=_work, args=words)
            child.start()
            theirs.close()
            try:
                got, seconds, share, gigabytes = ours.recv()
            except EOFError:
                raise RuntimeError(f"the process that ran {count} branches ended without an answer") from None
            child.join()
        lost = count - len(set(got) & set(range(count)))
        name = f"{count} branches, {at_once} at once"
        made += [
            _row(f"{name}: lost", float(lost), "branches", 0.0) | {"seconds": round(seconds, 1)},
            _row(f"{name}: memory of all processes", gigabytes, "GB", 1.0),
            _row(f"{name}: a core's share while all wait", share, "of a core", 0.05),
        ]
    return made


def _row(name: str, ours: float, unit: str, target: float) -> Row:
    return row(name, [ours], unit, "none", [], None) | {"target": target, "met": ours <= target}
