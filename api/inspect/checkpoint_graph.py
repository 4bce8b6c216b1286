"""The checkpoints of a run as a graph beside a list, newest first, as `git log --graph` draws commits.

Each row has a column for every line of descent that is open there. A checkpoint is in the column of the child that
waits for it. If several children wait, their lines join just above it (they were forked from it); if it has several
parents, the lines part just below it (it is a merge). Pure: checkpoints in, rows out; the cost is rows times open
columns.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from ramify.runtime.records import CheckpointId, CheckpointRecord

NODE, LINE, GAP = "●", "│", " "


@dataclass(frozen=True, slots=True)
class GraphRow:
    """A checkpoint with the lines beside it, or (`checkpoint` is None) lines that join or part."""

    lines: str
    checkpoint: CheckpointRecord | None = None


class GraphNode(Protocol):
    """What can be drawn."""

    @property
    def id(self) -> CheckpointId: ...
    @property
    def seq(self) -> int: ...
    @property
    def parents(self) -> tuple[CheckpointId, ...]: ...


N = TypeVar("N", bound=GraphNode)


def rows(checkpoints: Iterable[CheckpointRecord]) -> Iterator[GraphRow]:
    """`checkpoints` in any order; the line of a missing parent ends."""
    return (GraphRow(lines, one) for lines, one in draw(checkpoints))


def draw(nodes: Iterable[N]) -> Iterator[tuple[str, N | None]]:
    """Each row's lines, with the node on it, if any; see `rows`."""
    newest_first = sorted(nodes, key=lambda one: one.seq, reverse=True)
    here = {one.id for one in newest_first}
    columns: list[CheckpointId | None] = []
    for one in newest_first:
        waiting = [at for at, wanted in enumerate(columns) if wanted == one.id]
        at = waiting[0] if waiting else _free(columns, -1)
        if len(waiting) > 1:
            yield _joined(columns, at, waiting[1:], ("┴", "┘")), None
            for other in waiting[1:]:
                columns[other] = None
        columns[at] = one.id
        _trim(columns)
        yield "".join(NODE if i == at else _mark(c) for i, c in enumerate(columns)), one
        parents = [parent for parent in one.parents if parent in here]
        columns[at] = parents[0] if parents else None
        parted = [_free(columns, at) for _ in parents[1:]]
        for column, parent in zip(parted, parents[1:], strict=True):
            columns[column] = parent
        if parted:
            yield _joined(columns, at, parted, ("┬", "┐")), None
        _trim(columns)


def ancestry(checkpoints: Sequence[CheckpointRecord], of: CheckpointRecord) -> list[CheckpointRecord]:
    """A checkpoint and all of its ancestors among `checkpoints`."""
    by_id = {one.id: one for one in checkpoints}
    found: dict[CheckpointId, CheckpointRecord] = {}
    todo = [of]
    while todo:
        one = todo.pop()
        if one.id not in found:
            found[one.id] = one
            todo += [by_id[parent] for parent in one.parents if parent in by_id]
    return list(found.values())


def _free(columns: list[CheckpointId | None], after: int) -> int:
    """The first empty column to the right of `after`; a new one if there is none."""
    for at in range(after + 1, len(columns)):
        if columns[at] is None:
            columns[at] = CheckpointId("")  # reserved: the caller sets what it waits for
            return at
    columns.append(CheckpointId(""))
    return len(columns) - 1


def _joined(columns: Sequence[CheckpointId | None], at: int, others: Sequence[int], ends: tuple[str, str]) -> str:
    """`at` connected to columns on its right; `ends`: the marks of an inner and of the outermost of them."""
    last = max(others)
    drawn = []
    for i, wanted in enumerate(columns):
        if i == at:
            drawn.append("├")
        elif i == last:
            drawn.append(ends[1])
        elif at < i < last:
            drawn.append(ends[0] if i in others else "─" if wanted is None else "┼")
        else:
            drawn.append(_mark(wanted))
    return "".join(drawn)


def _mark(wanted: CheckpointId | None) -> str:
    return GAP if wanted is None else LINE


def _trim(columns: list[CheckpointId | None]) -> None:
    while columns and columns[-1] is None:
        columns.pop()
