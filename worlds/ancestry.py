"""The snapshot from which two states come: the base of their three-way merge."""

from __future__ import annotations

from ramify.fork_engine.errors import SnapshotCorrupt, SnapshotNotFound
from ramify.fork_engine.store import SnapshotStore
from ramify.fork_engine.types import Snapshot, SnapshotId
from ramify.worlds.errors import NoCommonAncestor


def common_ancestor(store: SnapshotStore, ours: Snapshot, theirs: Snapshot) -> Snapshot:
    """The nearest snapshot that is an ancestor of both, or one of the two. Costs one record per snapshot in between.

    Raises `NoCommonAncestor`, also if the records between were deleted.
    """
    reached: tuple[dict[SnapshotId, None], dict[SnapshotId, None]] = ({ours.id: None}, {theirs.id: None})
    edges = [[ours], [theirs]]
    while any(edges):
        for side, edge in enumerate(edges):
            for snapshot in edge:
                if snapshot.id in reached[1 - side]:
                    return snapshot
            edges[side] = _parents(store, edge, reached[side])
    raise NoCommonAncestor(
        f"the states {ours.id[:12]} and {theirs.id[:12]} have no common ancestor in the store: name the state from "
        "which both come, `merge(…, base=SNAPSHOT)`"
    )


def _parents(store: SnapshotStore, edge: list[Snapshot], reached: dict[SnapshotId, None]) -> list[Snapshot]:
    found = []
    for snapshot in edge:
        for parent in (*snapshot.parents, *(one for pair in snapshot.merges for one in pair)):
            if parent in reached:
                continue
            reached[parent] = None
            try:
                found.append(store.get(parent))
            except (SnapshotNotFound, SnapshotCorrupt):
                continue  # it was collected: another way may lead further
    return found
