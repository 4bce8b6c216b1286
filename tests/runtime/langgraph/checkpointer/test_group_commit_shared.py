"""The run store commits a saver's rows in one transaction with its own, and the saver commits alone again
afterwards."""

from __future__ import annotations

import asyncio
import contextlib
import time
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import postgres
import pytest
from langgraph.checkpoint.base import empty_checkpoint

from ramify.runtime.langgraph.checkpointer import Saver, maintenance
from ramify.runtime.store import RunStore


def put(saver: Saver, number: int) -> Any:
    config: Any = {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}
    checkpoint = {**empty_checkpoint(), "id": f"{number:04}", "channel_values": {"n": number}}
    return saver.put(config, checkpoint, {"step": number}, {})  # type: ignore[arg-type]


def newest(saver: Saver) -> int:
    found = saver.get_tuple({"configurable": {"thread_id": "t"}})
    assert found is not None
    number: int = found.checkpoint["channel_values"]["n"]
    return number


async def test_it_joins_leaves_and_joins_again(address: str) -> None:
    with Saver.open(address) as saver:
        put(saver, 1)
        for number in (2, 4):
            async with RunStore(address, clock=time.time) as store:
                assert saver.join(store)
                assert saver.join(store)  # the next invocation joins again
                at = await asyncio.to_thread(put, saver, number)
                saver.put_writes(at, [("n", number)], "task")  # lingers
                assert newest(saver) == number  # a reader waits for it
                pending = (saver.get_tuple(at) or pytest.fail("not there")).pending_writes
                assert pending == [("task", "n", number)]
                saver.put_writes(at, [("n", number)], "late")
            put(saver, number + 1)
            assert newest(saver) == number + 1
            late = (saver.get_tuple(at) or pytest.fail("not there")).pending_writes or []
            assert ("late", "n", number) in late


@pytest.mark.parametrize("how", ["prune", "delete_thread"])
async def test_a_deletion_by_another_process_is_noticed(address: str, how: str) -> None:
    """The store's thread checks the deletion epoch, and raises it when it deletes for this saver."""
    with Saver.open(address) as saver, Saver.open(address) as other:
        async with RunStore(address, clock=time.time) as store:
            assert saver.join(store)
            for number in (1, 2, 3):
                await asyncio.to_thread(put, saver, number)
            await asyncio.to_thread(other.prune, ["t"]) if how == "prune" else other.delete_thread("t")
            await asyncio.to_thread(put, other, 4)
            await asyncio.to_thread(put, saver, 1)
            await asyncio.to_thread(put, saver, 5)
            assert newest(other) == newest(saver) == 5
            await asyncio.to_thread(saver.delete_thread, "t")
            for number in (4, 5):
                await asyncio.to_thread(put, other, number)
                assert newest(other) == newest(saver) == number


@pytest.mark.postgres
async def test_a_copy_is_made_while_nobody_else_writes(postgres_server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy reads with several statements: rows written in between would be copied in part."""
    import psycopg

    address = postgres.new_database(postgres_server)
    closure, refused = maintenance.closure, []

    def between(connection: Any, wanted: Any) -> Any:
        with psycopg.connect(address) as other, contextlib.suppress(psycopg.errors.LockNotAvailable):
            refused.append(True)
            other.execute("SELECT number FROM ramify_house FOR SHARE NOWAIT")
            refused.append(False)
        return closure(connection, wanted)

    monkeypatch.setattr(maintenance, "closure", between)
    with Saver.open(address) as saver:
        async with RunStore(address, clock=time.time) as store:
            assert saver.join(store)
            await asyncio.to_thread(put, saver, 1)
            await asyncio.to_thread(saver.copy_thread, "t", "u")
    assert refused == [True]


async def test_two_databases_are_two_commits(tmp_path: Path) -> None:
    with Saver.open(tmp_path / "threads.db") as saver:
        async with RunStore(tmp_path / "ramify.db", clock=time.time) as store:
            assert not saver.join(store)
            put(saver, 1)
    assert (tmp_path / "threads.db").stat().st_size > 0


async def test_a_saver_may_be_there_before_the_store(address: str) -> None:
    with Saver.open(address) as saver:
        put(saver, 1)
        async with RunStore(address, clock=time.time) as store:
            assert await store.runs() == []


async def test_a_failing_job_of_the_saver_does_not_fail_others(address: str) -> None:
    """One job of the saver fails. The next one must not be stored as a difference to what was rolled back."""
    with Saver.open(address) as saver:
        async with RunStore(address, clock=time.time) as store:
            saver.join(store)
            await asyncio.to_thread(put, saver, 1)
            with pytest.raises(ValueError, match="holds checkpoints already"):
                await asyncio.to_thread(saver.copy_thread, "t", "t")
            await asyncio.to_thread(put, saver, 2)
            assert newest(saver) == 2


async def test_ctrl_c_during_the_hand_over_blocks_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second interrupt comes wherever the loop's thread is, also before it is noted which caller waits for the
    commit."""
    add = Future.add_done_callback

    def interrupted(*given: Any) -> None:
        monkeypatch.setattr(Future, "add_done_callback", add)
        raise KeyboardInterrupt

    with Saver.open(tmp_path / "ramify.db") as saver:
        async with RunStore(tmp_path / "ramify.db", clock=time.time) as store:
            assert saver.join(store)
            monkeypatch.setattr(Future, "add_done_callback", interrupted)
            with pytest.raises(KeyboardInterrupt):
                put(saver, 1)
            await asyncio.wait_for(asyncio.to_thread(put, saver, 2), 30)
            assert await asyncio.wait_for(asyncio.to_thread(newest, saver), 30) == 2
