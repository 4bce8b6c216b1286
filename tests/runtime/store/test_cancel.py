"""`ramify cancel` with a database on a server: the process that works on the run may be on another machine."""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path

import pytest

from ramify import Runtime, Sandbox, step, workflow
from ramify.runtime.errors import RunCancelled
from ramify.runtime.records import RunId, RunStatus
from ramify.runtime.store import RunStore

BEGUN = asyncio.Event()
PATIENT: list[bool] = []  # while this is not empty, `wait` does not end


@step
async def wait(sandbox: Sandbox) -> str:
    (sandbox.path / "half").touch()
    BEGUN.set()
    if PATIENT:
        await asyncio.sleep(600)
    return "done"


@workflow
async def waiting() -> str:
    return await wait()


@pytest.mark.postgres
async def test_a_run_is_cancelled_from_another_machine(tmp_path: Path, one_database: str) -> None:
    PATIENT[:] = [True]
    BEGUN.clear()
    async with Runtime(home=tmp_path / "here", database=one_database, sandbox="copy") as runtime:
        run = asyncio.ensure_future(runtime.run(waiting))
        await BEGUN.wait()
        words = ("-m", "ramify.cli.main", "--home", str(tmp_path / "there"), "--database", one_database, "cancel")
        other = await asyncio.create_subprocess_exec(sys.executable, *words, str(runtime.last_run_id))
        assert await other.wait() == 0
        with pytest.raises(RunCancelled):
            await run
        assert (await runtime.record()).status is RunStatus.CANCELLED
        PATIENT.clear()
        assert await runtime.resume(str(runtime.last_run_id)) == "done"


@pytest.mark.postgres
async def test_a_cancel_request_ends_with_its_process(one_database: str) -> None:
    run = RunId("somerun")
    async with RunStore(one_database, clock=time.time) as one, RunStore(one_database, clock=time.time) as other:
        async with other.held(run):
            async with one.requesting_stop(run):
                assert await other.stop_requested(run)
                assert not await other.stop_requested(RunId("another"))
            assert not await other.stop_requested(run)
            await one._ask_to_stop(run, 600.0)
            assert await other.stop_requested(run)
        async with one.held(run):  # another owner is not asked
            assert not await one.stop_requested(run)
