"""Leases: one owner of a run at a time, and nothing that a former owner still wants to write is written."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import subprocess
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, closing
from pathlib import Path
from typing import Any

import postgres
import pytest
import pytest_asyncio

from ramify.runtime.errors import LeaseHeld, LeaseLost, RunLocked
from ramify.runtime.records import RunId
from ramify.runtime.store import RunStore
from ramify.runtime.store.leases import FileLock
from ramify.runtime.store.reader import reading
from ramify.runtime.store.run_locks import RunLock, hold_run, is_held

Make = Callable[..., Any]
Open = Callable[..., Any]
Change = Callable[[str], None]
RUN = RunId("run-1")
SHORT_S = 0.5
ELSEWHERE = FileLock("another folder")
EXPIRED = "renewed_at = renewed_at - 7200"


@pytest_asyncio.fixture
async def opened(address: str) -> AsyncIterator[Open]:
    """Opens stores on one database. They renew their leases only if the test says so: the clock stands still."""
    async with AsyncExitStack() as stack:

        async def enter(lease_s: float = 3600.0) -> RunStore:
            return await stack.enter_async_context(RunStore(address, clock=lambda: 5000.0, lease_s=lease_s))

        yield enter


async def test_a_run_has_one_owner(opened: Open, a_run: Make, address: str, is_alive: Make) -> None:
    one, other = await opened(SHORT_S), await opened(SHORT_S)
    await one.create_run(a_run())
    async with one.held(RUN):
        assert await is_alive(other, RUN)
        with pytest.raises(LeaseHeld, match=f"process {os.getpid()} on {os.uname().nodename}") as refused:
            async with other.held(RUN, ELSEWHERE):
                pass
        assert isinstance(refused.value, RunLocked)
        await one.commit(RUN)
    assert not await is_alive(other, RUN)
    async with other.held(RUN):
        await other.commit(RUN)
    with reading(address) as reader:
        lease = (await reader.leases([RUN], 5000.0))[RUN]
    assert (lease.owner, lease.token, lease.host, lease.is_alive) == (None, 2, os.uname().nodename, False)


async def test_a_stale_owner_writes_nothing(opened: Open, a_run: Make, an_op: Make, change_leases: Change) -> None:
    stale, new = await opened(), await opened()
    await stale.create_run(a_run())
    async with stale.held(RUN):
        await stale.commit(RUN, ops=[an_op(seq=1)])
        change_leases(EXPIRED)
        await stale.commit(RUN, ops=[an_op(seq=2)])  # nobody took it: its owner goes on
        async with new.held(RUN, ELSEWHERE):
            change_leases("host = 'other-host'")
            with pytest.raises(LeaseLost, match="on other-host took over run run-1") as lost:
                await stale.commit(RUN, ops=[an_op(seq=3)])
            assert (lost.value.host, lost.value.lost_run) == ("other-host", RUN)
            assert stale.loss_of(RUN) is not None
            await new.commit(RUN, ops=[an_op(seq=3, key="of the new owner")])
        with pytest.raises(LeaseLost):  # also after the new owner has ended
            await stale.commit(RUN, ops=[an_op(seq=4)])
    assert [(op.seq, op.key) for op in await new.ops(RUN)] == [(1, "o1.0"), (2, "o1.0"), (3, "of the new owner")]
    async with stale.held(RUN):  # it may come back, as any process
        await stale.commit(RUN, ops=[an_op(seq=4)])


@pytest.mark.postgres
async def test_a_lease_that_was_taken_outlives_a_crash_of_the_server(a_run: Make, an_op: Make) -> None:
    if postgres.binaries() is None:
        pytest.skip("no PostgreSQL here that can be killed: install it")
    with postgres.own_server() as server:
        async with RunStore(postgres.new_database(server.address), clock=time.time) as store:
            await store.create_run(a_run())
            async with store.held(RUN):
                await asyncio.to_thread(server.kill, 0.0)
                await store.commit(RUN, ops=[an_op(seq=1)])
                assert len(await store.ops(RUN)) == 1


async def test_the_lease_of_a_machine_that_is_gone_is_ended_at_once(opened: Open, a_run: Make, an_op: Make) -> None:
    cut_off, new = await opened(), await opened()
    await cut_off.create_run(a_run())
    host, pid = os.uname().nodename, os.getpid()
    async with cut_off.held(RUN):
        await cut_off.commit(RUN, ops=[an_op(seq=1)])
        assert not await new.end_lease(RUN, host, pid + 1)
        assert not await new.end_lease(RUN, "another-host", pid)
        await cut_off.commit(RUN, ops=[an_op(seq=2)])
        assert await new.end_lease(RUN, host, pid)
        assert not await new.end_lease(RUN, host, pid)
        assert not (await new.leases([RUN]))[RUN].is_alive
        with pytest.raises(LeaseLost, match="the fleet of this process took it for dead"):  # it lives after all
            await cut_off.commit(RUN, ops=[an_op(seq=3)])
        async with new.held(RUN, ELSEWHERE):
            await new.commit(RUN, ops=[an_op(seq=3)])
    assert not await new.end_lease(RUN, host, pid)
    assert len(await new.ops(RUN)) == 3


async def test_a_process_whose_lease_was_ended_keeps_no_file_lock(opened: Open, a_run: Make, tmp_path: Path) -> None:
    stopped, new = await opened(), await opened()
    await stopped.create_run(a_run())
    folder = tmp_path / "locks"
    async with hold_run(folder, stopped, RUN):
        assert await new.end_lease(RUN, os.uname().nodename, os.getpid())
        stopped._opened().keeper.renew()
        assert isinstance(stopped.loss_of(RUN), LeaseLost)
        async with hold_run(folder, new, RUN):
            await new.commit(RUN)
            with pytest.raises(LeaseLost):
                await stopped.commit(RUN)


async def test_an_idle_owner_notices_its_loss(opened: Open, a_run: Make, change_leases: Change) -> None:
    stale, new = await opened(), await opened()
    await stale.create_run(a_run())
    async with stale.held(RUN):
        stale._opened().keeper.renew()
        assert stale.loss_of(RUN) is None
        assert (await new.leases([RUN]))[RUN].renewals == 1
        change_leases(EXPIRED)
        async with new.held(RUN, ELSEWHERE):
            stale._opened().keeper.renew()
            assert isinstance(stale.loss_of(RUN), LeaseLost)
            assert (await new.leases([RUN]))[RUN].renewals == 0
    assert stale.loss_of(RUN) is None


async def test_other_runs_of_a_stale_owner_go_on(
    opened: Open, a_run: Make, an_op: Make, change_leases: Change
) -> None:
    stale, new = await opened(), await opened()
    kept = RunId("kept")
    for run in (RUN, kept):
        await stale.create_run(a_run(id=run))
    async with stale.held(RUN), stale.held(kept):
        change_leases(EXPIRED)
        async with new.held(RUN, ELSEWHERE):
            commits = [stale.commit(run, ops=[an_op(run_id=run, seq=1)]) for run in (RUN, kept)]
            heard = await asyncio.gather(*commits, return_exceptions=True)
    assert [type(one) for one in heard] == [LeaseLost, type(None)]
    assert [len(await new.ops(run)) for run in (RUN, kept)] == [0, 1]


async def test_owners_that_race_write_in_turn(opened: Open, a_run: Make, an_op: Make, address: str) -> None:
    """Three owners take the run from each other all the time. Each row is the work of one tenure, and tenures do not
    overlap: no token comes after a higher one."""
    first = await opened()
    await first.create_run(a_run())
    stores = [first, await opened(), await opened()]
    written: list[tuple[int, int]] = []

    async def work(store: RunStore) -> None:
        for _ in range(8):
            try:
                async with store.held(RUN, FileLock("one folder")):  # as if each predecessor had been killed
                    token = store._opened().keeper.tokens([RUN])[RUN]
                    for _ in range(3):
                        seq = len(await store.ops(RUN)) + 1
                        await store.commit(RUN, ops=[an_op(seq=seq, key=str(token))])
                        written.append((seq, token))
            except LeaseLost:
                pass

    await asyncio.gather(*map(work, stores))
    rows = [(op.seq, int(op.key)) for op in await first.ops(RUN)]
    assert rows == sorted(written)
    assert [token for _, token in rows] == sorted(token for _, token in rows)
    assert rows


async def test_a_successor_with_the_file_lock_does_not_wait(opened: Open, a_run: Make, tmp_path: Path) -> None:
    """The file lock shows that the predecessor is dead, although its lease says nothing of it."""
    killed, next_one = await opened(), await opened()
    await killed.create_run(a_run())
    folder = tmp_path / "locks"
    async with killed.held(RUN, FileLock("")):  # what it knows of file locks, nobody else knows
        with pytest.raises(LeaseHeld):
            await next_one._wait(asyncio.wrap_future(next_one._opened().hold(RUN, FileLock("folder"))))
    async with hold_run(folder, killed, RUN):
        (folder / f"{RUN}.lock").unlink()  # as the kernel drops the lock of a process that was killed
        async with hold_run(folder, next_one, RUN):
            await next_one.commit(RUN)
            with pytest.raises(LeaseLost):
                await killed.commit(RUN)


async def test_the_file_lock_of_a_stopped_process_is_replaced(
    opened: Open, a_run: Make, tmp_path: Path, change_leases: Change
) -> None:
    stopped, new, third = await opened(), await opened(), await opened()
    await stopped.create_run(a_run())
    folder = tmp_path / "locks"
    async with hold_run(folder, stopped, RUN):
        with pytest.raises(LeaseHeld):  # its lease is young
            async with hold_run(folder, new, RUN):
                pass
        change_leases(EXPIRED)
        async with hold_run(folder, new, RUN):
            assert is_held(folder, RUN)
            with pytest.raises(LeaseHeld):
                async with hold_run(folder, third, RUN):
                    pass
            await new.commit(RUN)
        assert not is_held(folder, RUN)  # its new file; the stopped process still has the old one


async def test_a_file_lock_without_a_lease_is_respected(opened: Open, tmp_path: Path) -> None:
    store = await opened()
    with RunLock(tmp_path, RUN), pytest.raises(RunLocked, match="another process"):
        async with hold_run(tmp_path, store, RUN):
            pass


async def test_a_deleted_run_has_no_lease(opened: Open, a_run: Make) -> None:
    store = await opened()
    await store.create_run(a_run())
    async with store.held(RUN):
        await store.delete_run(RUN)
        assert await store.leases([RUN]) == {}
        with pytest.raises(LeaseLost, match="deleted"):
            await store.commit(RUN)


async def test_a_store_that_closes_gives_its_leases_back(address: str, a_run: Make, is_alive: Make) -> None:
    async with RunStore(address, clock=lambda: 0.0) as store:
        await store.create_run(a_run())
        await asyncio.wrap_future(store._opened().hold(RUN, FileLock()))
    async with RunStore(address, clock=lambda: 0.0) as store:
        assert not await is_alive(store, RUN)


async def test_a_copied_database_does_not_wait_for_a_process_that_has_ended(tmp_path: Path, a_run: Make) -> None:
    """As a copied home: the owner's file lock was in the home that was copied, and the owner is dead."""
    path = tmp_path / "ramify.db"
    async with RunStore(path, clock=lambda: 5000.0) as store:
        await store.create_run(a_run())
        with subprocess.Popen(["true"]) as ended:  # noqa: ASYNC220
            pass
        async with store.held(RUN, ELSEWHERE):
            with closing(sqlite3.connect(path)) as database, database:
                database.execute("UPDATE leases SET pid = ?", (ended.pid,))
            async with RunStore(path, clock=lambda: 5000.0) as other, other.held(RUN, FileLock("the copy's folder")):
                await other.commit(RUN)
            with pytest.raises(LeaseLost):
                await store.commit(RUN)
