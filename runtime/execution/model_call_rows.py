"""The rows of model calls that have no answer: they failed, or the workflow left them."""

from __future__ import annotations

from dataclasses import replace

from ramify.compiler.plan import OpKind
from ramify.runtime.errors import error_text
from ramify.runtime.journal import recorded_errors
from ramify.runtime.records import STANDS, LLMRecord, OpRecord, OpStatus


def failed_row(first: LLMRecord, error: Exception, begun: float, now: float) -> OpRecord:
    shown = error_text(error)
    attrs = {STANDS: "yes", **recorded_errors.encoded(error)}
    return replace(row_of(first, begun, now), summary=shown.partition("\n")[0], error=shown, attrs=attrs)


def row_of(first: LLMRecord, begun: float, now: float) -> OpRecord:
    """Return the row of a stage that failed, under the key of the first of its calls."""
    return OpRecord(
        run_id=first.run_id,
        seq=0,
        key=first.key,
        op_id=first.op_id,
        kind=OpKind.CALL_LLM,
        branch=first.branch,
        status=OpStatus.FAILED,
        started_at=begun,
        ended_at=now,
    )
