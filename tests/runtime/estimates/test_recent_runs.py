"""A run is read once while it does not change, and what is kept is bounded."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio
import small_app

from ramify import Runtime
from ramify.runtime.estimates import recent_runs
from ramify.runtime.estimates.recent_runs import RecentRuns
from ramify.runtime.records import RunId, RunRecord
from ramify.runtime.store import RunStore


class Counting:
    """A store that counts how often a journal is read."""

    def __init__(self, store: RunStore) -> None:
        self.read: list[RunId] = []
        self._store = store

    async def journal(self, run: RunId) -> object:
        self.read.append(run)
        return await self._store.journal(run)


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
    monkeypatch.setattr(recent_runs, "_MOST_ROWS", 7)
    yield


async def test_the_run_that_was_read_longest_ago_is_dropped_first(
    counted: tuple[Counting, RunRecord, RunRecord], one_run_fits: None
) -> None:
    store, first, second = counted
    recent = RecentRuns()
    for run in (first, second, second, first):
        await recent.read(store, run)  # type: ignore[arg-type]
    assert store.read == [first.id, second.id, first.id]
