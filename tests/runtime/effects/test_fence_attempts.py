"""Attempts at an effect: those that never began, those that raised, and those that follow an attempt in doubt."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Awaitable
from contextlib import closing
from pathlib import Path
from typing import Any

import effects_app
import pytest

from ramify import Runtime
from ramify.inspect import history
from ramify.runtime.errors import RunFailed, StoreError
from ramify.runtime.records import EffectStatus, OpStatus, RunId, RunStatus
from tests.runtime.effects.interrupted_effects import doubt_of, statuses, stop_in, texts

pytestmark = pytest.mark.usefixtures("outbox")


async def cancelled_at_the_intent(runtime: Runtime, doing: Awaitable[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Cancel right after the intent is durable and before the step begins."""
    task = asyncio.ensure_future(doing)
    commit = runtime.store.commit

    async def then_cancel(run: RunId, **rows: Any) -> None:
        await commit(run, **rows)
        if EffectStatus.INTENDED in [effect.status for effect in rows.get("effects", ())]:
            task.cancel()
            for _ in range(20):  # turns of the loop, until the waiting task has been notified
                await asyncio.sleep(0)

    with monkeypatch.context() as patch:
        patch.setattr(runtime.store, "commit", then_cancel)
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_an_intent_whose_step_never_began_is_not_in_doubt(
    runtime: Runtime, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await cancelled_at_the_intent(runtime, runtime.run(effects_app.plain, "hi", workspace=workspace), monkeypatch)
    run = str(runtime.last_run_id)
    (effect,) = await runtime.effects()
    assert (effect.status, effect.note) == (EffectStatus.FAILED, "cancelled before it began")
    await cancelled_at_the_intent(runtime, runtime.resume(run), monkeypatch)
    assert await statuses(runtime) == [EffectStatus.FAILED]
    assert texts() == []
    assert await runtime.resume(run) == "receipt for hi"
    assert texts() == ["hi"]


async def test_an_effect_stays_in_doubt_after_an_attempt_that_never_began(
    runtime: Runtime, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = await stop_in(runtime, effects_app.with_key, "after", workspace)
    (before,) = await runtime.effects()
    await cancelled_at_the_intent(runtime, runtime.resume(run), monkeypatch)
    (effect,) = await runtime.effects()
    assert (effect.status, effect.note) == (EffectStatus.IN_DOUBT, before.note)
    assert effect.idempotency_key == before.idempotency_key
    assert await runtime.resume(run) == "receipt for hi"
    assert texts() == ["hi"]


async def test_an_effect_stays_in_doubt_after_an_attempt_that_raised(runtime: Runtime, workspace: Path) -> None:
    """The error says nothing about the attempt before it."""
    run = await stop_in(runtime, effects_app.with_key, "after", workspace)
    (before,) = await runtime.effects()
    effects_app.STOP[:] = ["raise"]
    for attempt in (2, 3):
        with pytest.raises(RunFailed, match="refused"):
            await runtime.resume(run)
        (effect,) = await runtime.effects()
        assert (effect.attempt, effect.status, effect.note) == (attempt, EffectStatus.IN_DOUBT, before.note)
    effects_app.STOP.clear()
    assert await runtime.resume(run) == "receipt for hi"
    assert (texts(), await statuses(runtime)) == (["hi"], [EffectStatus.DONE])


@pytest.mark.parametrize(
    ("workflow", "fails", "said"),
    [
        (effects_app.otherwise, "raise", "ConnectionError: refused"),
        (effects_app.otherwise_than_asking, "away", "ConnectionError: the receiver is away"),
    ],
    ids=["sent again", "asked again"],
)
async def test_catching_the_error_of_a_later_attempt_does_not_continue_the_run(
    runtime: Runtime, workspace: Path, workflow: Any, fails: str, said: str
) -> None:
    """The workflow would send in another way what may have been sent."""
    run = await stop_in(runtime, workflow, "after", workspace)
    effects_app.STOP[:] = [fails]
    for _ in range(2):
        doubt = await doubt_of(runtime, run)
        assert said in str(doubt) and f"`ramify resume {run}`" in str(doubt) and "approve" in str(doubt)
        assert isinstance(doubt.__cause__, ConnectionError)
    assert (await runtime.record()).status is RunStatus.FAILED
    assert texts() == ["hi"]
    effects_app.STOP.clear()
    assert await runtime.resume(run) == "receipt for hi"
    assert (texts(), await statuses(runtime)) == (["hi"], [EffectStatus.DONE])


async def test_catching_the_error_of_a_first_attempt_continues_the_run(runtime: Runtime, workspace: Path) -> None:
    """The error says that nothing happened."""
    effects_app.STOP[:] = ["raise"]
    assert await runtime.run(effects_app.otherwise, "hi", workspace=workspace) == "by another way"
    assert await statuses(runtime) == [EffectStatus.FAILED, EffectStatus.DONE]


async def test_an_intent_that_cannot_be_withdrawn_is_in_doubt(
    runtime: Runtime, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = runtime.store.commit

    async def full(run: RunId, **rows: Any) -> None:
        if EffectStatus.FAILED in [effect.status for effect in rows.get("effects", ())]:
            raise StoreError("the disk is full")
        await commit(run, **rows)

    with monkeypatch.context() as patch:
        patch.setattr(runtime.store, "commit", full)
        await cancelled_at_the_intent(runtime, runtime.run(effects_app.plain, "hi", workspace=workspace), monkeypatch)
    assert (await runtime.record()).status is RunStatus.CANCELLED
    assert await statuses(runtime) == [EffectStatus.INTENDED]
    await doubt_of(runtime, str(runtime.last_run_id))
    assert texts() == []


async def test_each_attempt_at_an_effect_stays_in_the_ledger(runtime: Runtime, home: Path, workspace: Path) -> None:
    run = await stop_in(runtime, effects_app.plain, "after", workspace)
    await runtime.approve(run, "post", happened=False)
    effects_app.STOP[:] = ["raise"]
    with pytest.raises(RunFailed):
        await runtime.resume(run)
    effects_app.STOP.clear()
    assert await runtime.resume(run) == "receipt for hi"
    (last,) = await runtime.effects()
    ledger = await runtime.effects(earlier=True)
    told = [(one.attempt, one.status, one.result_json) for one in ledger]
    assert told == [
        (1, EffectStatus.AGAIN, None),
        (2, EffectStatus.FAILED, None),
        (3, EffectStatus.DONE, '"receipt for hi"'),
    ]
    assert ledger[-1] == last
    assert list((await history.read(runtime.store, RunId(run))).effects) == ledger
    assert {one.idempotency_key for one in ledger} == {last.idempotency_key}
    await runtime.store.delete_run(RunId(run))
    with closing(sqlite3.connect(home / "ramify.db")) as database:
        left = [database.execute(f"SELECT count(*) FROM {table}").fetchone() for table in ("attempts", "blobs")]
    assert left == [(0,), (0,)]


async def test_a_fork_has_a_copied_effect_once(runtime: Runtime, workspace: Path) -> None:
    """The earlier attempts stay with the original run."""
    run = await stop_in(runtime, effects_app.plain, "after", workspace)
    await runtime.approve(run, "post", happened=False)
    assert await runtime.resume(run) == "receipt for hi"
    last = (await runtime.store.checkpoints(RunId(run)))[-1]
    fork = await runtime.fork(last.id)
    (theirs,) = await runtime.effects(fork.id, earlier=True)
    (ours,) = await runtime.effects(run)
    assert (ours.attempt, theirs.attempt, theirs.idempotency_key) == (2, 1, ours.idempotency_key)


async def test_an_attempt_with_another_key_is_kept_beside_the_undone_one(runtime: Runtime, workspace: Path) -> None:
    await runtime.run(effects_app.two_that_can_be_recalled, workspace=workspace)
    run = await runtime.record()
    first = next(c for c in await runtime.store.checkpoints(run.id) if c.label == "write")
    await runtime.resume(run.id, back_to=first.id)
    ledger = await runtime.effects(earlier=True)
    told = [(one.args_json, one.attempt, one.status) for one in ledger]
    both = [(1, EffectStatus.COMPENSATED), (2, EffectStatus.DONE)]
    assert told == [(f'{{"text":"{text}"}}', *one) for text in "ab" for one in both]
    assert len({one.idempotency_key for one in ledger}) == 4


async def test_a_step_that_raised_did_not_happen(runtime: Runtime, workspace: Path) -> None:
    effects_app.STOP[:] = ["raise"]
    with pytest.raises(RunFailed):
        await runtime.run(effects_app.plain, "hi", workspace=workspace)
    assert await statuses(runtime) == [EffectStatus.FAILED]
    effects_app.STOP.clear()
    assert await runtime.resume(str(runtime.last_run_id)) == "receipt for hi"
    assert texts() == ["hi"]


async def test_a_retry_after_it_raised_is_one_effect(runtime: Runtime, workspace: Path) -> None:
    effects_app.STOP[:] = ["raise"]
    with pytest.raises(RunFailed):
        await runtime.run(effects_app.stubborn, "hi", workspace=workspace)
    assert [row.status for row in await runtime.journal()] == [OpStatus.FAILED]
    assert len(await runtime.effects()) == 1
