"""Several processes on one file, and one that is killed. Space in SQLite's log is preallocated: few commits extend
the file, and no content is lost or invented."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, text

from ramify.runtime.errors import StoreError
from ramify.runtime.store import RunStore, engines
from ramify.runtime.store.engines import LogPreallocation, prepare, transaction

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


HOLD = """
import sqlite3, sys, time
new = sqlite3.connect(sys.argv[1], isolation_level=None)
new.execute("BEGIN IMMEDIATE")
print("locked", flush=True)
time.sleep(0.5)
new.execute("COMMIT")
"""


def test_opening_a_new_database_waits_for_another_process_that_writes_it(tmp_path: Path) -> None:
    """SQLite itself refuses at once to switch to the write-ahead log while another connection has the write lock."""
    path = os.fspath(tmp_path / "ramify.db")
    with subprocess.Popen([sys.executable, "-c", HOLD, path], stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "locked\n"
        subprocess.run([sys.executable, "-c", OPEN, path], input="go\n", text=True, check=True)
    assert other.returncode == 0


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


COMMITS = 120


def opened(path: Path) -> Any:
    engine = create_engine(f"sqlite:///{path}")
    prepare(engine)
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE IF NOT EXISTS t (number INTEGER PRIMARY KEY, filler TEXT)"))
    return engine.execution_options(write=True)


def insert(connection: Any, number: int) -> None:
    connection.execute(text("INSERT INTO t VALUES (:n, :f)"), {"n": number, "f": "x" * 300})


def test_few_commits_extend_the_log(tmp_path: Path) -> None:
    path, log = tmp_path / "x.db", tmp_path / "x.db-wal"
    engine = opened(path)
    lengths = []
    with engine.connect() as held:  # as the saver's writer does it
        for number in range(COMMITS):
            with transaction(held) as commit:
                insert(held, number)
                commit()
            lengths.append(log.stat().st_size)
    assert len(set(lengths)) < COMMITS / 4
    assert lengths[-1] < 2 * COMMITS * 8192
    for kill in (log, tmp_path / "x.db-shm"):  # as after a kill: SQLite has to find the end of the log by itself
        assert kill.exists()
    (tmp_path / "killed").mkdir()
    for left in (path, log):
        shutil.copy(left, tmp_path / "killed" / left.name)
    with closing(sqlite3.connect(tmp_path / "killed" / "x.db")) as again:
        assert again.execute("SELECT count(*), max(number) FROM t").fetchone() == (COMMITS, COMMITS - 1)
        assert again.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    engine.dispose()


def test_two_writers_preallocate_for_each_other(tmp_path: Path) -> None:
    engines = [opened(tmp_path / "x.db") for _ in range(2)]
    for number in range(COMMITS):
        with engines[number % 2].begin() as connection:
            insert(connection, number)
    assert (tmp_path / "x.db-wal").stat().st_size < 2 * COMMITS * 8192
    with engines[0].connect() as connection:
        assert connection.execute(text("SELECT count(*) FROM t")).scalar() == COMMITS
        assert connection.execute(text("PRAGMA integrity_check")).scalar() == "ok"
    for engine in engines:
        engine.dispose()


def test_a_database_that_replaced_ours_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The log under its name belongs to another database, whose process appends to it: we neither write nor look."""
    path, log = tmp_path / "x.db", tmp_path / "x.db-wal"
    engine = opened(path)
    with engine.connect() as held:

        def ours(number: int) -> None:
            with transaction(held) as commit:
                insert(held, number)
                commit()

        for number in range(engines.SELDOM):
            ours(number)
        for file in tmp_path.iterdir():
            file.unlink()
        new = sqlite3.connect(path, isolation_level=None)
        new.execute("PRAGMA journal_mode = WAL")
        new.execute("CREATE TABLE t (number INTEGER PRIMARY KEY, filler TEXT)")
        committed = []

        def theirs() -> None:
            new.execute("INSERT INTO t VALUES (?, ?)", (len(committed), "y" * 300))
            committed.append(1)

        looked, real = [], engines.os.pread

        def looking(handle: int, length: int, at: int) -> bytes:
            found = real(handle, length, at)
            looked.append(1)
            theirs()
            return found

        monkeypatch.setattr(engines.os, "pread", looking)
        for number in range(engines.SELDOM, COMMITS):
            theirs()
            with pytest.raises(StoreError, match="replaced"):
                ours(number)
    assert not looked
    (tmp_path / "killed").mkdir()
    for left in (path, log):
        shutil.copy(left, tmp_path / "killed" / left.name)
    with closing(sqlite3.connect(tmp_path / "killed" / "x.db")) as again:
        assert again.execute("SELECT count(*) FROM t").fetchone() == (len(committed),)
    new.close()
    engine.dispose()


@pytest.mark.parametrize(
    ("call", "number"), [("write", errno.ENOSPC), ("open", errno.EMFILE), ("stat", errno.EACCES)]
)
def test_a_log_that_cannot_be_extended_is_unchanged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, number: int
) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"a")
    monkeypatch.setattr(engines, "SELDOM", 1)
    made = LogPreallocation(log)
    made.make()
    log.write_bytes(b"b" * 5000)

    def refused(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patched:
        patched.setattr(engines.os, call, refused)
        made.make()
    assert log.read_bytes() == b"b" * 5000
    log.write_bytes(b"b" * 6000)
    made.make()
    assert log.read_bytes() == b"b" * 6000 + bytes(engines.FIRST)


def test_a_folder_whose_name_is_not_utf8(tmp_path: Path) -> None:
    folder = tmp_path / os.fsdecode(b"caf\xe9")
    folder.mkdir()
    engine = opened(folder / "x.db")
    lengths = set()
    with engine.connect() as held:
        for number in range(COMMITS):
            with transaction(held) as commit:
                insert(held, number)
                commit()
            lengths.add((folder / "x.db-wal").stat().st_size)
    assert len(lengths) < COMMITS / 4
    engine.dispose()
