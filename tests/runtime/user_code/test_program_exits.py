"""`sys.exit()` in a process that works on the runs of others."""

from __future__ import annotations

import asyncio
import sys
import warnings

import pytest

from ramify.runtime.user_code.program_exits import ProgramEnded, work_for_others


async def leave() -> None:
    await asyncio.sleep(0)
    sys.exit(3)


async def value() -> int:
    await asyncio.sleep(0)
    return 4


async def test_an_exit_in_a_task_is_an_error_and_the_loop_goes_on() -> None:
    work_for_others()
    with pytest.raises(ProgramEnded, match=r"SystemExit\(3\)"):
        await asyncio.create_task(leave())
    assert await asyncio.create_task(value(), name="mine") == 4
    async with asyncio.TaskGroup() as group:
        task = group.create_task(value())
    assert task.result() == 4


async def test_a_task_that_is_cancelled_before_it_begins_warns_of_nothing() -> None:
    work_for_others()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        task = asyncio.create_task(value())
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        del task
