"""SQLite's log has room ahead: few commits make it longer, and nothing of what it holds is lost or invented."""

from __future__ import annotations

import shutil
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, text

from ramify.runtime.store import room
from ramify.runtime.store.connect import prepare, transaction
from ramify.runtime.store.room import Room

COMMITS = 120


def opened(path: Path) -> Any:
    engine = create_engine(f"sqlite:///{path}")
    prepare(engine)
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE IF NOT EXISTS t (number INTEGER PRIMARY KEY, filler TEXT)"))
    return engine.execution_options(write=True)


def insert(connection: Any, number: int) -> None:
    connection.execute(text("INSERT INTO t VALUES (:n, :f)"), {"n": number, "f": "x" * 300})


def test_few_commits_make_the_log_longer(tmp_path: Path) -> None:
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
    for kill in (log, tmp_path / "x.db-shm"):  # what a kill leaves: SQLite has to find the log's end by itself
        assert kill.exists()
    (tmp_path / "killed").mkdir()
    for left in (path, log):
        shutil.copy(left, tmp_path / "killed" / left.name)
    with sqlite3.connect(tmp_path / "killed" / "x.db") as again:
        assert again.execute("SELECT count(*), max(number) FROM t").fetchone() == (COMMITS, COMMITS - 1)
        assert again.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    engine.dispose()


def test_two_who_write_make_room_for_both(tmp_path: Path) -> None:
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


def test_without_space_the_log_stays_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"a")
    monkeypatch.setattr(room, "SELDOM", 1)
    made = Room(log)
    made.make()
    log.write_bytes(b"b" * 5000)

    def full(handle: int, data: bytes, at: int) -> int:
        real(handle, data[:10], at)
        raise OSError(28, "No space left on device")

    real = room.os.pwrite
    monkeypatch.setattr(room.os, "pwrite", full)
    made.make()
    assert log.read_bytes() == b"b" * 5000
    monkeypatch.setattr(room.os, "pwrite", real)
    log.write_bytes(b"b" * 6000)
    made.make()
    assert log.read_bytes() == b"b" * 6000 + bytes(room.FIRST)
