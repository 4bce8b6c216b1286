"""Several open questions at once: all are reported, each gets its own answer, in any order, and nothing hangs."""

from __future__ import annotations

import asyncio
import random
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import asking_app
import pytest

from ramify import Runtime
from ramify.compiler.plan import OpKind
from ramify.runtime.errors import AlreadyAnswered, RunNotFound, RunWaiting, SeveralQuestions
from ramify.runtime.events import Event, Noticed, OpDone
from ramify.runtime.execution import question_waits
from ramify.runtime.journal.inbox import OpenQuestion
from ramify.runtime.records import OpStatus, RunStatus
from tests.plans import compile_plan
from tests.samples import sample

NAMES = ["staging", "production", "archive"]


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for kept in (asking_app.DONE, asking_app.PAUSE, asking_app.KIND):
        kept.clear()
    monkeypatch.setattr(asking_app, "GO_ON", asyncio.Event())
    monkeypatch.setattr(question_waits, "UNWIND_S", 0.05)
    yield


async def asked(work: Any) -> list[OpenQuestion]:
    with pytest.raises(RunWaiting) as caught:
        await work
    return list(caught.value.questions)


def name_of(question: OpenQuestion) -> str:
    """The name of the database that the question is about."""
    return str(question.question).split()[2]


KINDS = [
    asking_app.drops_databases,
    asking_app.drops_in_a_group,
    asking_app.drops_and_keeps_errors,
    asking_app.drops_from_a_queue,
    asking_app.drops_on_branches,
    asking_app.drops_from_threads,
]


@pytest.mark.parametrize("workflow", KINDS, ids=lambda one: one.__name__)
async def test_all_questions_are_reported_and_each_gets_its_own_answer(runtime: Runtime, workflow: Any) -> None:
    questions = await asked(runtime.run(workflow, NAMES))
    run = str(runtime.last_run_id)
    assert sorted(map(name_of, questions)) == sorted(NAMES)
    assert [one.id for one in await runtime.questions(run)] == [one.id for one in questions]
    assert (await runtime.record(run)).status is RunStatus.WAITING
    for question in reversed(questions[1:]):
        left = await asked(runtime.resume(run, answers={question.id: f"yes, {name_of(question)}"}))
        assert question.id not in [one.id for one in left]
    result = await runtime.resume(run, answer=f"yes, {name_of(questions[0])}")
    assert result == [f"yes, {name}" for name in NAMES]


async def test_many_times_in_any_order_with_random_pauses(runtime: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    """The replay reaches the questions in another order each time, and not always all of them. Between two processes
    answers are stored, or a resume is stopped at a random moment."""
    monkeypatch.setattr(question_waits, "SETTLE_S", 0.002)
    plans = {one: compile_plan(one) for one in (asking_app.drops_databases, asking_app.drops_in_a_group)}
    for seed in range(sample(6, 100)):
        dice = random.Random(seed)
        asking_app.DONE.clear()
        names = NAMES[: dice.choice([2, 2, 3])]
        _roll(dice, names)
        workflow, plan = dice.choice(list(plans.items()))
        known = {one.id: one for one in await asked(runtime.run(workflow, names, plan=plan))}
        run, answered, rounds = str(runtime.last_run_id), set[str](), 0
        result: Any = None
        while result is None:
            rounds += 1
            assert rounds < 30, f"seed {seed} never ends"
            _roll(dice, names)
            result = await _one_round(runtime, run, known, answered, dice)
        assert result == [f"yes, {name}" for name in names], f"seed {seed}"
        assert sorted(asking_app.DONE) == sorted(f"drop {name}" for name in names), f"seed {seed}"


def _roll(dice: random.Random, names: list[str]) -> None:
    for name in names:
        asking_app.PAUSE[name] = dice.choice([0.0, 0.001, 0.004, 0.012])
        asking_app.KIND.setdefault(name, dice.choice(["sleep", "step", "none"]))


async def _one_round(
    runtime: Runtime, run: str, known: dict[str, OpenQuestion], answered: set[str], dice: random.Random
) -> Any:
    """Answer one of the questions so far and resume. Returns the result at the end."""
    left = [id for id in known if id not in answered]
    given = {id: f"yes, {name_of(known[id])}" for id in dice.sample(left, min(len(left), 1))}
    answered.update(given)
    how = dice.choice(["resume", "store", "stopped"])
    if how != "resume":
        for id, value in given.items():
            await runtime.answer(run, id, value)
        given = {}
    if how == "store":
        return None if len(answered) < len(known) else await _resumed(runtime, run, known, {})
    if how == "stopped":
        going = asyncio.create_task(_resumed(runtime, run, known, {}))
        await asyncio.sleep(dice.choice([0.0, 0.001, 0.003, 0.01]))
        going.cancel()
        try:
            return await going
        except asyncio.CancelledError:
            return None
    return await _resumed(runtime, run, known, given)


async def _resumed(runtime: Runtime, run: str, known: dict[str, OpenQuestion], given: dict[str, str]) -> Any:
    try:
        return await runtime.resume(run, answers=given)
    except RunWaiting as waiting:
        known |= {one.id: one for one in waiting.questions}
        return None


async def test_an_answer_never_goes_to_the_other_question(runtime: Runtime) -> None:
    """The first run reaches staging first, the replay production: the oldest open question is not the one on
    screen."""
    asking_app.KIND.update(staging="sleep", production="sleep")
    asking_app.PAUSE.update(staging=0.0, production=0.4)
    (staging,) = await asked(runtime.run(asking_app.drops_databases, ["staging", "production"]))
    run = str(runtime.last_run_id)
    asking_app.PAUSE.update(staging=0.4, production=0.0)
    (production,) = await asked(runtime.resume(run))
    assert (name_of(staging), name_of(production)) == ("staging", "production")
    (left,) = await asked(runtime.resume(run, answer="no"))  # the one that was shown
    assert left.id == staging.id
    assert await runtime.resume(run, answer="yes, staging") == ["yes, staging", "no"]
    assert asking_app.DONE == ["drop staging"]


async def test_an_answer_that_names_no_question_is_refused_if_there_are_several(runtime: Runtime) -> None:
    questions = await asked(runtime.run(asking_app.drops_databases, NAMES))
    run = str(runtime.last_run_id)
    with pytest.raises(SeveralQuestions, match="does not name one") as refused:
        await runtime.resume(run, answer="yes")
    assert [one.id for one in refused.value.questions] == [one.id for one in questions]
    assert all(one.id in str(refused.value) and name_of(one) in str(refused.value) for one in questions)
    with pytest.raises(RunNotFound, match=f"no question '{'0' * 8}'"):
        await runtime.resume(run, answers={"0" * 8: "yes"})
    assert [one.id for one in await runtime.questions(run)] == [one.id for one in questions]


async def test_answers_are_stored_all_or_none(runtime: Runtime) -> None:
    first, *rest = await asked(runtime.run(asking_app.drops_databases, NAMES))
    run = str(runtime.last_run_id)
    await runtime.answer(run, first.id, "no")
    with pytest.raises(AlreadyAnswered):
        await runtime.resume(run, answers={rest[0].id: "no", first.id: "yes"})
    assert [one.id for one in await runtime.questions(run)] == [one.id for one in rest]


async def test_the_first_of_two_answers_counts_and_the_second_is_refused(runtime: Runtime) -> None:
    (question,) = await asked(runtime.run(asking_app.asks_in_a_loop))
    run = str(runtime.last_run_id)
    outcomes = await asyncio.gather(
        *[runtime.answer(run, question.id, word) for word in ("stop", "stop it")], return_exceptions=True
    )
    (refused,) = [one for one in outcomes if one is not None]
    assert isinstance(refused, AlreadyAnswered)
    assert (refused.question_id, refused.answered_by) == (question.id, "Runtime.answer")
    assert refused.answered_at is not None and repr(refused.answer)[1:-1] in str(refused)
    with pytest.raises(AlreadyAnswered, match="has no open question"):
        await runtime.resume(run, answer="another")
    result = await runtime.resume(run) if refused.answer == "stop" else ["stop"]
    assert result == ["stop"]
    with pytest.raises(AlreadyAnswered):
        await runtime.answer(run, question.id, "too late")


async def test_a_question_with_a_changed_text_is_another_question(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, other = await asked(runtime.run(asking_app.asks_what_has_changed))
    run = str(runtime.last_run_id)
    await runtime.answer(run, old.id, "for the old one")
    monkeypatch.setattr(asking_app, "WORDS", {"text": "new text?"})
    same, new = await asked(runtime.resume(run))
    assert (new.question, same.id) == ("new text?", other.id) and new.id != old.id
    assert [one.id for one in await runtime.questions(run)] == [other.id, new.id]
    assert await runtime.resume(run, answers={new.id: 1, other.id: 2}) == [1, 2]


async def test_a_question_that_is_not_reached_again_is_closed(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, other = await asked(runtime.run(asking_app.asks_what_has_changed))
    run = str(runtime.last_run_id)
    monkeypatch.setattr(asking_app, "WORDS", {"text": "new text?"})
    assert old.id not in [one.id for one in await asked(runtime.resume(run, answers={other.id: 2}))]
    assert [row.status for row in await runtime.journal(run) if row.key == old.key] == [OpStatus.UNASKED]
    assert await runtime.resume(run, answer=1) == [1, 2]


class Heard:
    """An observer. `noticed` and `answered` are set by its events; `said` is the first notice."""

    def __init__(self) -> None:
        self.noticed, self.answered = asyncio.Event(), asyncio.Event()
        self.said = ""

    def __call__(self, event: Event) -> None:
        if isinstance(event, Noticed):
            self.said = self.said or event.what
            self.noticed.set()
        elif isinstance(event, OpDone) and (event.row.kind, event.row.status) == (OpKind.INTERRUPT, OpStatus.DONE):
            self.answered.set()


async def test_steps_beside_a_question_are_not_stopped(home: Path) -> None:
    """An irreversible step that was cancelled for a question would be in doubt."""
    heard = Heard()
    async with Runtime(home=home, sandbox="copy", observer=heard) as runtime:
        running = asyncio.create_task(asked(runtime.run(asking_app.asks_beside_work, "sent")))
        await heard.noticed.wait()
        assert "meanwhile?" in heard.said and "ramify answer" in heard.said
        asking_app.GO_ON.set()
        (question,) = await running
        assert (question.question, asking_app.DONE) == ("meanwhile?", ["sent"])
        assert await runtime.resume(str(runtime.last_run_id), answer="yes") == ["yes", "sentafter"]
        assert asking_app.DONE == ["sent"]


async def test_an_answer_is_used_while_the_run_continues(home: Path) -> None:
    heard = Heard()
    async with Runtime(home=home, sandbox="copy", observer=heard) as runtime:
        running = asyncio.create_task(runtime.run(asking_app.asks_beside_work, "sent"))
        await heard.noticed.wait()
        (question,) = await runtime.questions()
        async with Runtime(home=home, sandbox="copy") as other:
            await other.answer(str(runtime.last_run_id), question.id, "in time")
        await heard.answered.wait()
        asking_app.GO_ON.set()
        assert await running == ["in time", "sentafter"]


async def test_no_operation_begins_while_a_waiting_run_unwinds(runtime: Runtime) -> None:
    await asked(runtime.run(asking_app.asks_with_cleanup))
    assert asking_app.DONE == []
    assert await runtime.resume(str(runtime.last_run_id), answer="so") == "so"
    assert asking_app.DONE == ["drop what is left"]


async def test_a_workflow_that_catches_everything_still_waits(runtime: Runtime) -> None:
    assert [one.question for one in await asked(runtime.run(asking_app.swallows))] == ["swallowed?"]
    assert await runtime.resume(str(runtime.last_run_id), answer=0) == "answered"


async def test_a_question_of_an_earlier_version_can_be_answered(home: Path) -> None:
    async with Runtime(home=home, sandbox="copy") as runtime:
        (first,) = await asked(runtime.run(asking_app.asks_in_a_loop))
        run = str(runtime.last_run_id)
        await asked(runtime.resume(run, answer="more"))
    # As version 5 stored it: without a table of answers.
    with closing(sqlite3.connect(home / "ramify.db")) as database, database:
        database.execute("DROP TABLE answers")
        database.execute("DROP TABLE leases")
        database.execute("PRAGMA user_version = 5")
    async with Runtime(home=home, sandbox="copy") as runtime:
        with pytest.raises(AlreadyAnswered, match='"more"'):
            await runtime.answer(run, first.id, "again")
        assert await runtime.resume(run, answer="stop") == ["more", "stop"]


async def test_a_run_that_went_back_asks_again(runtime: Runtime, workspace: Path) -> None:
    (question,) = await asked(runtime.run(asking_app.asks, "rm", workspace=workspace))
    run = str(runtime.last_run_id)
    before = next(one.id for one in await runtime.store.checkpoints((await runtime.record(run)).id) if one.seq == 0)
    assert (await runtime.resume(run, answer={"yes": False}))["files"] == []
    (again,) = await asked(runtime.resume(run, back_to=before))
    assert again.id == question.id
    assert (await runtime.resume(run, answer={"yes": True}))["files"] == ["after", "before", "hello.txt"]


async def test_a_finished_run_takes_no_answer(runtime: Runtime) -> None:
    await asked(runtime.run(asking_app.swallows))
    run = str(runtime.last_run_id)
    await runtime.resume(run, answer=0)
    with pytest.raises(AlreadyAnswered, match="has no open question"):
        await runtime.resume(run, answer=1)
    with pytest.raises(RunNotFound):
        await runtime.answer("0" * 12, "0" * 8, 1)
