"""What a step really wrote, for its row: the files of the layer that it left, and the channels of its graph."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

from ramify.fork_engine.store import SnapshotStore
from ramify.fork_engine.types import Snapshot

FILES, CHANNELS = "wrote_files", "wrote_channels"

MOST = 16
"""Paths of one row. A step that changed more says nothing of which: the plan has no use for a list of thousands."""


def files_written(snapshots: SnapshotStore, before: Snapshot, after: Snapshot) -> dict[str, str]:
    """Attributes of a row; none where no one layer says it."""
    if after.layers[:-1] != before.layers or not after.layers:
        return {}
    paths = snapshots.layer_files(after.layers[-1])
    return {FILES: json.dumps(paths)} if len(paths) <= MOST else {}


def channels_written(value: object) -> dict[str, str]:
    """The same of a node's result: the channels that it names, by itself or as a Command's update."""
    update = value if isinstance(value, dict) else getattr(value, "update", None)
    return {CHANNELS: json.dumps(sorted(update))} if isinstance(update, dict) and 0 < len(update) <= MOST else {}


def written(rows: Iterable[Mapping[str, str]]) -> dict[str, tuple[str, ...]]:
    """All that rows of one step say: files, channels."""
    found: dict[str, set[str]] = {}
    for attrs in rows:
        for kind in (FILES, CHANNELS):
            if kind in attrs:
                found.setdefault(kind.removeprefix("wrote_"), set()).update(json.loads(attrs[kind]))
    return {kind: tuple(sorted(names)) for kind, names in found.items() if names}
