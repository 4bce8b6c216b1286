"""Ask a person in the middle of a workflow (`ramify.interrupt`): the run waits until the question is answered.

The question is a journal row with the status ASKED. The answer is stored under the question's key (`inbox`), and
becomes a journal row with the status DONE when a process of the run reaches the question. In between no process of
the run needs to exist: a resume reaches the same question at the same place. A question that the workflow cancels, by
a timeout for example, is withdrawn: a resume waits until it is cancelled again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Collection, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from ramify.compiler.plan import OpId, OpKind
from ramify.runtime.codec import codec
from ramify.runtime.codec.digests import digest_in_journal
from ramify.runtime.codec.encoded_value import Encoded
from ramify.runtime.errors import RunWaiting
from ramify.runtime.events import Noticed
from ramify.runtime.execution.question_waits import AnswersNeeded, QuestionWaits, RunCallbacks
from ramify.runtime.execution.run import Run, RunScope, go_where_sealed_before, new_row, seal_before
from ramify.runtime.journal.cancelled_calls import cancelled_as_before
from ramify.runtime.journal.inbox import OpenQuestion, as_question, listed, unanswered_rows
from ramify.runtime.records import AnswerRecord, OpRecord, OpStatus, RunId
from ramify.runtime.store import RunStore
from ramify.runtime.user_code.call_sites import CallSite


def begin_asking(scope: RunScope, question: Any, site: CallSite) -> Awaitable[Any]:
    """Take the question's key now, in program order, and return the awaitable that asks it."""
    op = scope.run.op(OpKind.INTERRUPT, site)
    encoded = Encoded(question)
    key = scope.run.journal.key(
        scope.branch.path, op.id, "ask", digest_in_journal(scope.run.journal, question, encoded)[:16]
    )
    return _ask(scope, op.id, key, encoded.text())


async def _ask(scope: RunScope, op: OpId, key: str, question: str) -> Any:
    began, said = scope.run.clock(), _summary(question)

    def row() -> OpRecord:
        return replace(_row(scope, op, key, question, question, OpStatus.FAILED), started_at=began)

    first = partial(go_where_sealed_before, scope, key)
    async with cancelled_as_before(scope.run.journal, key, f"the question {said!r}", row, first):
        return await _answer(scope, op, key, question)


async def _answer(scope: RunScope, op: OpId, key: str, question: str) -> Any:
    run = scope.run
    assert run.asking is not None, "a run of the decorators"
    async with run.busy():
        async with scope.branch.lock:  # the process may end now: seal, so that no finished step has to run again
            await seal_before(scope, key)
        answer = run.asking.answer(key)
        if (known := run.journal.served(key)) is not None:
            return codec.decode(known.result_json or "null")
        run.journal.refuse_when_stopped()
        if answer is None and run.asking.is_new(key):
            row = _row(scope, op, key, question, question, OpStatus.ASKED)
            await run.journal.record(row)
            run.questions[key] = row
    if answer is None:
        answer = await run.asking.wait(key)
    async with run.busy():
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
        summary=_summary(result),
    )


def _summary(encoded: str) -> str:
    return str(codec.decode(encoded)).partition("\n")[0][:80]


def asking_of(run: Run, store: RunStore, ops: Sequence[OpRecord], answers: Sequence[AnswerRecord]) -> QuestionWaits:
    """Make the run's object for open questions, from its journal and the stored answers. Fills `run.questions`."""
    rows = [row for row in ops if row.kind is OpKind.INTERRUPT]
    run.questions.update((row.key, row) for row in unanswered_rows(rows))

    async def look() -> dict[str, str]:
        return {one.key: one.answer_json for one in await store.answers(run.record.id)}

    def waits_on(keys: Collection[str]) -> None:
        said = listed(as_question(row) for key, row in run.questions.items() if key in keys)
        run.recovery.emit(
            Noticed(
                run.record.id,
                f"asks, while its other steps continue:\n{said}\nAnswer with `ramify answer ID JSON`",
            )
        )

    return QuestionWaits(
        RunCallbacks(run.works, lambda: run.journal.pulse, run.journal.stop, look, waits_on),
        answers={one.key: one.answer_json for one in answers},
        asked=run.questions,
    )


def waiting(run: Run, asked: AnswersNeeded) -> RunWaiting:
    """Return the error with which the run ends, which lists every open question."""
    questions = [as_question(row) for key, row in run.questions.items() if key in asked.keys]
    return run_waiting(run.record.id, questions)


def run_waiting(run: RunId, questions: Sequence[OpenQuestion]) -> RunWaiting:
    first = questions[0].question
    if len(questions) == 1:
        said = (
            f"run {run} asks: {first}\nAnswer it with `ramify resume {run} --answer JSON`, or without resuming with "
            f"`ramify answer {questions[0].id} JSON`"
        )
    else:
        said = (
            f"run {run} asks {len(questions)} questions:\n{listed(questions)}\n"
            f"Answer them with `ramify resume {run} --answer ID=JSON`; --answer may be repeated"
        )
    return RunWaiting(said, question=first, run_id=run, questions=questions)
