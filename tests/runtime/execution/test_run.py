"""Runs of the decorator front end, on the copy backend and with a scripted model."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import small_app

from ramify import Runtime
from ramify.compiler.plan import OpKind, Plan
from ramify.fork_engine.errors import MergeConflict, WorkspaceError
from ramify.runtime.errors import NotInARun, RunFailed, StepFailed
from ramify.runtime.records import OpStatus, RunId, RunRecord, RunStatus
from tests.plans import compile_plan


@pytest.fixture
def flag(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "flag"
    monkeypatch.setattr(small_app, "FLAG", path)
    return path


async def test_steps_share_a_world_and_the_workspace_is_unchanged(runtime: Runtime, workspace: Path) -> None:
    assert await runtime.run(small_app.kinds, workspace=workspace) == ["one", "sync\n", "a", "hello.txt", "s"]
    assert [p.name for p in workspace.iterdir()] == ["hello.txt"]


async def test_every_row_names_its_plan_operation(runtime: Runtime, workspace: Path) -> None:
    await runtime.run(small_app.two_writes, workspace=workspace)
    plan = Plan.from_json((await runtime.record()).plan_json)
    rows = await runtime.journal()
    assert [r.kind for r in rows] == [OpKind.RUN, OpKind.SEAL, OpKind.RUN, OpKind.SEAL, OpKind.RUN]
    assert all(plan.op(r.op_id).kind is r.kind for r in rows)


async def test_a_plan_without_a_seal_makes_one_snapshot_fewer(runtime: Runtime, workspace: Path) -> None:
    plan = compile_plan(small_app.two_writes)
    assert await runtime.run(small_app.two_writes, workspace=workspace, plan=plan) == "one"
    before = await runtime.store.checkpoints((await runtime.record()).id)
    first = next(op for op in plan.ops if op.kind is OpKind.SEAL)
    shorter = replace(plan, ops=tuple(op for op in plan.ops if op is not first))
    assert await runtime.run(small_app.two_writes, workspace=workspace, plan=shorter) == "one"
    after = await runtime.store.checkpoints((await runtime.record()).id)
    assert len(after) == len(before) - 1
    assert after[-1].content_key == before[-1].content_key


async def test_a_plan_runs_without_the_compiler_and_leaves_the_same_journal(
    runtime: Runtime, workspace: Path
) -> None:
    await runtime.run(small_app.two_writes, workspace=workspace)
    wanted = [[r.key, r.op_id, r.result_digest] for r in await runtime.journal()]
    plan = workspace.parent / "plan.json"
    plan.write_text(compile_plan(small_app.two_writes).to_json())
    code = f"""
import asyncio, json, sys
from pathlib import Path
sys.path.insert(0, {str(Path(small_app.__file__).parent)!r})
import small_app
from ramify import Runtime
from ramify.compiler.plan import Plan
async def main():
    async with Runtime(home=Path({str(workspace.parent / "other")!r}), sandbox="copy") as runtime:
        plan = Plan.from_json(Path({str(plan)!r}).read_text())
        await runtime.run(small_app.two_writes, workspace={str(workspace)!r}, plan=plan)
        return [[r.key, r.op_id, r.result_digest] for r in await runtime.journal()]
rows = asyncio.run(main())
print(json.dumps([rows, [m for m in sys.modules if m.startswith("ramify.compiler.")]]))
"""
    shown = await asyncio.to_thread(subprocess.run, [sys.executable, "-c", code], capture_output=True, text=True)
    assert shown.returncode == 0, shown.stderr
    rows, compiler = json.loads(shown.stdout)
    assert rows == wanted
    names = ("plan", "declarations", "parsing", "step_parameters")
    shared = tuple(f"ramify.compiler.{name}" for name in names)
    assert not [m for m in compiler if not m.startswith(shared)]


async def test_a_retry_starts_from_the_entry_state(runtime: Runtime, workspace: Path, flag: Path) -> None:
    assert await runtime.run(small_app.retried, workspace=workspace) == ["hello.txt"]


async def test_a_step_that_raises_says_where_and_the_run_can_be_resumed(
    runtime: Runtime, workspace: Path, flag: Path
) -> None:
    with pytest.raises(StepFailed) as caught:
        await runtime.run(small_app.failing, workspace=workspace)
    error = caught.value
    assert (error.step, error.branch) == ("breaks", "root")
    assert isinstance(error.__cause__, ValueError)
    for part in ("no luck", "exited with 3", "looking", "broken", f"ramify resume {runtime.last_run_id}"):
        assert part in str(error)
    run = await runtime.record()
    assert run.status is RunStatus.FAILED
    failed = [r for r in await runtime.journal() if r.status is OpStatus.FAILED]
    assert [r.step for r in failed] == ["breaks"]
    flag.touch()
    assert await runtime.resume(run.id) == ["a", "half-done", "hello.txt"]
    rows = await runtime.journal()
    assert len([r for r in rows if r.step == "write" and r.kind is OpKind.RUN]) == 1


async def test_a_caught_failure_leaves_no_files(runtime: Runtime, workspace: Path, flag: Path) -> None:
    assert await runtime.run(small_app.caught, workspace=workspace) == ["a", "b", "hello.txt"]


async def test_a_timeout_is_the_steps_failure(runtime: Runtime, workspace: Path) -> None:
    with pytest.raises(StepFailed, match="too_slow") as caught:
        await runtime.run(small_app.slow, workspace=workspace)
    assert isinstance(caught.value.__cause__, TimeoutError)


async def test_a_conflict_is_typed_and_a_strategy_settles_it(runtime: Runtime, workspace: Path) -> None:
    with pytest.raises(RunFailed) as caught:
        await runtime.run(small_app.conflict, "fail", workspace=workspace)
    assert isinstance(caught.value.__cause__, MergeConflict)
    assert [c.path for c in caught.value.__cause__.conflicts] == ["a"]
    assert await runtime.run(small_app.conflict, "ours", workspace=workspace) == "left"
    assert await runtime.run(small_app.conflict, "theirs", workspace=workspace) == "right"


async def test_a_merge_names_both_parents(runtime: Runtime, workspace: Path) -> None:
    await runtime.run(small_app.conflict, "theirs", workspace=workspace)
    checkpoints = {c.id: c for c in await runtime.store.checkpoints((await runtime.record()).id)}
    merged = [c for c in checkpoints.values() if len(c.parents) == 2]
    assert [checkpoints[c.parents[1]].branch for c in merged] == ["root/fork.1.0.0", "root/fork.1.0.1"]


async def test_failures_on_branches_can_be_inspected(runtime: Runtime, workspace: Path) -> None:
    assert await runtime.run(small_app.some_fail, workspace=workspace) == ["hello\n", "CommandFailed"]


@pytest.mark.parametrize("name", ["read", "helper"])
async def test_calls_that_the_compiler_did_not_see_run_under_a_graph_break(
    runtime: Runtime, workspace: Path, name: str
) -> None:
    assert await runtime.run(small_app.dynamic, name, workspace=workspace) == "hello\n"
    plan = Plan.from_json((await runtime.record()).plan_json)
    (row,) = await runtime.journal()
    assert plan.op(row.op_id).kind in (OpKind.BREAK, OpKind.RUN)


async def test_equal_operations_are_computed_once(runtime: Runtime, workspace: Path, flag: Path) -> None:
    assert await runtime.run(small_app.reusing, workspace=workspace) == [7, 7, 7, 7]
    assert flag.read_text() == "xx"  # once for the three equal branches, once for the other state
    reused = [r for r in await runtime.journal() if r.reused_from and r.kind is OpKind.RUN]
    assert len(reused) == 2
    assert len({runtime.snapshots.get(r.snapshot_out).content_key for r in reused if r.snapshot_out}) == 1


async def test_a_run_without_a_workspace_starts_empty(runtime: Runtime) -> None:
    assert await runtime.run(small_app.nothing_to_import) == []


async def test_a_missing_workspace_is_refused_by_name(runtime: Runtime, tmp_path: Path) -> None:
    with pytest.raises(WorkspaceError, match="nowhere"):
        await runtime.run(small_app.kinds, workspace=tmp_path / "nowhere")


async def test_steps_outside_a_run_are_refused() -> None:
    with pytest.raises(NotInARun, match="read"):
        await small_app.read("x")


async def test_a_step_cannot_fork(runtime: Runtime, workspace: Path) -> None:
    with pytest.raises(StepFailed, match=r"fork\(\) was called inside step"):
        await runtime.run(small_app.forks_in_a_step, workspace=workspace)


async def test_a_finished_run_returns_its_result_again(runtime: Runtime, workspace: Path) -> None:
    first = await runtime.run(small_app.two_writes, workspace=workspace)
    rows = await runtime.journal()
    assert await runtime.resume(str(runtime.last_run_id)) == first
    assert await runtime.journal() == rows


async def test_a_run_that_another_process_finished_meanwhile_returns_its_result(
    runtime: Runtime, workspace: Path, flag: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both read that the run had failed; one was faster."""
    with pytest.raises(StepFailed):
        await runtime.run(small_app.failing, workspace=workspace)
    failed = await runtime.record()
    flag.touch()
    first = await runtime.resume(failed.id)
    rows, read, stale = await runtime.journal(), runtime.store.run, [failed]

    async def run(run_id: RunId) -> RunRecord:
        return stale.pop() if stale else await read(run_id)

    monkeypatch.setattr(runtime.store, "run", run)
    assert await runtime.resume(failed.id) == first
    assert not stale
    assert await runtime.journal() == rows


def test_a_workflow_is_invoked_like_a_function(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAMIFY_HOME", str(home))
    monkeypatch.setenv("RAMIFY_SANDBOX", "copy")
    assert small_app.nothing_to_import.invoke() == []
