"""Commits in groups: what is together, what is lost, who hears of it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, event, text

from ramify.runtime.langgraph.saver.engines import open_engine
from ramify.runtime.langgraph.saver.writer import Work, Writer

FOREVER = 3600.0


class Bench:
    def __init__(self, engine: Engine, linger_s: float = FOREVER) -> None:
        self.commits = 0
        self.undone = 0
        self.engine = engine
        self.writer = Writer(engine, undone=self._count_undone, linger_s=linger_s)
        event.listen(engine, "checkout", self._watch)

    def _watch(self, connection: Any, *_: object) -> None:
        connection.set_trace_callback(self._count)

    def _count(self, statement: str) -> None:
        self.commits += statement == "COMMIT"

    def _count_undone(self) -> None:
        self.undone += 1

    def _insert(self, word: str) -> Work:
        return lambda c: c.execute(text("INSERT INTO t VALUES (:w)"), {"w": word})

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
    bench.writer = Writer(bench.engine, undone=lambda: None, linger_s=0.01)
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


def test_one_that_fails_spoils_nothing_else(bench: Bench) -> None:
    bench.linger("a")
    bench.linger("a")
    bench.commit("b")
    assert bench.rows() == ["a", "b"]
    assert bench.undone == 2  # the group, then the one
    with pytest.raises(Exception, match="UNIQUE"):
        bench.writer.drain()  # nobody waited for it: the next who waits hears of it
    bench.writer.drain()
    with pytest.raises(Exception, match="UNIQUE"):
        bench.commit("a")
    with pytest.raises(Exception, match="UNIQUE"):
        bench.submit("a").result(timeout=60)
    bench.writer.close()


def test_threads_that_wait_share_transactions(bench: Bench) -> None:
    """While one of them commits, the others gather; each hears of its own."""
    words = [f"{number:03}" for number in range(200)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(bench.commit, words))
        failed = [pool.submit(bench.commit, word) for word in words[:4]]
        fine = [pool.submit(bench.commit, f"more {word}") for word in words]
        assert [type(one.exception(timeout=60)).__name__ for one in failed] == ["IntegrityError"] * 4
        assert [one.exception(timeout=60) for one in fine] == [None] * 200
    assert sorted(bench.rows()) == sorted([*words, *(f"more {word}" for word in words)])
    bench.writer.close()


def test_one_who_is_interrupted_leaves_the_others_their_work(bench: Bench) -> None:
    """Ctrl-C in the thread that commits for all: what it had not done is done by the next."""

    def interrupted(_: Connection) -> None:
        raise KeyboardInterrupt

    bench.linger("a")
    with pytest.raises(KeyboardInterrupt):
        bench.writer.commit(interrupted)
    bench.commit("b")
    assert bench.rows() == ["a", "b"]
    bench.writer.close()


def test_a_closed_writer_takes_nothing(bench: Bench) -> None:
    bench.writer.close()
    for put in (bench.commit, bench.submit, bench.linger):
        with pytest.raises(RuntimeError, match="closed"):
            put("a")
