"""A Reader returns what RunStore returns, on both databases, and imports neither SQLAlchemy nor asyncio for a
file."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from disks import read_only

from ramify.runtime.errors import RunNotFound, StoreError
from ramify.runtime.records import BranchPath, EffectRecord, EffectStatus, RunId, RunStatus
from ramify.runtime.store import RunStore, rows
from ramify.runtime.store.reader import Reader, at_once, reading

Make = Callable[..., Any]


async def test_it_reads_what_the_store_reads(
    address: str, store: RunStore, a_run: Make, an_op: Make, an_llm_call: Make, a_checkpoint: Make
) -> None:
    odd = "name\udcff of a file\0"
    await store.create_run(a_run())
    await store.create_run(a_run(id="run-2", name=odd))
    grown = [f'"{"text that grows " * 40}{"more " * at}"' for at in range(4)]  # kept each against the one before
    for at, text in enumerate(grown, start=1):
        op = an_op(seq=at, result_json=text, summary=odd, attrs={"a": odd})
        await store.commit(op.run_id, ops=[op], checkpoints=[a_checkpoint(id=f"c{at}", seq=at, parents=("a", "b"))])
    effect = EffectRecord(a_run().id, "k", "send", op.branch, EffectStatus.INTENDED, "idem", "[]")
    again = replace(effect, result_json='"again"', attempt=2)
    await store.commit(op.run_id, llm=[an_llm_call(seq=9)], effects=[effect])
    await store.commit(op.run_id, effects=[again])

    with reading(address) as reader:
        run = a_run().id
        assert at_once(reader.runs()) == await store.runs()
        assert at_once(reader.runs(1)) == await store.runs(1)
        assert at_once(reader.run(run)) == await store.run(run)
        for among, most, status in ((100, 10, None), (1, 10, None), (100, 1, None), (100, 10, RunStatus.DONE)):
            chosen = {"among": among, "most": most, "status": status}
            latest = await store.latest_runs(a_run().workflow, **chosen)
            assert at_once(reader.latest_runs(a_run().workflow, **chosen)) == latest
            assert [one.id for one in latest] == ([] if status else ["run-2", run][: min(among, most)])
        assert at_once(reader.journal(run)) == await store.journal(run)
        assert at_once(reader.ops(run)) == await store.ops(run)
        assert at_once(reader.ops(run, after=2)) == await store.ops(run, after=2)
        assert at_once(reader.llm(run)) == await store.llm(run)
        assert at_once(reader.checkpoints(run)) == await store.checkpoints(run)
        assert at_once(reader.effects(run)) == await store.effects(run) == [again]
        assert at_once(reader.effects(run, earlier=True)) == await store.effects(run, earlier=True) == [effect, again]
        assert at_once(reader.live_snapshots()) == await store.live_snapshots()
        ids = [run, a_run(id="run-2").id]
        assert at_once(reader.tallies(ids)) == await store.tallies(ids)
        assert at_once(reader.tallies([])) == {}
        with pytest.raises(RunNotFound, match="no run nobody"):
            at_once(reader.run(replace(a_run(), id="nobody").id))


def test_a_ledger_read_while_an_attempt_begins_has_each_attempt_once() -> None:
    effect = EffectRecord(RunId("r"), "k", "send", BranchPath("root"), EffectStatus.AGAIN, "idem", "[]")
    assert rows.with_attempts([effect], [effect]) == [effect]
    again = replace(effect, attempt=2)
    assert rows.with_attempts([again], [effect]) == [effect, again]


def test_an_older_database_is_migrated(address: str) -> None:
    if address.startswith("sqlite"):  # a server's database is there before its first table
        Path(address.removeprefix("sqlite:///")).parent.mkdir(parents=True)
        Path(address.removeprefix("sqlite:///")).touch()
    with reading(address) as reader:
        assert at_once(reader.runs()) == []


def test_a_foreign_file_is_a_store_error(tmp_path: Path) -> None:
    file = tmp_path / "other.db"
    file.write_bytes(b"not a database at all, and long enough to be looked at" * 20)
    with pytest.raises(StoreError, match=r"other\.db refused: .* move it away"), reading(file):
        pass
    with pytest.raises(StoreError, match="cannot be opened"), reading(tmp_path / "missing.db"):
        pass
    assert not (tmp_path / "missing.db").exists()


@pytest.mark.parametrize("left", ["ended", "working", "killed", "copied"])
async def test_it_reads_a_database_that_cannot_be_written(tmp_path: Path, a_run: Make, left: str) -> None:
    """Whatever files the last writer left: SQLite itself cannot read a log on a disk where it can create no file."""
    home, kept = tmp_path / "home", tmp_path / "kept"
    async with RunStore(home / "ramify.db", clock=lambda: 0.0) as store:
        await store.create_run(a_run())
        if left != "ended":
            shutil.copytree(home, kept)
        if left == "working":
            with read_only(home):
                assert ids_in(home) == ["run-1"]
    if left in ("killed", "copied"):
        shutil.rmtree(home)
        kept.rename(home)
        assert (home / "ramify.db-wal").stat().st_size
    if left == "copied":
        (home / "ramify.db-shm").unlink()
    before = sorted(path.name for path in home.iterdir())
    with read_only(home):
        assert ids_in(home) == ["run-1"]
        with pytest.raises(StoreError, match="cannot be opened"), reading(home / "missing.db"):
            pass
    assert sorted(path.name for path in home.iterdir()) == before


async def test_a_long_lived_reader_sees_later_writes(tmp_path: Path, a_run: Make) -> None:
    """In another user's home, in which no process worked at first."""
    home, seen = tmp_path / "home", tmp_path / "seen"
    seen.mkdir()
    async with RunStore(home / "ramify.db", clock=lambda: 0.0) as store:
        await store.create_run(a_run(id=RunId("run-1")))
    with read_only(home, at=seen), reading(seen / "ramify.db") as reader:
        assert ids(reader) == ["run-1"]
        async with RunStore(home / "ramify.db", clock=lambda: 0.0) as store:
            await store.create_run(a_run(id=RunId("run-2")))
            assert ids(reader) == ["run-2", "run-1"]
            await store.create_run(a_run(id=RunId("run-3")))
            assert ids(reader) == ["run-3", "run-2", "run-1"]
        assert len(ids(reader)) == 3
        async with RunStore(home / "ramify.db", clock=lambda: 0.0) as store:
            await store.create_run(a_run(id=RunId("run-4")))
        assert len(ids(reader)) == 4


def ids(reader: Reader) -> list[str]:
    return [run.id for run in at_once(reader.runs())]


def ids_in(home: Path) -> list[str]:
    with reading(home / "ramify.db") as reader:
        return ids(reader)


def test_a_file_needs_no_heavy_imports() -> None:
    code = "import sys, ramify.runtime.store.reader; print({'sqlalchemy', 'asyncio'} & set(sys.modules))"
    command = [sys.executable, "-E", "-c", code]  # without what `--loop` has a child import
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "set()\n"
