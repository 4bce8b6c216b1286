"""Runs of many steps and of long values: whether step 20,000 costs what step 1,000 does, and what a value of 50 MB
costs in time and memory."""

from __future__ import annotations

import asyncio
import itertools
import multiprocessing
import tempfile
import time
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import pydantic

from benchmarks.rows import Row, median_row, row
from ramify import Runtime, Sandbox, step, workflow
from ramify.runtime.errors import StepFailed

FLAT = 1.25  # the cost of a late step over that of an early one
LENGTH, NUMBERS = 50_000_000, 300_000
_RESUMED = 500

AT: list[float] = []


@step(effect="pure")
async def pure(number: int) -> int:
    AT.append(time.process_time())
    return number


@step
async def in_world(number: int, sandbox: Sandbox) -> int:
    AT.append(time.process_time())
    return number


@workflow
async def counts(count: int, worlds: bool) -> int:
    return sum([await (in_world(number) if worlds else pure(number)) for number in range(count)])


class Reached(Exception):
    """Ends the run again and again. The argument: when."""


@step(effect="pure")
async def new_step() -> None:
    raise Reached(time.perf_counter())


@workflow
async def stops(count: int) -> None:
    for number in range(count):
        await pure(number)
    await new_step()


@dataclass
class Document:
    title: str
    text: str
    score: float


class Page(pydantic.BaseModel):
    title: str
    text: str
    score: float


def tree(levels: int, length: int) -> dict[str, Any]:
    if levels == 0:
        return {"text": "x" * length}
    return {"name": "node", "children": [tree(levels - 1, length // 2) for _ in range(2)]}


MADE: Mapping[str, Callable[[int], Any]] = {
    "text": lambda length: "x" * length,
    "bytes": lambda length: bytes(range(250)) * (length // 250),
    "unicode": lambda length: 'é"\n\\' * (length // 4),
    "emoji": lambda length: "\U0001f600" * (length // 4),
    "entries": lambda length: {f"key {at}": f"value {at}" for at in range(length // 250)},
    "messages": lambda length: [{"role": "user", "content": f"{at:09} " * 100} for at in range(length // 1000)],
    "french": lambda length: [{"role": "user", "content": f"{at:08} é" * 100} for at in range(length // 1000)],
    "list of bytes": lambda length: [at.to_bytes(10, "big") * 100 for at in range(length // 1000)],
    "nested": lambda length: tree(12, length),
    "integers": lambda length: list(range(10**6, 10**6 + length // 36)),
    "floats": lambda length: [at / 7 for at in range(length // 32)],
    "dataclasses": lambda length: [Document(f"page {at}", f"{at:09} " * 100, at / 7) for at in range(length // 1000)],
    "models": lambda length: [
        Page(title=f"page {at}", text=f"{at:09} " * 100, score=at / 7) for at in range(length // 1000)
    ],
}
NAMES = {
    "text": "50 MB string through two steps",
    "bytes": "50 MB of bytes through two steps",
    "unicode": "50 M characters through two steps, all of them escaped in ASCII",
    "emoji": "50 MB of emoji through two steps",
    "entries": "dict of 200,000 entries through two steps",
    "messages": "50,000 messages of 1 kB through two steps",
    "french": "50,000 messages of 1 kB with accents through two steps",
    "list of bytes": "50,000 times 1 kB of bytes through two steps",
    "nested": "50 MB in nested dicts through two steps",
    "integers": "1.4 million integers through two steps",
    "floats": "1.6 million floats through two steps",
    "dataclasses": "50,000 dataclasses of 1 kB through two steps",
    "models": "50,000 pydantic models of 1 kB through two steps",
}


@step(effect="pure")
async def make(what: str, length: int) -> Any:
    return MADE[what](length)


@step(effect="pure")
async def same(value: Any) -> Any:
    return value


@workflow
async def long_value(what: str, length: int) -> int:
    return len(await same(await make(what, length)))


@step(effect="pure")
async def total(numbers: list[int]) -> int:
    return sum(numbers)


@workflow
async def long_list(numbers: list[int]) -> int:
    return await total(numbers)


def rows(quick: bool) -> list[Row]:
    count, of_worlds = (2_000, 200) if quick else (20_000, 20_000)
    return [
        _flat("pure", count, worlds=False),
        _flat("world", of_worlds, worlds=True),
        _resume(3 if quick else 10),
        *(each for which, name in NAMES.items() for each in _long_value(name, which)),
        *_long_value("argument of 300,000 integers", "numbers"),
    ]


def _flat(kind: str, count: int, *, worlds: bool) -> Row:
    """Compare the processor time of this process for the last tenth of the steps with that for the second tenth."""
    AT.clear()
    asyncio.run(_in_runtime(lambda runtime: runtime.run(counts, count, worlds)))
    gaps = [(b - a) * 1000 for a, b in itertools.pairwise(AT)]
    tenth = len(gaps) // 10
    early, late = median(gaps[tenth : 2 * tenth]), median(gaps[-tenth:])
    note = f"{early:.2f} ms of processor time a step at the beginning, {late:.2f} ms at the end"
    return row(f"{kind} step {count:,} over an early one", round(late / early, 3), "ratio", target=FLAT, note=note)


def _resume(rounds: int) -> Row:
    """Time from the call of `resume` to the first step that was not done. The first round warms up."""
    took = []
    with tempfile.TemporaryDirectory(prefix="ramify-bench-") as folder:
        for _ in range(rounds + 2):
            before = time.process_time()
            begun, ended = asyncio.run(_stopped_run(Path(folder)))
            took.append((ended - begun) * 1000)
    note = f"{(time.process_time() - before) * 1000:.0f} ms of processor time, with opening and closing"
    return median_row(f"resume of {_RESUMED} steps", took[2:], "ms", target=50, note=note)


async def _stopped_run(home: Path) -> tuple[float, float]:
    async with Runtime(home=home, sandbox="copy") as runtime:
        known = await runtime.store.runs()
        begun = time.perf_counter()
        try:
            await (runtime.resume(known[0].id) if known else runtime.run(stops, _RESUMED))
        except StepFailed as failed:
            assert failed.__cause__ is not None
            return begun, failed.__cause__.args[0]
    raise AssertionError("its last step fails")


def _long_value(name: str, which: str) -> list[Row]:
    """Run it in a process of its own, whose peak of memory is its own."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        seconds, processor, megabytes = pool.apply(_measured, (which,))
    return [
        row(name, round(seconds, 2), "s", target=2, note=f"{processor:.2f} s of processor time"),
        row(f"{name}: memory on top", round(megabytes), "MB", target=200),
    ]


def _measured(which: str) -> tuple[float, float, float]:
    async def work(runtime: Runtime) -> tuple[float, float, float]:
        await runtime.run(long_value, "text", 10)  # imports, the database
        before = _kilobytes("VmRSS")
        begun, used = time.perf_counter(), time.process_time()
        if which == "numbers":
            await runtime.run(long_list, list(range(NUMBERS)))
        else:
            await runtime.run(long_value, which, LENGTH)
        took = time.perf_counter() - begun, time.process_time() - used
        return *took, (_kilobytes("VmHWM") - before) / 1024

    return asyncio.run(_in_runtime(work))


def _kilobytes(name: str) -> int:
    """Return a figure of this process's memory. Not `ru_maxrss`, which includes the process that started it."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(f"{name}:")).split()[1])


async def _in_runtime(work: Any) -> Any:
    with tempfile.TemporaryDirectory(prefix="ramify-bench-") as folder:
        async with Runtime(home=Path(folder), sandbox="copy") as runtime:
            result: Coroutine[Any, Any, Any] = work(runtime)
            return await result
