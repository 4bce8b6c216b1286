"""Perform a merge: build the layers that turn `ours` into the merged state."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ramify.fork_engine.errors import MergeConflict
from ramify.fork_engine.filesystem.openat import parent_folders
from ramify.fork_engine.filesystem.write import place_bytes, place_copy
from ramify.fork_engine.layers import LayerReader, Layers
from ramify.fork_engine.manifest import Manifest
from ramify.fork_engine.merge.conflicts import ConflictHandler
from ramify.fork_engine.merge.files import NO_LAYER, Merged, Sides, merge_views
from ramify.fork_engine.merge.state import MergedState, merge_states
from ramify.fork_engine.snapshots import VOLATILE_OUTSIDE, Blobs, VolatileGlobs
from ramify.fork_engine.types import Conflict, ConflictKind, Entry, EntryKind, MergeStrategy, Resolver, Snapshot
from ramify.fork_engine.view import HostOverlayView, View, differing, layer_between

Views = tuple[View, View, View]
"""Of base, ours, theirs."""

_OF_STATE = (ConflictKind.ENV, ConflictKind.PROCESSES)  # listed after the conflicts of files


@dataclass(frozen=True, slots=True)
class MergeResult:
    """The merged state: the layers to put on `ours`, and what is not a file."""

    layer: Manifest | None  # None if ours has everything that theirs has
    outside: Manifest | None
    state: MergedState


def merge_snapshots(
    snapshots: tuple[Snapshot, Snapshot, Snapshot],
    views: Views,
    outside: Views,
    strategy: MergeStrategy | Resolver,
    volatile: VolatileGlobs,
    layers: Layers,
    blobs: Blobs,
) -> MergeResult:
    """Merge files and state and write the resulting layers. Raises `MergeConflict` before anything is written.

    The caller holds the store's lock.
    """
    handler = ConflictHandler(strategy)
    with LayerReader(layers) as reader:
        files = Sides(*views, reader.read, handler, volatile)
        outside_files = Sides(*outside, reader.read, handler, VOLATILE_OUTSIDE, prefix="/")
        merged, outside_merged = merge_views(files), merge_views(outside_files)
        result, outside_result = _merged_view(files, merged), _merged_view(outside_files, outside_merged)
        state = merge_states(*snapshots, handler, blobs)
        was = [_folder_exists(state.cwd, files.ours, outside_files.ours)] if snapshots[1].cwd == state.cwd else []
        was += (
            [_folder_exists(state.cwd, files.theirs, outside_files.theirs)] if snapshots[2].cwd == state.cwd else []
        )
        if was and not any(was):  # a side removed the directory that its own shell was in
            state = replace(state, cwd="")
        elif not _folder_exists(state.cwd, result, outside_result):
            state = _fall_back_to_root(state, handler)
        if handler.unresolved:
            raise MergeConflict(tuple(sorted(handler.unresolved, key=lambda c: (c.kind in _OF_STATE, c.path))))
        if state.made:
            state = replace(state, processes=replace(state.processes, shell=blobs.put(state.made)))
        return MergeResult(
            _write_layer(files.ours, result, merged, reader, layers),
            _write_layer(outside_files.ours, outside_result, outside_merged, reader, layers),
            state,
        )


def _merged_view(sides: Sides, merged: Merged) -> View:
    return sides.ours.changed(merged.changes, merged.root, sides.theirs.manifests)


def _fall_back_to_root(state: MergedState, handler: ConflictHandler) -> MergedState:
    """Report that the working directory does not exist after the merge. A strategy that resolves conflicts falls back
    to the root folder."""
    conflict = Conflict("cwd", ConflictKind.ENV, f"{state.cwd} is not a folder after the merge")
    answer = handler.answer(conflict, lambda: (None, None, None))
    if isinstance(answer, bytes) or answer is MergeStrategy.UNION:
        handler.leave_unresolved(conflict)
    return replace(state, cwd="")


def _folder_exists(cwd: str, tree: View, outside: View) -> bool:
    return _can_be_folder(outside, cwd[1:]) if cwd.startswith("/") else tree.is_folder(cwd)


def _can_be_folder(outside: View, path: str) -> bool:
    """Return whether the folder can exist. Over the host, whose folders are not listed, it can unless a layer hides
    it."""
    found = outside.get(path)
    if path == "" or found is not None or not isinstance(outside, HostOverlayView):
        return outside.is_folder(path)
    holders = [entry for folder in parent_folders(path) if (entry := outside.get(folder)) is not None]
    return all(entry.kind is EntryKind.DIR and not entry.opaque for entry in holders)


def _write_layer(ours: View, result: View, merged: Merged, reader: LayerReader, layers: Layers) -> Manifest | None:
    if result.root == ours.root and not differing(ours, result):
        return None

    def place(path: str, entry: Entry, parent: int, name: str) -> None:
        located = result.locate(path)
        assert located is not None
        if path in merged.texts:
            place_bytes(merged.text(path), entry, parent, name)
        elif located.layer == NO_LAYER:
            source = merged.copies[path]
            place_copy(reader.descent(source.layer), path, entry, parent, name, verify=False)
        else:
            reader.link(path, located, parent, name)

    return layers.write(Manifest(layer_between(ours, result, merged.changes), result.root), place)
