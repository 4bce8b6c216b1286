"""A run moves between two homes with databases of their own, and goes on in exactly one of them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ramify.compiler.plan import OpId, OpKind
from ramify.fork_engine.errors import RemoteObjectAltered
from ramify.fork_engine.gc_pins import Pins
from ramify.fork_engine.remote.remote_store import RemoteStore
from ramify.fork_engine.store import SnapshotStore
from ramify.fork_engine.types import SnapshotId
from ramify.runtime.errors import RunLocked, RunNotFound, RunPushed, StoreError
from ramify.runtime.journal import run_transfer
from ramify.runtime.journal.run_transfer import decode, encode, pull_run, push_run
from ramify.runtime.records import (
    DECORATORS,
    ROOT,
    AnswerRecord,
    CheckpointId,
    CheckpointRecord,
    EffectRecord,
    EffectStatus,
    LLMRecord,
    OpRecord,
    OpStatus,
    RunId,
    RunRecord,
    RunRows,
    RunStatus,
    RunUpdate,
    Settings,
)
from ramify.runtime.store import RunStore
from ramify.runtime.store.run_locks import RunLock, hold_run

pytest.importorskip("obstore", reason="needs obstore (ramify[remote])")

RUN = RunId("run-1")


class Died(Exception):
    """Stands for a kill: no code of ours catches it."""


@dataclass
class Place:
    """A machine: its database, its locks and its remote tier."""

    store: RunStore
    remote: RemoteStore
    folder: Path

    @property
    def locks(self) -> Path:
        return self.folder / "locks"

    async def push(self) -> None:
        await push_run(self.store, self.remote, Pins(self.locks), self.locks, RUN)

    async def pull(self) -> Any:
        return await pull_run(self.store, self.remote, self.locks, RUN)

    async def works(self) -> bool:
        try:
            async with hold_run(self.locks, self.store, RUN):
                return True
        except RunPushed:
            return False


@pytest.fixture
async def places(tmp_path: Path) -> AsyncIterator[list[Place]]:
    """Three machines over one bucket."""
    async with AsyncExitStack() as stack:
        made = []
        for name in ("one", "two", "three"):
            folder = tmp_path / name
            store = await stack.enter_async_context(RunStore(folder / "ramify.db", clock=lambda: 9.0))
            local = SnapshotStore(folder / "store")
            opening = RemoteStore(local, folder / "remote", tmp_path / "bucket", create=True)
            made.append(Place(store, stack.enter_context(opening), folder))
        yield made


def an_op(seq: int, **fields: Any) -> OpRecord:
    return OpRecord(RUN, seq, f"k{seq}", OpId("o1"), OpKind.RUN, ROOT, OpStatus.DONE, **fields)


def an_effect(status: EffectStatus, attempt: int) -> EffectRecord:
    return EffectRecord(RUN, "k1", "send", ROOT, status, f"key {attempt}", "[]", attempt=attempt)


@pytest.fixture
async def rows(places: list[Place], tmp_path: Path) -> RunRows:
    """A run with all kinds of rows, on the first machine."""
    (tmp_path / "w").mkdir()
    (tmp_path / "w" / "a").write_text("a")
    base = places[0].remote.local.import_tree(tmp_path / "w").snapshot.id
    gone = SnapshotId("f" * 64)  # evicted by garbage collection
    long = '"' + "grows " * 100
    run = RunRecord(
        *(RUN, "repair", "repair.py:repair", DECORATORS, "/home/user/project", base, '{"plan": 1}', "[]"),
        *(Settings(sandbox="copy", model="m"), RunStatus.FAILED, 1000.0, 1000.0),
    )
    made = RunRows(
        run,
        (
            an_op(1, snapshot_in=base, snapshot_out=base, attrs={"a": "b"}, result_json=long + '"'),
            an_op(2, snapshot_in=base, snapshot_out=gone, result_json=long + 'more\ud800"'),
        ),
        (LLMRecord(RUN, 3, "k3", OpId("o2"), ROOT, None, '{"messages": []}', "r", '{"text": ""}', "s"),),
        (CheckpointRecord(CheckpointId("c1"), RUN, 1, ROOT, base, "key", (CheckpointId("c0"),), 1001.0),),
        (an_effect(EffectStatus.DONE, 2),),
        (an_effect(EffectStatus.FAILED, 1),),
        (AnswerRecord(RUN, "q", '"yes"', 1002.0, "ramify resume"),),
    )
    await places[0].store.put_rows(made)
    return made


async def test_a_run_moves_with_all_of_its_rows_and_snapshots(places: list[Place], rows: RunRows) -> None:
    one, two, _ = places
    await one.push()
    assert not await one.works()
    got = await two.pull()
    assert await two.store.rows_of(RUN) == await one.store.rows_of(RUN) == rows
    assert got.fetched.members == 1 and two.remote.local.get(rows.run.base_snapshot)
    assert await two.works() and (await two.pull()).was_here


async def test_it_comes_back_with_what_the_other_machine_added(places: list[Place], rows: RunRows) -> None:
    one, two, three = places
    await one.push()
    await two.pull()
    await two.store.commit(RUN, ops=[an_op(4)], update=RunUpdate(error="new"))
    with pytest.raises(RunPushed, match="another machine"):
        await three.pull()
    with pytest.raises(RunPushed, match="another machine"):
        await one.pull()
    await two.push()
    await one.pull()
    assert [op.seq for op in await one.store.ops(RUN)] == [1, 2, 4] and await one.works()
    assert (await one.store.ops(RUN))[1].result_json == rows.ops[1].result_json
    assert not await two.works()


async def test_a_push_that_is_taken_back(places: list[Place], rows: RunRows) -> None:
    one, two, _ = places
    await one.push()
    with pytest.raises(RunPushed, match="brings it back"):
        await one.push()
    assert not (await one.pull()).was_here
    assert await one.works() and await one.store.rows_of(RUN) == rows
    with pytest.raises(RunPushed):
        await two.pull()


async def test_a_push_that_dies_before_the_upload_leaves_the_run_here(
    places: list[Place], rows: RunRows, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two, _ = places

    def dies(*_: object) -> bool:
        raise Died

    with monkeypatch.context() as patched:
        patched.setattr(one.remote.bucket, "create", dies)
        with pytest.raises(Died):
            await one.push()
    assert not await one.works()
    with pytest.raises(RunNotFound):
        await two.pull()
    assert (await one.pull()).was_here
    assert await one.works()


async def test_a_pull_that_dies_after_its_claim_is_repeated(
    places: list[Place], rows: RunRows, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two, _ = places
    await one.push()

    async def dies(*_: object, **__: object) -> None:
        raise StoreError("the disk is full")

    with monkeypatch.context() as patched:
        patched.setattr(RunStore, "put_rows", dies)
        with pytest.raises(StoreError):
            await two.pull()
    with pytest.raises(RunPushed):
        await one.pull()
    await two.pull()
    assert await two.store.rows_of(RUN) == rows


async def test_files_that_another_program_left_beside_the_rows(places: list[Place], rows: RunRows) -> None:
    one, two, three = places
    await one.push()
    folder = one.remote.bucket.folder
    assert folder is not None
    for name in (".DS_Store", "copy of 00000001.json", "00000009.json.part"):
        (folder / "runs" / RUN / name).write_bytes(b"\xff")
    assert (await two.pull()).run.id == RUN
    (claim,) = (folder / "claims" / RUN).iterdir()
    claim.write_bytes(b"\xff\xfe")
    with pytest.raises(RunPushed, match="another machine"):
        await three.pull()


async def test_a_run_that_is_worked_on_stays(places: list[Place], rows: RunRows) -> None:
    one = places[0]
    with RunLock(one.locks, RUN), pytest.raises(RunLocked, match="another process"):
        await one.push()
    assert await one.works()


async def test_rows_that_were_altered_or_are_of_another_version(
    rows: RunRows, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = encode(rows)
    assert decode(data, RUN) == rows
    with pytest.raises(RemoteObjectAltered):
        decode(data.replace(b'"repair"', b'"spoilt"'), RUN)
    with pytest.raises(RemoteObjectAltered):
        decode(data[:-4], RUN)
    with pytest.raises(RemoteObjectAltered):
        decode(data, RunId("another"))
    monkeypatch.setattr(run_transfer, "REVISIONS", ("0001",))
    with pytest.raises(StoreError, match="same version"):
        decode(data, RUN)


async def test_a_cancelled_push_holds_the_run_until_its_thread_has_ended(
    places: list[Place], rows: RunRows, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the run could be resumed here, and the thread could still let it leave."""
    publishing, go = asyncio.Event(), threading.Event()
    happened: list[str] = []
    loop = asyncio.get_running_loop()

    def slow_publish(*_: object) -> None:
        loop.call_soon_threadsafe(publishing.set)
        go.wait()
        happened.append("published")

    @asynccontextmanager
    async def held(*_: object) -> AsyncIterator[None]:
        try:
            yield
        finally:
            happened.append("let go")

    monkeypatch.setattr(run_transfer, "_publish", slow_publish)
    monkeypatch.setattr(run_transfer, "hold_run", held)
    pushing = asyncio.ensure_future(places[0].push())
    await publishing.wait()
    pushing.cancel()
    for _ in range(20):  # turns of the loop, in which a push that does not wait would end
        await asyncio.sleep(0)
    go.set()
    with pytest.raises(asyncio.CancelledError):
        await pushing
    assert happened == ["published", "let go"]
