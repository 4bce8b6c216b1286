from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ramify.compiler.plan import OpKind
from ramify.runtime.errors import RunNotFound, StoreError
from ramify.runtime.records import (
    LEGAL_TRANSITIONS,
    ROOT,
    AnswerRecord,
    EffectRecord,
    EffectStatus,
    OpStatus,
    RunId,
    RunRows,
    RunStatus,
    RunUpdate,
)
from ramify.runtime.store import RunStore
from ramify.runtime.store.engines import writer
from ramify.runtime.store.reader import at_once, reading

Make = Callable[..., Any]


def blob_count(store: RunStore) -> int:
    engine = writer(store.address)
    with engine.begin() as connection:
        count: int = connection.exec_driver_sql("SELECT count(*) FROM blobs").scalar_one()
    engine.dispose()
    return count


async def test_runs_come_newest_first_whatever_the_clock_said(store: RunStore, a_run: Make) -> None:
    for name, at in (("a", 3.0), ("b", 1.0), ("c", 2.0)):
        await store.create_run(a_run(id=name, created_at=at))
    assert [run.id for run in await store.runs()] == ["c", "b", "a"]
    assert [run.id for run in await store.runs(limit=2)] == ["c", "b"]


async def test_a_run_of_the_same_id_is_refused(store: RunStore, a_run: Make) -> None:
    await store.create_run(a_run())
    with pytest.raises(StoreError, match="exists already"):
        await store.create_run(a_run(name="another"))
    assert (await store.run(a_run().id)).name == "repair"


async def test_missing_runs_and_checkpoints_are_errors(store: RunStore, a_run: Make, an_op: Make) -> None:
    with pytest.raises(RunNotFound, match="ramify ls"):
        await store.run(a_run().id)
    with pytest.raises(RunNotFound, match="ramify ls"):
        await store.commit(a_run().id, ops=[an_op()])
    with pytest.raises(RunNotFound, match="ramify tree"):
        await store.checkpoint(a_run().id)
    with pytest.raises(RunNotFound, match="ramify ls"):
        await store.delete_run(a_run().id)
    assert await store.ops(a_run().id) == []


async def test_a_commit_is_all_or_nothing(store: RunStore, a_run: Make, an_op: Make, a_checkpoint: Make) -> None:
    await store.create_run(a_run())
    await store.commit("run-1", ops=[an_op()], checkpoints=[a_checkpoint()])
    blobs = blob_count(store)
    with pytest.raises(StoreError):  # the last row to be written is the one that clashes
        await store.commit(
            "run-1",
            ops=[an_op(seq=2, result_json='"new"')],
            checkpoints=[a_checkpoint(seq=2)],
            update=RunUpdate(status=RunStatus.DONE, result_json='"result"', consumed_s=3.0),
        )
    assert await store.ops("run-1") == [an_op()]
    assert await store.run("run-1") == a_run(updated_at=5000.0)
    assert blob_count(store) == blobs


async def test_a_commit_of_another_runs_rows_is_refused(store: RunStore, a_run: Make, an_op: Make) -> None:
    await store.create_run(a_run())
    with pytest.raises(StoreError, match="rows of run-2"):
        await store.commit("run-1", ops=[an_op(run_id="run-2")])


@pytest.mark.parametrize("after", RunStatus)
@pytest.mark.parametrize("before", RunStatus)
async def test_only_legal_changes_of_status(
    store: RunStore, a_run: Make, before: RunStatus, after: RunStatus
) -> None:
    await store.create_run(a_run(status=before))
    change = store.commit("run-1", update=RunUpdate(status=after))
    if after in LEGAL_TRANSITIONS[before]:
        await change
        assert (await store.run("run-1")).status is after
    else:
        with pytest.raises(StoreError, match=f"is {before}: it cannot become {after}"):
            await change
        assert (await store.run("run-1")).status is before


async def test_an_update_changes_only_the_given_columns(store: RunStore, a_run: Make) -> None:
    await store.create_run(a_run())
    await store.commit("run-1", update=RunUpdate(status=RunStatus.FAILED, error="no", consumed_s=2.5, updated_at=9.0))
    expected = a_run(status=RunStatus.FAILED, error="no", consumed_s=2.5, updated_at=9.0)
    assert await store.run("run-1") == expected
    await store.commit("run-1", update=RunUpdate(result_json="[1]"))
    run = await store.run("run-1")
    assert (run.status, run.error, run.consumed_s, run.result_json) == (RunStatus.FAILED, "no", 2.5, "[1]")
    assert run.updated_at == 5000.0


async def test_a_resumed_run_loses_its_error(store: RunStore, a_run: Make) -> None:
    await store.create_run(a_run(status=RunStatus.FAILED, error="no"))
    await store.commit("run-1", update=RunUpdate(status=RunStatus.RUNNING))
    assert (await store.run("run-1")).error is None


async def test_reusable_is_the_newest_done_row_over_all_runs(store: RunStore, a_run: Make, an_op: Make) -> None:
    for name in ("run-1", "run-2"):
        await store.create_run(a_run(id=name))
    await store.commit("run-1", ops=[an_op(lineage_key="L", summary="old"), an_op(seq=2, lineage_key="M")])
    await store.commit("run-2", ops=[an_op(run_id="run-2", lineage_key="L", summary="new")])
    await store.commit("run-1", ops=[an_op(seq=3, lineage_key="L", status=OpStatus.FAILED)])
    found = await store.reusable("L")
    assert found is not None
    assert (found.run_id, found.summary) == ("run-2", "new")
    assert await store.reusable("N") is None


async def test_live_snapshots_are_all_that_a_row_names(
    store: RunStore, a_run: Make, an_op: Make, a_checkpoint: Make
) -> None:
    assert await store.live_snapshots() == set()
    await store.create_run(a_run())
    await store.commit(
        "run-1",
        ops=[an_op(snapshot_in="in", snapshot_out="out"), an_op(seq=2)],
        checkpoints=[a_checkpoint(snapshot_id="sealed")],
    )
    assert await store.live_snapshots() == {"base", "in", "out", "sealed"}


async def test_equal_texts_are_stored_once(store: RunStore, a_run: Make, an_op: Make, an_llm_call: Make) -> None:
    await store.create_run(a_run())
    before = blob_count(store)
    text = '"' + "x" * 10_000 + '"'
    await store.commit("run-1", ops=[an_op(seq=n, result_json=text) for n in range(1, 6)])
    await store.commit("run-1", llm=[an_llm_call(seq=9, request_json=text, result_json=text)])
    assert blob_count(store) == before + 1
    assert {op.result_json for op in await store.ops("run-1")} == {text}


async def test_deleting_a_run_drops_its_rows_and_the_texts_that_only_it_named(
    store: RunStore, a_run: Make, an_op: Make, an_llm_call: Make, a_checkpoint: Make
) -> None:
    await store.create_run(a_run())
    await store.commit("run-1", ops=[an_op(result_json='"shared"')])
    kept = blob_count(store)
    await store.create_run(a_run(id="run-2", plan_json="other plan", base_snapshot="other"))
    await store.commit(
        "run-2",
        ops=[an_op(run_id="run-2", result_json='"shared"'), an_op(run_id="run-2", seq=2, result_json='"mine"')],
        llm=[an_llm_call(run_id="run-2", seq=3, request_json="q", result_json="a")],
        checkpoints=[a_checkpoint(run_id="run-2")],
        update=RunUpdate(result_json='"result of 2"'),
    )
    await store.delete_run("run-2")
    assert blob_count(store) == kept
    assert [run.id for run in await store.runs()] == ["run-1"]
    assert (await store.ops("run-2"), await store.llm("run-2"), await store.checkpoints("run-2")) == ([], [], [])
    assert [op.result_json for op in await store.ops("run-1")] == ['"shared"']
    assert await store.live_snapshots() == {"base"}


async def test_concurrent_commits_of_one_process_are_all_stored(store: RunStore, a_run: Make, an_op: Make) -> None:
    await store.create_run(a_run())
    await asyncio.gather(*(store.commit("run-1", ops=[an_op(seq=n)]) for n in range(1, 41)))
    assert [op.seq for op in await store.ops("run-1")] == list(range(1, 41))


async def test_a_cancelled_commit_has_ended_when_the_caller_is_cancelled(
    store: RunStore, a_run: Make, an_op: Make
) -> None:
    await store.create_run(a_run())
    commit = asyncio.create_task(store.commit("run-1", ops=[an_op()]))
    await asyncio.sleep(0)
    commit.cancel()
    with pytest.raises(asyncio.CancelledError):
        await commit
    assert await store.ops("run-1") == [an_op()]
    await store.commit("run-1", ops=[an_op(seq=2)])  # and the store works on


async def test_a_cancelled_read_harms_nothing(store: RunStore, a_run: Make) -> None:
    await store.create_run(a_run())
    for _ in range(5):
        reading = asyncio.create_task(store.runs())
        await asyncio.sleep(0.0005)
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
    assert len(await store.runs()) == 1


async def test_a_store_that_is_not_open_says_so(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="not open"):
        await RunStore(tmp_path / "x.db", clock=lambda: 0.0).runs()


async def test_a_row_that_this_version_does_not_know_is_an_error_not_a_crash(
    store: RunStore, a_run: Make, an_op: Make
) -> None:
    await store.create_run(a_run())
    await store.commit("run-1", ops=[an_op(kind=OpKind.SEAL)])
    engine = writer(store.address)
    with engine.begin() as connection:
        connection.exec_driver_sql("UPDATE ops SET kind = 'TELEPORT'")
    engine.dispose()
    with pytest.raises(StoreError, match="TELEPORT"):
        await store.ops("run-1")


async def test_a_text_that_was_altered_is_not_served(store: RunStore, a_run: Make, an_op: Make) -> None:
    """A long text is named by its digest: an altered text is an error, not a result."""
    await store.create_run(a_run())
    await store.commit("run-1", ops=[an_op(result_json='"true"')])
    assert [op.result_json for op in await store.ops("run-1")] == ['"true"']
    engine = writer(store.address)
    with engine.begin() as connection:
        connection.exec_driver_sql("UPDATE blobs SET text = '\"forged\"' WHERE text = '\"true\"'")
    engine.dispose()
    with pytest.raises(StoreError, match="altered or damaged"):
        await store.ops("run-1")
    with reading(store.address) as reader, pytest.raises(StoreError, match="altered or damaged"):
        at_once(reader.ops("run-1"))


async def test_all_rows_of_a_run_are_put_and_replaced_at_once(
    store: RunStore, a_run: Make, an_op: Make, an_llm_call: Make, a_checkpoint: Make
) -> None:
    """As a run that is pulled from another machine."""
    long = '"' + "grows " * 100
    rows = RunRows(
        a_run(),
        (an_op(result_json=long + '"'), an_op(seq=3, key="o3", result_json=long + 'and grows"')),
        (an_llm_call(),),
        (a_checkpoint(),),
        (EffectRecord(RunId("run-1"), "o1.0", "send", ROOT, EffectStatus.DONE, "key 2", "[]", attempt=2),),
        (EffectRecord(RunId("run-1"), "o1.0", "send", ROOT, EffectStatus.FAILED, "key 1", "[]"),),
        (AnswerRecord(RunId("run-1"), "q", '"yes"', 1.0),),
    )
    await store.put_rows(rows)
    assert await store.rows_of(RunId("run-1")) == rows
    blobs = blob_count(store)
    with pytest.raises(StoreError):
        await store.put_rows(rows)
    later = replace(rows, ops=(*rows.ops, an_op(seq=4, key="o4", result_json='"short"')))
    await store.put_rows(later, replace=True)
    assert await store.rows_of(RunId("run-1")) == later
    assert blob_count(store) == blobs + 1


async def test_closing_waits_for_a_read_that_is_under_way(address: str) -> None:
    """Its connection would stay open, with a thread."""
    store = await RunStore(address, clock=lambda: 5000.0).__aenter__()
    engine = store._reader  # what all reads use
    assert engine is not None
    read = await engine.connect()
    closing = asyncio.create_task(store.__aexit__(None, None, None))
    await asyncio.sleep(0.05)
    assert not closing.done()
    await read.close()
    await closing
    gc.collect()  # reports a connection that is open
