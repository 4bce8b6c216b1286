"""A run's journal as it stood at an earlier moment. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from ramify.compiler.plan import OpKind
from ramify.runtime.records import CheckpointId, OpRecord, OpStatus, RunId, checkpoint_id

FORKED = "forked"
"""The key of the row that tells which run this one was forked from; most runs have none."""


def forked_from(ops: Iterable[OpRecord]) -> list[RunId]:
    """The runs that a run comes from, as far as its rows tell, the nearest first."""
    forks = [row for row in ops if row.key == FORKED]
    return [RunId(row.attrs["from_run"]) for row in reversed(forks)]


def as_it_was(ops: Sequence[OpRecord], seq: int) -> list[OpRecord]:
    """The journal as it stood when the row numbered `seq` was the last: what was undone later is done in it."""
    back = {row.seq: row.attrs["to"] for row in ops if row.kind is OpKind.RESTORE and "to" in row.attrs}
    if not back:
        return [row for row in ops if row.seq <= seq]
    ids = {checkpoint_id(row.run_id, row.seq): row.seq for row in ops}
    undone = [(ids.get(CheckpointId(to), 0), restore) for restore, to in back.items() if restore <= seq]

    def status(row: OpRecord) -> OpStatus:
        if row.status is not OpStatus.UNDONE:
            return row.status
        return OpStatus.UNDONE if any(to < row.seq < restore for to, restore in undone) else OpStatus.DONE

    return [replace(row, status=status(row)) for row in ops if row.seq <= seq]
