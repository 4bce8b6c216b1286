"""The error for a database that cannot be used names the file and what to do."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from ramify.runtime.errors import StoreError
from ramify.runtime.store import RunStore
from ramify.runtime.store.reader import at_once, reading

Make = Callable[..., Any]


def opened(path: Path) -> RunStore:
    return RunStore(path, clock=lambda: 0.0)


async def test_a_file_that_is_not_a_database(tmp_path: Path) -> None:
    path = tmp_path / "ramify.db"
    path.write_bytes(b"a poem about the sea\n" * 400)
    with pytest.raises(StoreError, match=f"{path}.*not a database"):
        async with opened(path):
            pass
    assert path.read_bytes().startswith(b"a poem")


async def test_a_file_that_cannot_be_opened_leaves_no_thread_behind(tmp_path: Path) -> None:
    """The thread would call an event loop that is closed by then."""
    others = set(threading.enumerate())  # of tests that ran before this one
    for _ in range(20):
        with pytest.raises(StoreError):
            async with opened(tmp_path):
                pass
        for thread in threading.enumerate():
            if thread not in others and "connection_worker" in thread.name:
                await asyncio.to_thread(thread.join, 10)  # it was told to end
                assert not thread.is_alive()


async def test_a_damaged_database(tmp_path: Path, a_run: Make, an_op: Make) -> None:
    path = tmp_path / "ramify.db"
    async with opened(path) as store:
        await store.create_run(a_run())
        await store.commit("run-1", ops=[an_op(seq=n, summary="s" * 3000) for n in range(1, 20)])
    whole = path.read_bytes()
    path.write_bytes(whole[:4096] + b"\xff" * (len(whole) - 4096))
    with pytest.raises(StoreError, match=r"damaged.*move it away"):
        async with opened(path) as store:
            await store.ops("run-1")


async def test_a_folder_in_place_of_the_file(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"cannot be opened.*can be written"):
        async with opened(tmp_path):
            pass


async def test_a_file_in_place_of_the_folder(tmp_path: Path) -> None:
    (tmp_path / "home").write_text("in the way")
    with pytest.raises(StoreError, match="use another --home"):
        async with opened(tmp_path / "home" / "ramify.db"):
            pass


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
async def test_a_read_only_file(tmp_path: Path, a_run: Make) -> None:
    path = tmp_path / "ramify.db"
    async with opened(path):
        pass
    path.chmod(0o400)
    with pytest.raises(StoreError, match="cannot be written"):
        async with opened(path) as store:
            await store.create_run(a_run())


FILL = """
import asyncio, resource, signal, sys
from dataclasses import replace
from pathlib import Path
from ramify.runtime.errors import StoreError
from ramify.runtime.store import RunStore
from ramify.runtime.store.reader import at_once, reading
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)

async def main(path):
    async with RunStore(path, clock=lambda: 0.0) as store:
        run = (await store.runs())[0]
        resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, 400_000))
        for n in range(1000):
            try:
                await store.create_run(replace(run, id=f"filler-{n}", plan_json=str(n) * 10_000))
            except StoreError as error:
                print(error)
                return

asyncio.run(main(Path(sys.argv[1])))
"""


def fill(path: Path) -> str:
    return subprocess.run([sys.executable, "-c", FILL, path], stdout=subprocess.PIPE, text=True, timeout=60).stdout


async def test_a_full_disk(tmp_path: Path, a_run: Make) -> None:
    """A limit on the file's size stands for a full disk: the write fails in the same place."""
    path = tmp_path / "ramify.db"
    async with opened(path) as store:
        await store.create_run(a_run())
    assert "free" in fill(path)
    async with opened(path) as store:
        assert len(await store.runs()) > 1  # confirmed rows are there, and the file is intact
    with closing(sqlite3.connect(path)) as database:
        assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)


async def test_a_database_without_our_tables_says_that_it_was_replaced(tmp_path: Path, a_run: Make) -> None:
    """As a connection finds it that was opened after another program had removed the file."""
    path = tmp_path / "ramify.db"
    async with opened(path) as store:
        await store.create_run(a_run())
    with closing(sqlite3.connect(path)) as direct:
        direct.execute("drop table leases")
    said = r"no such table: leases.*removed or replaced while this process used it.*put it back"
    with pytest.raises(StoreError, match=said), reading(path) as reader:
        at_once(reader.leases([a_run().id], 0.0))
