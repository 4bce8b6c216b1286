"""Workflows that yield: items are streamed when they are yielded, and form the result."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator
from contextlib import aclosing
from pathlib import Path

import pytest
import streaming_app as app

from ramify import Runtime
from ramify.compiler.plan import OpKind
from ramify.runtime.errors import NotSerialisable, RunFailed, RunWaiting
from ramify.runtime.execution.streaming import streamed
from ramify.runtime.records import RunStatus
from tests.plans import compile_plan


@pytest.fixture(autouse=True)
def begun() -> Iterator[list[int]]:
    app.BEGUN.clear()
    yield app.BEGUN


async def test_items_are_streamed_when_they_are_yielded(runtime: Runtime, begun: list[int]) -> None:
    seen = []
    async with aclosing(app.counts.stream(5)) as items:
        async for n, found in items:
            seen.append((n, found))
            assert len(begun) <= n + 3  # the next is being made, and the one after that not yet begun
    assert seen[:3] == [(0, "0.txt"), (1, "0.txt 1.txt"), (2, "0.txt 1.txt 2.txt")]
    assert len(seen) == 5
    (record,) = await runtime.store.runs()
    assert record.status is RunStatus.DONE


async def test_a_run_returns_the_list_of_items(runtime: Runtime) -> None:
    whole = [(0, "0.txt"), (1, "0.txt 1.txt")]
    assert await runtime.run(app.counts, 2) == whole
    assert await runtime.resume(str(runtime.last_run_id)) == whole


async def test_a_stream_that_is_left_early_can_be_resumed(runtime: Runtime, begun: list[int]) -> None:
    async with aclosing(app.counts.stream(5)) as items:
        async for _ in items:
            break
    assert (await runtime.store.runs())[0].status is RunStatus.CANCELLED
    done = [row.step for row in await runtime.journal() if row.kind is OpKind.RUN]
    assert 1 <= len(done) < 5
    assert len(await runtime.resume(str(runtime.last_run_id))) == 5
    assert begun[:2] == [0, 1]
    assert len([row for row in await runtime.journal() if row.kind is OpKind.RUN and row.result_json]) == 5


async def test_a_stream_in_a_workflow_is_part_of_its_run(runtime: Runtime) -> None:
    assert await runtime.run(app.passes_on, 2) == ["0: 0.txt", "1: 0.txt 1.txt", "all: 1"]
    assert len(await runtime.store.runs()) == 1
    plan = compile_plan(app.passes_on)
    assert [broken.op for broken in plan.breaks] == [plan.catch_all.id]  # the compiler saw all of it
    assert all(plan.op(row.op_id).step == "touches" for row in await runtime.journal() if row.kind is OpKind.RUN)


async def test_a_cancelled_reader_causes_no_log_message(caplog: pytest.LogCaptureFixture) -> None:
    running = asyncio.Event()

    async def fails_at_its_end() -> None:
        running.set()
        try:
            await asyncio.Event().wait()
        finally:
            raise ValueError("its run keeps this")

    reader = asyncio.ensure_future(anext(streamed(fails_at_its_end)))
    await running.wait()
    reader.cancel()
    await asyncio.wait([reader])
    assert reader.cancelled()
    del reader  # and the last reference to the run's task
    gc.collect()
    assert "never retrieved" not in caplog.text


async def test_a_generator_can_ask_a_question(runtime: Runtime, begun: list[int]) -> None:
    seen = []
    with pytest.raises(RunWaiting):
        async for item in app.asks.stream():
            seen.append(item)
    assert seen == ["1.txt"]
    assert await runtime.resume(str(runtime.last_run_id), answer="yes") == ["1.txt", "yes", "1.txt 2.txt"]
    assert begun == [1, 2]


async def test_an_error_comes_after_the_items(runtime: Runtime) -> None:
    seen = []
    with pytest.raises(RunFailed, match="no more"):
        async for item in app.fails.stream():
            seen.append(item)
    assert seen == [1]


async def test_an_item_that_cannot_be_stored_is_named(runtime: Runtime) -> None:
    with pytest.raises(RunFailed) as caught:
        await runtime.run(app.yields_what_cannot_be_kept)
    assert isinstance(caught.value.__cause__, NotSerialisable)


def test_it_is_invoked_like_a_function(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAMIFY_HOME", str(home))
    monkeypatch.setenv("RAMIFY_SANDBOX", "copy")
    assert app.counts.invoke(1) == [(0, "0.txt")]
