"""The journal in memory and the database always agree."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from ramify.compiler.plan import OpId, OpKind
from ramify.fork_engine.types import SnapshotId
from ramify.runtime.errors import StoreError
from ramify.runtime.journal.journal import Journal
from ramify.runtime.records import ROOT, OpRecord, OpStatus, RunId, RunRecord, RunStatus, Settings
from ramify.runtime.store import RunStore

RUN = RunRecord(
    id=RunId("run-1"),
    name="n",
    workflow="w.py:n",
    frontend="decorators",
    workspace="",
    base_snapshot=SnapshotId("base"),
    plan_json="{}",
    args_json="[]",
    settings=Settings(),
    status=RunStatus.RUNNING,
    created_at=0.0,
    updated_at=0.0,
)


def row(key: str, **fields: object) -> OpRecord:
    blank = {"op_id": OpId("o1"), "kind": OpKind.RUN, "branch": ROOT, "status": OpStatus.DONE, **fields}
    return OpRecord(RUN.id, 0, key, **blank)  # type: ignore[arg-type]


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[RunStore]:
    async with RunStore(tmp_path / "ramify.db", clock=lambda: 0.0) as opened:
        await opened.create_run(RUN)
        yield opened


class Disk:
    """Stands for the flush of sealed layers: counts flushes, and waits if told to."""

    def __init__(self) -> None:
        self.flushed = 0
        self.open = threading.Event()
        self.open.set()

    def flush(self) -> None:
        self.open.wait()
        self.flushed += 1


async def journal(store: RunStore, disk: Disk) -> Journal:
    ops = await store.ops(RUN.id)
    return Journal(store, RUN, ops=ops, llm=(), flush=disk.flush, clock=lambda: 0.0, emit=lambda _: None)


async def test_a_caller_cancelled_in_a_commit_waits_for_its_end(store: RunStore) -> None:
    disk = Disk()
    kept = await journal(store, disk)
    disk.open.clear()
    recording = asyncio.create_task(kept.record(row("a", snapshot_out="s")))
    await asyncio.sleep(0)
    recording.cancel()
    await asyncio.sleep(0)
    assert not recording.done() and not kept.knows("a")  # in the middle of its commit
    disk.open.set()
    with pytest.raises(asyncio.CancelledError):
        await recording
    assert kept.knows("a")
    assert [op.key for op in await store.ops(RUN.id)] == ["a"]
    await kept.record(row("b"))
    assert [op.seq for op in await store.ops(RUN.id)] == [1, 2]


async def test_layers_are_flushed_before_a_row_names_them_and_only_then(store: RunStore) -> None:
    disk = Disk()
    kept = await journal(store, disk)
    await kept.record(row("pure"))
    await kept.record(row("command", kind=OpKind.COMMAND, snapshot_out="s"))
    assert disk.flushed == 0
    await kept.record(row("step", snapshot_out="s"))
    assert disk.flushed == 1


async def test_concurrent_rows_get_different_numbers(store: RunStore) -> None:
    kept = await journal(store, Disk())

    async def end(number: int) -> None:
        branch = f"root/o1.0.{number}"
        with kept.ending(branch):  # type: ignore[arg-type]
            await asyncio.sleep(0)
            await kept.record(row(f"k{number}", branch=branch), row(f"k{number}|SEAL", branch=branch))

    await asyncio.gather(*(end(number) for number in range(8)))
    assert sorted(op.seq for op in await store.ops(RUN.id)) == list(range(1, 17))


async def test_a_failed_commit_changes_nothing_in_memory(store: RunStore) -> None:
    kept, other = await journal(store, Disk()), await journal(store, Disk())
    await other.record(row("theirs"))
    with pytest.raises(StoreError, match="do two processes work on the run"):
        await kept.record(row("ours"))
    assert not kept.knows("ours")
    assert [op.key for op in await store.ops(RUN.id)] == ["theirs"]


async def test_fork_numbers_continue_after_those_of_earlier_processes(store: RunStore) -> None:
    first = await journal(store, Disk())
    for n in range(2):
        assert first.next_place(ROOT, OpId("fork.1")) == n
        await first.record(row(f"f{n}", kind=OpKind.FORK, op_id=OpId("fork.1")))
    await first.record(row("failed", kind=OpKind.FORK, op_id=OpId("fork.1"), status=OpStatus.FAILED))
    resumed = await journal(store, Disk())
    assert resumed.next_place(ROOT, OpId("fork.1")) == 2
    assert resumed.next_place(ROOT, OpId("fork.2")) == 0
