"""What a text is looked for in: of a node everything that its row stands for, of other views what they show."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from ramify.browse.state import state_at
from ramify.browse.tui.lines import Line
from ramify.browse.tui.view import matches
from ramify.fork_engine.errors import SnapshotNotFound

if TYPE_CHECKING:
    from ramify.browse.history import History
    from ramify.browse.tui.nodes import Graph, Node
    from ramify.fork_engine.store import SnapshotStore


def texts(history: History, snapshots: SnapshotStore, node: Node) -> Iterator[str]:
    """Branch, label and id; steps with what came of them; questions and answers; the paths of files that changed.

    The cheapest first: a search stops at the first that fits.
    """
    yield node.branch
    if node.checkpoint is not None:
        yield f"{node.checkpoint.id} {node.checkpoint.label}"
    for moment in node.moments:
        yield f"{moment.name} {moment.summary}"
        if moment.op is not None:
            yield moment.op.error or ""
            yield _read(history.result_of(moment.op))
        if moment.llm is not None:
            yield _read(moment.llm.request_json)
            yield _read(moment.llm.result_json)
    if node.checkpoint is not None and node.parents:
        try:
            change = state_at(history, snapshots, node.checkpoint).change
            yield from (one.path for one in change.files) if change is not None else ()
        except SnapshotNotFound:  # collected: what it changed is not known any more, all else is
            return


def find_node(
    graph: Graph, snapshots: SnapshotStore, needle: str, start: int, step: int, stopped: Callable[[], bool]
) -> int | None:
    """The row of the next node, from `start` on and round the end, that has the needle. May read snapshots, and so
    take long where there are many: `stopped` is asked before each whether anybody still waits."""
    rows = sorted(graph.at_row)

    def fits(at: int) -> bool:
        return not stopped() and any(
            matches(text, needle) for text in texts(graph.history, snapshots, graph.at_row[rows[at]])
        )

    begin = next((at for at, row in enumerate(rows) if row >= start), 0)
    if step < 0:
        begin = next((at for at in range(len(rows) - 1, -1, -1) if rows[at] <= start), len(rows) - 1)
    found = _round(len(rows), begin, step, fits)
    return None if found is None else rows[found]


def find_line(lines: Sequence[Line], needle: str, start: int, step: int) -> int | None:
    return _round(len(lines), start, step, lambda at: matches(lines[at].text, needle))


def _round(count: int, start: int, step: int, fits: Callable[[int], bool]) -> int | None:
    for far in range(count):
        at = (start + far * step) % count
        if fits(at):
            return at
    return None


def _read(kept: str | None) -> str:
    """The texts inside a value of the journal, as somebody would type them."""
    return "" if kept is None else "\n".join(_strings(json.loads(kept)))


def _strings(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for one in value:
            yield from _strings(one)
    elif isinstance(value, dict):
        for key, one in value.items():
            yield str(key)
            yield from _strings(one)
    elif value is not None:
        yield json.dumps(value)
