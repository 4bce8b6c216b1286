"""Effects are never lost and never repeated silently, and every effect in doubt is reported."""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import effects_app
import pytest

from ramify import Runtime, step
from ramify.fork_engine.errors import WorkspaceError
from ramify.runtime.errors import (
    AmbiguousRef,
    EffectInDoubt,
    EffectRefused,
    RunError,
    RunFailed,
    RunLocked,
    RunNotFound,
)
from ramify.runtime.events import Event, Noticed
from ramify.runtime.records import LEGAL_SETTLEMENTS, EffectRecord, EffectStatus, RunStatus
from ramify.serving.client import LLMClient
from tests.runtime.effects.interrupted_effects import doubt_of, statuses, stop_in, texts
from tests.warm_process import WarmInterpreter

pytestmark = pytest.mark.usefixtures("outbox")


async def test_an_effect_is_in_the_ledger(runtime: Runtime, workspace: Path) -> None:
    assert await runtime.run(effects_app.plain, "hi", workspace=workspace) == "receipt for hi"
    (effect,) = await runtime.effects()
    assert (effect.step, effect.status, effect.result_json) == ("post", EffectStatus.DONE, '"receipt for hi"')
    assert effects_app.sent() == [(effect.idempotency_key, "hi")]


@pytest.mark.parametrize("place", ["before", "after"])
async def test_an_effect_in_doubt_stops_the_run_until_a_person_decides(
    runtime: Runtime, workspace: Path, place: str
) -> None:
    run = await stop_in(runtime, effects_app.plain, place, workspace)
    assert await statuses(runtime) == [EffectStatus.IN_DOUBT]
    for _ in range(2):
        assert f"ramify approve {run} post" in str(await doubt_of(runtime, run))
    happened = place == "after"
    await runtime.approve(run, "post", happened=happened, result="by hand")
    assert await runtime.resume(run) == ("by hand" if happened else "receipt for hi")
    assert texts() == ["hi"]
    assert await statuses(runtime) == [EffectStatus.DONE]


@pytest.mark.parametrize("how", ["gather", "except", "asking", "asking the model", "not sending"])
async def test_an_effect_in_doubt_stops_the_run_even_if_the_workflow_catches_it(
    runtime: Runtime, workspace: Path, how: str
) -> None:
    """Otherwise the workflow would act on an unknown outcome: send the message in another way, or report success."""
    run = await stop_in(runtime, effects_app.taking_a_doubt_for_a_value, "after", workspace, how)
    for _ in range(2):
        assert f"ramify approve {run} post" in str(await doubt_of(runtime, run))
    assert (await runtime.record()).status is RunStatus.FAILED
    assert (texts(), await runtime.llm_calls()) == ([how], [])
    await runtime.approve(run, "post", happened=True, result="by hand")
    assert await runtime.resume(run) == "by hand"
    assert texts() == [how]


async def test_an_effect_in_doubt_on_a_branch_undoes_nothing_on_the_others(runtime: Runtime, workspace: Path) -> None:
    """The other branches are not discarded: the run continues from there when the doubt is resolved."""
    run = await stop_in(runtime, effects_app.a_doubt_on_one_of_two_branches, "after b", workspace, "b")
    assert "post_for_good" in str(await doubt_of(runtime, run))
    assert effects_app.UNDONE == []
    await runtime.approve(run, "post_for_good", happened=True, result="by hand")
    assert await runtime.resume(run) == ["receipt for a", "by hand"]
    assert (texts(), effects_app.UNDONE) == (["a", "b"], [])


@pytest.mark.parametrize("place", ["before", "after"])
@pytest.mark.parametrize("workflow", [effects_app.with_key, effects_app.asking], ids=["key", "hook"])
async def test_a_reconcile_hook_needs_no_person(runtime: Runtime, workspace: Path, place: str, workflow: Any) -> None:
    run = await stop_in(runtime, workflow, place, workspace)
    assert await runtime.resume(run) == "receipt for hi"
    assert texts() == ["hi"]
    (effect,) = await runtime.effects()
    assert effect.status is EffectStatus.DONE
    assert len({key for key, _ in effects_app.sent()} | {effect.idempotency_key}) == 1


@pytest.mark.parametrize("workflow", [effects_app.asking, effects_app.asking_twice], ids=["once", "with a retry"])
async def test_a_reconcile_hook_that_raises_leaves_the_effect_in_doubt(
    runtime: Runtime, workspace: Path, workflow: Any
) -> None:
    """An unreachable receiver says nothing about whether the effect happened."""
    run = await stop_in(runtime, workflow, "after", workspace)
    (effect,) = await runtime.effects()
    killed = replace(effect, status=EffectStatus.INTENDED)  # a kill leaves it so
    await runtime.store.commit(effect.run_id, effects=[killed])
    effects_app.STOP[:] = ["away"]
    for _ in range(2):
        with pytest.raises(RunFailed, match="the receiver is away"):
            await runtime.resume(run)
        assert await statuses(runtime) == [EffectStatus.INTENDED]
    effects_app.STOP.clear()
    assert await runtime.resume(run) == "receipt for hi"
    assert texts() == ["hi"]


async def test_a_timeout_leaves_the_effect_in_doubt_and_is_not_retried(runtime: Runtime, workspace: Path) -> None:
    effects_app.STOP[:] = ["after"]
    with pytest.raises(RunFailed) as caught:
        await runtime.run(effects_app.in_time, "hi", workspace=workspace)
    assert isinstance(caught.value.__cause__, EffectInDoubt)
    assert texts() == ["hi"]


async def test_a_wrong_reuse_hit_leaves_the_effect_in_doubt(
    runtime: Runtime, home: Path, model: LLMClient, workspace: Path
) -> None:
    """The reuse check ended the step, not the step's own code."""
    await runtime.run(effects_app.building, "hi", workspace=workspace)
    async with Runtime(home=home, sandbox="copy", llm=model, check_reuse=1.0) as checking:
        with pytest.raises(RunFailed, match="when it was recomputed it differed"):
            await checking.run(effects_app.building, "hi", workspace=workspace)
        assert await statuses(checking) == [EffectStatus.IN_DOUBT]
        await doubt_of(checking, str(checking.last_run_id))
    assert texts() == ["hi", "hi"]


async def test_a_run_that_continues_after_a_timeout_reports_the_unknown_effect(
    home: Path, model: LLMClient, workspace: Path
) -> None:
    """The workflow handled the timeout itself; the effect stays in doubt in the ledger."""
    effects_app.STOP[:] = ["after"]
    heard: list[Event] = []
    async with Runtime(home=home, sandbox="copy", llm=model, observer=heard.append) as runtime:
        assert await runtime.run(effects_app.going_on_without_it, "hi", workspace=workspace) == "gone on"
        assert await statuses(runtime) == [EffectStatus.IN_DOUBT]
    told = [event.what for event in heard if isinstance(event, Noticed)]
    assert told == ["effects with an unknown outcome: post_within"]


async def test_a_seal_that_fails_does_not_undo_the_effect(
    runtime: Runtime, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ramify.sandboxes.host.agent_world import AgentWorld

    async def full(self: AgentWorld) -> None:
        raise WorkspaceError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(AgentWorld, "seal", full)
        with pytest.raises(RunFailed):
            await runtime.run(effects_app.writing, "hi", workspace=workspace)
    assert await statuses(runtime) == [EffectStatus.DONE]
    assert await runtime.resume(str(runtime.last_run_id)) == "receipt for hi"
    assert texts() == ["hi"]


async def test_a_branch_gets_the_recorded_result(runtime: Runtime, workspace: Path) -> None:
    assert await runtime.run(effects_app.the_recorded_one, workspace=workspace) == ["receipt for a"] * 2
    assert texts() == ["a"]


@pytest.mark.parametrize("name", ["unseen_in_a_branch", "hidden_in_a_step"])
async def test_an_irreversible_step_that_the_compiler_did_not_see_is_refused_at_run_time(
    runtime: Runtime, workspace: Path, name: str
) -> None:
    with pytest.raises(RunFailed) as caught:
        await runtime.run(getattr(effects_app, name), workspace=workspace)
    assert isinstance(caught.value.__cause__, EffectRefused)
    assert texts() == []


async def test_an_effect_that_is_not_in_doubt_cannot_be_approved(runtime: Runtime, workspace: Path) -> None:
    await runtime.run(effects_app.plain, "hi", workspace=workspace)
    run = str(runtime.last_run_id)
    with pytest.raises(RunNotFound, match="ramify effects"):
        await runtime.approve(run, "post", happened=True)
    with pytest.raises(RunNotFound):
        await runtime.approve(run, "nothing", happened=False)


async def test_several_effects_in_doubt_are_distinguished_by_their_keys(runtime: Runtime, workspace: Path) -> None:
    run = await stop_in(runtime, effects_app.plain, "before", workspace)
    (one,) = await runtime.effects()
    other = replace(one, key=f"{one.key}|other", idempotency_key="f" * 32)
    await runtime.store.commit(one.run_id, effects=[other])
    with pytest.raises(AmbiguousRef, match="ffffffff"):
        await runtime.approve(run, "post", happened=True)
    for too_little in ("", "fff"):  # an empty one is a variable that was not set
        with pytest.raises(RunNotFound, match="has no effect of step"):
            await runtime.approve(run, too_little, happened=True)
    settled = await runtime.approve(run, "ffff", happened=False)
    assert settled.idempotency_key == other.idempotency_key


async def test_a_person_may_change_the_decision_until_the_run_continues(runtime: Runtime, workspace: Path) -> None:
    run = await stop_in(runtime, effects_app.plain, "before", workspace)
    await runtime.approve(run, "post", happened=False)
    await runtime.approve(run, "post", happened=True, result="by hand")
    assert await runtime.resume(run) == "by hand"
    with pytest.raises(RunNotFound):
        await runtime.approve(run, "post", happened=False)
    assert texts() == []


async def test_a_running_run_can_be_neither_approved_nor_resumed(
    runtime: Runtime, home: Path, model: LLMClient, workspace: Path
) -> None:
    run = await stop_in(runtime, effects_app.plain, "before", workspace)
    verdicts = [runtime.approve(run, "post", happened=happened) for happened in (False, False, False)]
    heard = await asyncio.gather(*verdicts, return_exceptions=True)
    assert all(isinstance(one, EffectRecord | RunLocked) for one in heard)
    assert await statuses(runtime) == [EffectStatus.AGAIN]
    effects_app.STOP[:] = ["before"]
    going = asyncio.create_task(runtime.resume(run))
    while "hangs" not in effects_app.STOP:
        await asyncio.sleep(0.01)
        assert not going.done(), going
    async with Runtime(home=home, sandbox="copy", llm=model) as other:
        for one in (runtime, other):
            with pytest.raises(RunLocked):
                await one.approve(run, "post", happened=True)
            with pytest.raises(RunLocked):
                await one.resume(run)
    going.cancel()
    with pytest.raises(asyncio.CancelledError):
        await going
    assert await statuses(runtime) == [EffectStatus.IN_DOUBT]


async def test_a_run_whose_home_was_moved_continues(
    home: Path, model: LLMClient, workspace: Path, tmp_path: Path
) -> None:
    async with Runtime(home=home, sandbox="copy", llm=model) as runtime:
        run = await stop_in(runtime, effects_app.with_key, "after", workspace)
    home.rename(tmp_path / "elsewhere")
    async with Runtime(home=tmp_path / "elsewhere", sandbox="copy", llm=model) as runtime:
        assert await runtime.resume(run) == "receipt for hi"
        assert runtime.snapshots.fsck().problems == ()
    assert texts() == ["hi"]


async def test_another_runs_checkpoint_is_refused(runtime: Runtime, workspace: Path) -> None:
    await runtime.run(effects_app.plain, "hi", workspace=workspace)
    first = str(runtime.last_run_id)
    await runtime.run(effects_app.plain, "ho", workspace=workspace)
    theirs = (await runtime.store.checkpoints((await runtime.record()).id))[0]
    with pytest.raises(RunError, match="not on the root branch of run"):
        await runtime.resume(first, back_to=theirs.id)


def test_the_options_of_effects_are_for_irreversible_steps() -> None:
    with pytest.raises(TypeError, match="irreversible"):

        @step(idempotent=True)
        async def harmless() -> None: ...


def test_a_known_status_never_becomes_unknown() -> None:
    known = {EffectStatus.DONE, EffectStatus.COMPENSATED, EffectStatus.FAILED}
    doubt = {EffectStatus.IN_DOUBT}
    assert all(not (LEGAL_SETTLEMENTS[status] & doubt) for status in known)
    assert EffectStatus.INTENDED not in LEGAL_SETTLEMENTS[EffectStatus.DONE]


DRIVE = """
import asyncio, sys
from pathlib import Path
import effects_app
from ramify import Runtime

async def main(home, workspace, name, run):
    async with Runtime(home=Path(home), sandbox="copy") as runtime:
        if run:
            print(await runtime.resume(run))
        else:
            print(await runtime.run(getattr(effects_app, name), "hi", workspace=workspace))

asyncio.run(main(*sys.argv[1:]))
"""


@pytest.mark.parametrize("place", ["before", "after"])
@pytest.mark.parametrize("name", ["plain", "with_key", "asking"])
async def test_a_kill_between_intent_and_result(
    home: Path, workspace: Path, outbox: Path, place: str, name: str, runtime: Runtime, warm: WarmInterpreter
) -> None:
    env = {**os.environ, "PYTHONPATH": str(Path(effects_app.__file__).parent), "EFFECTS_OUTBOX": str(outbox)}
    stop = f"import effects_app; effects_app.STOP.append({place!r})\n"
    killed = warm.run(
        [home, workspace, name, ""], cwd=home.parent, env={**env, "EFFECTS_KILL": "1"}, program=stop + DRIVE
    )
    assert killed.returncode == -9, killed.stderr
    (run,) = await runtime.store.runs()
    (effect,) = await runtime.store.effects(run.id)
    assert effect.status is EffectStatus.INTENDED
    assert texts() == (["hi"] if place == "after" else [])
    if name == "plain":
        await doubt_of(runtime, run.id)
        await runtime.approve(run.id, "post", happened=place == "after", result="receipt for hi")
    assert await runtime.resume(run.id) == "receipt for hi"
    assert texts() == ["hi"]
