"""Edge cases that a review found."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import edge_app
import pytest

from ramify import Runtime
from ramify.compiler.plan import OpKind
from ramify.runtime.errors import (
    BadArguments,
    BranchReleased,
    NestedWorkflow,
    NotAwaited,
    NotInARun,
    NotSerialisable,
    PlanMismatch,
    RunFailed,
    RunWaiting,
)
from ramify.runtime.events import Noticed
from ramify.runtime.records import OpStatus, RunStatus
from ramify.serving.client import LLMClient
from ramify.serving.errors import DeadlineInfeasible
from tests.plans import compile_plan


@pytest.fixture(autouse=True)
def clean_app() -> Iterator[None]:
    edge_app.STRAY.clear()
    edge_app.DELAYS.clear()
    yield
    edge_app.STRAY.clear()


async def cause_of(runtime: Runtime, workflow: Any, *args: Any, workspace: Path) -> BaseException | None:
    with pytest.raises(RunFailed) as caught:
        await runtime.run(workflow, *args, workspace=workspace)
    return caught.value.__cause__


async def heard_of(runtime: Runtime, workflow: Any, *args: Any, workspace: Path) -> list[str]:
    """The notices of a run that ends well."""
    heard: list[object] = []
    runtime._observers.append(heard.append)
    assert await runtime.run(workflow, *args, workspace=workspace) == "done"
    return [event.what for event in heard if isinstance(event, Noticed)]


async def test_a_cancelled_step_leaves_nothing(runtime: Runtime, workspace: Path) -> None:
    assert await runtime.run(edge_app.cancelled, workspace=workspace) == ["hello.txt"]


async def test_a_result_that_cannot_be_stored_is_the_steps_failure(runtime: Runtime, workspace: Path) -> None:
    assert await runtime.run(edge_app.gives_what_cannot_be_kept, workspace=workspace) == ["hello.txt"]
    (failed,) = [r for r in await runtime.journal() if r.status is OpStatus.FAILED]
    assert str(failed.error).startswith(NotSerialisable.__name__)


async def test_a_resumed_run_sees_a_dict_in_the_same_order(runtime: Runtime, workspace: Path) -> None:
    await cause_of(runtime, edge_app.in_the_order_of_a_dict, True, workspace=workspace)
    first = [r.key for r in await runtime.journal()]
    await cause_of(runtime, edge_app.in_the_order_of_a_dict, True, workspace=workspace)
    assert [r.key for r in await runtime.journal()] == first
    with pytest.raises(RunFailed):
        await runtime.resume(str(runtime.last_run_id))
    assert [r.key for r in await runtime.journal()] == first


async def test_a_step_cannot_change_its_callers_values(runtime: Runtime, workspace: Path) -> None:
    assert await runtime.run(edge_app.changes_its_argument, workspace=workspace) == []


async def test_another_order_loses_no_files(runtime: Runtime, workspace: Path) -> None:
    edge_app.DELAYS["slow"] = 0.3
    edge_app.STRAY.append("stop")
    await cause_of(runtime, edge_app.by_timing, workspace=workspace)
    edge_app.STRAY.clear()
    edge_app.DELAYS.clear()  # now both thoughts are served at once: the steps come in another order
    assert await runtime.resume(str(runtime.last_run_id)) == ["fast", "hello.txt", "slow"]


async def test_a_step_in_a_step_is_part_of_it(runtime: Runtime, workspace: Path) -> None:
    assert await runtime.run(edge_app.steps_in_steps, workspace=workspace) == ["hello.txt", "inner"]
    assert [r.step for r in await runtime.journal() if r.kind is OpKind.RUN] == ["outer", "listing"]


async def test_a_task_does_not_outlive_its_fork(runtime: Runtime, workspace: Path) -> None:
    assert await runtime.run(edge_app.leaves_a_task_behind, workspace=workspace) == ["hello.txt"]
    assert edge_app.STRAY[0].cancelled()
    assert [(r.status, r.summary) for r in await runtime.journal() if r.step == "slow"] == [
        (OpStatus.FAILED, "cancelled")
    ]


@pytest.mark.parametrize("how", ["dropped", "not begun", "running", "in a forgotten task", "only listened to"])
async def test_a_workflow_must_wait_for_its_steps(runtime: Runtime, workspace: Path, how: str) -> None:
    cause = await cause_of(runtime, edge_app.leaves_a_step, how, workspace=workspace)
    assert isinstance(cause, NotAwaited)
    assert "returned while step 'hangs' had not ended" in str(cause)
    assert (await runtime.record()).status is RunStatus.FAILED
    assert not [row for row in await runtime.journal() if row.step == "hangs"]


@pytest.mark.parametrize("how", ["cancelled", "cancelled before it began", "awaited"])
async def test_a_cancelled_step_need_not_be_awaited(runtime: Runtime, workspace: Path, how: str) -> None:
    assert await runtime.run(edge_app.leaves_a_step, how, workspace=workspace) == "done"


@pytest.mark.parametrize(
    ("how", "left"),
    [
        ("gather", 1),
        ("gather of more than may run", 2),
        ("gather in a gather", 2),
        ("wait", 1),
        ("as_completed", 1),
        ("wait_for of a shield", 1),
    ],
)
async def test_abandoned_steps_are_stopped_and_reported(
    runtime: Runtime, workspace: Path, how: str, left: int
) -> None:
    heard = await heard_of(runtime, edge_app.takes_the_first, how, workspace=workspace)
    times = f" x {left}" if left > 1 else ""
    assert heard == [f"steps that nobody awaited were cancelled when the workflow returned: hangs{times}"]
    rows = [row for row in await runtime.journal() if row.step == "hangs"]
    assert [(row.status, str(row.error).partition(":")[0]) for row in rows] == [
        (OpStatus.FAILED, "CancelledError")
    ] * left
    assert (await runtime.record()).status is RunStatus.DONE


async def test_abandoned_steps_of_a_synchronous_workflow_are_reported(runtime: Runtime, workspace: Path) -> None:
    heard = await heard_of(runtime, edge_app.takes_the_first_without_async, workspace=workspace)
    assert heard == ["steps that nobody awaited were cancelled when the workflow returned: hangs"]
    assert [row.status for row in await runtime.journal() if row.step == "hangs"] == [OpStatus.FAILED]


@pytest.mark.parametrize("how", ["run", "adopt"])
async def test_a_branch_ends_with_its_fork(runtime: Runtime, workspace: Path, how: str) -> None:
    cause = await cause_of(runtime, edge_app.uses_a_branch_after_its_fork, how, workspace=workspace)
    assert isinstance(cause, BranchReleased)


async def test_a_sandbox_ends_with_its_step(runtime: Runtime, workspace: Path) -> None:
    cause = await cause_of(runtime, edge_app.uses_a_sandbox_after_its_step, workspace=workspace)
    assert isinstance(cause, NotInARun)


async def test_a_workflow_in_a_workflow_is_part_of_its_run(runtime: Runtime, workspace: Path) -> None:
    edge_app.STRAY.append("stop")
    await cause_of(runtime, edge_app.runs_workflows, workspace=workspace)
    edge_app.STRAY.clear()
    a, b, c = ["a1", "a2"], ["b1", "b2"], ["c1", "c2"]
    assert await runtime.resume(str(runtime.last_run_id)) == [
        [*a, "hello.txt"],
        [*a, *b, "hello.txt"],
        [*a, *c, "hello.txt"],
        [*a, *c, "d", "hello.txt"],
    ]
    assert len(await runtime.store.runs()) == 1
    rows = [row for row in await runtime.journal() if row.kind is OpKind.RUN]
    assert len(rows) == 7  # none of them twice
    plan = compile_plan(edge_app.runs_workflows)
    assert [broken.op for broken in plan.breaks] == [plan.catch_all.id]  # the compiler saw all of it
    assert all(plan.op(row.op_id).step == "touches" for row in rows)


@pytest.mark.parametrize("name", ["runs_a_workflow_in_a_step", "runs_one_of_another_workspace"])
async def test_where_a_workflow_cannot_be_part_of_another(runtime: Runtime, workspace: Path, name: str) -> None:
    cause = await cause_of(runtime, getattr(edge_app, name), workspace=workspace)
    assert isinstance(cause, NestedWorkflow)


async def test_a_nested_workflow_continues_from_another_folder(
    runtime: Runtime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both are declared for one folder, relative to the folder where the run began."""
    (tmp_path / "relative").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RunWaiting):
        await runtime.run(edge_app.asks_beside_its_folder)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert await runtime.resume(str(runtime.last_run_id), answer="d") == ["d"]


@pytest.mark.parametrize("sealed", [True, False])
async def test_unsealed_results_are_not_reused(runtime: Runtime, workspace: Path, sealed: bool) -> None:
    plan = compile_plan(edge_app.reuses_unsealed)
    if not sealed:
        plan = replace(plan, ops=tuple(op for op in plan.ops if op.kind is not OpKind.SEAL))
    both = ["hello.txt", "same"]
    assert await runtime.run(edge_app.reuses_unsealed, workspace=workspace, plan=plan) == [both, both]
    assert bool([r for r in await runtime.journal() if r.reused_from]) is sealed


async def test_past_the_deadline_the_model_is_not_asked(runtime: Runtime, workspace: Path, model: LLMClient) -> None:
    edge_app.DELAYS["late"] = 0.1
    cause = await cause_of(runtime, edge_app.late, workspace=workspace)
    assert isinstance(cause, DeadlineInfeasible)
    assert "--deadline" in str(cause)
    assert await runtime.resume(str(runtime.last_run_id), deadline="60s") == "wNone"
    assert (await runtime.record()).status is RunStatus.DONE


async def test_a_plan_of_other_code_is_refused(runtime: Runtime, workspace: Path) -> None:
    plan = compile_plan(edge_app.cancelled)
    swap = {"slow": "listing", "listing": "slow"}
    renamed = tuple(replace(op, step=swap[op.step]) if op.step else op for op in plan.ops)
    with pytest.raises(RunFailed) as caught:
        await runtime.run(edge_app.cancelled, workspace=workspace, plan=replace(plan, ops=renamed))
    assert isinstance(caught.value.__cause__, PlanMismatch)


async def test_wrong_arguments_name_the_step(runtime: Runtime, workspace: Path) -> None:
    cause = await cause_of(runtime, edge_app.bad_arguments, workspace=workspace)
    assert isinstance(cause, BadArguments)
    assert str(cause).startswith("step touch(name:")


async def test_a_runtime_is_opened_once(runtime: Runtime) -> None:
    with pytest.raises(Exception, match="opened only once"):
        async with runtime:
            pass


async def test_a_home_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(Exception, match=r"home .*file"):
        async with Runtime(home=tmp_path / "file"):
            pass
