"""Commits in groups: what is committed together, what is lost, and which caller gets an error."""

from __future__ import annotations

import asyncio
import inspect
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, event, text
from sqlalchemy.exc import OperationalError

from ramify.runtime.langgraph.checkpointer.database import open_engine
from ramify.runtime.langgraph.checkpointer.group_commit import LONGEST_REST_S, GroupCommitter, Work, WriteMode
from ramify.runtime.store.run_committer import RunCommitter

FOREVER = 3600.0


class Bench:
    insert = "INSERT"

    def __init__(self, engine: Engine, linger_s: float = FOREVER) -> None:
        self.commits = 0
        self.undone = 0
        self.engine = engine
        self.writer = GroupCommitter(engine, undone=self._count_undone, linger_s=linger_s)
        event.listen(engine, "checkout", self._watch)

    def _watch(self, connection: Any, *_: object) -> None:
        connection.set_trace_callback(self._count)

    def _count(self, statement: str) -> None:
        self.commits += statement == "COMMIT"

    def _count_undone(self) -> None:
        self.undone += 1

    def _insert(self, word: str) -> Work:
        return lambda c: c.execute(text(f"{self.insert} INTO t VALUES (:w)"), {"w": word})

    def linger(self, word: str) -> None:
        self.writer.linger(self._insert(word))

    def commit(self, word: str) -> None:
        self.writer.commit(self._insert(word))

    def submit(self, word: str) -> Future[None]:
        return self.writer.submit(self._insert(word))

    def rows(self) -> list[str]:
        with self.engine.connect() as connection:
            return list(connection.execute(text("SELECT word FROM t ORDER BY rowid")).scalars())


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    engine = open_engine(tmp_path / "x.db")
    with engine.execution_options(write=True).begin() as connection:
        connection.execute(text("CREATE TABLE t (word TEXT UNIQUE)"))
    bench = Bench(engine)
    yield bench
    engine.dispose()


@pytest.mark.parametrize("how", ["commit", "submit"])
def test_what_lingers_is_committed_with_what_is_urgent(bench: Bench, how: str) -> None:
    bench.linger("a")
    bench.linger("b")
    if how == "commit":
        bench.commit("c")
    else:
        bench.submit("c").result(timeout=60)
    assert (bench.rows(), bench.commits) == (["a", "b", "c"], 1)
    bench.writer.close()


def test_what_lingers_alone_is_committed_when_its_time_is_up(bench: Bench) -> None:
    bench.writer = GroupCommitter(bench.engine, undone=lambda: None, linger_s=0.01)
    for word in ("a", "b"):  # the thread sleeps in between
        bench.linger(word)
        for _ in range(3000):
            if word in bench.rows():
                break
            time.sleep(0.01)
        assert word in bench.rows()
        time.sleep(0.05)
    bench.writer.close()


@pytest.mark.parametrize("how", ["drain", "close"])
def test_draining_and_closing_wait_for_what_lingers(bench: Bench, how: str) -> None:
    bench.linger("a")
    getattr(bench.writer, how)()
    assert bench.rows() == ["a"]
    bench.writer.close()


def test_repeated_maintenance_leaves_others_time_for_the_lock(bench: Bench) -> None:
    """SQLite's waiters try for the lock only now and then: a short pause in between would keep all others out."""
    now = 0.0
    rests: list[float] = []

    def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds
        rests.append(seconds)

    def takes(seconds: float) -> Work:
        def work(connection: Connection) -> None:
            nonlocal now
            now += seconds

        return work

    bench.writer = GroupCommitter(bench.engine, undone=lambda: None, clock=lambda: now, sleep=sleep)
    for seconds in (0.01, 0.02, 10.0, 0.0):
        bench.writer.commit(takes(seconds), WriteMode.EXCLUSIVE)
        bench.commit(f"after {seconds}")  # no rest before it
    assert rests == pytest.approx([0.01, 0.02, LONGEST_REST_S])
    now += 0.001
    bench.writer.commit(takes(0.0), WriteMode.EXCLUSIVE)  # the last one took no time
    assert len(rests) == 3
    bench.writer.close()


def test_a_failing_job_does_not_fail_others(bench: Bench) -> None:
    bench.linger("a")
    bench.linger("a")
    bench.commit("b")
    assert bench.rows() == ["a", "b"]
    assert bench.undone == 2  # the group, then each alone
    with pytest.raises(Exception, match="UNIQUE"):
        bench.writer.drain()  # nobody waited for it: the next caller that waits gets the error
    bench.writer.drain()
    with pytest.raises(Exception, match="UNIQUE"):
        bench.commit("a")
    with pytest.raises(Exception, match="UNIQUE"):
        bench.submit("a").result(timeout=60)
    bench.writer.close()


def test_threads_that_wait_share_transactions(bench: Bench) -> None:
    """While one of them commits, the others gather; each gets its own result."""
    words = [f"{number:03}" for number in range(200)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(bench.commit, words))
        failed = [pool.submit(bench.commit, word) for word in words[:4]]
        fine = [pool.submit(bench.commit, f"more {word}") for word in words]
        assert [type(one.exception(timeout=60)).__name__ for one in failed] == ["IntegrityError"] * 4
        assert [one.exception(timeout=60) for one in fine] == [None] * 200
    assert sorted(bench.rows()) == sorted([*words, *(f"more {word}" for word in words)])
    bench.writer.close()


def test_an_interrupted_committer_leaves_the_rest_to_the_next(bench: Bench) -> None:
    """Ctrl-C in the thread that commits for all: the next thread does what was left."""

    def interrupted(_: Connection) -> None:
        raise KeyboardInterrupt

    bench.linger("a")
    with pytest.raises(KeyboardInterrupt):
        bench.writer.commit(interrupted)
    bench.commit("b")
    assert bench.rows() == ["a", "b"]
    bench.writer.close()


def test_a_caller_that_gives_up_waiting_does_not_stop_the_commit(bench: Bench) -> None:
    """A cancelled `aput` gives up waiting: the work is done, and the committing thread lives on."""

    async def impatient() -> None:
        waiting = asyncio.ensure_future(asyncio.wrap_future(bench.submit("a")))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    with bench.engine.execution_options(write=True).begin():  # so that nothing is committed meanwhile
        asyncio.run(impatient())
    bench.submit("b").result(timeout=60)
    assert bench.rows() == ["a", "b"]
    bench.writer.close()


def test_the_committing_thread_outlives_a_caller_that_gives_up(bench: Bench) -> None:
    lead = RunCommitter(bench.engine.execution_options(write=True), clock=time.time)
    assert bench.writer.follow(lead)
    entered, go = threading.Event(), threading.Event()
    waiting = bench.writer.submit(lambda _: _hold(entered, go))
    assert entered.wait(60)
    waiting.cancel()
    go.set()
    bench.submit("b").result(timeout=60)
    lead.close()
    bench.commit("c")
    assert bench.rows() == ["b", "c"]
    bench.writer.close()


def test_closing_waits_for_the_committing_thread(bench: Bench) -> None:
    bench.linger("a")  # the thread exists
    bench.writer.drain()
    entered, go = threading.Event(), threading.Event()
    with ThreadPoolExecutor(2) as pool:
        committing = pool.submit(bench.writer.commit, lambda _: _hold(entered, go))
        assert entered.wait(60)
        closing = pool.submit(bench.writer.close)
        time.sleep(0.05)  # it looks, and sleeps again
        go.set()
        closing.result(timeout=60)
        committing.result(timeout=60)


def test_a_follower_never_writes_at_the_same_time_as_its_lead(bench: Bench) -> None:
    """The lead ends while it has work of ours: work that comes meanwhile waits for that."""
    lead = RunCommitter(bench.engine.execution_options(write=True), clock=time.time)
    assert bench.writer.follow(lead)
    entered, go = threading.Event(), threading.Event()
    at_once: list[bool] = []
    with ThreadPoolExecutor(3) as pool:
        first = pool.submit(bench.writer.commit, lambda _: _hold(entered, go))
        assert entered.wait(60)
        ending = pool.submit(lead.close)
        time.sleep(0.05)
        second = pool.submit(bench.writer.commit, lambda _: at_once.append(not go.is_set()))
        time.sleep(0.05)
        go.set()
        for one in (first, ending, second):
            one.result(timeout=60)
    assert at_once == [False]
    bench.writer.close()


def test_every_caller_gets_the_error_of_a_locked_file(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each caller gets the error after one waiting time, not after as many as there are callers."""
    tried: list[int] = []
    once = bench.writer._once
    monkeypatch.setattr(bench.writer, "_once", lambda batch, how: (tried.append(len(batch)), once(batch, how)))
    event.listen(bench.engine, "checkout", lambda own, *_: own.execute("PRAGMA busy_timeout = 50"))
    bench.linger("a")
    bench.linger("b")
    with bench.engine.execution_options(write=True).begin(), pytest.raises(OperationalError, match="locked"):
        bench.commit("c")
    assert tried == [3]
    with pytest.raises(OperationalError, match="locked"):
        bench.writer.drain()
    bench.commit("d")
    assert bench.rows() == ["d"]
    bench.writer.close()


@pytest.mark.parametrize("nth", range(24))
def test_ctrl_c_in_a_commit_leaves_the_writer_usable(bench: Bench, nth: int) -> None:
    """Interrupts are raised wherever Python allows it: at the start of a function and after a call. But not while the
    queue is restored."""
    source, begin = inspect.getsourcelines(GroupCommitter._serve)
    back = begin + next(at for at, one in enumerate(source) if one.strip() == "finally:")
    seen = 0

    def profile(frame: FrameType, what: str, _: object) -> None:
        nonlocal seen
        ours = frame.f_code.co_filename.endswith("saver/writer.py") and what in ("call", "c_return")
        if ours and not (frame.f_code.co_name == "_serve" and frame.f_lineno >= back):
            seen += 1
            if seen == nth + 1:
                sys.setprofile(None)
                raise KeyboardInterrupt

    bench.insert = "INSERT OR IGNORE"  # as in the saver: what was committed just before may be done again
    bench.linger("a")
    sys.setprofile(profile)
    try:
        with suppress(KeyboardInterrupt):
            bench.commit("b")
    finally:
        sys.setprofile(None)
    with ThreadPoolExecutor(1) as pool:
        pool.submit(bench.commit, "c").result(timeout=60)
        pool.submit(bench.writer.close).result(timeout=60)
    assert [word for word in bench.rows() if word != "b"] == ["a", "c"]


@pytest.mark.usefixtures("flushed_databases")
def test_commits_are_flushed_to_the_disk(bench: Bench) -> None:
    found: list[Any] = []
    for pragma in ("synchronous", "journal_mode", "wal_autocheckpoint"):
        bench.writer.commit(lambda c, p=pragma: found.append(c.exec_driver_sql(f"PRAGMA {p}").scalar()))  # type: ignore[misc]
    assert found == [2, "wal", 1000]  # 2 means FULL
    bench.writer.close()


def _hold(entered: threading.Event, go: threading.Event) -> None:
    entered.set()
    assert go.wait(60)


def test_a_closed_writer_refuses_work(bench: Bench) -> None:
    bench.writer.close()
    for put in (bench.commit, bench.submit, bench.linger):
        with pytest.raises(RuntimeError, match="closed"):
            put("a")
