"""Equal calls whose order is another in each process: of threads, or readers of streams, that take turns
by chance, and of loops over sets.

Nothing tells them apart at a resume, so the recorded result of one could be given to another. An irreversible step is
refused before it is done. Any other step is refused at the resume, if its recorded results are not all equal.
"""

from __future__ import annotations

from collections.abc import Sequence

from ramify.compiler.plan import EQUAL, MAYBE_EQUAL, PICKED, Effect, PlanOp
from ramify.runtime.errors import CallNotTold
from ramify.runtime.execution.run import RunScope
from ramify.runtime.execution.step_call import StepCall, StepDef
from ramify.runtime.journal.equal_calls import SET_ORDER, THREADS, TOLD_SINCE_PLAN, WHO, differ
from ramify.runtime.records import OpRecord
from ramify.runtime.user_code.hash_order import is_order_fixed, order_of_sets
from ramify.runtime.user_code.worker_threads import calling_thread
from ramify.runtime.user_code.workflow_tasks import reading_task

_THREADS_MEND = "pass an argument that tells them apart, or call it in one thread or task"
_SETS_MEND = "pass the element as an argument, or loop over sorted(...)"


def refuse_untold_call(scope: RunScope, step: StepDef, op: PlanOp, key: str) -> None:
    """Raise `CallNotTold` if the call of a step cannot be told apart from an equal one."""
    journal, run = scope.run.journal, scope.run.record.id
    one_thread = journal.equal.is_one_thread(key, calling_thread())
    one_thread = journal.equal.is_one_reader(key, reading_task()) and one_thread
    order = scope.run.sets.order_of(op)
    again = bool(order) and journal.equal.is_again(key, step.name, journal.stands)
    if order == PICKED:
        _refuse_other_pick(scope, step, op, key)
    if step.effect is Effect.IRREVERSIBLE:
        if not one_thread:
            raise journal.stop(
                CallNotTold(
                    f"run {run}: {WHO[journal.equal.by_chance(key)]} call step {step.name!r} with equal arguments. "
                    "The step is irreversible, and they take turns by chance, so a resume could give the result of "
                    f"one call to the other: {_THREADS_MEND}"
                )
            )
        is_equal = order == EQUAL or (order == MAYBE_EQUAL and again)
        if is_equal and not is_order_fixed():
            raise journal.stop(
                CallNotTold(
                    f"run {run}: step {step.name!r} at {op.site} is irreversible, and is called with equal arguments "
                    "in a loop over a set, whose order is another in each process. A resume could give the result of "
                    f"one call to another element of the set: {_SETS_MEND}"
                )
            )
        return
    is_marked = scope.run.plan.version >= TOLD_SINCE_PLAN
    if step.reuse or not is_marked or (one_thread and not again):
        return
    beside = journal.equal.recorded(key, step.name)
    is_new = beside and not journal.is_recorded(key) and again
    if order and is_new and differ(beside, is_recorded=False) and _were_in_another_order(beside):
        raise journal.stop(_swapped_by_order(scope, step.name, op))
    if one_thread:
        return
    if differ(beside, journal.is_recorded(key)):
        raise journal.stop(_swapped_by_threads(scope, step.name, journal.equal.by_chance(key)))


def refuse_swapped_result(call: StepCall, row: OpRecord) -> None:
    """Raise `CallNotTold` if the recorded result may belong to another call."""
    journal, beside = call.scope.run.journal, call.scope.run.journal.equal.recorded(call.key, call.step.name)
    is_marked = call.scope.run.plan.version >= TOLD_SINCE_PLAN
    if call.step.reuse or not is_marked:
        return
    why = next((one.attrs[THREADS] for one in beside if THREADS in one.attrs), None)
    order = call.scope.run.sets.order_of(call.op)
    may_be_equal = order == EQUAL or (order == MAYBE_EQUAL and len(beside) > 1)
    if (why is None and not may_be_equal) or not differ(beside, len(beside) > 1):
        return
    if why is not None:
        raise journal.stop(_swapped_by_threads(call.scope, call.step.name, why))
    if _were_in_another_order([row]):
        raise journal.stop(_swapped_by_order(call.scope, call.step.name, call.op))


def _refuse_other_pick(scope: RunScope, step: StepDef, op: PlanOp, key: str) -> None:
    """Raise `CallNotTold` if the argument of a call depends on the order of a set, and a call with another argument
    was made in another order and is not reached now."""
    journal, path = scope.run.journal, scope.branch.path
    if step.effect in (Effect.PURE, Effect.READONLY) or journal.knows(key):
        return
    done = list(journal.unreached_steps_at(path, op.id))
    began = step.effect is Effect.IRREVERSIBLE and any(journal.unreached_effects_at(path, op.id))
    if (done and _were_in_another_order(done)) or (began and not done and not is_order_fixed()):
        raise journal.stop(
            CallNotTold(
                f"run {scope.run.record.id}: an argument of step {step.name!r} at {op.site} depends on the order of "
                "a set, which is another now, and the step was called with another argument. It is not done again: "
                "resume with the PYTHONHASHSEED of the first process if it had one; or use sorted(...), min(...) or "
                "the like instead, and resume with --accept-changes"
            )
        )


def _were_in_another_order(rows: Sequence[OpRecord]) -> bool:
    return any(row.attrs.get(SET_ORDER, order_of_sets()) != order_of_sets() for row in rows)


def _swapped_by_order(scope: RunScope, step: str, op: PlanOp) -> CallNotTold:
    return CallNotTold(
        f"run {scope.run.record.id}: step {step!r} at {op.site} was called with equal "
        "arguments in a loop over a set. Its order was another in the process that recorded the results, so "
        "they could be given to other elements of the set. Resume with the PYTHONHASHSEED of the first "
        f"process if it had one; or change the code ({_SETS_MEND}) and resume with --accept-changes"
    )


def _swapped_by_threads(scope: RunScope, step: str, why: str) -> CallNotTold:
    return CallNotTold(
        f"run {scope.run.record.id}: {WHO[why]} called step {step!r} with equal arguments and got "
        "different results. They take turns by chance, so the results could be swapped now: "
        f"{_THREADS_MEND}, and resume with --accept-changes"
    )
