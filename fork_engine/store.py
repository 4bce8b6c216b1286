"""The store: one folder that holds every snapshot of every world, and the operations on them.

Synchronous; safe for many threads and processes at once. Sealing, merging and content keys cost what changed, not
what the workspace holds; only the base's manifest is as large as the workspace, and it is read once.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from ramify.fork_engine import checkout as checkouts
from ramify.fork_engine import diff
from ramify.fork_engine.errors import CheckoutRefused
from ramify.fork_engine.importer import import_folder
from ramify.fork_engine.keys import DEFAULT_VOLATILE, Volatile, base_digest, content_key, snapshot_id
from ramify.fork_engine.layers import Layers, Reader
from ramify.fork_engine.manifest import Manifest
from ramify.fork_engine.merging import merged_layer
from ramify.fork_engine.sealing import squashed_layer, tree_layer, upper_layer
from ramify.fork_engine.snapshots import Snapshots
from ramify.fork_engine.types import (
    Change,
    Entry,
    EntryKind,
    Imported,
    LayerId,
    MergeStrategy,
    ProcessTier,
    Snapshot,
    SnapshotId,
)
from ramify.fork_engine.view import View
from ramify.fork_engine.write import Place

MAX_LAYERS = 48
"""Mounting costs a little with each layer, and overlayfs ends at 500: a stack that would be higher is squashed."""

_VIEWS_KEPT = 128


class SnapshotStore:
    def __init__(
        self, root: Path, *, volatile: Sequence[str] = DEFAULT_VOLATILE, max_layers: int = MAX_LAYERS
    ) -> None:
        """Opens the store at `root`, or makes one. `volatile`: globs that the content key leaves out (keys.py)."""
        self.root = root.absolute()
        self._layers = Layers(self.root)
        self._snapshots = Snapshots(self._layers)
        self._volatile = Volatile(volatile)
        self._max_layers = max_layers
        self._view = functools.lru_cache(_VIEWS_KEPT)(self._make_view)
        self._base_digest = functools.lru_cache(_VIEWS_KEPT)(
            lambda base: base_digest(self._layers.manifest(base), self._volatile)
        )

    # Making snapshots

    def import_tree(self, folder: Path) -> Imported:
        """Copy a user's folder into a base layer. Never writes to it; a second time reads only what changed.

        Raises `WorkspaceError` where it is missing, no folder, unreadable anywhere, or changes meanwhile.
        """
        with self._layers.lock():
            manifest, skipped = import_folder(folder, self._layers)
            snapshot = self._save((manifest.id,), {}, (), "", ProcessTier.NONE)
        files = [entry for entry in manifest.entries.values() if entry.kind is EntryKind.FILE]
        return Imported(snapshot, skipped, len(files), sum(entry.size for entry in files if not entry.link))

    def seal_upper(
        self,
        upper: Path,
        parent: Snapshot,
        *,
        env: Mapping[str, str],
        env_unset: Sequence[str],
        cwd: str,
        tier: ProcessTier = ProcessTier.NONE,
        move: bool,
    ) -> Snapshot:
        """The parent plus what an overlayfs upper folder holds; the parent itself where nothing changed.

        With `move` the folder becomes the layer and is gone, if it changes any file; else it stays as it is. Nothing
        may write to it meanwhile, or, moved, ever again.
        """
        return self._seal(
            parent, lambda view: upper_layer(upper, view, self._layers, move=move), env, env_unset, cwd, tier
        )

    def seal_tree(
        self,
        tree: Path,
        parent: Snapshot,
        *,
        env: Mapping[str, str],
        env_unset: Sequence[str],
        cwd: str,
        tier: ProcessTier = ProcessTier.NONE,
    ) -> Snapshot:
        """The parent plus what a plain folder, once materialised from it, now has otherwise. Costs a stat a path."""
        return self._seal(parent, lambda view: tree_layer(tree, view, self._layers), env, env_unset, cwd, tier)

    def merge(
        self, base: Snapshot, ours: Snapshot, theirs: Snapshot, *, strategy: MergeStrategy = MergeStrategy.FAIL
    ) -> Snapshot:
        """What both sides changed since `base`, as `ours` and one more layer. Where one side is `base`: the other.

        Raises `MergeConflict`, unless the strategy says whose change wins.
        """
        if ours.id == base.id:
            return theirs
        if theirs.id == base.id:
            return ours
        tier = ProcessTier.NONE if ours.tier is theirs.tier is ProcessTier.NONE else ProcessTier.DROPPED
        views = (self._view(base.layers), self._view(ours.layers), self._view(theirs.layers))
        with self._layers.lock():
            made = merged_layer((base, ours, theirs), views, strategy, self._layers)
            layers = self._stack(ours.layers, made.layer)
            return self._save(layers, made.env, made.env_unset, made.cwd, tier)

    def _seal(
        self,
        parent: Snapshot,
        make: Callable[[View], Manifest | None],
        env: Mapping[str, str],
        env_unset: Sequence[str],
        cwd: str,
        tier: ProcessTier,
    ) -> Snapshot:
        view = self._view(parent.layers)
        with self._layers.lock():
            layers = self._stack(parent.layers, make(view))
            unset = tuple(sorted(env_unset))
            if snapshot_id(layers, env, unset, cwd, tier) == parent.id:
                return parent
            return self._save(layers, env, unset, cwd, tier)

    def _stack(self, layers: tuple[LayerId, ...], top: Manifest | None) -> tuple[LayerId, ...]:
        if top is None:
            return layers
        stacked = (*layers, top.id)
        if len(stacked) <= self._max_layers:
            return stacked
        squashed = squashed_layer(self._view(stacked), self._layers)
        return stacked[:1] if squashed is None else (stacked[0], squashed.id)

    def _save(
        self,
        layers: tuple[LayerId, ...],
        env: Mapping[str, str],
        env_unset: tuple[str, ...],
        cwd: str,
        tier: ProcessTier,
    ) -> Snapshot:
        key = content_key(self._view(layers), self._base_digest(layers[0]), self._volatile, env, env_unset, cwd)
        id = snapshot_id(layers, env, env_unset, cwd, tier)
        snapshot = Snapshot(id, layers, key, dict(env), env_unset, cwd, tier)
        self._snapshots.save(snapshot, self._volatile.globs)
        return snapshot

    # Reading snapshots

    def get(self, id: SnapshotId) -> Snapshot:
        """Raises `SnapshotNotFound`, `SnapshotCorrupt`."""
        snapshot, volatile = self._snapshots.load(id)
        if volatile == self._volatile.globs:
            return snapshot
        key = content_key(
            self._view(snapshot.layers),
            self._base_digest(snapshot.base),
            self._volatile,
            snapshot.env,
            snapshot.env_unset,
            snapshot.cwd,
        )
        return replace(snapshot, content_key=key)

    def lower_dirs(self, snapshot: Snapshot) -> tuple[Path, ...]:
        """The folders to mount, the base first (overlayfs wants them the other way round)."""
        return tuple(self._layers.fs(layer) for layer in snapshot.layers)

    def entries(self, snapshot: Snapshot) -> Mapping[str, Entry]:
        """The merged view: whiteouts and opaque folders applied. Lazy, sorted, immutable."""
        return self._view(snapshot.layers)

    def changes(self, before: Snapshot, after: Snapshot) -> list[Change]:
        """Sorted by path. A change of times alone is none."""
        return diff.changes(self._view(before.layers), self._view(after.layers))

    def read(self, snapshot: Snapshot, path: str) -> bytes:
        """A file's bytes. Raises `PathNotFound`; `SnapshotCorrupt` where they are not what was sealed."""
        with Reader(self._layers) as reader:
            return reader.read(self._view(snapshot.layers), path)

    # Writing snapshots out

    def materialise(self, snapshot: Snapshot, dest: Path) -> None:
        """A full copy in `dest`, which is missing or empty: hard links, times, attributes and holes kept."""
        dest.mkdir(parents=True, exist_ok=True)
        with self._copies(snapshot) as (view, place):
            checkouts.fill(view, dest, place)

    def checkout(
        self,
        snapshot: Snapshot,
        dest: Path,
        *,
        force: bool = False,
        only_changes_from: Snapshot | None = None,
    ) -> list[Change]:
        """Write a snapshot into a user's folder; what was changed there is returned.

        `dest` is missing or empty; with `force`, any folder. With `only_changes_from`, just the changes between the
        two snapshots go into a folder that still stands, where they fall, as the first. Raises `CheckoutRefused`
        before anything is written. Never writes outside `dest`, whatever links it or the snapshot holds.
        """
        dest = dest.resolve()
        if dest.is_relative_to(self.root.resolve()):
            raise CheckoutRefused(f"{dest}: lies in the store itself. Name a folder outside {self.root}")
        if dest.exists() and not dest.is_dir():
            raise CheckoutRefused(f"{dest}: not a folder. Name a folder")
        with self._copies(snapshot) as (view, place):
            try:
                if only_changes_from is None:
                    return checkouts.check_out(view, dest, place, force=force)
                if not dest.exists():
                    raise CheckoutRefused(f"{dest}: missing. Changes are applied to an existing folder")
                changes = self.changes(only_changes_from, snapshot)
                return checkouts.apply_changes(changes, view, dest, place, force=force)
            except PermissionError as error:
                raise CheckoutRefused(f"{dest}: {error.strerror}: {error.filename}. Make it writable") from None

    @contextmanager
    def _copies(self, snapshot: Snapshot) -> Iterator[tuple[View, Place]]:
        view = self._view(snapshot.layers)
        with Reader(self._layers) as reader:

            def place(path: str, entry: Entry, parent: int, name: str) -> None:
                located = view.locate(path)
                assert located is not None
                reader.copy(path, located, parent, name)

            yield view, place

    # Keeping house

    def delete_unreachable(self, keep: Iterable[SnapshotId]) -> tuple[int, int]:
        """Delete every snapshot not in `keep` and every layer that none of the rest names: (snapshots, bytes freed).

        Safe when killed half way: a layer goes only after every snapshot that names it. What is being made meanwhile
        by others is complete or waits, but must be in `keep` if it is complete. Raises `SnapshotCorrupt`, with
        nothing deleted, where a kept snapshot cannot be read.
        """
        with self._layers.lock(alone=True):
            wanted = set(keep)
            present = list(self._snapshots)
            named = {layer for id in present if id in wanted for layer in self._snapshots.load(id)[0].layers}
            gone = [id for id in present if id not in wanted]
            self._snapshots.remove(gone)
            freed = sum(self._layers.remove(layer) for layer in list(self._layers) if layer not in named)
            self._layers.manifest.cache_clear()
            self._view.cache_clear()
            self._base_digest.cache_clear()
        return len(gone), freed

    def forget_temporary(self) -> None:
        """Remove what crashed processes left half made. What is in use is left alone."""
        self._layers.forget()

    def _make_view(self, layers: tuple[LayerId, ...]) -> View:
        top = self._layers.manifest(layers[-1])
        return View(top) if len(layers) == 1 else self._view(layers[:-1]).stacked(top)
