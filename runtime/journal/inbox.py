"""What waits for a person: the open questions of runs, and how an answer gets to the one that it is for.

A question is known by the journal key of the place that asks it, which holds its branch, its operation, the digest of
its text and how often the same was asked there. People see a short id made of run and key. A question whose text has
changed has another key, and takes no answer that was given to the old one.

An answer is one row, bound to that key, and durable before the run goes on. The first answer to a question stands.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any

from ramify.compiler.plan import OpKind
from ramify.runtime.codec import codec
from ramify.runtime.errors import AlreadyAnswered, AmbiguousRef, RunError, RunNotFound, SeveralQuestions
from ramify.runtime.records import ROOT, AnswerRecord, BranchPath, OpRecord, OpStatus, RunId

if TYPE_CHECKING:
    from ramify.runtime.store import RunStore

INTERRUPT_KEY = "interrupt|"
"""What the key of an interrupt of a LangGraph thread begins with; its id follows, and how many answers its task took
before."""
VOID = "|void|"
"""What stands in the key of an answer that counts no more: its run went back, or its interrupt took it."""
_SHORTEST = 4  # characters of an id
_LENGTH = 8
NAMED = re.compile(rf"([0-9a-f]{{{_LENGTH}}}|[0-9a-f]{{32}})=", re.ASCII)
"""What an answer begins with that names its question; 32 characters: LangGraph's own id of an interrupt."""


def question_id(run: RunId, key: str) -> str:
    """The name of a question for people: the same in every process and every replay."""
    return hashlib.sha256(f"{run}|{key}".encode("utf-8", "surrogatepass")).hexdigest()[:_LENGTH]


@dataclass(frozen=True, slots=True)
class OpenQuestion:
    """A question that waits for its answer. `native`: LangGraph's id, where an interrupt of a thread asks."""

    run_id: RunId
    key: str
    question_json: str  # codec
    asked_at: float
    summary: str = ""  # its first line
    branch: BranchPath = ROOT
    native: str | None = None

    @property
    def id(self) -> str:
        return question_id(self.run_id, self.key)

    @property
    def question(self) -> Any:
        """What was asked. Imports the classes of its value."""
        return codec.decode(self.question_json)


def as_question(row: OpRecord) -> OpenQuestion:
    """From the journal's row that asks."""
    return OpenQuestion(row.run_id, row.key, row.result_json or "null", row.ended_at, row.summary, row.branch)


def unanswered_rows(rows: Iterable[OpRecord], answers: Iterable[AnswerRecord] = ()) -> list[OpRecord]:
    """The rows that ask what nobody has answered, in the order in which it was asked. Of a run that went back to
    before an answer, the question is open again."""
    found = list(rows)
    closed = {(row.run_id, row.key) for row in found if row.status is OpStatus.DONE}
    closed |= {(one.run_id, one.key) for one in answers}
    asked: dict[tuple[RunId, str], OpRecord] = {}
    for row in found:
        if row.status is OpStatus.ASKED and (row.run_id, row.key) not in closed:
            asked.setdefault((row.run_id, row.key), row)
    return list(asked.values())


def named_answer(text: str) -> tuple[str | None, str]:
    """Of an answer as it is typed, `ID=VALUE` or `VALUE`: the id, None where there is none, and the value."""
    found = NAMED.match(text)
    return (None, text) if found is None else (found[1], text[found.end() :])


@dataclass(frozen=True, slots=True)
class Given:
    """Answers to questions of one run, encoded: by id, or one for the only question that is open."""

    by_id: Mapping[str, str]
    to_the_only: str | None = None

    @property
    def is_empty(self) -> bool:
        return self.to_the_only is None and not self.by_id


class Inbox:
    """The questions of one run: `ever` asked, `open` now, and what was answered."""

    def __init__(
        self, run: RunId, ever: Sequence[OpenQuestion], open: Sequence[OpenQuestion], answers: Sequence[AnswerRecord]
    ) -> None:
        self.run, self.open = run, list(open)
        self._ever = {question.key: question for question in [*ever, *open]}
        self._answers = {one.key: one for one in answers if one.key in self._ever}

    @classmethod
    def of_interrupts(cls, run: RunId, asked: Sequence[OpenQuestion], answers: Sequence[AnswerRecord]) -> Inbox:
        """Of a LangGraph thread, from its interrupts as its checkpoints have them."""
        given = {one.key for one in answers}
        return cls(run, asked, [one for one in asked if one.key not in given], answers)

    @property
    def answers(self) -> dict[str, str]:
        """What was answered, encoded, by key."""
        return {key: one.answer_json for key, one in self._answers.items()}

    @classmethod
    def of_rows(cls, run: RunId, rows: Sequence[OpRecord], answers: Sequence[AnswerRecord]) -> Inbox:
        """From the journal's rows of that kind. One that was recorded DONE without an answer of its own was answered
        through an earlier version of Ramify."""
        interrupts = [row for row in rows if row.kind is OpKind.INTERRUPT]
        first: dict[str, OpRecord] = {}
        for row in interrupts:
            if row.status is not OpStatus.FAILED:
                first.setdefault(row.key, row)
        stored = {one.key for one in answers}
        earlier = [
            AnswerRecord(run, row.key, row.result_json or "null", row.ended_at)
            for row in interrupts
            if row.status is OpStatus.DONE and row.key not in stored
        ]
        known = [*earlier, *answers]
        asked = unanswered_rows(interrupts, known)
        return cls(run, [as_question(row) for row in first.values()], [as_question(row) for row in asked], known)

    def bound(self, given: Given, now: float, by: str) -> list[AnswerRecord]:
        """The answers, each bound to its question. Raises `AlreadyAnswered`, `SeveralQuestions`, `RunNotFound`."""
        keys = {self.question(id).key: text for id, text in given.by_id.items()}
        if len(keys) < len(given.by_id):
            raise AmbiguousRef(f"run {self.run}: one question was given two answers")
        if given.to_the_only is not None:
            keys[self._only().key] = given.to_the_only
        for key in keys:
            if (before := self._answers.get(key)) is not None:
                raise self.answered(before)
        return [AnswerRecord(self.run, key, text, now, by) for key, text in keys.items()]

    def _only(self) -> OpenQuestion:
        if len(self.open) > 1:
            raise SeveralQuestions(
                f"run {self.run} waits for {len(self.open)} answers, and this one does not say which it is:\n"
                f"{listed(self.open)}\nName the question: `ramify resume {self.run} --answer ID=JSON`",
                questions=self.open,
            )
        if not self.open:
            if self._answers:
                last = max(self._answers.values(), key=lambda one: one.answered_at)
                raise self.answered(last, f"run {self.run} waits for no answer: ")
            raise RunError(f"run {self.run} waits for no answer: resume it without one")
        return self.open[0]

    def knows(self, id: str, *, whole: bool = False) -> bool:
        """Whether the run has asked a question of that id, or, unless `whole`, of one that begins so."""
        return bool(self._named(id, whole=whole))

    def question(self, id: str) -> OpenQuestion:
        """The question of that id. Raises `RunNotFound` and `AmbiguousRef`."""
        found = self._named(id, whole=True) or self._named(id)
        if len(found) > 1:
            raise AmbiguousRef(f"several questions of run {self.run} begin with {id!r}: write more of it")
        if not found:
            waiting = f"It waits for:\n{listed(self.open)}" if self.open else "It waits for no answer"
            raise RunNotFound(f"run {self.run} has asked no question {id!r}. {waiting}")
        return found[0]

    def _named(self, id: str, *, whole: bool = False) -> list[OpenQuestion]:
        if whole or len(id) < _SHORTEST:
            return [one for one in self._ever.values() if id in (one.id, one.native)]
        return [one for one in self._ever.values() if one.id.startswith(id) or id == one.native]

    def answered(self, before: AnswerRecord, why: str = "") -> AlreadyAnswered:
        """The error for who comes second."""
        question = self._ever[before.key]
        asked = f" ({question.summary})" if question.summary else ""
        when = f", on {_instant(before.answered_at)}" if before.answered_at else ""
        by = f", by {before.answered_by}" if before.answered_by else ""
        return AlreadyAnswered(
            f"{why}question {question.id}{asked} of run {self.run} was answered already{when}{by}, "
            f"with {_short(before.answer_json)}. That answer stands: `ramify resume {self.run}` goes on with it",
            question_id=question.id,
            read_answer=partial(_value, before.answer_json),  # not now: who only answers imports nothing
            answered_at=before.answered_at or None,
            answered_by=before.answered_by,
        )


def listed(questions: Iterable[OpenQuestion]) -> str:
    """A line for each: its id, and how its text begins."""
    return "\n".join(f"  {one.id}  {one.summary}" for one in questions)


async def inbox_of(store: RunStore, run: RunId) -> Inbox:
    return Inbox.of_rows(run, await store.interrupts(run), await store.answers(run))


async def store_answers(store: RunStore, inbox: Inbox, given: Given, *, clock: Callable[[], float], by: str) -> None:
    """Make answers durable: all of them, or none. Raises `AlreadyAnswered` where another person was first, besides
    what `Inbox.bound` raises."""
    bound = inbox.bound(given, clock(), by)
    if (before := await store.put_answers(inbox.run, bound)) is not None:
        raise inbox.answered(before)


def _instant(value: float) -> str:
    return datetime.fromtimestamp(value, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _value(encoded: str) -> object:
    """As JSON says it where the classes of the value are not here."""
    try:
        return codec.decode(encoded)
    except Exception:  # noqa: BLE001  whatever the import of a class raises
        return json.loads(encoded)


def _short(encoded: str, most: int = 200) -> str:
    text = json.dumps(json.loads(encoded), ensure_ascii=False)
    return text if len(text) <= most else f"{text[: most - 1]}…"
