"""Layers on disk: written under tmp/, renamed into place, found by id, removed when nothing names them.

Several threads and processes may use one store. If two of them seal equal content, the second finds the layer there
and drops its own. A lock file separates deletion from sealing: sealers share it, a deletion holds it exclusively.
"""

from __future__ import annotations

import fcntl
import os
import stat
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Generic, TypeVar

from ramify.fork_engine import crash_points
from ramify.fork_engine.close_on_fork import close_lock, open_lock
from ramify.fork_engine.errors import PathNotFound, SnapshotCorrupt
from ramify.fork_engine.filesystem.file_content import digest_file
from ramify.fork_engine.filesystem.openat import OpenatWalker, file, remove_tree
from ramify.fork_engine.filesystem.write import Place, place_copy, place_link, write_tree
from ramify.fork_engine.manifest import Manifest, decode
from ramify.fork_engine.store_folder import ID, TREE_MODE, StoreFolder, make_folder, read_store_file, write_new
from ramify.fork_engine.types import EntryKind, LayerId
from ramify.fork_engine.view import LocatedEntry, View

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class LRUCache(Generic[K, V]):
    """A thread-safe cache of the `size` most recently used values; unlike functools.lru_cache, values can be added.

    A missing value is computed by `make`. If two threads compute the same one, either result is kept.
    """

    def __init__(self, size: int, make: Callable[[K], V]) -> None:
        self._size, self._make = size, make
        self._kept: OrderedDict[K, V] = OrderedDict()
        self._lock = threading.Lock()

    def __call__(self, key: K) -> V:
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key]
        value = self._make(key)
        self.put(key, value)
        return value

    def put(self, key: K, value: V) -> None:
        with self._lock:
            self._kept[key] = value
            self._kept.move_to_end(key)
            while len(self._kept) > self._size:
                self._kept.popitem(last=False)

    def clear(self) -> None:
        with self._lock:
            self._kept.clear()


_MANIFESTS_KEPT = 256


class Layers:
    """Trees named by the digest of their manifest: `layers/`, and `images/` for process images."""

    def __init__(self, folder: StoreFolder, kind: str = "layers") -> None:
        self.folder = folder
        self.kind = kind
        self._layers = folder.root / kind
        make_folder(self._layers)
        self.manifest = LRUCache(_MANIFESTS_KEPT, self.read_manifest)

    def fs(self, layer: LayerId) -> Path:
        """Return the folder to mount. Raises `SnapshotCorrupt` if it is missing. A link in its place, in a store of
        somebody else, would show a folder of this machine to a world that hides it."""
        path = self._layers / layer / "fs"
        with suppress(FileNotFoundError, NotADirectoryError):
            if stat.S_ISDIR(path.lstat().st_mode):
                return path
        raise _missing(layer, path)

    def __contains__(self, layer: LayerId) -> bool:
        return (self._layers / layer).is_dir()

    def __iter__(self) -> Iterator[LayerId]:
        return iter(sorted(LayerId(path.name) for path in self._layers.iterdir() if ID.fullmatch(path.name)))

    def read_manifest(self, layer: LayerId) -> Manifest:
        """Read a manifest from disk. Raises `SnapshotCorrupt`. `manifest` does the same with a cache."""
        path = self._layers / layer / "manifest.json"
        try:
            return decode(read_store_file(path), layer)
        except (FileNotFoundError, NotADirectoryError):
            raise _missing(layer, path) from None

    def size(self, layer: LayerId) -> int:
        """Return the bytes of a layer's files, with hard links counted once. Raises `SnapshotCorrupt`."""
        return sum(entry.size for entry in self.manifest(layer).entries.values() if not entry.link)

    def files(self, layer: LayerId) -> dict[int, int]:
        """Return the bytes of a layer's files by inode. Raises `SnapshotCorrupt` if the layer is missing."""
        found = [path.lstat() for path in self.fs(layer).rglob("*")]
        return {one.st_ino: one.st_size for one in found if stat.S_ISREG(one.st_mode)}

    def write(self, manifest: Manifest, place: Place) -> Manifest:
        """Create a layer from its manifest, unless it exists. `place` supplies the files."""
        if manifest.id not in self:
            with self.folder.temporary() as aside:
                fs = aside / "layer" / "fs"
                fs.mkdir(parents=True)
                write_tree(fs, manifest.entries, manifest.root, place)
                self.adopt(manifest, fs)
        return manifest

    def adopt(self, manifest: Manifest, fs: Path) -> None:
        """Turn the folder `fs` under tmp/, whose content is exactly `manifest`, into a layer."""
        write_new(fs.parent / "manifest.json", manifest.encoded)
        self.place(manifest, fs.parent)

    def place(self, manifest: Manifest, made: Path) -> None:
        """Turn the folder `made`, which holds fs/ and its manifest, into a layer."""
        made.chmod(TREE_MODE)
        self.folder.place(made, self.kind, manifest.id)
        self.manifest.put(manifest.id, manifest)

    def hold(self, layer: LayerId) -> None:
        """Keep a layer, which no snapshot names yet, from `remove` as long as this object and process live."""
        lock = open_lock(self._manifest_file(layer), os.O_RDONLY)
        weakref.finalize(self, close_lock, lock)
        fcntl.flock(lock, fcntl.LOCK_SH)

    def _is_held(self, layer: LayerId) -> bool:
        try:
            lock = open_lock(self._manifest_file(layer), os.O_RDONLY)
        except (FileNotFoundError, NotADirectoryError):  # it is damaged
            return False
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            close_lock(lock)
        return False

    def _manifest_file(self, layer: LayerId) -> Path:
        return self._layers / layer / "manifest.json"

    def remove(self, layer: LayerId) -> int:
        """Remove a layer, unless it is held, and return the bytes freed on disk. The caller holds the store's lock
        exclusively."""
        if self._is_held(layer):
            return 0
        freed = 0

        def seen(status: os.stat_result) -> None:
            nonlocal freed
            if status.st_nlink == 1:
                freed += status.st_blocks * 512

        with self.folder.temporary() as aside:
            (self._layers / layer).rename(aside / "gone")  # atomic: a layer exists completely or not at all
            crash_points.point("removed")
            remove_tree(aside / "gone", seen=seen)
        return freed


class LayerReader:
    """Reads files of layers. Keeps the layers' folders open for the duration of a copy, merge or squash."""

    def __init__(self, layers: Layers) -> None:
        self._layers = layers
        self._open: dict[LayerId, OpenatWalker] = {}

    def __enter__(self) -> LayerReader:
        return self

    def __exit__(self, *_: object) -> None:
        for descent in self._open.values():
            descent.close()

    def descent(self, layer: LayerId) -> OpenatWalker:
        if layer not in self._open:
            self._open[layer] = OpenatWalker(self._layers.fs(layer))
        return self._open[layer]

    def link(self, path: str, located: LocatedEntry, parent: int, name: str) -> None:
        with _present(path, located):
            place_link(self.descent(located.layer), path, located.entry, parent, name)

    def copy(self, path: str, located: LocatedEntry, parent: int, name: str) -> None:
        with _present(path, located):
            place_copy(self.descent(located.layer), path, located.entry, parent, name, verify=False)

    def read(self, view: View, path: str) -> bytes:
        """Return a file's bytes. Raises `PathNotFound`, or `SnapshotCorrupt` if they differ from what was sealed."""
        located = view.locate(path)
        if located is None or located.entry.kind is not EntryKind.FILE:
            what = "nothing" if located is None else f"a {located.entry.kind.value}"
            raise PathNotFound(f"{path}: there is {what} in this snapshot, not a file")
        with _present(path, located):
            parent, name = self.descent(located.layer).parent(path)
            with file(name, parent) as fd, os.fdopen(os.dup(fd), "rb") as stream:
                data = stream.read()
        if digest_file(data) != located.entry.digest:
            raise SnapshotCorrupt(
                f"layer {located.layer}: {path} differs from what was sealed. Go back to another snapshot"
            )
        return data


@contextmanager
def _present(path: str, located: LocatedEntry) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise SnapshotCorrupt(f"layer {located.layer}: {path} is missing. Go back to another snapshot") from None


def _missing(layer: LayerId, path: Path) -> SnapshotCorrupt:
    return SnapshotCorrupt(
        f"layer {layer}: {path} is missing. Delete the snapshots that use it, or restore the folder"
    )
