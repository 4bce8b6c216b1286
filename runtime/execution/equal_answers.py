"""Equal model calls whose order is another in each process: the answer to one could be given to another at a resume.
As for steps (`equal_calls`), such a resume is refused if the recorded answers are not all equal.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from ramify.compiler.plan import EQUAL, MAYBE_EQUAL, Plan
from ramify.runtime.errors import CallNotTold
from ramify.runtime.journal.equal_calls import SET_ORDER, THREADS, TOLD_SINCE_PLAN, WHO, differ
from ramify.runtime.journal.journal import Journal
from ramify.runtime.records import LLMRecord
from ramify.runtime.user_code.hash_order import order_of_sets
from ramify.runtime.user_code.worker_threads import calling_thread
from ramify.runtime.user_code.workflow_tasks import reading_task


def refuse_swapped_answers(journal: Journal, plan: Plan, order: str, rows: Sequence[LLMRecord]) -> None:
    """Raise `CallNotTold` if a recorded answer may belong to another call than the one that is made now.

    order: how the calls follow the order of a set, as `UNORDERED`.
    rows: one for each call.
    """
    for row in rows:
        one_thread = journal.equal.is_one_thread(row.key, calling_thread())
        one_thread = journal.equal.is_one_reader(row.key, reading_task()) and one_thread
        beside = journal.equal.answers(row.key)
        if plan.version < TOLD_SINCE_PLAN or not beside:
            continue
        is_recorded = journal.is_recorded(row.key)
        marks = [json.loads(one.tags_json) for one in beside]
        why = (
            journal.equal.by_chance(row.key)
            if not one_thread
            else next((m[THREADS] for m in marks if THREADS in m), "")
        )
        if why and differ(beside, is_recorded):
            raise journal.stop(
                CallNotTold(
                    f"run {row.run_id}: {WHO[why]} made equal model calls and got different "
                    "answers. They take turns by chance, so the answers could be swapped now: make the prompts "
                    "differ, or call the model in one thread or task, and resume with --accept-changes"
                )
            )
        several = len(beside) > 1 or not row.key.endswith("|0")
        may_be_equal = order == EQUAL or (order == MAYBE_EQUAL and several)
        others = any(each.get(SET_ORDER, order_of_sets()) != order_of_sets() for each in marks)
        if may_be_equal and others and differ(beside, is_recorded and several):
            raise journal.stop(
                CallNotTold(
                    f"run {row.run_id}: equal model calls were made in a loop over a set. Its order was another in "
                    "the process that recorded the answers, so they could be given to other elements of the set. "
                    "Resume with the PYTHONHASHSEED of the first process if it had one; or change the code (put the "
                    "element into the prompt, or loop over sorted(...)) and resume with --accept-changes"
                )
            )


def marks_of(journal: Journal, key: str, order: str) -> dict[str, str]:
    """Return what is recorded with an answer, so that a resume can tell whether equal calls may be swapped."""
    marks = {SET_ORDER: order_of_sets()} if order else {}
    return marks | ({THREADS: why} if (why := journal.equal.by_chance(key)) else {})
