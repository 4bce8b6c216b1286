"""Workflows and steps that are not async behave like async ones."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path
from typing import Any

import blocking_app as app
import constructs_app as made
import pytest

from ramify import Runtime
from ramify.runtime.errors import RunFailed, RunWaiting, WouldBlock
from ramify.runtime.langgraph.thread.portal import BlockingStream
from ramify.runtime.records import RunStatus
from tests.plans import compile_plan
from tests.samples import sample


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    made.BEGUN.clear()
    made.FAILS_AT.clear()
    yield
    made.FAILS_AT.clear()


async def statuses(home: Path) -> list[RunStatus]:
    async with Runtime(home=home, sandbox="copy") as runtime:
        return [run.status for run in await runtime.store.runs()]


async def resumed(home: Path) -> Any:
    async with Runtime(home=home, sandbox="copy") as runtime:
        return await runtime.resume((await runtime.store.runs())[0].id)


async def to_the_end(runtime: Runtime, workspace: Path) -> Any:
    plan = compile_plan(app.everything)  # by the code alone: all states are kept
    work = runtime.run(app.everything, 2, workspace=workspace, plan=plan)
    while True:
        try:
            return await work
        except RunWaiting:
            work = runtime.resume(str(runtime.last_run_id), answer=True)
        except (made.Stopped, BaseExceptionGroup):
            made.FAILS_AT.clear()
            work = runtime.resume(str(runtime.last_run_id))


async def test_cut_off_in_a_step_it_ends_the_same(runtime: Runtime, workspace: Path) -> None:
    whole = await to_the_end(runtime, workspace)
    bodies = list(made.BEGUN)
    names = ["even0", "odd1", "flaky.half", "inner", "invoked", "first", "second", "awaited", "awaited1", "awaited2"]
    names += ["board-x", "board-y", "thought", "inside", "left", "right"]
    assert whole["files"] == sorted([*names, "hello.txt"])
    assert whole["seen"][2:6] == ["flaky", "caught", made.Told(("a", "measured"), 2), made.Told(("b", "measured"), 4)]
    assert whole["seen"][6:10] == ["inner", "invoked", ["first", "second"], ["awaited", "awaited1", "awaited2"]]
    assert whole["seen"][10:] == [8, 8, "inside", "wNone"]
    for at in range(3, len(bodies) + 1, sample(8, 4)):
        made.BEGUN.clear()
        made.FAILS_AT.add(at)
        assert await to_the_end(runtime, workspace) == whole, f"cut off at {bodies[at - 1]}, then done: {made.BEGUN}"
        assert len(made.BEGUN) <= len(bodies) + 2, f"cut off at {bodies[at - 1]}, done again: {made.BEGUN}"


def test_the_plan_contains_every_operation() -> None:
    plan = compile_plan(app.everything)
    assert [found.reason for found in plan.breaks[1:]] == []
    assert {step.name for step in plan.steps} == {
        "write", "write_in_a_thread", "works_at_last", "breaks", "measured", "send", "look", "note", "asks_the_model",
    }  # fmt: skip
    assert {op.step for op in plan.ops if "together" in op.attrs} == {"measured"}, "what waits runs beside nothing"


def test_a_plain_call_is_a_run(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a running event loop nothing needs to be awaited."""
    monkeypatch.setenv("RAMIFY_HOME", str(home))
    monkeypatch.setenv("RAMIFY_SANDBOX", "copy")
    called: Any = app.inner("called")
    assert called == app.inner.invoke("called") == "called"
    assert list(app.many.stream(["a", "b"])) == ["a", "b"]
    for item in app.many.stream(["a", "b"]):
        assert item == "a"
        break
    found = asyncio.run(statuses(home))
    assert sorted(found) == sorted([RunStatus.CANCELLED, *3 * [RunStatus.DONE]])


def in_a_process(code: str, home: Path) -> str:
    ours = {"RAMIFY_HOME": str(home), "RAMIFY_SANDBOX": "copy", "PYTHONPATH": str(Path(app.__file__).parent)}
    command = [sys.executable, "-c", f"import blocking_app as app\n{code}"]
    done = subprocess.run(
        command, env={**os.environ, **ours}, cwd=home.parent, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_stream_may_be_left_open_when_the_process_ends(home: Path) -> None:
    """Its thread is gone by then: nobody waits for it, and the run counts as killed."""
    assert in_a_process("items = iter(app.many.stream(['a', 'b', 'c']))\nprint(next(items))", home) == "a\n"
    assert asyncio.run(statuses(home)) == [RunStatus.RUNNING]
    assert asyncio.run(resumed(home)) == ["a", "b", "c"]


def test_ctrl_c_in_a_stream_is_raised_as_keyboard_interrupt(home: Path) -> None:
    code = "try:\n    list(app.pressed.stream())\nexcept KeyboardInterrupt:\n    print('pressed')"
    assert in_a_process(code, home) == "pressed\n"
    assert asyncio.run(statuses(home)) == [RunStatus.CANCELLED]


async def test_from_a_thread_it_is_a_run_of_the_surrounding_runtime(runtime: Runtime) -> None:
    """The runtime's database and worlds live on its own loop; on another loop they would hang."""
    called: Any = app.inner
    calls = [lambda: called("a"), lambda: called.invoke("a"), lambda: list(app.many.stream(["a"]))]
    for call in [*calls, lambda: app.awaits.invoke("a")]:
        await asyncio.wait_for(asyncio.to_thread(call), 60)
    assert [run.status for run in await runtime.store.runs()] == 4 * [RunStatus.DONE]


async def test_a_stream_does_not_block_the_loop_of_its_reader(runtime: Runtime) -> None:
    with pytest.raises(WouldBlock, match="async for item in"):
        list(app.many.stream(["a"]))
    assert await asyncio.to_thread(list, app.many.stream(["a"])) == ["a"]


def test_a_stream_may_be_collected_on_its_own_loop() -> None:
    """Whatever triggers the garbage collector there: the stream must not wait for itself."""
    closed = threading.Event()

    async def items() -> AsyncGenerator[int, None]:
        try:
            while True:
                yield 1
        finally:
            closed.set()

    stream = BlockingStream(items())
    assert next(stream) == 1
    portal, held = stream._portal, [stream]
    del stream
    portal.loop.call_soon_threadsafe(held.clear)
    assert closed.wait(30)


async def test_items_are_streamed_when_they_are_yielded(runtime: Runtime) -> None:
    seen = []
    async for item in app.many.stream(["a", "b", "c", "d"]):
        seen.append(item)
        assert len(made.BEGUN) <= len(seen) + 2
    assert seen == ["a", "b", "c", "d"] == await runtime.resume((await runtime.store.runs())[0].id)


async def test_a_nested_stream_starts_nothing_beside_its_reader(runtime: Runtime) -> None:
    for read in (app.reads_in_turn, app.awaits_in_turn):
        made.BEGUN.clear()
        await runtime.run(read, ["a", "b"])
        assert made.BEGUN == ["write a", "write from a", "write b", "write from b"]


async def test_a_nested_stream_that_is_left_runs_its_finally(runtime: Runtime) -> None:
    for read in (app.leaves_early, app.awaits_and_leaves_early):
        made.BEGUN.clear()
        await runtime.run(read)
        assert made.BEGUN == ["write a", "write tidied", "write after"]
    with pytest.raises(RunFailed, match="ValueError: no"):
        await runtime.run(app.awaits_and_leaves_early, "no")


async def test_a_return_value_of_a_generator_is_an_error(runtime: Runtime) -> None:
    with pytest.raises(RunFailed, match="also returns 2"):
        await runtime.run(app.returns_too)


async def test_threads_of_the_workflow_can_call_steps(runtime: Runtime) -> None:
    assert await runtime.run(app.in_a_pool, ["a", "b", "c"]) == ["a", "b", "c"]
    (told,) = await runtime.run(app.does_not_wait)
    assert "llm.chat() was called by a thread for which the function that started it did not wait" in told


async def test_a_cancelled_workflow_ends_where_it_waits_and_can_be_resumed(runtime: Runtime) -> None:
    task = asyncio.ensure_future(runtime.run(app.held))
    await asyncio.to_thread(app.HOLDING.wait, 30)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await asyncio.to_thread(app.LEFT.wait, 30), "the thread has ended, though it catches every Exception"
    assert (await runtime.record()).status is RunStatus.CANCELLED
    app.HOLDS.clear()
    assert await runtime.resume(str(runtime.last_run_id)) == ["before", "after"]
    assert made.BEGUN == ["write before", "write after"]


async def test_its_deadline_applies_to_its_calls(runtime: Runtime) -> None:
    with pytest.raises(RunFailed, match="deadline of 1e-06 s passed"):
        await runtime.run(app.everything, 1, deadline=1e-6)


def test_an_exit_in_a_step_ends_the_workflow(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run is closed like any failed run."""
    monkeypatch.setenv("RAMIFY_HOME", str(home))
    monkeypatch.setenv("RAMIFY_SANDBOX", "copy")
    with pytest.raises(SystemExit, match="7"):
        app.exits.invoke()
    assert asyncio.run(statuses(home)) == [RunStatus.FAILED]


async def test_a_plain_with_is_refused_in_async_code(runtime: Runtime) -> None:
    with pytest.raises(RunFailed, match="write `async with`"):
        await runtime.run(app.mixes)


async def test_a_thread_that_cannot_wait_gets_an_error(runtime: Runtime) -> None:
    with pytest.raises(RunFailed, match="in a thread beside its run"):
        await runtime.run(app.hands_a_step_to_a_thread)
