"""Snapshots that a run will not need are dead, by its plan and its journal, and can be deleted."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import passes_app
import pytest

from ramify import Runtime, paths
from ramify.compiler.passes import OPTIONAL
from ramify.compiler.pipeline import compile_workflow
from ramify.compiler.plan import OpKind, Plan
from ramify.fork_engine.gc_pins import Pins
from ramify.runtime.errors import RunFailed
from ramify.runtime.worlds.garbage_collection import EvictionMarks, collect, dead_states


@pytest.fixture(autouse=True)
def broken() -> Iterator[None]:
    passes_app.BROKEN[:] = ["not yet"]
    yield
    passes_app.BROKEN.clear()


def plan_of(workflow: Any, *without: str) -> Plan:
    passes = [name for name in OPTIONAL if name not in without]
    return compile_workflow(workflow, ref=workflow.__ramify_workflow__.ref, passes=passes).plan


async def stopped(runtime: Runtime, workspace: Path, plan: Plan) -> None:
    with pytest.raises(RunFailed, match="not yet"):
        await runtime.run(passes_app.breaks, workspace=workspace, plan=plan)


async def test_all_but_the_newest_state_of_a_run_that_stopped_is_dead(runtime: Runtime, workspace: Path) -> None:
    plan = plan_of(passes_app.breaks)
    await stopped(runtime, workspace, plan)
    rows = await runtime.journal()
    made = {row.key: row.snapshot_out for row in rows if row.kind in (OpKind.SEAL, OpKind.MERGE)}
    dead = dead_states(plan, rows)
    assert len(dead) == 4, "after the first step, in two branches (one was merged), after the step before the last"
    assert set(made.values()) - dead == {rows[-1].snapshot_in}
    assert dead_states(plan_of(passes_app.breaks, "liveness"), rows) == set()


async def test_a_fork_that_is_not_released_keeps_its_base(runtime: Runtime, workspace: Path) -> None:
    plan = plan_of(passes_app.breaks)
    await stopped(runtime, workspace, plan)
    rows = [row for row in await runtime.journal() if row.kind is not OpKind.RELEASE]
    (fork,) = [row for row in rows if row.kind is OpKind.FORK]
    assert fork.snapshot_out not in dead_states(plan, rows)


async def test_a_collection_deletes_dead_states_and_the_run_continues(runtime: Runtime, workspace: Path) -> None:
    taken = {}
    for without in ((), ("liveness",)):
        passes_app.BROKEN[:] = ["not yet"]
        await stopped(runtime, workspace, plan_of(passes_app.breaks, *without))
        run_id = (await runtime.record()).id
        pins, marks = Pins(paths.locks(runtime.home)), EvictionMarks(paths.evicted(runtime.home))
        found = await collect(runtime.store, runtime.snapshots, pins, marks, budget=0, dry_run=False, grace_s=0)
        taken[without] = len(found.evicted)
        passes_app.BROKEN.clear()
        assert await runtime.resume(run_id) == "one\n2\nthree\nfour\n"
        await runtime.store.delete_run(run_id)
    assert taken[("liveness",)] == 0 < taken[()]
