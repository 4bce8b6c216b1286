"""From which states others come: the base of a three-way merge, also after a collection.

`ramify gc` deletes the states between two named worlds and the one from which both come. So it first keeps that one
(`merge_bases`), and writes down the parents of the states between (`remember`), also those of living worlds without a
name: some 130 bytes for each.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from ramify import paths
from ramify.fork_engine.errors import SnapshotCorrupt, SnapshotNotFound
from ramify.fork_engine.store import SnapshotStore
from ramify.fork_engine.store_folder import write_durably
from ramify.fork_engine.types import Snapshot, SnapshotId
from ramify.worlds.errors import NoCommonAncestor

_FILE = "ancestry"
_GONE = (SnapshotNotFound, SnapshotCorrupt)


class Ancestry:
    """The parents of the states of a home. `folder`: that of its references; it need not exist. Reads each record
    once, so it is for one question."""

    def __init__(self, store: SnapshotStore, folder: Path) -> None:
        self._store, self._file = store, folder / _FILE
        self._known: dict[SnapshotId, tuple[SnapshotId, ...]] = {}
        self._remembered: dict[SnapshotId, tuple[SnapshotId, ...]] | None = None

    def parents(self, id: SnapshotId) -> tuple[SnapshotId, ...]:
        """What a state was made from, and what was merged into an equal state; () if that is not known any more."""
        if id not in self._known:
            try:
                self._known[id] = _parents_of(self._store.get(id))
            except _GONE:
                self._known[id] = self._read().get(id, ())
        return self._known[id]

    def common_ancestor(self, ours: Snapshot, theirs: Snapshot) -> Snapshot:
        """The nearest state that is an ancestor of both, or one of the two.

        Raises `NoCommonAncestor`, also if it, or what led to it, was deleted.
        """
        reached: tuple[set[SnapshotId], set[SnapshotId]] = ({ours.id}, {theirs.id})
        edges = [[ours.id], [theirs.id]]
        while any(edges):
            for side, edge in enumerate(edges):
                following = []
                for id in edge:
                    if id in reached[1 - side]:
                        with suppress(*_GONE):
                            return self._store.get(id)
                        continue  # one behind it is too old: what this one had would be merged again
                    following += [one for one in self.parents(id) if one not in reached[side]]
                    reached[side].update(following)
                edges[side] = list(dict.fromkeys(following))
        raise NoCommonAncestor(
            f"the states {ours.id[:12]} and {theirs.id[:12]} have no common ancestor in the store: name the state "
            "from which both come, `merge(…, base=SNAPSHOT)`"
        )

    def merge_bases(self, heads: Iterable[SnapshotId]) -> set[SnapshotId]:
        """The states that are the base of a merge of two of these."""
        ways = self._ways(heads)
        bases = {id for id, whose in ways.items() if whose & (whose - 1)}  # of two heads or more
        for id, whose in ways.items():
            bases.difference_update(one for one in self.parents(id) if ways[one] == whose)
        return bases

    def remember(self, heads: Iterable[SnapshotId]) -> None:
        """Write down the parents of every state that leads to one of these; before states are deleted."""
        found, waiting = set[SnapshotId](), list(heads)
        while waiting:
            if (id := waiting.pop()) not in found:
                found.add(id)
                waiting += self.parents(id)
        lines = [" ".join((id, *self.parents(id))) for id in sorted(found) if self.parents(id)]
        paths.make_private(self._file.parent)
        write_durably(self._file, "\n".join(lines))

    def _ways(self, heads: Iterable[SnapshotId]) -> Mapping[SnapshotId, int]:
        """Every state that leads to a head, with the heads that it leads to: a bit for each."""
        found: dict[SnapshotId, int] = {}
        for number, head in enumerate(sorted(set(heads))):
            bit, waiting = 1 << number, [head]
            while waiting:
                id = waiting.pop()
                if not found.get(id, 0) & bit:
                    found[id] = found.get(id, 0) | bit
                    waiting += self.parents(id)
        return found

    def _read(self) -> Mapping[SnapshotId, tuple[SnapshotId, ...]]:
        if self._remembered is None:
            try:
                rows = [line.split() for line in self._file.read_text().splitlines()]
            except FileNotFoundError:
                rows = []
            self._remembered = {SnapshotId(row[0]): tuple(map(SnapshotId, row[1:])) for row in rows if row}
        return self._remembered


def _parents_of(snapshot: Snapshot) -> tuple[SnapshotId, ...]:
    return tuple(dict.fromkeys((*snapshot.parents, *(one for pair in snapshot.merges for one in pair))))
