"""A workflow that sleeps: a resume waits for what is left, and finds the same result first."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import sleeping_app

from ramify import Runtime
from ramify.compiler.plan import OpKind
from ramify.runtime.durations import Duration
from ramify.runtime.errors import RunFailed, RunWaiting
from ramify.runtime.execution import sleeps as sleeps_module
from ramify.runtime.records import OpStatus


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    sleeping_app.DONE.clear()
    sleeping_app.NAPS.clear()
    monkeypatch.setattr(sleeping_app, "STOPS", True)
    monkeypatch.setattr(sleeps_module, "_LONGEST_S", 0.01)  # a clock of a test does not wake the loop
    yield


class Clock:
    """Unix seconds that pass only when a test says so."""

    now = 1.8e9

    def __call__(self) -> float:
        return self.now


async def stopped_in_its_sleep(runtime: Runtime) -> str:
    """Run `naps` until it sleeps, and stop it there, as a signal does. Return the run's id."""
    running = asyncio.ensure_future(runtime.run(sleeping_app.naps))
    await until_begun(runtime, 1)
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running
    return str(runtime.last_run_id)


async def until_begun(runtime: Runtime, times: int) -> None:
    """Return when the rows of the last run say that a sleep was begun so many times."""
    while runtime.last_run_id is None or (await sleeps(runtime, runtime.last_run_id)).count(OpStatus.BEGUN) < times:  # noqa: ASYNC110
        await asyncio.sleep(0.01)


async def sleeps(runtime: Runtime, run: str) -> list[OpStatus]:
    return [row.status for row in await runtime.journal(run) if row.kind is OpKind.SLEEP]


async def test_a_resume_waits_for_what_is_left(home: Path) -> None:
    clock = Clock()
    async with Runtime(home=home, sandbox="copy", clock=clock) as runtime:
        run = await stopped_in_its_sleep(runtime)
        clock.now += 3600 - 60
        resumed = asyncio.ensure_future(runtime.resume(run))
        await asyncio.wait({resumed}, timeout=0.2)
        assert not resumed.done(), "a minute is left"
        clock.now += 60
        assert await resumed == "after"
        assert await sleeps(runtime, run) == [OpStatus.BEGUN, OpStatus.DONE]
        assert await runtime.resume(run) == "after"
    assert sleeping_app.DONE == ["before", "after"]


async def test_a_clock_that_was_set_back_makes_no_sleep_longer(home: Path) -> None:
    clock = Clock()
    async with Runtime(home=home, sandbox="copy", clock=clock) as runtime:
        run = await stopped_in_its_sleep(runtime)
        clock.now -= 10 * 86400
        resumed = asyncio.ensure_future(runtime.resume(run))
        await asyncio.wait({resumed}, timeout=0.2)
        assert not resumed.done()
        clock.now += 3600
        assert await resumed == "after"


async def test_a_run_that_went_back_sleeps_again(home: Path) -> None:
    clock = Clock()
    async with Runtime(home=home, sandbox="copy", clock=clock) as runtime:
        run = await stopped_in_its_sleep(runtime)
        clock.now += 3600
        base = (await runtime.store.checkpoints(run))[0]
        resumed = asyncio.ensure_future(runtime.resume(run, back_to=base.id))
        await until_begun(runtime, 2)
        clock.now += 3600
        assert await resumed == "after"
    assert sleeping_app.DONE == ["before", "before", "after"]


async def test_a_workflow_that_is_not_async_sleeps(runtime: Runtime) -> None:
    assert await runtime.run(sleeping_app.plain_nap) == "after"
    assert await sleeps(runtime, str(runtime.last_run_id)) == [OpStatus.BEGUN, OpStatus.DONE]


@pytest.mark.parametrize("duration", [0, "0s", timedelta(0), 1e-9])
async def test_no_time_at_all(runtime: Runtime, duration: Duration) -> None:
    assert await runtime.run(sleeping_app.naps_for_nothing, duration) is None


async def test_the_same_is_first_in_a_resume(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sleeping_app, "GATE", asyncio.Event())
    async with Runtime(home=home, sandbox="copy") as runtime:
        with pytest.raises(RunFailed, match="not yet"):
            await runtime.run(sleeping_app.the_first_of_two)
        monkeypatch.setattr(sleeping_app, "STOPS", False)
        assert await runtime.resume(str(runtime.last_run_id)) == "nap"
    assert sleeping_app.DONE == ["paid nap"]


async def test_a_sleep_does_not_wait_for_a_step_that_gets_the_branch_next() -> None:
    lock = asyncio.Lock()
    await lock.acquire()
    step = asyncio.ensure_future(lock.acquire())
    await asyncio.sleep(0)
    lock.release()
    scope: Any = SimpleNamespace(branch=SimpleNamespace(lock=lock))
    with pytest.raises(StopIteration):
        sleeps_module._seal(scope, "key").send(None)
    assert await step


async def test_a_sleep_that_was_cancelled_is_cancelled_again(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with Runtime(home=home, sandbox="copy") as runtime:
        with pytest.raises(RunFailed, match="not yet"):
            await runtime.run(sleeping_app.a_nap_in_a_timeout)
        run = str(runtime.last_run_id)
        assert (await sleeps(runtime, run))[-1] is OpStatus.FAILED
        monkeypatch.setattr(sleeping_app, "STOPS", False)
        assert await runtime.resume(run) == "late"
    assert sleeping_app.DONE == ["paid late"]


async def test_a_run_does_not_stop_for_a_person_while_it_sleeps(home: Path) -> None:
    async with Runtime(home=home, sandbox="copy") as runtime:
        with pytest.raises(RunWaiting):
            await runtime.run(sleeping_app.asks_and_naps)
        assert sleeping_app.DONE == ["slept"]
        assert await runtime.resume(str(runtime.last_run_id), answer="yes") == ["yes", "slept"]
    assert sleeping_app.DONE == ["slept"]


async def test_a_step_is_told_to_use_asyncio(runtime: Runtime) -> None:
    with pytest.raises(RunFailed, match=r"sleep\(\) was called inside step 'sleeps_in_a_step'"):
        await runtime.run(sleeping_app.naps_in_a_step)


@pytest.mark.parametrize("duration", ["-1", "soon", "1 fortnight", True])
async def test_no_duration(runtime: Runtime, duration: Duration) -> None:
    with pytest.raises(RunFailed, match="duration"):
        await runtime.run(sleeping_app.naps_for_nothing, duration)


async def test_a_sleep_after_a_failure_does_not_keep_the_failure(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A resume tries the last failed step again, although the workflow slept after it."""
    async with Runtime(home=home, sandbox="copy") as runtime:
        with pytest.raises(RunFailed, match="not yet"):
            await runtime.run(sleeping_app.tries_three_times)
        monkeypatch.setattr(sleeping_app, "STOPS", False)
        assert await runtime.resume(str(runtime.last_run_id)) == "done"
    assert sleeping_app.DONE == ["tried"] * 4


async def test_a_sleep_ends_with_its_workflow(runtime: Runtime) -> None:
    await runtime.run(sleeping_app.leaves_a_nap)
    assert sleeping_app.NAPS[0].cancelled()
    assert await sleeps(runtime, str(runtime.last_run_id)) == [OpStatus.BEGUN], "the workflow did not cancel it"
