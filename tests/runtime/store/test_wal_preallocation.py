"""Space in SQLite's log is preallocated: few commits extend the file, and no content is lost or invented."""

from __future__ import annotations

import errno
import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, text

from ramify.runtime.errors import StoreError
from ramify.runtime.store import wal_preallocation
from ramify.runtime.store.engines import prepare, transaction
from ramify.runtime.store.wal_preallocation import LogPreallocation

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

        for number in range(wal_preallocation.SELDOM):
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

        looked, real = [], wal_preallocation.os.pread

        def looking(handle: int, length: int, at: int) -> bytes:
            found = real(handle, length, at)
            looked.append(1)
            theirs()
            return found

        monkeypatch.setattr(wal_preallocation.os, "pread", looking)
        for number in range(wal_preallocation.SELDOM, COMMITS):
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
    monkeypatch.setattr(wal_preallocation, "SELDOM", 1)
    made = LogPreallocation(log)
    made.make()
    log.write_bytes(b"b" * 5000)

    def refused(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patched:
        patched.setattr(wal_preallocation.os, call, refused)
        made.make()
    assert log.read_bytes() == b"b" * 5000
    log.write_bytes(b"b" * 6000)
    made.make()
    assert log.read_bytes() == b"b" * 6000 + bytes(wal_preallocation.FIRST)


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
