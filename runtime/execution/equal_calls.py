"""Equal calls whose order is another in each process: of threads that take turns by chance, and of loops over sets.

Nothing tells them apart at a resume, so the recorded result of one could be given to another. An irreversible step is
refused before it is done. Any other step is refused at the resume, if its recorded results are not all equal.
"""

from __future__ import annotations

from ramify.compiler.plan import EQUAL, UNORDERED, Effect, PlanOp
from ramify.runtime.errors import CallNotTold
from ramify.runtime.execution.run import RunScope
from ramify.runtime.execution.step_call import SET_ORDER, THREADS, StepCall, StepDef
from ramify.runtime.records import OpRecord
from ramify.runtime.user_code.hash_order import is_order_fixed, order_of_sets
from ramify.runtime.user_code.worker_threads import calling_thread

_NOTHING = (None, "null")
_SINCE_PLAN = 9  # runs with earlier plans were recorded without marks of such calls, and resume as they did
_THREADS_MEND = "pass an argument that tells them apart, or call it in one thread"
_SETS_MEND = "pass the element as an argument, or loop over sorted(...)"


def refuse_untold_call(scope: RunScope, step: StepDef, op: PlanOp, key: str) -> None:
    """Raise `CallNotTold` if the call of a step cannot be told apart from an equal one."""
    journal, run = scope.run.journal, scope.run.record.id
    one_thread = journal.equal.is_one_thread(key, calling_thread())
    if step.effect is Effect.IRREVERSIBLE:
        if not one_thread:
            raise journal.stop(
                CallNotTold(
                    f"run {run}: two threads of the workflow call step {step.name!r} with equal arguments. The step "
                    "is irreversible, and threads take turns by chance, so a resume could give the result of one "
                    f"call to the other: {_THREADS_MEND}"
                )
            )
        is_equal = op.attrs.get(UNORDERED) == EQUAL or (UNORDERED in op.attrs and not key.endswith("|0"))
        if is_equal and not is_order_fixed():
            raise journal.stop(
                CallNotTold(
                    f"run {run}: step {step.name!r} at {op.site} is irreversible, and is called with equal arguments "
                    "in a loop over a set, whose order is another in each process. A resume could give the result of "
                    f"one call to another element of the set: {_SETS_MEND}"
                )
            )
        return
    is_marked = scope.run.plan.version >= _SINCE_PLAN
    if one_thread or step.reuse or not is_marked:
        return
    if _differ(journal.equal.recorded(key), journal.is_recorded(key)):
        raise journal.stop(_swapped_by_threads(scope, step.name))


def refuse_swapped_result(call: StepCall, row: OpRecord) -> None:
    """Raise `CallNotTold` if the recorded result may belong to another call."""
    journal, beside = call.scope.run.journal, call.scope.run.journal.equal.recorded(call.key)
    is_marked = call.scope.run.plan.version >= _SINCE_PLAN
    if call.step.reuse or not is_marked or not _differ(beside, len(beside) > 1):
        return
    if any(THREADS in one.attrs for one in beside):
        raise journal.stop(_swapped_by_threads(call.scope, call.step.name))
    may_be_equal = len(beside) > 1 or call.op.attrs.get(UNORDERED) == EQUAL
    if may_be_equal and row.attrs.get(SET_ORDER, order_of_sets()) != order_of_sets():
        raise journal.stop(
            CallNotTold(
                f"run {call.scope.run.record.id}: step {call.step.name!r} at {call.op.site} was called with equal "
                "arguments in a loop over a set. Its order was another in the process that recorded the results, so "
                "they could be given to other elements of the set. Resume with the PYTHONHASHSEED of the first "
                f"process if it had one; or change the code ({_SETS_MEND}) and resume with --accept-changes"
            )
        )


def _differ(rows: list[OpRecord], is_recorded: bool) -> bool:
    """Return whether it may matter which of some equal calls gets which of these results. `is_recorded`: so far as is
    known, all calls have results."""
    if all(row.result_json in _NOTHING for row in rows):
        return False
    return not is_recorded or len({row.result_digest for row in rows}) > 1


def _swapped_by_threads(scope: RunScope, step: str) -> CallNotTold:
    return CallNotTold(
        f"run {scope.run.record.id}: two threads of the workflow called step {step!r} with equal arguments and got "
        "different results. Threads take turns by chance, so the results could be swapped now: "
        f"{_THREADS_MEND}, and resume with --accept-changes"
    )
