"""The read side of a store: read snapshots and write them out. `store.py` makes them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

from ramify.fork_engine import checkout as checkouts
from ramify.fork_engine import view as diff
from ramify.fork_engine.active_files import SET_ID, without_active_files
from ramify.fork_engine.errors import CheckoutRefused
from ramify.fork_engine.filesystem.write import Place
from ramify.fork_engine.fsck.repair import verify_unflushed
from ramify.fork_engine.git_settings import CONFIG, MOST_BYTES, named_for, named_in
from ramify.fork_engine.layers import LayerReader, Layers, LRUCache
from ramify.fork_engine.snapshots import (
    DEFAULT_VOLATILE,
    VOLATILE_OUTSIDE,
    Blobs,
    Snapshots,
    StackViews,
    VolatileGlobs,
    base_digest,
    content_key,
)
from ramify.fork_engine.store_folder import StoreFolder, translate_disk_errors
from ramify.fork_engine.store_parts import OpenStore
from ramify.fork_engine.types import (
    Change,
    ContentKey,
    Entry,
    EntryKind,
    LayerId,
    Snapshot,
    SnapshotId,
    Withheld,
    Written,
)
from ramify.fork_engine.view import HostOverlayView, View

MAX_LAYERS = 48
"""Layers a stack may have before it is squashed. Each layer makes mounting a little slower, and overlayfs allows 500.
"""

_VIEWS_KEPT = 128


class ReadableStore:
    def __init__(
        self, root: Path, *, volatile: Sequence[str] = DEFAULT_VOLATILE, max_layers: int = MAX_LAYERS
    ) -> None:
        """Open the store at `root`, or create one. `volatile`: globs that content keys leave out (see
        `snapshots.py`).

        Raises `StoreUnusable`, as every method does that writes.
        """
        self.root = root.absolute()
        with translate_disk_errors(self.root):
            self._folder = StoreFolder(self.root)
            self._layers = Layers(self._folder)
            self._images = Layers(self._folder, "images")
            self._blobs = Blobs(self._folder)
            self._snapshots = Snapshots(self._folder)
            self._parts = OpenStore(self._folder, self._layers, self._images, self._blobs, self._snapshots)
            self._verify_unflushed()
        self._volatile = VolatileGlobs(volatile)
        self._max_layers = max_layers
        self._view = LRUCache(_VIEWS_KEPT, self._make_view)
        self._outside_view = LRUCache(_VIEWS_KEPT, self._make_outside)
        self._base_digest = LRUCache(_VIEWS_KEPT, self._make_base_digest)

    @property
    def parts(self) -> OpenStore:
        """The parts of the store, for what copies whole objects: checks and the remote tier."""
        return self._parts

    # Reading snapshots

    def get(self, id: SnapshotId) -> Snapshot:
        """Return a snapshot. Raises `SnapshotNotFound`, `SnapshotCorrupt`."""
        snapshot, volatile = self._snapshots.load(id)
        if volatile == self._volatile.globs:
            return snapshot
        return replace(snapshot, content_key=self._content_key(snapshot))

    def lower_dirs(self, snapshot: Snapshot) -> tuple[Path, ...]:
        """Return the workspace's folders to mount, base first (overlayfs expects the reverse order)."""
        return tuple(self._layers.fs(layer) for layer in snapshot.layers)

    def outside_dirs(self, snapshot: Snapshot) -> tuple[Path, ...]:
        """Return the folders of the stack outside the workspace, lowest first; the image's folder is first if the
        world has an image."""
        image = () if snapshot.image is None else (self._layers.fs(snapshot.image),)
        return (*image, *(self._layers.fs(layer) for layer in snapshot.outside))

    def entries(self, snapshot: Snapshot) -> Mapping[str, Entry]:
        """Return the workspace's entries by path, whiteouts and opaque folders applied. Lazy, sorted, immutable."""
        return self._view(snapshot.layers)

    def outside(self, snapshot: Snapshot) -> Mapping[str, Entry]:
        """Return the entries outside the workspace by path.

        Over the host, whose files are not listed, a removed path is a whiteout, and a folder that hides the host's
        content is opaque.
        """
        return self._outside(snapshot)

    def changes(self, before: Snapshot, after: Snapshot) -> list[Change]:
        """Return the changes between two snapshots, sorted by path. A change of times only is not one."""
        return diff.changes(self._view(before.layers), self._view(after.layers))

    def world_changes(self, before: Snapshot, after: Snapshot) -> list[Change]:
        """Return `changes`. If both states stand over the same image, the changes of its own files follow, with
        absolute paths."""
        return self.changes(before, after) + (self._image_changes(before, after) or [])

    def outside_changes(self, before: Snapshot, after: Snapshot) -> list[Change]:
        """Return the changes outside the workspace, with absolute paths, sorted, but not those of temporary folders
        and caches. Over the host, as `changes_over_host`; none if the states stand over different images."""
        found = self._image_changes(before, after)
        if found is None and after.image is None:
            found = _absolute(diff.changes_over_host(self._outside(before), self._outside(after)))
        return [change for change in found or () if change.path[1:] not in VOLATILE_OUTSIDE]

    def _image_changes(self, before: Snapshot, after: Snapshot) -> list[Change] | None:
        """The changes of an image's own files. None if the two states do not stand over the same one."""
        if before.image is None and after.image is not None:
            before = over_image_of(before, after)  # an imported tree names no image
        if after.image is None or before.image_stack != after.image_stack:
            return None
        return _absolute(diff.changes(self._outside(before), self._outside(after)))

    def read(self, snapshot: Snapshot, path: str) -> bytes:
        """Return a file's bytes. Raises `PathNotFound`, or `SnapshotCorrupt` if they differ from what was sealed."""
        with LayerReader(self._layers) as reader:
            return reader.read(self._view(snapshot.layers), path)

    # Layers, blobs, process images

    def has_layer(self, layer: LayerId) -> bool:
        return layer in self._layers

    def layer_dirs(self, layers: Sequence[LayerId]) -> list[Path]:
        """Return the folders of layers. Raises `SnapshotCorrupt` if one is missing."""
        return [self._layers.fs(layer) for layer in layers]

    def layer_bytes(self, layer: LayerId) -> int:
        """Return the bytes of a layer's files, with hard links counted once. Raises `SnapshotCorrupt`."""
        return self._layers.size(layer)

    def bytes_needed(self, snapshot: Snapshot) -> dict[str, int]:
        """Return the bytes of the layers, blobs and process images that a snapshot needs, by names that are equal
        for snapshots that share them. Raises `SnapshotCorrupt` if something is missing."""
        return self._parts.bytes_needed(snapshot)

    def layer_files(self, layer: LayerId) -> list[str]:
        """Return the paths that a layer changes or removes, sorted, without folders and volatile paths."""
        entries = self._layers.manifest(layer).entries
        return sorted(
            path for path, at in entries.items() if at.kind is not EntryKind.DIR and path not in self._volatile
        )

    def blob(self, digest: str) -> bytes:
        """Return a blob's bytes. Raises `SnapshotCorrupt` if it is missing or damaged."""
        return self._blobs.get(digest)

    def image_dir(self, image: str) -> Path:
        """Return the folder of a process image. Raises `SnapshotCorrupt` if it is missing."""
        return self._images.fs(LayerId(image))

    # Writing snapshots out

    def materialise(self, snapshot: Snapshot, dest: Path) -> None:
        """Copy the whole workspace into `dest`, which is missing or empty, with hard links, times, attributes and
        holes."""
        dest.mkdir(parents=True, exist_ok=True)
        view = self._view(snapshot.layers)
        with self._copies(view) as place:
            checkouts.fill(view, dest, place)

    def checkout(
        self,
        snapshot: Snapshot,
        dest: Path,
        *,
        force: bool = False,
        only_changes_from: Snapshot | None = None,
        active_files: bool = False,
    ) -> Written:
        """Write a snapshot into a user's folder. Returns what was changed there, and what was withheld.

        `dest` is missing or empty; with `force`, any folder. With `only_changes_from`, only the changes between the
        two snapshots are applied to an existing folder, which must still match the first snapshot at these paths.
        Files that a world made or changed and that act on entry, such as hooks of git, are left out, unless
        `active_files`; in their place stays, or is written, what the workspace held when it was imported.
        Raises `CheckoutRefused` before anything is written. Never writes outside `dest`, whatever links it or the
        snapshot holds.
        """
        dest = dest.resolve()
        if dest.is_relative_to(self.root.resolve()):
            raise CheckoutRefused(f"{dest}: it is inside the store itself. Name a folder outside {self.root}")
        if dest.exists() and not dest.is_dir():
            raise CheckoutRefused(f"{dest}: not a folder. Name a folder")
        whole = self._view(snapshot.layers)
        view, withheld = (whole, ()) if active_files else self._without_active_files(whole, dest)
        with self._copies(view) as place:
            try:
                if only_changes_from is None:
                    return Written(checkouts.write_view(view, dest, place, force=force), withheld)
                if not dest.exists():
                    raise CheckoutRefused(f"{dest}: missing. Changes are applied to an existing folder")
                left_out = {one.path for one in withheld if one.reason != SET_ID}
                changes = diff.changes(self._view(only_changes_from.layers), view)
                kept = [item for item in changes if item.path not in left_out]
                return Written(checkouts.apply_changes(kept, view, dest, place, force=force), withheld)
            except PermissionError as error:
                raise CheckoutRefused(f"{dest}: {error.strerror}: {error.filename}. Make it writable") from None

    def _without_active_files(self, view: View, dest: Path) -> tuple[View, tuple[Withheld, ...]]:
        named = named_for(dest)
        own = view.base.entries.get(CONFIG)
        if own is not None and own.kind is EntryKind.FILE and own.size <= MOST_BYTES:
            with LayerReader(self._layers) as reader:
                named |= named_in(reader.read(View(view.base, manifests=view.manifests), CONFIG), str(dest))
        return without_active_files(view, partial(_is_there, dest), named)

    @contextmanager
    def _copies(self, view: View) -> Iterator[Place]:
        with LayerReader(self._layers) as reader:

            def place(path: str, entry: Entry, parent: int, name: str) -> None:
                located = view.locate(path)
                assert located is not None
                reader.copy(path, located, parent, name)

            yield place

    # Cached values

    def _content_key(self, state: Snapshot) -> ContentKey:
        return self._content_key_with(state, self._volatile.globs)

    def _content_key_with(self, state: Snapshot, globs: tuple[str, ...]) -> ContentKey:
        stacks = StackViews(
            self._view(state.layers),
            self._base_digest(((state.base,), globs)),
            self._outside(state) if state.outside else None,
            self._base_digest((state.image_stack, globs)) if state.image is not None else "",
        )
        return content_key(state, stacks, self._volatile if globs == self._volatile.globs else VolatileGlobs(globs))

    def _forget_cached(self) -> None:
        self._layers.manifest.clear()
        self._images.manifest.clear()
        self._view.clear()
        self._outside_view.clear()
        self._base_digest.clear()

    def _verify_unflushed(self) -> None:
        if notes := self._folder.unflushed_at_earlier_boots():
            with self._folder.lock(alone=True):
                verify_unflushed(self._parts, notes)
                self._folder.forget_earlier_boots()

    def _make_view(self, layers: tuple[LayerId, ...]) -> View:
        top = self._layers.manifest(layers[-1])
        return View(top) if len(layers) == 1 else self._view(layers[:-1]).stacked(top)

    def _make_base_digest(self, base: tuple[tuple[LayerId, ...], tuple[str, ...]]) -> str:
        (lowest, *above), globs = base
        if not above:
            return base_digest(self._layers.manifest(lowest), VolatileGlobs(globs))
        return base_digest(self._outside_view((lowest, tuple(above), len(above))).base, VolatileGlobs(globs))

    def _outside(self, state: Snapshot) -> View:
        return self._outside_view((state.image, state.outside, state.image_layers))

    def _make_outside(self, stack: tuple[LayerId | None, tuple[LayerId, ...], int]) -> View:
        image, layers, of_image = stack
        if not layers:
            return HostOverlayView() if image is None else View(self._layers.manifest(image))
        if image is not None and len(layers) == of_image:
            return self._make_outside((image, layers, 0)).flattened((image, *layers))
        return self._outside_view((image, layers[:-1], of_image)).stacked(self._layers.manifest(layers[-1]))


def _absolute(changes: list[Change]) -> list[Change]:
    return [replace(change, path=f"/{change.path}") for change in changes]


def _is_there(folder: Path, path: str) -> bool:
    return os.path.lexists(folder / path)


def over_image_of(base: Snapshot, other: Snapshot) -> Snapshot:
    """Put a snapshot that names no image over that of another one."""
    count = other.image_layers
    return replace(base, image=other.image, outside=(*other.outside[:count], *base.outside), image_layers=count)
