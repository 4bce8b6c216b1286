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
from ramify.fork_engine.snapshot_keys import VOLATILE_OUTSIDE, VolatileGlobs
from ramify.fork_engine.snapshots import Blobs
from ramify.fork_engine.types import Conflict, ConflictKind, Entry, EntryKind, MergeStrategy, Resolver, Snapshot
from ramify.fork_engine.view import HostOverlayView, View, differing, layer_between

Views = tuple[View, View, View]
"""Of base, ours, theirs."""

_OF_STATE = (ConflictKind.ENV, ConflictKind.PROCESSES)  # listed after the conflicts of files


@dataclass(frozen=True, slots=True)
class MergeResult:
    layer: Manifest | None  # None if ours has everything that theirs has
    outside: Manifest | None
    state: MergedState


def merged_layers(
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
        beside = Sides(*outside, reader.read, handler, VOLATILE_OUTSIDE, prefix="/")
        merged, merged_beside = merge_views(files), merge_views(beside)
        result, result_beside = _merged_view(files, merged), _merged_view(beside, merged_beside)
        state = merge_states(*snapshots, handler, blobs)
        was = [_folder_exists(state.cwd, files.ours, beside.ours)] if snapshots[1].cwd == state.cwd else []
        was += [_folder_exists(state.cwd, files.theirs, beside.theirs)] if snapshots[2].cwd == state.cwd else []
        if was and not any(was):  # a side removed the directory that its own shell was in
            state = replace(state, cwd="")
        elif not _folder_exists(state.cwd, result, result_beside):
            state = _fall_back_to_root(state, handler)
        if handler.unresolved:
            raise MergeConflict(tuple(sorted(handler.unresolved, key=lambda c: (c.kind in _OF_STATE, c.path))))
        if state.made:
            state = replace(state, processes=replace(state.processes, shell=blobs.put(state.made)))
        return MergeResult(
            _write_layer(files.ours, result, merged, reader, layers),
            _write_layer(beside.ours, result_beside, merged_beside, reader, layers),
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


def _folder_exists(cwd: str, tree: View, beside: View) -> bool:
    return _can_be_folder(beside, cwd[1:]) if cwd.startswith("/") else tree.is_folder(cwd)


def _can_be_folder(beside: View, path: str) -> bool:
    """Return whether the folder can exist. Over the host, whose folders are not listed, it can unless a layer hides
    it."""
    found = beside.get(path)
    if path == "" or found is not None or not isinstance(beside, HostOverlayView):
        return beside.is_folder(path)
    holders = [entry for folder in parent_folders(path) if (entry := beside.get(folder)) is not None]
    return all(entry.kind is EntryKind.DIR and not entry.opaque for entry in holders)


def _write_layer(ours: View, result: View, merged: Merged, reader: LayerReader, layers: Layers) -> Manifest | None:
    if result.root == ours.root and not differing(ours, result):
        return None

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

    return layers.write(Manifest(layer_between(ours, result, merged.changes), result.root), place)
