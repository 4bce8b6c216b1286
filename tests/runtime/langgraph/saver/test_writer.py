"""One thread that commits in groups: what is together, what is lost, who hears of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, event, text

from ramify.runtime.langgraph.saver.engines import open_engine
from ramify.runtime.langgraph.saver.writer import Writer

FOREVER = 3600.0


class Bench:
    def __init__(self, engine: Engine, linger_s: float = FOREVER) -> None:
        self.commits = 0
        self.undone = 0
        self.engine = engine
        self.writer = Writer(engine, undone=self._count_undone, linger_s=linger_s)
        event.listen(engine, "commit", self._count)

    def _count(self, _: Connection) -> None:
        self.commits += 1

    def _count_undone(self) -> None:
        self.undone += 1

    def put(self, word: str, *, urgent: bool) -> Any:
        return self.writer.submit(lambda c: c.execute(text("INSERT INTO t VALUES (:w)"), {"w": word}), urgent=urgent)

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


def test_what_lingers_is_committed_with_what_is_urgent(bench: Bench) -> None:
    first = bench.put("a", urgent=False)
    second = bench.put("b", urgent=False)
    bench.put("c", urgent=True).result()
    assert first.done() and second.done()
    assert (bench.rows(), bench.commits) == (["a", "b", "c"], 1)
    bench.writer.close()


def test_what_lingers_alone_is_committed_when_its_time_is_up(bench: Bench) -> None:
    bench.writer = Writer(bench.engine, undone=lambda: None, linger_s=0.01)
    bench.put("a", urgent=False).result(timeout=30)
    assert bench.rows() == ["a"]
    bench.writer.close()


@pytest.mark.parametrize("how", ["drain", "close"])
def test_draining_and_closing_wait_for_what_lingers(bench: Bench, how: str) -> None:
    bench.put("a", urgent=False)
    getattr(bench.writer, how)()
    assert bench.rows() == ["a"]
    bench.writer.close()


def test_one_that_fails_spoils_nothing_else(bench: Bench) -> None:
    bench.put("a", urgent=False)
    twice = bench.put("a", urgent=False)
    bench.put("b", urgent=True).result()
    assert bench.rows() == ["a", "b"]
    assert bench.undone == 2  # the group, then the one
    with pytest.raises(Exception, match="UNIQUE"):
        twice.result()
    with pytest.raises(Exception, match="UNIQUE"):
        bench.writer.drain()  # nobody waited for it: the next who waits hears of it
    bench.writer.drain()
    bench.writer.close()


def test_a_closed_writer_takes_nothing(bench: Bench) -> None:
    bench.writer.close()
    with pytest.raises(RuntimeError, match="closed"):
        bench.put("a", urgent=True)
