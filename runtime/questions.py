"""Asking a person in the middle of a workflow: the run stops, and goes on when it is given the answer.

The question is a row of the journal (ASKED), the answer the row that is honoured ever after (DONE). Between the two
nothing of the run needs to live: its process ends, and a resume meets the same question at the same place.
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import Any

from ramify.compiler.plan import OpId, OpKind
from ramify.runtime import codec
from ramify.runtime.earlier_forms import digest_in
from ramify.runtime.errors import RunError
from ramify.runtime.records import OpRecord, OpStatus
from ramify.runtime.run import RunScope, new_row, sealed_before
from ramify.runtime.sites import CallSite


class Asked(BaseException):
    """Unwinds the workflow. Not an `Exception`: a workflow's own handlers are not meant for it."""

    def __init__(self, question: Any) -> None:
        self.question = question
        super().__init__(question)


def begin_asking(scope: RunScope, question: Any, site: CallSite) -> Awaitable[Any]:
    """Give out the question's key now, in program order, and return what asks it."""
    op = scope.run.op(OpKind.INTERRUPT, site)
    encoded = codec.encode(question)
    key = scope.run.journal.key(scope.branch.path, op.id, "ask", digest_in(scope.run.journal, question, encoded)[:16])
    return _ask(scope, op.id, key, encoded)


async def _ask(scope: RunScope, op: OpId, key: str, question: str) -> Any:
    run = scope.run
    async with scope.branch.lock:  # the process is about to end: what stands is not to be done again
        await sealed_before(scope, key)
    if (known := run.journal.served(key)) is not None:
        return codec.decode(known.result_json or "null")
    run.journal.refuse_when_stopped()
    answer = run.answers.pop(key, None)
    if answer is None:
        if key not in run.asked:
            run.asked.add(key)
            await run.journal.record(_row(scope, op, key, question, question, OpStatus.ASKED))
        raise Asked(codec.decode(question))
    await run.journal.record(_row(scope, op, key, question, answer, OpStatus.DONE))
    return codec.decode(answer)


def _row(scope: RunScope, op: OpId, key: str, question: str, result: str, status: OpStatus) -> OpRecord:
    return new_row(
        scope,
        OpKind.INTERRUPT,
        op,
        key,
        status=status,
        args_digest=codec.digest_text(question),
        result_json=result,
        result_digest=codec.digest_text(result),
        started_at=scope.run.clock(),
        summary=str(codec.decode(result)).partition("\n")[0][:80],
    )


def open_questions(ops: Sequence[OpRecord]) -> list[OpRecord]:
    """What was asked and not answered, the first first. A run that went back to before a question did not ask it."""
    answered = {row.key for row in ops if row.status is OpStatus.DONE}
    asked = {row.key: row for row in reversed(ops) if row.status is OpStatus.ASKED and row.key not in answered}
    return sorted(asked.values(), key=lambda row: row.seq)


def answers_to(ops: Sequence[OpRecord], answer: str | None, run: str) -> dict[str, str]:
    """The encoded answer, under the key of the question that it is for. Raises `RunError` where none is open."""
    if answer is None:
        return {}
    questions = open_questions(ops)
    if not questions:
        raise RunError(f"run {run} waits for no answer: resume it without one")
    return {questions[0].key: answer}


def asked_in(error: BaseException) -> Asked | None:
    """The question that unwound the workflow, also out of a task group."""
    if isinstance(error, Asked):
        return error
    if isinstance(error, BaseExceptionGroup):
        return next((found for one in error.exceptions if (found := asked_in(one)) is not None), None)
    return None
