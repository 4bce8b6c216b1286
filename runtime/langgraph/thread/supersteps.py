"""Joining the tasks of a superstep: a three-way merge of each child in turn, all on the snapshot they forked from."""

from __future__ import annotations

from collections.abc import Sequence

from ramify.fork_engine.errors import MergeConflict
from ramify.fork_engine.store import SnapshotStore
from ramify.fork_engine.types import Snapshot
from ramify.runtime.langgraph.errors import NodesConflict


def merged(store: SnapshotStore, base: Snapshot, children: Sequence[tuple[str, Snapshot]]) -> list[Snapshot | None]:
    """What the world is after each (node, snapshot) was merged in order, None where that one changed nothing.

    Raises `NodesConflict` naming two that do not fit together, the same two whoever finished first.
    """
    here, steps = base, list[Snapshot | None]()
    for number, (node, child) in enumerate(children):
        if child.id == base.id:
            steps.append(None)
            continue
        try:
            here = store.merge(base, here, child, flush=False)
        except MergeConflict as conflict:
            raise _named(store, base, children[:number], node, child, conflict) from conflict
        steps.append(here)
    return steps


def _named(
    store: SnapshotStore,
    base: Snapshot,
    earlier: Sequence[tuple[str, Snapshot]],
    node: str,
    child: Snapshot,
    conflict: MergeConflict,
) -> NodesConflict:
    for other, snapshot in earlier:
        try:
            store.merge(base, snapshot, child)
        except MergeConflict as between:
            return NodesConflict((other, node), between.conflicts)
    return NodesConflict((earlier[-1][0], node), conflict.conflicts)
