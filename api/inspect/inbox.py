"""What waits for a person in all runs of a database: questions, approvals and unknown effects; and how answers are
stored.

A question is asked by `ramify.interrupt` or by LangGraph's `interrupt`. An approval is a LangGraph thread that stops
before or after a node because it was compiled to. A doubt is an effect that was started and whose outcome is unknown.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING

from ramify.inspect.values import plain
from ramify.runtime.codec import codec
from ramify.runtime.errors import AmbiguousRef, RunNotFound
from ramify.runtime.journal.inbox import (
    INTERRUPT_KEY,
    Given,
    Inbox,
    OpenQuestion,
    as_question,
    question_id,
    store_answers,
    unanswered_rows,
)
from ramify.runtime.records import DOUBTFUL, VOID, EffectRecord, OpStatus, RunId, RunRecord, RunStatus

if TYPE_CHECKING:
    from pathlib import Path

    from ramify.runtime.store import RunStore
    from ramify.runtime.store.reader import Reader

_KEY = 12  # characters of an idempotency key that identify it

ELSEWHERE = "(its checkpoints are stored elsewhere, and the question with them: answer it in its program)"
STOPPED = "continue? (the graph was compiled to stop here)"


class Kind(StrEnum):
    QUESTION = "question"
    APPROVAL = "approval"
    DOUBT = "doubt"


@dataclass(frozen=True, slots=True)
class Item:
    """Something that waits for a person.

    `id`: for a question, the argument of `ramify answer`; for a doubt, the beginning of its key. `question`: a JSON
    value. `commands`: each of them resolves the item.
    """

    kind: Kind
    id: str | None
    run: RunId
    workflow: str
    question: object
    since: float
    branch: str
    commands: tuple[str, ...]

    @property
    def text(self) -> str:
        """The question in one line."""
        return self.question if isinstance(self.question, str) else json.dumps(self.question, ensure_ascii=False)


async def waiting(store: RunStore | Reader, database: str | Path, works: Callable[[RunRecord], bool]) -> list[Item]:
    """All items, the longest waiting first. `works`: whether a process works on a run, whose effects may still
    end.
    """
    runs = {run.id: run for run in await store.runs()}
    answers = await store.answers()
    unanswered = unanswered_rows(await store.interrupts(), answers)
    # a run that began since is left to the next call
    found = [_question(as_question(row), runs[row.run_id]) for row in unanswered if row.run_id in runs]
    for run in runs.values():
        if run.thread_id is not None and run.status is RunStatus.WAITING:
            found += _of_thread(database, run, {one.key for one in answers if one.run_id == run.id})
    doubts = [one for one in await store.doubts() if one.run_id in runs]
    found += [_doubt(one, runs[one.run_id]) for one in doubts if not works(runs[one.run_id])]
    return sorted(found, key=lambda item: item.since)


def _question(asked: OpenQuestion, run: RunRecord) -> Item:
    said = plain(json.loads(asked.question_json))
    command = f"ramify answer {asked.id} JSON"
    return Item(Kind.QUESTION, asked.id, run.id, run.name, said, asked.asked_at, asked.branch, (command,))


def _of_thread(database: str | Path, run: RunRecord, answered: Iterable[str]) -> list[Item]:
    from ramify.runtime.langgraph.errors import ThreadElsewhere
    from ramify.runtime.langgraph.thread.stored_thread import open_interrupts

    try:
        asked = open_interrupts(database, run)
    except ThreadElsewhere:
        return [Item(Kind.QUESTION, None, run.id, run.name, ELSEWHERE, run.updated_at, "root", ())]
    if not asked:
        go_on = f"ramify resume {run.id}"
        return [Item(Kind.APPROVAL, None, run.id, run.name, STOPPED, run.updated_at, "root", (go_on,))]
    done = set(answered)
    return [_question(one, run) for one in asked if one.key not in done]


def _doubt(effect: EffectRecord, run: RunRecord) -> Item:
    key = effect.idempotency_key[:_KEY]
    asked = f"did step {effect.step} happen? Its arguments: {json.dumps(plain(json.loads(effect.args_json)))}"
    commands = tuple(f"ramify approve {run.id} {key} {verdict}" for verdict in ("--done", "--again"))
    return Item(Kind.DOUBT, key, run.id, run.name, asked, effect.intended_at, effect.branch, commands)


@dataclass(frozen=True, slots=True)
class Stored:
    """An answer that was stored: its question, and the questions of the run that are still open."""

    question: OpenQuestion
    left: Sequence[OpenQuestion]


async def store_answer(
    store: RunStore, database: str | Path, id: str, value: object, *, clock: Callable[[], float], by: str
) -> Stored:
    """Store the answer to the question with that id, whichever run asks it. Durable when this returns; nothing runs.

    Raises `RunNotFound`, `AmbiguousRef`, `AlreadyAnswered` and `NotSerialisable`.
    """
    text = codec.encode(value, f"the answer to question {id}")
    runs = {run.id: run for run in await store.runs()}
    inboxes = await _inboxes(store, database, runs.values())
    found = [inbox for inbox in inboxes if inbox.knows(id)]
    if not found:
        await _refuse_answered(store, id)
        raise RunNotFound(await _unknown(store, id))
    exact = [inbox for inbox in found if inbox.knows(id, whole=True)] or found
    if len(exact) > 1:
        raise AmbiguousRef(f"questions of {len(exact)} runs start with {id!r}: give more of the id")
    inbox = exact[0]
    question = inbox.question(id)
    await store_answers(store, inbox, Given({question.id: text}), clock=clock, by=by)
    return Stored(question, [one for one in inbox.open if one.key != question.key])


async def _inboxes(store: RunStore, database: str | Path, runs: Iterable[RunRecord]) -> list[Inbox]:
    """The inboxes of runs that are not done."""
    rows, answers = await store.interrupts(), await store.answers()
    found = []
    for run in runs:
        mine = [row for row in rows if row.run_id == run.id]
        given = [one for one in answers if one.run_id == run.id]
        if run.thread_id is not None and run.status is RunStatus.WAITING:
            found.append(Inbox.of_interrupts(run.id, _interrupts(database, run), given))
        elif mine:
            found.append(Inbox.of_rows(run.id, mine, given))
    return found


def _interrupts(database: str | Path, run: RunRecord) -> list[OpenQuestion]:
    from ramify.runtime.langgraph.errors import ThreadElsewhere
    from ramify.runtime.langgraph.thread.stored_thread import open_interrupts

    try:
        return open_interrupts(database, run)
    except ThreadElsewhere:
        return []


async def _refuse_answered(store: RunStore, id: str) -> None:
    """Raises `AlreadyAnswered` if a question with that id was answered, and its run has continued since."""
    for one in reversed(await store.answers()):
        key = one.key.partition(VOID)[0]
        native = key.removeprefix(INTERRUPT_KEY).partition("|")[0]
        if id == question_id(one.run_id, key) or (native != key and id == native):
            rows = await store.interrupts(one.run_id)
            asked = [as_question(row) for row in rows if row.key == key and row.status is not OpStatus.DONE]
            asked = asked or [OpenQuestion(one.run_id, key, "null", one.answered_at)]
            raise Inbox(one.run_id, asked, (), ()).answered(replace(one, key=key))


async def _unknown(store: RunStore, id: str) -> str:
    doubts = [one for one in await store.doubts() if one.status in DOUBTFUL and one.idempotency_key.startswith(id)]
    if doubts and id:
        run = doubts[0].run_id
        return f"{id} is an effect whose outcome is unknown: `ramify approve {run} {id} --done`, or `--again`"
    return f"no unfinished run has asked a question {id!r}: `ramify inbox` lists what waits"
