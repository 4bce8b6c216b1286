"""What a run costs does not grow with its length, and long values are held few times."""

from __future__ import annotations

import itertools
import sys
import tracemalloc
from pathlib import Path
from statistics import median
from typing import Any

import pytest
import sizes_app

from ramify import Runtime
from ramify.compiler import plan_json
from ramify.compiler.plan import Plan
from ramify.runtime.errors import RunFailed
from ramify.runtime.store.store_queries import StoreQueries


async def test_a_late_step_makes_as_many_calls_as_an_early_one(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, at = 0, list[int]()

    def count(*_: Any) -> None:
        nonlocal calls
        calls += 1

    monkeypatch.setattr(sizes_app, "begun", lambda: at.append(calls))
    sys.setprofile(count)
    try:
        await runtime.run(sizes_app.counts, 300)
    finally:
        sys.setprofile(None)
    made = [after - before for before, after in itertools.pairwise(at)]
    assert median(made[-50:]) < 1.2 * median(made[20:70])


async def stopped(home: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the id of a run of three steps that failed at its end."""
    monkeypatch.setattr(sizes_app, "stops", True)
    async with Runtime(home=home, sandbox="copy") as runtime:
        with pytest.raises(RunFailed, match="ends here"):
            await runtime.run(sizes_app.counts, 3)
        run = str(runtime.last_run_id)
    return run


async def test_a_resume_reads_its_plan_once_and_writes_none(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = await stopped(home, monkeypatch)
    monkeypatch.setattr(sizes_app, "stops", False)
    plans, read, write = list[str](), plan_json.read_plan, Plan.to_json
    monkeypatch.setattr(plan_json, "read_plan", lambda text: (plans.append("read"), read(text))[1])
    monkeypatch.setattr(Plan, "to_json", lambda plan: (plans.append("written"), write(plan))[1])
    async with Runtime(home=home, sandbox="copy") as runtime:
        assert await runtime.resume(run) == 3
    assert plans == ["read"], "its code has not moved"


async def test_a_resume_reads_the_rows_of_its_run_once(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = await stopped(home, monkeypatch)
    reads, read = [], StoreQueries._read
    monkeypatch.setattr(StoreQueries, "_read", lambda *given: (reads.append(given), read(*given))[1])
    monkeypatch.setattr(sizes_app, "stops", False)
    async with Runtime(home=home, sandbox="copy") as runtime:
        assert await runtime.resume(run) == 3
    assert len(reads) == 3, "the run; effects to be undone; all rows, under its lock"


async def test_a_long_value_is_held_few_times(runtime: Runtime) -> None:
    length = 4_000_000
    assert await runtime.run(sizes_app.long_text, 10) == 10
    tracemalloc.start()
    try:
        assert await runtime.run(sizes_app.long_text, length) == length
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 5 * length
