"""Workflows of all language constructs: cut off in the middle of a step and resumed, they end like unbroken ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import constructs_app as app
import pytest

from ramify import Runtime
from ramify.runtime.errors import RunWaiting
from tests.plans import compile_plan
from tests.samples import sample

ROUNDS = 3


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    app.BEGUN.clear()
    app.FAILS_AT.clear()
    yield
    app.FAILS_AT.clear()


async def to_the_end(runtime: Runtime, workspace: Path) -> Any:
    """Run, and resume after each stop; the question is answered when it is asked."""
    answers = 0
    work = runtime.run(app.everything, ROUNDS, workspace=workspace)
    while True:
        try:
            return await work
        except RunWaiting:
            answers += 1
            assert answers == 1, "a question that was answered is not asked again"
            work = runtime.resume(str(runtime.last_run_id), answer=True)
        except (app.Stopped, BaseExceptionGroup):  # a group, from a step on branches
            app.FAILS_AT.clear()
            work = runtime.resume(str(runtime.last_run_id))


async def test_cut_off_in_a_step_it_ends_the_same(runtime: Runtime, workspace: Path, either_plan: str) -> None:
    whole = await to_the_end(runtime, workspace)
    bodies = list(app.BEGUN)
    names = [
        "even0",
        "odd1",
        "even2",
        "flaky.half",
        "inner",
        "first",
        "second",
        "board-x",
        "board-y",
        "left",
        "right",
    ]
    assert whole["files"] == sorted([*names, "hello.txt"])
    assert whole["seen"][3:7] == ["flaky", "caught", app.Told(("a", "measured"), 2), app.Told(("b", "measured"), 4)]
    assert whole["seen"][-3:] == [8, 8, "wNone"], "agents on one world take turns, and see what they wrote"
    for at in range(3, len(bodies) + 1, sample(12, 6) if either_plan == "by the code" else sample(18, 9)):
        app.BEGUN.clear()
        app.FAILS_AT.add(at)
        again = await to_the_end(runtime, workspace)
        assert again == whole, f"cut off at {bodies[at - 1]}, then done: {app.BEGUN}"
        twice = dict(Counter(app.BEGUN) - Counter(bodies))
        assert sum(twice.values()) <= 2, f"cut off at {bodies[at - 1]}, done again: {twice}"


def test_the_plan_contains_every_operation() -> None:
    """No graph break except the catch-all: each step, fork, merge and call is in the plan with its line."""
    plan = compile_plan(app.everything)
    assert [found.reason for found in plan.breaks[1:]] == []
    steps = {step.name for step in plan.steps}
    assert steps == {
        "write", "write_in_a_thread", "works_at_last", "breaks", "measured", "send", "look", "note",
    }  # fmt: skip
    assert all(op.site is not None for op in plan.ops if op.step is not None)
