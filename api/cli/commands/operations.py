"""Rows of the journal as the command line says them."""

from __future__ import annotations

import json
from collections.abc import Sequence

from ramify.cli.branch_tree import shown
from ramify.compiler.plan import OpKind
from ramify.inspect.history import result_of
from ramify.inspect.text import fitted, seconds, table
from ramify.runtime.records import AGAIN, OpRecord, OpStatus, RunRecord


def op_lines(ops: Sequence[OpRecord]) -> list[str]:
    header = ("SEQ", "PLAN OP", "KIND", "BRANCH", "STEP", "TOOK", "SNAPSHOT", "WHAT CAME OF IT")
    rows = []
    for op in ops:
        took = "-" if op.kind in (OpKind.SEAL, OpKind.RELEASE) else seconds(op.ended_at - op.started_at)
        said = "" if op.kind is OpKind.SEAL and AGAIN not in op.attrs else op.summary
        if op.reused_from:
            said = f"reused from {op.reused_from}: {op.summary}"
        if op.status is OpStatus.UNDONE:
            said = f"undone: {said}"
        if op.error:
            said = f"failed: {op.error.splitlines()[0]}"
        rows.append(
            (
                str(op.seq),
                op.op_id,
                op.kind.value,
                op.branch,
                shown(op.step or ""),
                took,
                (op.snapshot_out or "")[:12],
                fitted(shown(said), 60),
            )
        )
    return table(header, rows, right=("SEQ", "TOOK"))


def op_object(run: RunRecord, op: OpRecord) -> dict[str, object]:
    return {
        "seq": op.seq,
        "key": op.key,
        "plan_op": op.op_id,
        "kind": op.kind.value,
        "branch": op.branch,
        "step": op.step,
        "status": op.status.value,
        "summary": op.summary,
        "result": json.loads(result_of(run, op) or "null") if op.step is not None else None,
        "reused_from": op.reused_from,
        "snapshot": op.snapshot_out,
        "took_s": op.ended_at - op.started_at,
        "error": op.error,
    }
