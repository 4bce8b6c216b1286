"""Several processes on one file, and one that is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ramify.runtime.errors import StoreError
from ramify.runtime.store import RunStore

Make = Callable[..., Any]

# Commits rows to run argv[2], from argv[3] on, every one under a new number; prints each number once it is durable.
WORKER = """
import asyncio, sys
from pathlib import Path
from ramify.compiler.plan import OpId, OpKind
from ramify.runtime.records import *
from ramify.runtime.store import RunStore

async def main(path, run, first, count):
    async with RunStore(path, clock=lambda: 0.0) as store:
        for n in range(first, first + count):
            row = OpRecord(run, n, f"k{n}", OpId("o1"), OpKind.RUN, ROOT, OpStatus.DONE, result_json=f'"{n}"' * 200)
            seal = CheckpointRecord(CheckpointId(f"c{n}"), run, n, ROOT, "s", "k", (), 0.0)
            await store.commit(run, ops=[row], checkpoints=[seal])
            print(n, flush=True)

asyncio.run(main(Path(sys.argv[1]), RunId(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])))
"""


def worker(path: Path, first: int, count: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", WORKER, os.fspath(path), "run-1", str(first), str(count)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


async def test_processes_on_one_file_wait_for_each_other(tmp_path: Path, a_run: Make) -> None:
    path = tmp_path / "ramify.db"
    async with RunStore(path, clock=lambda: 0.0) as store:
        await store.create_run(a_run())
        workers = [worker(path, 1, 40), worker(path, 1001, 40)]
        for one in workers:
            _, complaints = one.communicate(timeout=60)
            assert one.returncode == 0, complaints
        assert [op.seq for op in await store.ops("run-1")] == [*range(1, 41), *range(1001, 1041)]


OPEN = """
import asyncio, sys
from pathlib import Path
from ramify.runtime.store import RunStore

async def main():
    sys.stdin.readline()
    async with RunStore(Path(sys.argv[1]), clock=lambda: 0.0) as store:
        assert await store.runs() == []

asyncio.run(main())
"""


def test_processes_that_create_the_database_concurrently(tmp_path: Path) -> None:
    command = [sys.executable, "-c", OPEN, os.fspath(tmp_path / "ramify.db")]
    openers = [subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(4)]
    for one in openers:
        assert one.stdin is not None
        one.stdin.write("go\n")
        one.stdin.flush()
    for one in openers:
        _, complaints = one.communicate(timeout=60)
        assert one.returncode == 0, complaints


@pytest.mark.parametrize("after", [1, 7, 30])
async def test_a_killed_writer_leaves_a_readable_prefix(tmp_path: Path, a_run: Make, after: int) -> None:
    path = tmp_path / "ramify.db"
    async with RunStore(path, clock=lambda: 0.0) as store:
        await store.create_run(a_run())
    writer = worker(path, 1, 100_000)
    assert writer.stdout is not None
    answered = [int(writer.stdout.readline()) for _ in range(after)]
    writer.send_signal(signal.SIGKILL)
    answered += [int(line) for line in writer.stdout]  # `communicate` would miss buffered lines
    writer.communicate()
    async with RunStore(path, clock=lambda: 0.0) as store:
        kept = [op.seq for op in await store.ops("run-1")]
        assert kept == list(range(1, len(kept) + 1))  # nothing is missing in the middle
        assert len(answered) <= len(kept) <= len(answered) + 1  # and nothing that was answered is lost
        assert [one.seq for one in await store.checkpoints("run-1")] == kept  # each with its checkpoint
        await store.commit("run-1")


@pytest.mark.parametrize("replaced", [False, True])
async def test_a_database_that_was_removed_under_a_writer_takes_no_more(
    tmp_path: Path, a_run: Make, replaced: bool
) -> None:
    """SQLite would go on in the removed file, and confirm commits that nobody will find."""
    path = tmp_path / "ramify.db"
    async with RunStore(path, clock=lambda: 0.0) as store:
        await store.create_run(a_run())
        moved = path.rename(tmp_path / "elsewhere")
        if replaced:
            path.touch()
        with pytest.raises(StoreError, match=r"moved, removed or replaced .* Put the file back"):
            await store.create_run(a_run(id="run-2"))
        moved.replace(path)
        await store.create_run(a_run(id="run-3"))
    async with RunStore(path, clock=lambda: 0.0) as store:
        assert {run.id for run in await store.runs()} == {"run-1", "run-3"}
