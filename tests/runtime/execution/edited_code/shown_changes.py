"""Resumes a run, and compares what happens with what `changes_of_code` shows before: what stays is not run again, and
what is refused was announced."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from ramify import Runtime
from ramify.code_changes import Changes
from ramify.compiler.plan import OpKind, Plan
from ramify.runtime.errors import Diverged, EffectNotMet, RunError, WorkflowChanged
from ramify.runtime.records import OpRecord, OpStatus

_KEPT_AS_IT_IS = re.compile(r"(?P<what>.+) at (?P<where>\S+:\d+:\d+)(?: \(\d+ results\))?")


async def resume_as_shown(runtime: Runtime, run_id: str, *, accepts: bool, **how: Any) -> Any:
    record, before = await runtime.record(run_id), await runtime.journal(run_id)
    try:
        shown = await runtime.changes_of_code(run_id)
    except WorkflowChanged:
        shown = Changes((), refused=("all",))
    try:
        result = await runtime.resume(run_id, accept_changes=accepts, **how)
    except RunError as error:
        _check_error(error, shown, accepts=accepts)
        raise
    else:
        assert accepts or not shown.refused
        return result
    finally:
        _check_kept(shown, Plan.from_json(record.plan_json), before, await runtime.journal(run_id))


def _check_error(error: RunError, shown: Changes, *, accepts: bool) -> None:
    cause = error.__cause__ or error
    if isinstance(cause, WorkflowChanged):
        assert shown.refused or (not accepts and shown.parts)
    elif isinstance(cause, EffectNotMet | Diverged):
        step = str(cause).split("'")[1]
        lines = [line for line in (*shown.kept, *shown.aside) if ": refused if " in line]
        assert any(step in line for line in lines), f"{cause} was not announced:\n{shown}"


def _check_kept(shown: Changes, stored: Plan, before: Iterable[OpRecord], after: Iterable[OpRecord]) -> None:
    if shown.refused:
        return
    where = {found["where"] for line in shown.kept if (found := _KEPT_AS_IT_IS.fullmatch(line))}
    kept = {op.id: op for op in stored.ops if str(op.site) in where}
    known, keys = {(row.key, row.seq) for row in before}, {row.key for row in before if row.status is OpStatus.DONE}
    for row in after:
        op = kept.get(row.op_id)
        if op is None or row.kind is not OpKind.RUN or (row.key, row.seq) in known or op.origin is None:
            continue
        assert row.key not in keys, f"{op.step} at {op.site} ran again:\n{shown}"
        assert op.origin.repeats or op.id not in {one.op_id for one in before}, f"{op.step} ran again:\n{shown}"
