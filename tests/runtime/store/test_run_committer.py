"""Concurrent commits share a transaction, lost connections are retried, and no batch is committed twice."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection

from ramify.runtime.errors import StoreError
from ramify.runtime.records import RunId
from ramify.runtime.store import RunStore
from ramify.runtime.store.address import parse
from ramify.runtime.store.batch_writer import Job
from ramify.runtime.store.engines import writer
from ramify.runtime.store.run_committer import RunCommitter

Make = Callable[..., Any]
RUN = RunId("run-1")


async def test_a_failing_job_does_not_affect_the_others(store: RunStore, a_run: Make, an_op: Make) -> None:
    await store.create_run(a_run())
    await store.commit(RUN, ops=[an_op(seq=1)])
    commits = [store.commit(RUN, ops=[an_op(seq=n)]) for n in (2, 1, 3)]  # the second clashes
    outcomes = await asyncio.gather(*commits, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [type(None), StoreError, type(None)]
    assert [op.seq for op in await store.ops(RUN)] == [1, 2, 3]


async def test_siblings_share_a_transaction_and_one_flush(address: str, a_run: Make) -> None:
    async with RunStore(address, clock=lambda: 0.0) as store:
        await store.create_run(a_run())
    engine = writer(parse(address))
    begun: list[Connection] = []
    flushed: list[int] = []
    committer = RunCommitter(engine, clock=lambda: 0.0, linger_s=30.0)
    try:
        announced = [committer.coming() for _ in range(3)]
        jobs = [Job(begun.append, RUN, barrier=_flush_of(flushed)) for _ in range(3)]
        done = [committer.submit(job, coming) for job, coming in zip(jobs, announced, strict=True)]
        for one in done:
            await asyncio.wrap_future(one)
    finally:
        await asyncio.to_thread(committer.close)
        engine.dispose()
    assert (len(begun), len(set(map(id, begun))), flushed) == (3, 1, [1])


def _flush_of(flushed: list[int], cache: dict[int, Callable[[], None]] = {}) -> Callable[[], None]:  # noqa: B006
    return cache.setdefault(id(flushed), lambda: flushed.append(1))


async def test_a_missing_sibling_delays_a_batch_only_briefly(store: RunStore, a_run: Make) -> None:
    await store.create_run(a_run())
    with store.coming():
        await store.commit(RUN)
    await store.commit(RUN)


# Commits 20 times alone, then 20 times five at once, each time announced; marks both in the trace.
COUNTED = """
import asyncio, os, sys, time
from ramify.runtime.records import RunId
from ramify.runtime.store import RunStore

async def one(store):
    with store.coming() as coming:
        await asyncio.sleep(0)
        await store.commit(RunId("run-1"), coming=coming)

async def main():
    async with RunStore(sys.argv[1], clock=time.time) as store:  # a row that stays as it was would write nothing
        await store.commit(RunId("run-1"))
        for width in (1, 5):
            os.access(f"/begin-{width}", 0)
            for _ in range(20):
                await asyncio.gather(*(one(store) for _ in range(width)))
            os.access(f"/end-{width}", 0)

asyncio.run(main())
"""


@pytest.mark.skipif(shutil.which("strace") is None, reason="counts system calls: needs strace")
async def test_a_superstep_costs_one_fsync(tmp_path: Path, a_run: Make) -> None:
    path = tmp_path / "ramify.db"
    async with RunStore(path, clock=lambda: 0.0) as store:
        await store.create_run(a_run())
    trace = tmp_path / "trace"
    calls = "trace=fsync,fdatasync,syncfs,sync,sync_file_range,access,faccessat,faccessat2"
    command = ["strace", "-f", "-e", calls, "-o", trace, sys.executable, "-c", COUNTED, path]
    ran = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=120)
    if ran.returncode and "PTRACE" in ran.stderr:
        pytest.skip(f"strace may not trace here: {ran.stderr.splitlines()[0]}")
    assert ran.returncode == 0, ran.stderr
    lines = trace.read_text().splitlines()
    for width in (1, 5):
        first, last = (
            next(i for i, line in enumerate(lines) if f"/{which}-{width}" in line) for which in ("begin", "end")
        )
        syncs = [line for line in lines[first:last] if "sync" in line and "resumed" not in line]
        # one a superstep; the log is moved into the file now and then, which costs two more
        assert 20 <= len(syncs) <= 24, (width, syncs)


@pytest.fixture
def on_server(request: pytest.FixtureRequest) -> str:
    import psycopg

    database: str = request.getfixturevalue("one_database")
    with psycopg.connect(database) as connection:
        connection.execute("DROP SCHEMA IF EXISTS ramify CASCADE")
    return database


def end_connections(address: str) -> None:
    """End all connections, as a server that is restarted does."""
    import psycopg

    with psycopg.connect(address, autocommit=True) as connection:
        connection.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'ramify'")


@pytest.mark.postgres
async def test_lost_connections_lose_nothing_and_repeat_nothing(on_server: str, a_run: Make, an_op: Make) -> None:
    async with RunStore(on_server, clock=lambda: 0.0) as store:
        await store.create_run(a_run())
        for round_ in range(5):
            commits = [asyncio.create_task(store.commit(RUN, ops=[an_op(seq=round_ * 100 + n)])) for n in range(20)]
            await asyncio.to_thread(end_connections, on_server)
            await asyncio.gather(*commits)
        assert len(await store.ops(RUN)) == 100


@pytest.mark.postgres
async def test_a_commit_whose_answer_was_lost_is_found_not_repeated(
    on_server: str, a_run: Make, an_op: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ramify.runtime.store import run_committer as committer

    async with RunStore(on_server, clock=lambda: 0.0) as store:
        await store.create_run(a_run())
        once = RunCommitter._transact
        lost = []

        def commits_and_then_breaks(self: RunCommitter, batch: Any) -> None:
            once(self, batch)
            if not lost:
                lost.append(batch)
                end_connections(on_server)
                once(self, batch)  # raises: the connection is gone

        monkeypatch.setattr(committer.RunCommitter, "_transact", commits_and_then_breaks)
        await store.commit(RUN, ops=[an_op(seq=1)])
        assert len(lost) == 1
        assert [op.seq for op in await store.ops(RUN)] == [1]


@pytest.mark.postgres
async def test_a_server_that_stays_unreachable_is_a_store_error() -> None:
    pytest.importorskip("psycopg")
    nowhere = "postgresql://ramify@127.0.0.1:1/nothing"
    with pytest.raises(StoreError, match="no server answers"):
        async with RunStore(nowhere, clock=lambda: 0.0, patience_s=0.2):
            pass


async def test_a_committing_thread_that_ends_fails_all_jobs(tmp_path: Path) -> None:
    """Whatever ends it: queued jobs fail with the reason, and so do later ones."""
    breaks = threading.Event()

    def timer() -> float:
        if breaks.is_set() and threading.current_thread().name == "ramify-store":
            raise ZeroDivisionError("of the clock")
        return 0.0

    engine = writer(parse(tmp_path / "ramify.db"))
    original, threading.excepthook = threading.excepthook, lambda _: None
    try:
        committer = RunCommitter(engine, clock=lambda: 0.0, timer=timer)
        waiting = committer.submit(Job(lambda _: None, linger_s=60.0))
        breaks.set()
        committer.hurry()
        with pytest.raises(StoreError, match=r"committing thread has ended.*of the clock"):
            await asyncio.wrap_future(waiting)
        with pytest.raises(StoreError, match="resume its runs with a new one"):
            committer.submit(Job(lambda _: None))
        await asyncio.to_thread(committer.close)
    finally:
        threading.excepthook = original
        engine.dispose()
