"""The inbox: open questions of runs, and how an answer is matched to its question.

A question is identified by its journal key: branch, operation, digest of the question, and occurrence. People see a
short id that is computed from run and key. If the text of a question changes, its key changes, and answers to the old
text do not count.

An answer is one row, bound to the key of its question, and durable before the run continues. The first answer to a
question counts.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any

from ramify.compiler.plan import OpKind
from ramify.runtime.codec import codec
from ramify.runtime.errors import AlreadyAnswered, AmbiguousRef, RunError, RunNotFound, SeveralQuestions
from ramify.runtime.records import CANCELLED, ROOT, STANDS, AnswerRecord, BranchPath, OpRecord, OpStatus, RunId

if TYPE_CHECKING:
    from ramify.runtime.store import RunStore

INTERRUPT_KEY = "interrupt|"
"""Prefix of the key of a LangGraph interrupt. The interrupt's id follows, and the number of answers that its task
took before."""
_SHORTEST = 4  # characters of an abbreviated id
_MOST_SHOWN = 200  # characters of a question in a list
_LENGTH = 8
NAMED = re.compile(rf"([0-9a-f]{{{_LENGTH}}}|[0-9a-f]{{32}})=", re.ASCII)
"""Prefix of an answer that names its question: our id, or LangGraph's id of an interrupt with 32 characters."""


def question_id(run: RunId, key: str) -> str:
    """Return the id of a question that people see: equal in every process and every replay."""
    return hashlib.sha256(f"{run}|{key}".encode("utf-8", "surrogatepass")).hexdigest()[:_LENGTH]


@dataclass(frozen=True, slots=True)
class OpenQuestion:
    """A question that waits for an answer. `native`: LangGraph's id if it is an interrupt of a thread."""

    run_id: RunId
    key: str
    question_json: str  # encoded by codec
    asked_at: float  # Unix seconds
    summary: str = ""  # the first line of the question
    branch: BranchPath = ROOT
    native: str | None = None

    @property
    def id(self) -> str:
        return question_id(self.run_id, self.key)

    @property
    def question(self) -> Any:
        """The question's value. Reading it imports the classes of that value."""
        return codec.decode(self.question_json)


def as_question(row: OpRecord) -> OpenQuestion:
    """Return the open question of a journal row."""
    return OpenQuestion(row.run_id, row.key, row.result_json or "null", row.ended_at, row.summary, row.branch)


def unanswered_rows(rows: Iterable[OpRecord], answers: Iterable[AnswerRecord] = ()) -> list[OpRecord]:
    """Return the rows of unanswered questions, in the order in which they were asked. If a run went back to before an
    answer, its question is open again."""
    found = list(rows)
    closed = {(row.run_id, row.key) for row in found if row.status is OpStatus.DONE} | _withdrawn(found)
    closed |= {(one.run_id, one.key) for one in answers}
    asked: dict[tuple[RunId, str], OpRecord] = {}
    for row in found:
        if row.status is OpStatus.ASKED and (row.run_id, row.key) not in closed:
            asked.setdefault((row.run_id, row.key), row)
    return list(asked.values())


def _withdrawn(rows: Iterable[OpRecord]) -> set[tuple[RunId, str]]:
    """Return the keys of the questions that the workflow cancelled, because of a timeout for example, and went on."""
    found = set()
    for row in rows:
        if row.status is OpStatus.FAILED and CANCELLED in row.attrs and row.attrs.get(STANDS) == "yes":
            found.add((row.run_id, row.key))
        elif row.status is OpStatus.ASKED:  # it was not cancelled again, and asks again
            found.discard((row.run_id, row.key))
    return found


def named_answer(text: str) -> tuple[str | None, str]:
    """Split an answer `ID=VALUE` or `VALUE`, as typed, into the id (or None) and the value."""
    found = NAMED.match(text)
    return (None, text) if found is None else (found[1], text[found.end() :])


@dataclass(frozen=True, slots=True)
class Given:
    """Encoded answers to questions of one run: by question id, or one for the only open question."""

    by_id: Mapping[str, str]
    to_the_only: str | None = None

    @property
    def is_empty(self) -> bool:
        return self.to_the_only is None and not self.by_id


class Inbox:
    """The questions of one run: all that were ever asked, those that are open, and the answers."""

    def __init__(
        self,
        run: RunId,
        ever: Sequence[OpenQuestion],
        open: Sequence[OpenQuestion],
        answers: Sequence[AnswerRecord],
        withdrawn: Collection[str] = (),
    ) -> None:
        self.run, self.open, self._withdrawn = run, list(open), withdrawn
        self._ever = {question.key: question for question in [*ever, *open]}
        self._answers = {one.key: one for one in answers if one.key in self._ever}

    @classmethod
    def of_interrupts(cls, run: RunId, asked: Sequence[OpenQuestion], answers: Sequence[AnswerRecord]) -> Inbox:
        """Make the inbox of a LangGraph thread from the interrupts in its checkpoints."""
        given = {one.key for one in answers}
        return cls(run, asked, [one for one in asked if one.key not in given], answers)

    @property
    def answers(self) -> dict[str, str]:
        """The encoded answers, by the key of the question."""
        return {key: one.answer_json for key, one in self._answers.items()}

    @classmethod
    def of_rows(cls, run: RunId, rows: Sequence[OpRecord], answers: Sequence[AnswerRecord]) -> Inbox:
        """Make the inbox from journal rows of kind INTERRUPT. A DONE row without an answer row was answered through
        an earlier version of Ramify."""
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
        ever, open = [as_question(row) for row in first.values()], [as_question(row) for row in asked]
        return cls(run, ever, open, known, {key for _, key in _withdrawn(interrupts)})

    def bound(self, given: Given, now: float, by: str) -> list[AnswerRecord]:
        """Return the answers as rows, each bound to its question. Raises `AlreadyAnswered`, `AmbiguousRef`,
        `SeveralQuestions` and `RunNotFound`."""
        keys = {self.question(id).key: text for id, text in given.by_id.items()}
        if len(keys) < len(given.by_id):
            raise AmbiguousRef(f"run {self.run}: one question was given two answers. Give one")
        if given.to_the_only is not None:
            keys[self._only().key] = given.to_the_only
        for key in keys:
            if (before := self._answers.get(key)) is not None:
                raise self.answered(before)
            if key in self._withdrawn:
                asked = self._ever[key]
                raise RunNotFound(
                    f"question {asked.id} ({asked.summary}) of run {self.run} is no longer open: the workflow "
                    "cancelled it, because of a timeout for example, and continued without an answer"
                )
        return [AnswerRecord(self.run, key, text, now, by) for key, text in keys.items()]

    def _only(self) -> OpenQuestion:
        if len(self.open) > 1:
            raise SeveralQuestions(
                f"run {self.run} has {len(self.open)} open questions, and this answer does not name one:\n"
                f"{listed(self.open)}\nName the question: `ramify resume {self.run} --answer ID=JSON`",
                questions=self.open,
            )
        if not self.open:
            if self._answers:
                last = max(self._answers.values(), key=lambda one: one.answered_at)
                raise self.answered(last, f"run {self.run} has no open question: ")
            raise RunError(f"run {self.run} has no open question: resume it without an answer")
        return self.open[0]

    def knows(self, id: str, *, whole: bool = False) -> bool:
        """Whether the run has asked a question with that id or, unless `whole`, with an id that begins with it."""
        return bool(self._named(id, whole=whole))

    def question(self, id: str) -> OpenQuestion:
        """Return the question with that id or unique prefix. Raises `RunNotFound` and `AmbiguousRef`."""
        found = self._named(id, whole=True) or self._named(id)
        if len(found) > 1:
            raise AmbiguousRef(f"several questions of run {self.run} begin with {id!r}: write more of it")
        if not found:
            waiting = f"It waits for:\n{listed(self.open)}" if self.open else "It has no open question"
            raise RunNotFound(f"run {self.run} has asked no question {id!r}. {waiting}")
        return found[0]

    def _named(self, id: str, *, whole: bool = False) -> list[OpenQuestion]:
        if whole or len(id) < _SHORTEST:
            return [one for one in self._ever.values() if id in (one.id, one.native)]
        return [one for one in self._ever.values() if one.id.startswith(id) or id == one.native]

    def answered(self, before: AnswerRecord, why: str = "") -> AlreadyAnswered:
        """Return the error for a second answer to a question."""
        question = self._ever[before.key]
        asked = f" ({question.summary})" if question.summary else ""
        when = f", on {_instant(before.answered_at)}" if before.answered_at else ""
        by = f", by {before.answered_by}" if before.answered_by else ""
        return AlreadyAnswered(
            f"{why}question {question.id}{asked} of run {self.run} was answered already{when}{by}, "
            f"with {_short(before.answer_json)}. That answer counts: `ramify resume {self.run}` continues with it",
            question_id=question.id,
            read_answer=partial(_value, before.answer_json),  # decoded on demand: it may import the user's modules
            answered_at=before.answered_at or None,
            answered_by=before.answered_by,
        )


def listed(questions: Iterable[OpenQuestion]) -> str:
    """Return one line per question: its id and its summary."""
    return "\n".join(f"  {one.id}  {one.summary}" for one in questions)


async def inbox_of(store: RunStore, run: RunId) -> Inbox:
    return Inbox.of_rows(run, await store.interrupts(run), await store.answers(run))


async def store_answers(store: RunStore, inbox: Inbox, given: Given, *, clock: Callable[[], float], by: str) -> None:
    """Store answers durably: all of them or none. Raises `AlreadyAnswered` if somebody else was first, and what
    `Inbox.bound` raises."""
    bound = inbox.bound(given, clock(), by)
    if (before := await store.put_answers(inbox.run, bound)) is not None:
        raise inbox.answered(before)


def _instant(value: float) -> str:
    return datetime.fromtimestamp(value, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _value(encoded: str) -> object:
    """Decode a value; return its JSON if its classes cannot be imported."""
    try:
        return codec.decode(encoded)
    except Exception:  # noqa: BLE001  whatever the import of a class raises
        return json.loads(encoded)


def _short(encoded: str) -> str:
    text = json.dumps(json.loads(encoded), ensure_ascii=False)
    return text if len(text) <= _MOST_SHOWN else f"{text[: _MOST_SHOWN - 1]}…"
