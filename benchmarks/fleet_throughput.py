"""Workflows and steps a second on one PostgreSQL, by one or more worker processes: Ramify beside DBOS.

Each worker is a process of its own, as on a machine of its own. It opens its runtime, runs one workflow to warm up,
and waits for the others. Then all begin at once, each with `AT_ONCE` workflows at the same time. A workflow is a loop
of steps that return their number; each step is durable before the next one begins.

    python -m benchmarks.fleet_throughput ours|dbos ADDRESS HOME WORKFLOWS STEPS     (a worker; started by `rows`)
"""

from __future__ import annotations

import asyncio
import importlib.util
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.rows import Row, row  # noqa: E402
from ramify import Runtime, step, workflow  # noqa: E402

AT_ONCE = 8
LONGEST_S = 120.0
_READY, _GO = "ready\n", "go\n"


@step
async def tick(number: int) -> int:
    return number


@workflow
async def ticks(count: int) -> int:
    total = 0
    for number in range(count):
        total += await tick(number)
    return total


async def in_lanes(run: Callable[[], Awaitable[object]], workflows: int) -> None:
    """Run that many workflows, `AT_ONCE` at a time."""
    left = iter(range(workflows))

    async def lane() -> None:
        for _ in left:
            await run()

    await asyncio.gather(*(lane() for _ in range(AT_ONCE)))


def _when_all_are_ready() -> None:
    sys.stdout.write(_READY)
    sys.stdout.flush()
    if sys.stdin.readline() != _GO:
        raise SystemExit("the benchmark has ended")


async def work_ours(address: str, home: Path, workflows: int, steps: int) -> float:
    async with Runtime(home=home, database=address, sandbox="copy") as runtime:
        await runtime.run(ticks, steps)
        _when_all_are_ready()
        begun = time.perf_counter()
        await in_lanes(lambda: runtime.run(ticks, steps), workflows)
        return time.perf_counter() - begun


async def work_dbos(address: str, workflows: int, steps: int) -> float:
    from dbos import DBOS

    # Without an id of its own, a worker that starts takes up the workflows that the others are doing.
    mine = {"executor_id": secrets.token_hex(8), "application_version": "1"}
    DBOS(config={"name": "bench", "system_database_url": address, "log_level": "ERROR", **mine})

    @DBOS.step()
    async def dbos_tick(number: int) -> int:
        return number

    @DBOS.workflow()
    async def dbos_ticks(count: int) -> int:
        total = 0
        for number in range(count):
            total += await dbos_tick(number)
        return total

    DBOS.launch()
    try:
        await dbos_ticks(steps)
        _when_all_are_ready()
        begun = time.perf_counter()
        await in_lanes(lambda: dbos_ticks(steps), workflows)
        return time.perf_counter() - begun
    finally:
        DBOS.destroy(destroy_registry=True)


def _elapsed(who: str, address: str, workers: int, workflows: int, steps: int) -> float:
    """Return the seconds of the slowest worker."""
    with tempfile.TemporaryDirectory(prefix="ramify-bench-") as folder:
        words = [sys.executable, "-m", "benchmarks.fleet_throughput", who, address]
        started = [
            subprocess.Popen(
                [*words, f"{folder}/{number}", str(workflows), str(steps)],
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for number in range(workers)
        ]
        try:
            for one in started:
                if one.stdout is None or one.stdout.readline() != _READY:
                    raise RuntimeError(f"a worker of {who} ended with status {one.wait()} before it began")
            outputs = []
            for one in started:
                assert one.stdin is not None
                one.stdin.write(_GO)
                one.stdin.flush()
            for one in started:
                outputs.append(one.communicate(timeout=LONGEST_S)[0])
            return max(float(output) for output in outputs)
        finally:
            for one in started:
                one.kill()
                one.wait()


def rows(quick: bool, new_database: Callable[[], str]) -> Iterator[Row]:
    """Measure in turns, and take the best of the rounds. `new_database`: returns the address of an empty database."""
    commits = committing(new_database())
    short, long = (1, "workflows/s", 120), (20, "steps/s", 40)
    for steps, unit, workflows in (long,) if quick else (short, long):
        for workers in (1,) if quick else (1, 2, 4):
            each = (workflows // 5 if quick else workflows) // workers
            rates: dict[str, list[float]] = {"ours": [], "dbos": []}
            for _ in range(1 if quick else 3):
                for who, found in rates.items():
                    if who == "ours" or importlib.util.find_spec("dbos") is not None:
                        took = _elapsed(who, new_database(), workers, each, steps)
                        found.append(workers * each * steps / took)
            name = f"{unit} on PostgreSQL ({commits}), {workers} workers, runs of {steps} steps"
            yield _row(name, unit, **rates)


def committing(address: str) -> str:
    """Return how the server at that address commits, as it reports it."""
    import psycopg

    with psycopg.connect(address) as connection:
        mode = connection.execute("SELECT current_setting('fsync'), current_setting('synchronous_commit')").fetchone()
    assert mode is not None
    return f"fsync={mode[0]}, synchronous_commit={mode[1]}"


def _row(name: str, unit: str, ours: list[float], dbos: list[float]) -> Row:
    peer = round(max(dbos), 1) if dbos else None
    return row(
        name,
        round(max(ours), 1),
        unit,
        target=None if peer is None else round(1.5 * peer, 1),
        at_least=True,
        peer="DBOS: not installed (pip install dbos)" if peer is None else "DBOS",
        peer_value=peer,
        spread=(round(min(ours), 1), round(max(ours), 1)),
        note=f"the best of {len(ours)} rounds; the target is 1.5 times DBOS",
    )


if __name__ == "__main__":
    whose, where, home_folder, how_many, how_long = sys.argv[1:]
    from benchmarks import fleet_throughput as named  # a workflow is found again by its module's name

    if whose == "ours":
        print(asyncio.run(named.work_ours(where, Path(home_folder), int(how_many), int(how_long))))
    else:
        print(asyncio.run(named.work_dbos(where, int(how_many), int(how_long))))
