"""Long texts in the table `blobs`: killed writers, deletion beside writers, and readers beside deletion."""

from __future__ import annotations

import asyncio
import json
import signal
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.exc import OperationalError

from ramify.fork_engine import crash_points
from ramify.runtime.records import RunId, RunRows
from ramify.runtime.store import RunStore, rows, statements, stored_texts
from ramify.runtime.store.engines import writer
from ramify.runtime.store.reader import reading
from tests.warm_process import WarmInterpreter

Make = Callable[..., Any]
APP = Path(__file__).with_name("long_value_app.py")


def opened(store: RunStore) -> RunStore:
    """Another process's store on the same database."""
    where = store.address.file or store.address.url.render_as_string(hide_password=False)
    return RunStore(where, clock=lambda: 5000.0)


def names(store: RunStore) -> set[str]:
    engine = writer(store.address)
    with engine.begin() as connection:
        found = {name for (name,) in connection.exec_driver_sql("SELECT digest FROM blobs")}
    engine.dispose()
    return found


@pytest.mark.parametrize("piece", [1, 4, 7])
async def test_a_run_killed_between_the_pieces_of_a_value_goes_on(
    piece: int, tmp_path: Path, warm: WarmInterpreter
) -> None:
    """The transaction is longer than SQLite's cache, so the first pieces were in its log."""
    killed = warm.run_file(APP, tmp_path, piece)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    async with RunStore(tmp_path / "home" / "ramify.db", clock=lambda: 0.0) as store:
        (run,) = await store.runs()
        short = names(store)
        assert not [op for op in await store.ops(run.id) if op.result_json]
    ended = warm.run_file(APP, tmp_path, 0, run.id)
    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout) == 8_000_000
    assert (tmp_path / "made").read_text() == "made\nmade\n"
    async with RunStore(tmp_path / "home" / "ramify.db", clock=lambda: 0.0) as store:
        assert len(names(store) - short) >= 8
        assert [len(op.result_json or "") for op in await store.ops(run.id) if op.step] == [8_000_002]
        await store.delete_run(run.id)
        assert names(store) == set()


async def test_deleting_a_run_reads_none_of_its_texts(store: RunStore, a_run: Make, an_op: Make) -> None:
    length = 12_000_000
    await store.create_run(a_run())
    await store.commit("run-1", ops=[an_op(result_json=json.dumps("x" * length))])
    tracemalloc.start()
    try:
        await store.delete_run(RunId("run-1"))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < length / 4
    assert names(store) == set()


class Stopped:
    """Stops the first transaction that comes to a crash point, until it is let go."""

    def __init__(self, point: str, patch: pytest.MonkeyPatch) -> None:
        self._point, self._there, self._go = point, threading.Event(), threading.Event()
        patch.setattr(crash_points, "at", self._at)

    def _at(self, name: str) -> None:
        if name == self._point and not self._there.is_set():
            self._there.set()
            assert self._go.wait(20)

    async def reached(self) -> None:
        assert await asyncio.to_thread(self._there.wait, 20)

    def let_go(self) -> None:
        self._go.set()


@pytest.mark.parametrize("first", ["the writer", "the deletion"])
async def test_a_text_that_is_written_while_another_run_with_it_is_deleted_stays(
    first: str, store: RunStore, a_run: Make, an_op: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The runs share some pieces. Whichever transaction comes second waits for the other one."""
    monkeypatch.setattr(stored_texts, "PIECE", 1000)
    start = json.dumps("é\0x" * 500 + "€" * 999, ensure_ascii=False)
    texts = {"run-1": start + "a" * 900, "run-2": start + "b" * 900}
    for run in texts:
        await store.create_run(a_run(id=run))
    await store.commit("run-1", ops=[an_op(run_id="run-1", result_json=texts["run-1"])])
    async with opened(store) as other:
        write = store.commit("run-2", ops=[an_op(run_id="run-2", result_json=texts["run-2"])])
        delete = other.delete_run(RunId("run-1"))
        before, after = (write, delete) if first == "the writer" else (delete, write)
        stop = Stopped("rows written", monkeypatch)
        one = asyncio.ensure_future(before)
        await stop.reached()
        two = asyncio.ensure_future(after)
        await asyncio.wait([two], timeout=0.3)
        assert not two.done(), "it waits"
        stop.let_go()
        await asyncio.gather(one, two)
        assert [op.result_json for op in await other.ops(RunId("run-2"))] == [texts["run-2"]]
        await other.delete_run(RunId("run-2"))
    assert names(store) == set()


async def test_a_long_text_of_a_run_that_another_process_deletes_leaves_nothing(
    store: RunStore, a_run: Make, an_op: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored_texts, "PIECE", 1000)
    await store.create_run(a_run())
    await store.commit("run-1", ops=[an_op(result_json=json.dumps("a" * 5000))])
    async with opened(store) as other:
        await other.delete_run(RunId("run-1"))
    with pytest.raises(Exception, match="run-1"):
        await store.commit("run-1", ops=[an_op(seq=2, key="o2", result_json=json.dumps("a" * 5000 + "b" * 5000))])
    assert names(store) == set()


@pytest.fixture
def deletes_between(store: RunStore, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Let another process delete these runs between a reader's query for rows and that for their texts."""
    todo, names_in = list[str](), rows.names_in

    def deleting(found: Any) -> set[str]:
        async def delete(run: str) -> None:
            async with opened(store) as other:
                await other.delete_run(RunId(run))

        if todo:
            thread = threading.Thread(target=asyncio.run, args=(delete(todo.pop()),))
            thread.start()
            thread.join()
        return names_in(found)

    monkeypatch.setattr(rows, "names_in", deleting)
    yield todo


async def test_a_reader_sees_no_run_that_is_deleted_meanwhile(
    store: RunStore, a_run: Make, an_op: Make, deletes_between: list[str]
) -> None:
    """It said that the database holds a row which this version cannot read."""
    for run in ("run-1", "run-2", "run-3"):
        await store.create_run(a_run(id=run, args_json=json.dumps(run * 200)))
    with reading(store.address) as reader:
        for read in (store.runs, reader.runs):
            deletes_between.append("run-1")
            seen = [run.id for run in await read()]
            assert seen in (["run-3", "run-2"], ["run-3", "run-2", "run-1"]), "at one time or the other"
            await store.create_run(a_run(id="run-1", args_json=json.dumps("run-1" * 200)))
            deletes_between.append("run-1")
            await read()
            await store.create_run(a_run(id="run-1", args_json=json.dumps("run-1" * 200)))


@pytest.mark.parametrize("held", [True, False])
async def test_a_text_has_no_base_that_another_process_deleted(
    held: bool, store: RunStore, a_run: Make, an_op: Make
) -> None:
    """This process still knew a text of the run, which was replaced meanwhile, as `ramify pull` does it."""
    first, second = json.dumps("a" * 900), json.dumps("a" * 900 + "b" * 900)

    await store.create_run(a_run())
    async with store.held(RunId("run-1")):
        await store.commit("run-1", ops=[an_op(result_json=first)])
    async with opened(store) as other:
        await other.put_rows(RunRows(a_run()), replace=True)
    async with store.held(RunId("run-1")) if held else nullcontext():
        await store.commit("run-1", ops=[an_op(result_json=second)])
    assert [op.result_json for op in await store.ops(RunId("run-1"))] == [second]


async def test_a_lease_is_taken_though_the_texts_of_its_run_cannot_be_looked_up(
    store: RunStore, a_run: Make, an_op: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commit after it is on a new connection, and stores its text whole."""

    def lost(*_: object) -> set[str]:
        raise OperationalError("SELECT", {}, Exception("lost"))

    texts = [json.dumps("a" * 900), json.dumps("a" * 900 + "b" * 900)]
    await store.create_run(a_run())
    monkeypatch.setattr(statements, "named_texts", lost)
    for seq, text in enumerate(texts, 1):
        async with store.held(RunId("run-1")):
            await store.commit("run-1", ops=[an_op(seq=seq, key=f"o{seq}", result_json=text)])
    assert [op.result_json for op in await store.ops(RunId("run-1"))] == texts
