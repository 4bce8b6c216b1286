"""Carrying a merge out: the layer that turns `ours` into the merged state."""

from __future__ import annotations

from dataclasses import dataclass

from ramify.fork_engine.diff import layer_between
from ramify.fork_engine.errors import MergeConflict
from ramify.fork_engine.layers import Layers, Reader
from ramify.fork_engine.manifest import Manifest
from ramify.fork_engine.merge import NO_LAYER, merge_environments, merge_views
from ramify.fork_engine.types import Conflict, ConflictKind, Entry, MergeStrategy, Snapshot
from ramify.fork_engine.view import View, differing
from ramify.fork_engine.write import place_bytes, place_copy


@dataclass(frozen=True, slots=True)
class MergedState:
    layer: Manifest | None  # None where ours has all of theirs
    env: dict[str, str]
    env_unset: tuple[str, ...]
    cwd: str


def merged_layer(
    snapshots: tuple[Snapshot, Snapshot, Snapshot],
    views: tuple[View, View, View],
    strategy: MergeStrategy,
    layers: Layers,
) -> MergedState:
    """Both as (base, ours, theirs). Raises `MergeConflict`. The caller holds the layers' lock."""
    with Reader(layers) as reader:
        merged = merge_views(*views, strategy, reader.read)
        _, ours, theirs = views
        result = ours.changed(merged.changes, merged.root, theirs.manifests)
        environment, env_conflicts = merge_environments(*snapshots, strategy)
        cwd = environment.cwd
        if not result.is_folder(cwd):
            env_conflicts.append(Conflict("cwd", ConflictKind.ENV, f"{cwd} is no folder after the merge"))
            cwd = ""
        conflicts = (*(merged.conflicts[path] for path in sorted(merged.conflicts)), *env_conflicts)
        if conflicts and strategy is MergeStrategy.FAIL:
            raise MergeConflict(conflicts)

        def place(path: str, entry: Entry, parent: int, name: str) -> None:
            located = result.locate(path)
            assert located is not None
            if path in merged.texts:
                place_bytes(merged.texts[path], entry, parent, name)
            elif located.layer == NO_LAYER:
                source = merged.copies[path]
                place_copy(reader.descent(source.layer), path, entry, parent, name, verify=False)
            else:
                reader.link(path, located, parent, name)

        layer = None
        if result.root != ours.root or differing(ours, result):
            layer = layers.write(Manifest(layer_between(ours, result, merged.changes), result.root), place)
    return MergedState(layer, environment.env, environment.env_unset, cwd)
