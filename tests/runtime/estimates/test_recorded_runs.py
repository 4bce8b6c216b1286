"""A plan that omits snapshots gives the same results as one with all of them, also if the compiler could not see why
a snapshot was needed. A run is read once while it does not change, and what is kept is bounded."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import learned_app as app
import pytest
import pytest_asyncio
import small_app

from ramify import Runtime
from ramify.compiler.plan import OpKind
from ramify.runtime.errors import RunFailed, RunWaiting
from ramify.runtime.estimates import recorded_runs
from ramify.runtime.estimates.recorded_runs import RecentRuns
from ramify.runtime.records import RunId, RunRecord
from ramify.runtime.store import RunStore

ELSEWHERE = """
forgives = True

def forgiving(function):
    async def inner():
        try:
            return await function()
        except ValueError:
            if not forgives:
                raise
            return None
    return inner
"""


@pytest.fixture(autouse=True)
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, learned_plans: None) -> Iterator[None]:
    """`forgiven` is made in a module that belongs to no project of ours."""
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "of_another_project.py").write_text(ELSEWHERE)
    monkeypatch.syspath_prepend(str(tmp_path / "elsewhere"))
    import of_another_project

    monkeypatch.setattr(app, "forgiven", of_another_project.forgiving(app.breaks))
    app.BEGUN.clear()
    yield
    del sys.modules["of_another_project"]


@pytest.mark.parametrize("workflow", [app.by_a_decorator, app.by_another_project, app.calls_it])
async def test_a_failure_that_other_code_catches_loses_no_state(
    runtime: Runtime, workspace: Path, workflow: Any
) -> None:
    files = ["a", "b", "hello.txt", *(["inside"] if workflow is app.calls_it else [])]
    assert await runtime.run(workflow, workspace=workspace) == files
    done = list(app.BEGUN)
    run = str(runtime.last_run_id)
    assert [row.op_id for row in await runtime.journal() if row.key.endswith("|BEFORE")] == (
        ["break.unseen"] if workflow is app.by_another_project else []
    )
    first = next(one for one in await runtime.store.checkpoints(run) if one.seq)  # type: ignore[arg-type]
    app.BEGUN.clear()
    assert await runtime.resume(run, back_to=first.id) == files
    assert done[1:] == app.BEGUN, "what came before the state that was kept is not done again"


async def test_steps_before_a_question_are_not_repeated(runtime: Runtime, workspace: Path) -> None:
    with pytest.raises(RunWaiting):
        await runtime.run(app.asks, workspace=workspace)
    with pytest.raises(RunWaiting):
        await runtime.resume(str(runtime.last_run_id), answer=True)
    assert await runtime.resume(str(runtime.last_run_id), answer=True) == ["a", "b", "c", "hello.txt"]
    assert app.BEGUN == ["a", "b", "c"]


@pytest.mark.parametrize("workflow", [app.naps, app.asks_in_vain, app.naps_in_vain])
async def test_a_state_that_was_sealed_late_is_found_again(runtime: Runtime, workspace: Path, workflow: Any) -> None:
    """Before a sleep or a question, also if the workflow cancelled that."""
    with pytest.raises(RunWaiting):
        await runtime.run(workflow, workspace=workspace)
    assert await runtime.resume(str(runtime.last_run_id), answer=True) == ["a", "b", "c", "hello.txt"]
    assert app.BEGUN == ["a", "b", "c"]


async def test_a_state_that_was_sealed_for_another_task_is_found_again(
    runtime: Runtime, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if that task, because of its timers, comes to the operation later than before."""
    with pytest.raises(RunWaiting):
        await runtime.run(app.naps_beside, workspace=workspace)
    monkeypatch.setattr(app, "SLEEPS_FIRST", False)
    assert await runtime.resume(str(runtime.last_run_id), answer=True) == ["a", "b", "c", "hello.txt"]
    assert app.BEGUN == ["a", "b", "c"]


async def test_a_run_that_has_failed_keeps_a_state_before_each_step(
    runtime: Runtime, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever caused the failure, the resume does not repeat it."""
    with monkeypatch.context() as failing:
        failing.setattr("of_another_project.forgives", False)
        with pytest.raises(RunFailed):
            await runtime.run(app.by_another_project, workspace=workspace)
    run = str(runtime.last_run_id)
    assert await runtime.resume(run) == ["a", "b", "hello.txt"]
    assert [row.kind for row in await runtime.journal() if row.key.endswith("|BEFORE")] == [OpKind.SEAL]


class Counting:
    """A store that counts how often a journal is read."""

    def __init__(self, store: RunStore) -> None:
        self.read: list[RunId] = []
        self._store = store

    async def journal(self, run: RunId, *, cuts: bool) -> object:
        self.read.append(run)
        return await self._store.journal(run, cuts=cuts)


@pytest_asyncio.fixture
async def counted(runtime: Runtime, workspace: Path) -> AsyncIterator[tuple[Counting, RunRecord, RunRecord]]:
    found = []
    for _ in range(2):
        await runtime.run(small_app.two_writes, workspace=workspace)
        found.append(await runtime.record())
    yield Counting(runtime.store), found[0], found[1]


async def test_a_run_is_read_again_only_after_it_changed(counted: tuple[Counting, RunRecord, RunRecord]) -> None:
    store, first, _ = counted
    recent = RecentRuns()
    once = await recent.read(store, first)  # type: ignore[arg-type]
    assert await recent.read(store, first) is once  # type: ignore[arg-type]
    assert len(once.ops) > 1
    changed = await recent.read(store, replace(first, updated_at=first.updated_at + 1))  # type: ignore[arg-type]
    assert changed is not once
    assert store.read == [first.id, first.id]


@pytest.fixture
def one_run_fits(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(recorded_runs, "_MOST_ROWS", 7)
    yield


async def test_the_run_that_was_read_longest_ago_is_dropped_first(
    counted: tuple[Counting, RunRecord, RunRecord], one_run_fits: None
) -> None:
    store, first, second = counted
    recent = RecentRuns()
    for run in (first, second, second, first):
        await recent.read(store, run)  # type: ignore[arg-type]
    assert store.read == [first.id, second.id, first.id]
