"""Calls that the workflow cancels while their results are being recorded: a resume cancels them again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import late_app
import pytest

from ramify import Runtime
from ramify.compiler.plan import OpKind
from ramify.fork_engine import crash_points
from ramify.runtime.errors import EffectNotMet, RunFailed, RunNotFound, RunWaiting
from ramify.runtime.journal import cancelled_calls, turns
from ramify.runtime.journal.inbox import question_id
from ramify.runtime.records import OpStatus
from ramify.serving.client import LLMClient
from ramify.serving.testing import ScriptedModel
from ramify.serving.types import ChatRequest

TEXT = " ".join(["word"] * 40)


@pytest.mark.parametrize(
    ("flow", "point"),
    [
        (late_app.of_a_step, "rows numbered"),
        (late_app.of_a_step, "rows durable"),
        (late_app.of_a_model_call, "answer numbered"),
        (late_app.of_a_reader, "answer durable"),
        (late_app.of_a_fork, "rows durable"),
        (late_app.of_a_merge, "rows durable"),
        (late_app.of_a_release, "rows durable"),
        (late_app.of_two_tasks, "rows durable"),
    ],
)
async def test_a_timeout_during_the_commit_passes_again_at_a_resume(
    home: Path, monkeypatch: pytest.MonkeyPatch, flow: Any, point: str
) -> None:
    """The workflow went on because of the timeout, and paid."""
    late_app.PAID.clear()
    late_app.LIMITS.clear()
    monkeypatch.setattr(late_app, "PASSED", asyncio.Event())

    def pass_now(name: str) -> None:
        if name == point and late_app.LIMITS:
            late_app.LIMITS.pop().reschedule(0)

    monkeypatch.setattr(late_app, "STOPS", True)
    monkeypatch.setattr(crash_points, "at", pass_now)
    model = ScriptedModel(lambda request: TEXT)
    async with (
        LLMClient("http://model.test/v1", transport=model, retries=0) as client,
        Runtime(home=home, sandbox="copy", llm=client) as runtime,
    ):
        with pytest.raises(RunFailed, match="not yet"):
            await runtime.run(flow)
        assert not late_app.LIMITS, "the timeout passed at the point"
        run, paid = str(runtime.last_run_id), list(late_app.PAID)
        assert len(paid) == 1
        assert paid[0].endswith("late, after" if flow is late_app.of_two_tasks else "late")
        monkeypatch.setattr(late_app, "STOPS", False)
        monkeypatch.setattr(late_app, "PATIENCE_S", 0.3)
        monkeypatch.setattr(crash_points, "at", None)
        assert await runtime.resume(run) == paid[0]
        assert paid == late_app.PAID
        journal = await runtime.journal(run)
    rows = [row.status for row in journal if row.kind is OpKind.RUN and row.step == "write"]
    assert rows == ([OpStatus.DONE, OpStatus.FAILED] if flow is late_app.of_a_step else [])
    assert all(0 < row.started_at <= row.ended_at for row in journal), "what shows a run's times can draw them"
    if flow is late_app.of_a_merge:
        ends = [row.summary for row in journal if row.kind is OpKind.RELEASE]
        assert ends == ["1 released, 1 merged"], "the parent has the changes"


async def test_a_stage_of_which_an_earlier_process_got_a_part_is_cancelled_again(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    late_app.PAID.clear()
    late_app.LIMITS.clear()
    monkeypatch.setattr(late_app, "STOPS", True)
    process, first_is_recorded = 1, asyncio.Event()

    async def script(request: ChatRequest) -> str:
        if request.seed == 1 and process < 3:
            if process == 2:
                late_app.LIMITS.pop().reschedule(0)
            await asyncio.Event().wait()
        return "said"

    def note(name: str) -> None:
        if name == "answer durable":
            first_is_recorded.set()

    monkeypatch.setattr(crash_points, "at", note)
    async with (
        LLMClient("http://model.test/v1", transport=ScriptedModel(script), retries=0) as client,
        Runtime(home=home, sandbox="copy", llm=client) as runtime,
    ):
        running = asyncio.ensure_future(runtime.run(late_app.of_a_stage))
        await first_is_recorded.wait()
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running
        run = str(runtime.last_run_id)
        assert len(await runtime.llm_calls(run)) == 1
        process = 2
        late_app.LIMITS.clear()
        with pytest.raises(RunFailed, match="not yet"):
            await runtime.resume(run)
        assert late_app.PAID == ["late"]
        process = 3
        monkeypatch.setattr(late_app, "STOPS", False)
        monkeypatch.setattr(late_app, "PATIENCE_S", 0.3)
        assert await runtime.resume(run) == "late"
    assert late_app.PAID == ["late"]


async def test_a_call_that_is_begun_again_and_cancelled_at_its_end_is_cancelled_again(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    late_app.PAID.clear()
    late_app.LIMITS.clear()
    monkeypatch.setattr(late_app, "STOPS", True)
    answers = False

    async def script(request: ChatRequest) -> str:
        if not answers:
            late_app.LIMITS.pop().reschedule(0)
            await asyncio.Event().wait()
        return "said"

    def pass_now(name: str) -> None:
        if name == "answer numbered" and late_app.LIMITS:
            late_app.LIMITS.pop().reschedule(0)

    async with (
        LLMClient("http://model.test/v1", transport=ScriptedModel(script), retries=0) as client,
        Runtime(home=home, sandbox="copy", llm=client) as runtime,
    ):
        with pytest.raises(RunFailed, match="not yet"):
            await runtime.run(late_app.of_a_model_call)
        run, answers = str(runtime.last_run_id), True
        with monkeypatch.context() as patched:
            patched.setattr(cancelled_calls, "_SLACK", 0.0)
            patched.setattr(cancelled_calls, "_LEAST_S", 0.0)
            patched.setattr(crash_points, "at", pass_now)
            with pytest.raises(RunFailed, match="not yet"):
                await runtime.resume(run)
        assert len(await runtime.llm_calls(run)) == 1
        monkeypatch.setattr(late_app, "STOPS", False)
        monkeypatch.setattr(late_app, "PATIENCE_S", 0.3)
        assert await runtime.resume(run) == "late"
    assert late_app.PAID == ["late"]


@pytest.fixture
def late(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    late_app.PAID.clear()
    late_app.LIMITS.clear()
    monkeypatch.setattr(late_app, "PASSED", asyncio.Event())
    monkeypatch.setattr(late_app, "STOPS", True)
    yield


@pytest.mark.parametrize("point", ["rows numbered", "rows durable"])
async def test_an_answer_that_a_timeout_passes_while_it_is_recorded_is_not_taken_at_a_resume(
    late: None, runtime: Runtime, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    with pytest.raises(RunWaiting):
        await runtime.run(late_app.of_a_question)
    run = str(runtime.last_run_id)
    late_app.LIMITS.clear()

    def pass_now(name: str) -> None:
        if name == point and late_app.LIMITS:
            late_app.LIMITS.pop().reschedule(0)

    with monkeypatch.context() as patched:
        patched.setattr(crash_points, "at", pass_now)
        with pytest.raises(RunFailed, match="not yet"):
            await runtime.resume(run, answer="yes")
    assert late_app.PAID == ["late"]
    monkeypatch.setattr(late_app, "STOPS", False)
    monkeypatch.setattr(late_app, "PATIENCE_S", 0.3)
    assert await runtime.resume(run) == "late"
    assert late_app.PAID == ["late"]


async def test_a_question_that_a_timeout_withdrew_is_cancelled_again_and_takes_no_answer(
    late: None, runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(late_app, "PATIENCE_S", 0.2)
    with pytest.raises(RunFailed, match="not yet"):
        await runtime.run(late_app.of_a_question_beside_a_step)
    run = str(runtime.last_run_id)
    assert late_app.PAID == ["late"]
    assert await runtime.questions(run) == []
    (asked,) = (row for row in await runtime.journal(run) if row.status is OpStatus.ASKED)
    with pytest.raises(RunNotFound, match="no longer open"):
        await runtime.answer(run, question_id(asked.run_id, asked.key), "yes")
    late_app.PASSED.clear()
    monkeypatch.setattr(late_app, "STOPS", False)
    assert await runtime.resume(run) == "late"
    assert late_app.PAID == ["late"]


async def test_a_call_because_of_a_timer_is_waited_for_before_the_result_that_came_after_it(
    late: None, runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(late_app, "PATIENCE_S", 0.3)
    with pytest.raises(RunFailed, match="not yet"):
        await runtime.run(late_app.of_a_shielded_step)
    assert late_app.PAID == ["late"]
    late_app.PASSED.clear()
    monkeypatch.setattr(late_app, "STOPS", False)
    assert await runtime.resume(str(runtime.last_run_id)) == "late"
    assert late_app.PAID == ["late"]


async def test_an_irreversible_step_is_not_done_again_with_what_a_clock_gives_it(
    late: None, runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(late_app, "CLOCK", iter(["one", "two", "three"]))
    with pytest.raises(RunFailed, match="not yet"):
        await runtime.run(late_app.of_a_clock)
    run = str(runtime.last_run_id)
    monkeypatch.setattr(late_app, "STOPS", False)
    with pytest.raises(RunFailed, match="gives why another value") as raised:
        await runtime.resume(run)
    assert isinstance(raised.value.__cause__, EffectNotMet)
    assert late_app.PAID == ["one"]
    base = (await runtime.store.checkpoints(run))[0]
    assert await runtime.resume(run, back_to=base.id) == "three", "a person went back, and knows of it"


async def test_what_is_refused_in_any_case_does_not_wait_for_other_effects(
    late: None, runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As old as the run may be: it would wait that long."""
    monkeypatch.setattr(late_app, "CLOCK", iter(["one", "two"]))
    waits, past_effects = list[bool](), turns.Turns.past_effects

    async def counted(order: turns.Turns, concerns: Callable[[str], bool], *, hasty: bool = False) -> None:
        waits.append(hasty)
        await past_effects(order, concerns, hasty=hasty)

    with pytest.raises(RunFailed, match="not yet"):
        await runtime.run(late_app.of_a_clock_before_another)
    monkeypatch.setattr(turns.Turns, "past_effects", counted)
    with pytest.raises(RunFailed, match="gives why another value"):
        await runtime.resume(str(runtime.last_run_id))
    assert late_app.PAID == ["one", "refund"]
    assert waits == []


async def test_an_irreversible_step_is_not_done_in_place_of_another_one(
    late: None, runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(late_app, "CLOCK", iter(["one", "two"]))
    monkeypatch.setattr(turns, "_SLACK", 0.0)
    monkeypatch.setattr(turns, "_LEAST_S", 0.0)
    with pytest.raises(RunFailed, match="not yet"):
        await runtime.run(late_app.of_another_way)
    with pytest.raises(RunFailed, match="effect of step 'refund'"):
        await runtime.resume(str(runtime.last_run_id))
    assert late_app.PAID == ["refund"]


@pytest.mark.parametrize("flow", [late_app.of_a_clock_in_a_loop, late_app.of_a_clock_in_a_gather])
async def test_what_a_loop_has_paid_is_not_paid_again_with_what_a_clock_gives_it(
    late: None, runtime: Runtime, monkeypatch: pytest.MonkeyPatch, flow: Any
) -> None:
    late_app.PASSED.set()
    monkeypatch.setattr(late_app, "CLOCK", map(str, range(9)))
    with pytest.raises(RunFailed, match="not yet"):
        await runtime.run(flow)
    assert sorted(late_app.PAID) == ["0", "1"]
    monkeypatch.setattr(late_app, "STOPS", False)
    with pytest.raises(RunFailed, match="another value") as raised:
        await runtime.resume(str(runtime.last_run_id))
    assert isinstance(raised.value.__cause__, EffectNotMet)
    assert sorted(late_app.PAID) == ["0", "1"]


async def test_fewer_calls_at_once_than_before_are_not_refused(
    late: None, runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(late_app, "CLOCK", iter(["2", "1"]))
    with pytest.raises(RunFailed, match="not yet"):
        await runtime.run(late_app.of_some_at_once)
    assert late_app.PAID == ["two"]
    late_app.PASSED.set()
    monkeypatch.setattr(late_app, "STOPS", False)
    await runtime.resume(str(runtime.last_run_id))
    assert late_app.PAID == ["two", "one"]
