"""A database with files beside it by which SQLite would reach other files: it is not opened, not even to be read."""

from __future__ import annotations

import os
import struct
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from ramify.runtime.errors import StoreError
from ramify.runtime.langgraph.checkpointer.database import open_engine, open_read_only_engine
from ramify.runtime.langgraph.checkpointer.thread_copies import langgraph_threads
from ramify.runtime.store import RunStore
from ramify.runtime.store.reader import reading

MAGIC = bytes.fromhex("d9d505f920a163d7")
PAGE = 4096


async def write(database: Path) -> None:
    async with RunStore(database, clock=lambda: 0.0):
        pass


async def read(database: Path) -> None:
    with reading(database):
        pass


async def write_threads(database: Path) -> None:
    open_engine(database)


async def read_threads(database: Path) -> None:
    open_read_only_engine(database).connect()


async def import_threads(database: Path) -> None:
    with langgraph_threads(database):
        pass


async def export_threads(database: Path) -> None:
    with langgraph_threads(database, create=True):
        pass


OPENINGS: list[Callable[[Path], Awaitable[None]]] = [
    *(write, read, write_threads, read_threads, import_threads, export_threads)
]


def journal_that_names(file: Path, *, pages: int = 0) -> bytes:
    """As SQLite leaves it when it dies in a transaction over several databases: a head without pages, and a name.
    `pages`: of the database before the transaction."""
    name = os.fsencode(file)
    head = (MAGIC + struct.pack(">5I", 0, 1, pages, 512, PAGE)).ljust(512, b"\0")
    return head + struct.pack(">I", 2**30 // PAGE + 1) + name + struct.pack(">II", len(name), sum(name)) + MAGIC


async def test_a_journal_that_names_another_file_is_refused(tmp_path: Path) -> None:
    database, file = tmp_path / "ramify.db", tmp_path / "of-the-user"
    await write(database)
    file.write_text("precious")
    (tmp_path / "ramify.db-journal").write_bytes(journal_that_names(file))
    (tmp_path / "link").symlink_to(database)
    for opening in OPENINGS:
        for name in (database, tmp_path / "link"):
            with pytest.raises(StoreError, match=r"ramify\.db-journal names another file"):
                await opening(name)
            assert file.read_text() == "precious"


@pytest.mark.parametrize("end", ["-wal", "-journal", "-shm"])
async def test_what_is_no_file_beside_a_database_is_refused(end: str, tmp_path: Path) -> None:
    database = tmp_path / "ramify.db"
    await write(database)
    (tmp_path / f"ramify.db{end}").symlink_to(tmp_path / "of-the-user")
    for opening in OPENINGS:
        with pytest.raises(StoreError, match=f"ramify.db{end} is not a file"):
            await opening(database)
    assert not (tmp_path / "of-the-user").exists()


async def test_a_journal_that_names_no_other_file_is_played_back(tmp_path: Path) -> None:
    """As when a process dies while SQLite makes the database."""
    database = tmp_path / "ramify.db"
    await write(database)
    pages = database.stat().st_size // PAGE
    (tmp_path / "ramify.db-journal").write_bytes(journal_that_names(tmp_path, pages=pages)[:512])
    await read(database)
    assert not (tmp_path / "ramify.db-journal").exists()
