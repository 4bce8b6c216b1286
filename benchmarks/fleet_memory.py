"""The memory of a worker over as many short runs as it gets in an hour, on PostgreSQL.

The worker is a process of its own, and runs workflows as in fleet_throughput.py: ten a second for an hour are 36,000
runs. They are not spread over an hour: each begins when one before it has ended. What a run leaves behind in memory
adds up all the same.

    python -m benchmarks.fleet_memory ADDRESS HOME RUNS     (the worker; started by `rows`)
"""

from __future__ import annotations

import asyncio
import gc
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.fleet_throughput import in_lanes, ticks  # noqa: E402
from benchmarks.rows import Row, row  # noqa: E402
from ramify import Runtime  # noqa: E402

HOURS_WORTH = 36_000
SAMPLES = 20
LIMIT_MB = 10


def resident_mb() -> float:
    gc.collect()
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError("the kernel does not tell this process's memory")


async def work(address: str, home: Path, runs: int) -> list[float]:
    """Return the resident memory in MB after each of `SAMPLES` equal parts of the runs."""
    sizes = []
    async with Runtime(home=home, database=address, sandbox="copy") as runtime:
        for _ in range(SAMPLES):
            await in_lanes(lambda: runtime.run(ticks, 1), runs // SAMPLES)
            sizes.append(resident_mb())
    return sizes


def rows(quick: bool, new_database: Callable[[], str]) -> Iterator[Row]:
    """`new_database`: returns the address of an empty database."""
    runs = HOURS_WORTH // 180 if quick else HOURS_WORTH
    with tempfile.TemporaryDirectory(prefix="ramify-bench-") as home:
        words = [sys.executable, "-m", "benchmarks.fleet_memory", new_database(), home, str(runs)]
        sizes = json.loads(subprocess.run(words, cwd=ROOT, stdout=subprocess.PIPE, check=True, text=True).stdout)
    settled = sizes[SAMPLES // 10 :]  # the first tenth fills caches
    yield row(
        f"memory of a worker, growth over {runs:,} runs",
        round(settled[-1] - settled[0], 1),
        "MB",
        target=LIMIT_MB,
        spread=(round(min(settled), 1), round(max(settled), 1)),
        note="from the first tenth of the runs to the last; the spread is the memory itself",
    )


if __name__ == "__main__":
    where, home_folder, how_many = sys.argv[1:]
    from benchmarks import fleet_memory as named  # a workflow is found again by its module's name

    print(json.dumps(asyncio.run(named.work(where, Path(home_folder), int(how_many)))))
