"""Measure commands of worlds: what an `exec` costs over fork and exec, a shell's command, output, parallel commands.

    python benchmarks/commands.py [--quick] [--json] [--sandbox namespaces|copy|docker]

Peers do the same in the same run, in turns with ours: fork and exec by `subprocess.run`, and asyncio's
subprocesses. `back to back` rounds follow each other at once; others begin after a pause, as an agent's commands do,
so a launcher is ready. If `load` shows that the machine was busy, the minimum of a spread says more than the median.
"""

from __future__ import annotations

import asyncio
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.rows import Row, median_row, options, row, show
from ramify.worlds.home import WorldHome
from ramify.worlds.world import World

TRUE = "/bin/true"
PAUSE_S = 0.03
GIB = 1 << 30


def fork_exec() -> None:
    """By vfork, so that this process's own size does not count."""
    subprocess.run([TRUE], capture_output=True, check=True)


async def by_asyncio() -> None:
    process = await asyncio.create_subprocess_exec(TRUE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    await process.communicate()


async def timed(work: Callable[[], Awaitable[object] | None]) -> float:
    began = time.perf_counter()
    waiting = work()
    if waiting is not None:
        await waiting
    return (time.perf_counter() - began) * 1e3


async def exec_rows(world: World, rounds: int) -> list[Row]:
    works: dict[str, Callable[[], Awaitable[object] | None]] = {
        "exec": lambda: world.exec([TRUE]),
        "fork and exec": lambda: fork_exec(),
        "asyncio": by_asyncio,
        "run": lambda: world.run(":"),
        "shell": lambda: world.shell("one").run(":"),
    }
    for work in works.values():
        await timed(work)
    made = []
    for kind, pause in (("after a pause", PAUSE_S), ("in turns", 0.0)):
        times: dict[str, list[float]] = {name: [] for name in works}
        for _ in range(rounds):
            for name, work in works.items():
                await asyncio.sleep(pause)
                times[name].append(await timed(work))
        over = [ours - plain for ours, plain in zip(times["exec"], times["fork and exec"], strict=True)]
        made.append(median_row(f"exec of /bin/true over fork and exec, {kind}", over, "ms", target=1.0))
        peer = sorted(times["asyncio"])[rounds // 2]
        made.append(
            median_row(f"exec, {kind}", times["exec"], "ms", peer="asyncio.create_subprocess_exec", peer_value=peer)
        )
        made.append(median_row(f"builtin in the world's shell, {kind}", times["run"], "ms"))
        made.append(median_row(f"builtin in a named shell, {kind}", times["shell"], "ms"))
    together = [await timed(lambda: world.exec([TRUE])) for _ in range(rounds)]
    made.append(median_row("exec, back to back", together, "ms"))
    return made


async def stream_row(world: World, size: int) -> Row:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began, read = time.perf_counter(), 0
    async with world.start(["head", "-c", str(size), "/dev/zero"]) as process:
        async for data in process.stdout:
            read += len(data)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    rate = read / (time.perf_counter() - began) / GIB
    note = f"{rate:.2f} GiB/s, {read} bytes read"
    return row(f"memory that grew while {size // (1 << 20)} MiB were streamed", grown, "MiB", target=16.0, note=note)


async def parallel_row(world: World, number: int) -> Row:
    began = time.perf_counter()
    await asyncio.gather(world.run("sleep 0.5"), *(world.exec(["sleep", "0.5"]) for _ in range(number)))
    taken = time.perf_counter() - began
    name = f"{number} execs and a shell's command of 0.5 s at once"
    return row(name, taken, "s", target=1.0, peer="one after the other", peer_value=(number + 1) * 0.5)


async def measured(sandbox: str, quick: bool) -> list[Row]:
    with tempfile.TemporaryDirectory(prefix="ramify-bench-") as folder:
        async with WorldHome(folder, sandbox) as home, World.create(home=home) as world:
            made = await exec_rows(world, 30 if quick else 200)
            made.append(await parallel_row(world, 20))
            made.append(await stream_row(world, GIB))
            return made


def main() -> None:
    parser = options(__doc__, "30 rounds instead of 200")
    parser.add_argument("--sandbox", choices=["namespaces", "docker", "copy"], default="namespaces")
    asked = parser.parse_args()
    before = os.getloadavg()[0]
    rows = asyncio.run(measured(asked.sandbox, asked.quick))
    show(rows, asked.json, load=[round(one, 1) for one in (before, os.getloadavg()[0])])


if __name__ == "__main__":
    main()
