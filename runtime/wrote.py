"""What a step really wrote, for its row: the files of the layer that it left, and the channels of its graph."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

from ramify.fork_engine.store import SnapshotStore
from ramify.fork_engine.types import Snapshot

FILES = "wrote_files"  # a JSON list
CHANNELS = "wrote_channels"  # one a line

MOST = 16
"""Paths of one row. A step that changed more says nothing of which: the plan has no use for a list of thousands."""


def files_written(snapshots: SnapshotStore, before: Snapshot, after: Snapshot) -> dict[str, str]:
    """Attributes of a row; none where no one layer says it."""
    if after.layers[:-1] != before.layers or not after.layers:
        return {}
    paths = snapshots.layer_files(after.layers[-1])
    return {FILES: json.dumps(paths)} if len(paths) <= MOST else {}


def written(rows: Iterable[Mapping[str, str]]) -> dict[str, tuple[str, ...]]:
    """All that rows of one step say: files, channels."""
    found: dict[str, set[str]] = {}
    for attrs in rows:
        if FILES in attrs:
            found.setdefault("files", set()).update(json.loads(attrs[FILES]))
        if CHANNELS in attrs:
            found.setdefault("channels", set()).update(attrs[CHANNELS].split("\n"))
    return {kind: tuple(sorted(names)) for kind, names in found.items() if names}
