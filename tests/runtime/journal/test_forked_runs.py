"""Runs that are forked from the middle of another run."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import otherwise_app as app
import pytest

from ramify import Runtime
from ramify.compiler.plan import OpKind
from ramify.fork_engine.errors import MergeConflict
from ramify.fork_engine.types import MergeStrategy
from ramify.runtime.errors import EffectRefused, RunError, RunFailed
from ramify.runtime.journal.forked_runs import fork_run
from ramify.runtime.records import ROOT, CheckpointRecord, RunId, RunStatus


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    app.DONE.clear()
    app.SENT.clear()
    yield


async def after(runtime: Runtime, steps: int) -> CheckpointRecord:
    """The last run's checkpoint after so many steps that changed files."""
    return (await runtime.store.checkpoints((await runtime.record()).id))[steps]


async def files(runtime: Runtime, run: RunId) -> list[str]:
    """The files in the last state of a run's root branch."""
    states = [one for one in await runtime.store.checkpoints(run) if one.branch == ROOT]
    last = runtime.snapshots.get(max(states, key=lambda one: one.seq).snapshot_id)
    with tempfile.TemporaryDirectory() as folder:
        runtime.snapshots.checkout(last, Path(folder))
        return sorted(path.name for path in Path(folder).iterdir())


async def test_a_fork_performs_only_later_operations(runtime: Runtime, workspace: Path) -> None:
    assert await runtime.run(app.counts, workspace=workspace) == 3
    first = await runtime.record()
    app.DONE.clear()
    fork = await runtime.fork((await after(runtime, 1)).id)
    assert (fork.status, fork.name, fork.result_json) == (RunStatus.FORKED, "counts", None)
    assert await runtime.resume(fork.id) == 3
    assert app.DONE == ["b", "count"]
    assert (await runtime.record(first.id)).status is RunStatus.DONE
    assert await files(runtime, fork.id) == ["a", "b", "hello.txt"]


async def test_a_fork_keeps_a_long_value_that_it_shares_with_a_deleted_run(runtime: Runtime, workspace: Path) -> None:
    length = 4_000_000
    assert await runtime.run(app.writes_long, length, workspace=workspace) == length
    first, at = await runtime.record(), await after(runtime, 1)
    forks = [await runtime.fork(at.id) for _ in range(2)]
    await runtime.store.delete_run(first.id)
    app.DONE.clear()
    assert await runtime.resume(forks[0].id) == length
    await runtime.store.delete_run(forks[0].id)
    assert await runtime.resume(forks[1].id) == length
    assert app.DONE == ["b", "b"]


async def test_a_fork_with_edited_files_takes_another_path(runtime: Runtime, workspace: Path, tmp_path: Path) -> None:
    await runtime.run(app.counts, workspace=workspace)
    at = await after(runtime, 1)
    edited = tmp_path / "edited"
    runtime.snapshots.checkout(runtime.snapshots.get(at.snapshot_id), edited)
    (edited / "more").write_text("more")
    (edited / "hello.txt").unlink()
    (edited / "again").write_text("again")
    app.DONE.clear()
    fork = await runtime.fork(at.id, files=edited)
    assert await runtime.resume(fork.id) == 4
    assert app.DONE == ["b", "count"]
    assert await files(runtime, fork.id) == ["a", "again", "b", "more"]
    assert runtime.snapshots.get(at.snapshot_id).id == at.snapshot_id


async def test_a_fork_of_the_beginning_with_edited_files(runtime: Runtime, workspace: Path, tmp_path: Path) -> None:
    await runtime.run(app.counts, workspace=workspace)
    (tmp_path / "empty").mkdir()
    fork = await runtime.fork((await after(runtime, 0)).id, files=tmp_path / "empty")
    assert await runtime.resume(fork.id) == 2


async def test_a_fork_on_a_branch(runtime: Runtime, workspace: Path) -> None:
    await runtime.run(app.searches, workspace=workspace)
    states = await runtime.store.checkpoints((await runtime.record()).id)
    inside = next(one for one in states if one.branch != ROOT)
    fork = await runtime.fork(inside.id)
    assert await runtime.resume(fork.id) == ["end"]
    told = await runtime.store.checkpoints(fork.id)
    assert {one.run_id for one in told} == {fork.id}
    known = {one.id for one in told}
    assert all(parent in known for one in told for parent in one.parents)


async def test_rows_undone_later_are_done_in_a_fork_from_before(runtime: Runtime, workspace: Path) -> None:
    await runtime.run(app.counts, workspace=workspace)
    run = await runtime.record()
    a, b = await after(runtime, 1), await after(runtime, 2)
    await runtime.resume(run.id, back_to=a.id)
    app.DONE.clear()
    fork = await runtime.fork(b.id)
    assert [row.status.value for row in await runtime.journal(fork.id) if row.kind is OpKind.RUN] == ["done", "done"]
    assert await runtime.resume(fork.id) == 3


async def test_a_fork_performs_no_effects_unless_for_real(runtime: Runtime, workspace: Path) -> None:
    assert await runtime.run(app.sends, workspace=workspace) == "bye"
    start, later = await after(runtime, 1), await after(runtime, 2)
    fork = await runtime.fork(start.id)
    with pytest.raises(RunFailed) as caught:
        await runtime.resume(fork.id)
    assert isinstance(caught.value.__cause__, EffectRefused)
    assert "--for-real" in str(caught.value)
    assert app.SENT == ["hello", "bye"]
    again = await runtime.fork((await after(runtime, 1)).id)  # of the fork itself
    with pytest.raises(RunFailed):
        await runtime.resume(again.id)
    with pytest.raises(RunFailed):
        await runtime.resume(again.id, back_to=(await runtime.store.checkpoints(again.id))[0].id)
    assert app.SENT == ["hello", "bye"]
    real = await runtime.fork(later.id, for_real=True)
    assert [effect.step for effect in await runtime.effects(real.id)] == ["send"]
    assert await runtime.resume(real.id) == "bye"
    assert app.SENT == ["hello", "bye", "bye"]


async def test_a_fork_gets_the_recorded_effects_of_its_origin(runtime: Runtime, workspace: Path) -> None:
    told = await runtime.run(app.sends_once, workspace=workspace)
    fork = await runtime.fork((await after(runtime, 1)).id)
    assert await runtime.resume(fork.id) == told == ["1: hello", "2: bye"]
    again = await runtime.fork((await after(runtime, 2)).id)  # of the fork, which did nothing outside itself
    assert await runtime.resume(again.id) == told
    assert app.SENT == ["hello", "bye"]
    assert await runtime.effects(fork.id) == await runtime.effects(again.id) == []


async def test_a_graph_without_checkpoints_is_refused(runtime: Runtime, workspace: Path) -> None:
    await runtime.run(app.counts, workspace=workspace)
    record, at = await runtime.record(), await after(runtime, 1)
    with pytest.raises(RunError, match="checkpointer"):
        await fork_run(runtime.store, replace(record, frontend="langgraph"), at, record.id, clock=lambda: 0.0)
    with pytest.raises(RunError, match="ramify log"):
        await fork_run(runtime.store, record, replace(at, run_id=RunId("other")), record.id, clock=lambda: 0.0)


async def test_two_runs_are_merged_into_a_run_that_continues(runtime: Runtime, workspace: Path) -> None:
    await runtime.run(app.searches, workspace=workspace)
    states = await runtime.store.checkpoints((await runtime.record()).id)
    left, right = (next(one for one in states if one.branch.endswith(f".{i}")) for i in (0, 1))
    merged = await runtime.merge(left.id, right.id)
    here = max(await runtime.store.checkpoints(merged.id), key=lambda one: one.seq)
    tree = runtime.snapshots.get(here.snapshot_id)
    assert [runtime.snapshots.read(tree, name) for name in ("left", "right")] == [b"left", b"right"]
    assert right.id in here.parents
    assert await runtime.resume(merged.id) == ["end"]


async def test_forks_of_one_run_are_merged_over_the_state_that_they_share(
    runtime: Runtime, workspace: Path, tmp_path: Path
) -> None:
    await runtime.run(app.counts, workspace=workspace)
    at = await after(runtime, 1)
    tips = []
    for name in ("one", "two"):
        folder = tmp_path / name
        runtime.snapshots.checkout(runtime.snapshots.get(at.snapshot_id), folder)
        (folder / name).write_text(name)
        (folder / "both").write_text(name)
        fork = await runtime.fork(at.id, files=folder)
        tips.append(max(await runtime.store.checkpoints(fork.id), key=lambda one: one.seq))
    with pytest.raises(MergeConflict, match="both"):
        await runtime.merge(tips[0].id, tips[1].id)
    merged = await runtime.merge(tips[0].id, tips[1].id, strategy=MergeStrategy.THEIRS)
    assert await runtime.resume(merged.id) == 6
    assert await files(runtime, merged.id) == ["a", "b", "both", "hello.txt", "one", "two"]
