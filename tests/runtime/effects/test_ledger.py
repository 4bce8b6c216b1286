"""Effects on discarded branches, and after a checkpoint to which the run goes back, are compensated exactly once."""

from __future__ import annotations

import asyncio
from pathlib import Path

import effects_app
import pytest

from ramify import Runtime
from ramify.runtime.errors import CompensationFailed, EffectUndone, RunFailed
from ramify.runtime.records import EffectStatus, OpStatus
from tests.runtime.effects.interrupted_effects import cancelled_where_it_hangs, statuses, texts

pytestmark = pytest.mark.usefixtures("outbox")


async def test_going_back_compensates_the_last_first(runtime: Runtime, workspace: Path) -> None:
    assert await runtime.run(effects_app.two_that_can_be_recalled, workspace=workspace) == [
        "first",
        "hello.txt",
        "second",
        "third",
    ]
    run = await runtime.record()
    first = next(c for c in await runtime.store.checkpoints(run.id) if c.label == "write")
    again = await runtime.resume(run.id, back_to=first.id)
    assert again == ["first", "hello.txt", "second", "third"]
    assert effects_app.UNDONE == [("b", "receipt for b"), ("a", "receipt for a")]
    assert texts() == ["a", "b", "a", "b"]
    assert await statuses(runtime) == [EffectStatus.DONE, EffectStatus.DONE]
    undone = [row.step for row in await runtime.journal() if row.status is OpStatus.UNDONE and row.result_json]
    assert undone == ["post_and_recall", "write", "post_and_recall", "write"]


async def test_an_undone_effect_is_performed_again_under_another_key(runtime: Runtime, workspace: Path) -> None:
    """A receiver that honours keys would answer the old key with its old result."""
    app = effects_app.one_under_a_key_that_can_be_recalled
    await runtime.run(app, workspace=workspace)
    run = await runtime.record()
    first = next(c for c in await runtime.store.checkpoints(run.id) if c.label == "write")
    effects_app.STOP[:] = ["after"]
    await cancelled_where_it_hangs(asyncio.create_task(runtime.resume(run.id, back_to=first.id)))
    assert await runtime.resume(run.id) == "receipt for a"  # it was in doubt: sent again under the same new key
    keys = [key for key, _ in effects_app.sent()]
    assert (len(keys), len(set(keys))) == (2, 2)
    (effect,) = await runtime.effects()
    assert (effect.status, effect.idempotency_key) == (EffectStatus.DONE, keys[1])


async def test_going_back_continues_after_a_hook_failed(runtime: Runtime, workspace: Path) -> None:
    wanted = await runtime.run(effects_app.two_that_can_be_recalled, workspace=workspace)
    run = await runtime.record()
    first = next(c for c in await runtime.store.checkpoints(run.id) if c.label == "write")
    effects_app.STOP[:] = ["keep a"]
    for back_to in (first.id, None):  # a run that went back half way has no result, and does nothing before that
        with pytest.raises(CompensationFailed, match=rf"post_and_recall.*is away.*ramify resume {run.id}"):
            await runtime.resume(run.id, back_to=back_to)
        assert await statuses(runtime) == [EffectStatus.COMPENSATING, EffectStatus.COMPENSATED]
    assert effects_app.UNDONE == [("b", "receipt for b")] and texts() == ["a", "b"]
    effects_app.STOP.clear()
    assert await runtime.resume(run.id) == wanted
    assert effects_app.UNDONE == [("b", "receipt for b"), ("a", "receipt for a")]
    assert texts() == ["a", "b", "a", "b"]


async def test_going_back_without_a_hook_keeps_what_was_done(runtime: Runtime, workspace: Path) -> None:
    await runtime.run(effects_app.plain, "hi", workspace=workspace)
    run = await runtime.record()
    first = next(c for c in await runtime.store.checkpoints(run.id) if c.label == "write")
    assert await runtime.resume(run.id, back_to=first.id) == "receipt for hi"
    assert texts() == ["hi"]


async def test_going_back_restores_the_world_of_the_checkpoint(runtime: Runtime, workspace: Path) -> None:
    await runtime.run(effects_app.plain, "hi", workspace=workspace)
    run = await runtime.record()
    base = next(c for c in await runtime.store.checkpoints(run.id) if c.seq == 0)
    await runtime.resume(run.id, back_to=base.id)
    assert sorted(c.path for c in await runtime.changes()) == ["first", "second"]


async def test_effects_of_a_discarded_branch_are_compensated(runtime: Runtime, workspace: Path) -> None:
    assert await runtime.run(effects_app.on_branches, workspace=workspace) == ["receipt for a", "receipt for b"]
    assert effects_app.UNDONE == [("b", "receipt for b")]
    assert sorted(await statuses(runtime)) == [EffectStatus.COMPENSATED, EffectStatus.DONE]


async def test_effects_of_a_resumed_run_on_a_discarded_branch_are_compensated(
    runtime: Runtime, workspace: Path
) -> None:
    """An error left the fork before, and the journal records that it was left."""
    effects_app.STOP.append("raise")
    with pytest.raises(RunFailed):
        await runtime.run(effects_app.on_branches, workspace=workspace)
    effects_app.STOP.clear()
    await runtime.resume(str(runtime.last_run_id))
    assert effects_app.UNDONE == [("b", "receipt for b")]
    assert sorted(await statuses(runtime)) == [EffectStatus.COMPENSATED, EffectStatus.DONE]


@pytest.mark.parametrize("where", ["on it", "below"])
async def test_a_branch_whose_effect_was_undone_is_not_adopted(runtime: Runtime, workspace: Path, where: str) -> None:
    effects_app.STOP.append("bad luck")
    with pytest.raises(RunFailed):
        await runtime.run(effects_app.left_by_an_error, where, workspace=workspace)
    effects_app.STOP.clear()
    run = await runtime.record()
    with pytest.raises(RunFailed, match=rf"'post_anywhere' was undone.*ramify resume {run.id} --from") as failed:
        await runtime.resume(run.id)
    assert isinstance(failed.value.__cause__, EffectUndone)
    assert await statuses(runtime) == [EffectStatus.COMPENSATED]
    base = next(c for c in await runtime.store.checkpoints(run.id) if c.seq == 0)
    assert await runtime.resume(run.id, back_to=base.id) == [f"receipt for {where}"]
    assert (texts(), effects_app.UNDONE) == ([where, where], [(where, f"receipt for {where}")])
    assert await statuses(runtime) == [EffectStatus.DONE]


async def test_an_undone_effect_does_not_count_for_a_new_branch_of_that_name(
    runtime: Runtime, workspace: Path
) -> None:
    """After going back, the workflow took another way: its branch has the old name and another effect."""
    assert await runtime.run(effects_app.another_way, workspace=workspace) == "receipt for a"
    run = await runtime.record()
    first = next(c for c in await runtime.store.checkpoints(run.id) if c.label == "write")
    effects_app.STOP[:] = ["picky"]
    assert await runtime.resume(run.id, back_to=first.id) == "receipt for b"
    assert (texts(), effects_app.UNDONE) == (["a", "b"], [("a", "receipt for a")])
    assert sorted(await statuses(runtime)) == [EffectStatus.COMPENSATED, EffectStatus.DONE]
