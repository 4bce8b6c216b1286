"""Commits in one statement: what they write is what the general way writes, and they refuse what it refuses."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.exc import OperationalError
from sqlalchemy.ext.asyncio import AsyncConnection

from ramify.runtime.errors import LeaseLost, StoreError
from ramify.runtime.records import CheckpointId, CheckpointRecord, RunId, RunRecord, RunStatus, RunUpdate
from ramify.runtime.store import RunStore, batch_writer, leases
from ramify.runtime.store.batch_writer import BatchWriter
from tests.runtime.store.conftest import CHECKPOINT, LLM, OP, RUN

BASE = replace(CHECKPOINT, seq=0)
TOUCH = RunUpdate(consumed_s=2.0, updated_at=3000.0)
DONE = replace(TOUCH, status=RunStatus.DONE, result_json='"it is\\ud800 done"', error="")


@pytest.fixture
def ways(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """In which way each batch was written."""
    found: list[str] = []
    general, simple = BatchWriter._write_general, BatchWriter._write_simple

    def write(self: BatchWriter, *args: Any) -> None:
        found.append("general")
        general(self, *args)

    def write_simple(self: BatchWriter, *args: Any) -> bool:
        done = simple(self, *args)
        found.extend(["simple"] if done else [])
        return done

    monkeypatch.setattr(BatchWriter, "_write_general", write)
    monkeypatch.setattr(BatchWriter, "_write_simple", write_simple)
    return found


async def a_whole_run(store: RunStore, run: RunRecord, base: CheckpointRecord) -> list[Any]:
    ops = [replace(OP, seq=1), replace(OP, seq=2, key="o2.0", result_json=None, summary="a\0b")]
    async with store.beginning(run, base):
        await store.commit(run.id, ops=ops, llm=[replace(LLM, seq=3)], update=TOUCH)
        await store.commit(run.id, checkpoints=[replace(CHECKPOINT, id="c4", seq=4)], update=TOUCH)
        await store.commit(run.id, update=DONE, leaves=True)
        lease = (await store.leases([run.id]))[run.id]
        found = [await store.run(run.id), *await store.journal(run.id), await store.checkpoints(run.id)]
    return [*found, lease.owner, lease.token]


async def test_both_ways_write_the_same(store: RunStore, ways: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    simple = await a_whole_run(store, RUN, BASE)
    assert ways == ["simple"] * 4
    await store.delete_run(RUN.id)
    ways.clear()
    monkeypatch.setattr(BatchWriter, "_write_simple", lambda *_: False)
    assert await a_whole_run(store, RUN, BASE) == simple
    assert ways == ["general"] * 4
    assert simple[0].status is RunStatus.DONE
    assert simple[-2] is None  # the lease was given back


async def test_many_rows_are_all_there_in_their_order(store: RunStore, ways: list[str]) -> None:
    """One statement writes many of them, and another one the rest."""
    ops = [replace(OP, seq=number, key=f"o{number}") for number in range(1, 150)]
    async with store.beginning(RUN, BASE):
        await store.commit(RUN.id, ops=ops, update=TOUCH)
    assert ways == ["simple"] * 2
    assert await store.ops(RUN.id) == ops


def test_a_row_that_was_recorded_keeps_its_number() -> None:
    row = replace(OP, seq=0).numbered(1)
    assert (row.seq, row.numbered(2).seq, row.seq) == (1, 2, 1)


async def test_nothing_is_written_without_the_lease(store: RunStore, change_leases: Callable[[str], None]) -> None:
    async with store.beginning(RUN, BASE):
        change_leases("owner = 'another', token = token + 1")
        for update, leaves in ((TOUCH, False), (DONE, True)):
            with pytest.raises(LeaseLost):
                await store.commit(RUN.id, ops=[OP], update=update, leaves=leaves)
    assert await store.ops(RUN.id) == []
    assert (await store.run(RUN.id)).status is RunStatus.RUNNING


async def test_a_refused_end_keeps_the_lease(store: RunStore) -> None:
    async with store.beginning(RUN, BASE):
        await store.commit(RUN.id, ops=[OP], update=TOUCH)
        with pytest.raises(StoreError):
            await store.commit(RUN.id, ops=[OP], update=DONE, leaves=True)  # the row is there already
        await store.commit(RUN.id, update=DONE, leaves=True)
    assert (await store.run(RUN.id)).result_json == DONE.result_json


async def test_a_batch_whose_answer_was_lost_is_not_written_again(
    store: RunStore, monkeypatch: pytest.MonkeyPatch, ways: list[str]
) -> None:
    if not store.address.on_server:
        pytest.skip("the answer of a file is not lost")
    written = batch_writer.write_to_server

    def lose(*args: Any) -> int:
        written(*args)
        raise batch_writer.Refused

    monkeypatch.setattr(batch_writer, "write_to_server", lose)
    async with store.beginning(RUN, BASE):
        await store.commit(RUN.id, ops=[OP], update=TOUCH)
    assert ways == ["general"] * 2
    assert [row.seq for row in await store.ops(RUN.id)] == [1]


async def test_a_run_whose_end_was_committed_has_not_lost_its_lease(
    store: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer to the commit that gives the lease back is lost, and the lease is renewed before the second try."""
    if not store.address.on_server:
        pytest.skip("the answer of a file is not lost")
    committer, written = store._opened(), batch_writer.write_to_server
    answers = iter([True, False, True])

    def lose(*args: Any) -> int:
        session = written(*args)
        if not next(answers):
            raise OperationalError("", {}, Exception("the connection broke"), connection_invalidated=True)
        return session

    monkeypatch.setattr(batch_writer, "write_to_server", lose)
    monkeypatch.setattr(committer, "_sleep", lambda _: committer.keeper.renew())
    async with store.beginning(RUN, BASE):
        await store.commit(RUN.id, ops=[OP], update=DONE, leaves=True)
    assert [row.seq for row in await store.ops(RUN.id)] == [OP.seq]
    assert (await store.run(RUN.id)).status is RunStatus.DONE


async def test_only_the_run_that_lost_its_lease_is_refused(
    store: RunStore, change_leases: Callable[[str], None]
) -> None:
    runs = [replace(RUN, id=RunId(f"run-{number}")) for number in range(4)]
    async with AsyncExitStack() as held:
        for run in runs:
            base = replace(BASE, id=CheckpointId(f"base of {run.id}"), run_id=run.id)
            await held.enter_async_context(store.beginning(run, base))
        change_leases("owner = 'another' WHERE run_id = 'run-2'")
        ended = runs[1].id
        commits = (
            store.commit(run.id, ops=[replace(OP, run_id=run.id)], update=DONE if run.id == ended else TOUCH)
            for run in runs
        )
        found = await asyncio.gather(*commits, return_exceptions=True)
        assert [type(error) for error in found] == [type(None), type(None), LeaseLost, type(None)]
        assert [len(await store.ops(run.id)) for run in runs] == [1, 1, 0, 1]
        assert (await store.run(ended)).status is RunStatus.DONE


async def test_a_transaction_may_check_the_leases_of_thousands_of_runs(store: RunStore) -> None:
    owner = store._opened().keeper.owner
    async with store.beginning(RUN, BASE):
        tokens = {RUN.id: 1} | {RunId(f"another-{number}"): 1 for number in range(3000)}
        query, values = leases.fence(owner, tokens)

        async def ask(connection: AsyncConnection) -> int:
            return len((await connection.execute(text(query), values)).fetchall())

        assert await store._read(ask) == 1
