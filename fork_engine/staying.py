"""Sealing upper folders that stay where they are: others than the shell live in the world, or stand on its root.

Such an upper holds all that changed since the world began. What the last seal made of it is known, so a layer of what
changed since then is copied, over that seal's stack, and only files that are not as they were then are read.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from ramify.fork_engine.diff import layer_between
from ramify.fork_engine.manifest import Manifest
from ramify.fork_engine.scan import Stamps
from ramify.fork_engine.sealing import Upper
from ramify.fork_engine.types import Entry, EntryKind, Snapshot
from ramify.fork_engine.view import View, differing


@dataclass(slots=True)
class Stayed:
    """What the last seal of a world's uppers made, where they stayed. The world keeps it, and hands it in again."""

    snapshot: Snapshot | None = None
    _stamps: dict[Path, Stamps] = field(default_factory=dict)

    def known(self, upper: Path) -> Stamps:
        return self._stamps.get(upper, {})

    def note(self, read: Upper | None) -> None:
        if read is not None:
            self._stamps[read.folder] = read.scan.stamps

    def distrust(self) -> None:
        """Files may be written without a later time: by a mapping that is there already."""
        self._stamps.clear()

    def forget(self) -> None:
        """The uppers are gone, or sealed by moving them."""
        self.snapshot = None
        self._stamps.clear()


def since(read: Upper, before: View) -> Upper | None:
    """The same upper, as the layer that shows it over `before`: with no entries where nothing changed.

    None where no such layer says the same, as after a folder became opaque: then it is to be taken whole.
    """
    changed = set(differing(before, read.view))
    changed.update([member for path in changed for member in read.manifest.groups.get(path, ())])
    made = Manifest(dict(_over(before, read.view, changed)), read.manifest.root)
    if any(
        entry.kind is EntryKind.FILE and path not in read.manifest.entries for path, entry in made.entries.items()
    ):
        return None
    stacked = before.stacked(made)
    if stacked.root != read.view.root or differing(stacked, read.view):
        return None
    return Upper(read.folder, read.scan, made, stacked)


def _over(before: View, after: View, changed: set[str]) -> Iterator[tuple[str, Entry]]:
    """A folder that is there already must not hide what it holds there."""
    for path, entry in layer_between(before, after, changed).items():
        yield path, replace(entry, opaque=False) if entry.opaque and before.is_folder(path) else entry
