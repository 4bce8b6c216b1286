"""Layers on disk: written aside, flushed, renamed into place, found by id, removed when nothing names them.

Several threads and processes may use one store. Two who seal equal content race harmlessly: the second finds the
layer there and drops its own. A lock file keeps removal apart from sealing: sealers share it, a removal has it alone.
"""

from __future__ import annotations

import fcntl
import functools
import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ramify.fork_engine.content import digest_bytes, sync_file_system, write_all
from ramify.fork_engine.descent import Descent, file, remove_tree
from ramify.fork_engine.errors import PathNotFound, SnapshotCorrupt
from ramify.fork_engine.manifest import Manifest, decode
from ramify.fork_engine.types import EntryKind, LayerId
from ramify.fork_engine.view import Located, View
from ramify.fork_engine.write import Place, place_copy, place_link, write_tree

_MANIFESTS_KEPT = 256


class Layers:
    """The `layers/` and `tmp/` folders of a store."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._layers, self._tmp = root / "layers", root / "tmp"
        for made in (root, self._layers, self._tmp):
            made.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.manifest = functools.lru_cache(_MANIFESTS_KEPT)(self._read_manifest)

    def fs(self, layer: LayerId) -> Path:
        """The folder that mounts as it is. Raises `SnapshotCorrupt` where it is gone."""
        path = self._layers / layer / "fs"
        if not path.is_dir():
            raise _missing(layer, path)
        return path

    def __contains__(self, layer: LayerId) -> bool:
        return (self._layers / layer).is_dir()

    def __iter__(self) -> Iterator[LayerId]:
        return iter(sorted(LayerId(path.name) for path in self._layers.iterdir()))

    def _read_manifest(self, layer: LayerId) -> Manifest:
        path = self._layers / layer / "manifest.json"
        try:
            return decode(path.read_bytes(), layer)
        except FileNotFoundError:
            raise _missing(layer, path) from None

    @contextmanager
    def temporary(self) -> Iterator[Path]:
        """A folder of our own under tmp/, removed at the end. Its lock says that it is in use (see `forget`)."""
        while (locked := self._new_temporary()) is None:
            pass
        folder, fd = locked
        try:
            yield folder
        finally:
            try:
                remove_tree(folder)
            finally:
                os.close(fd)

    def _new_temporary(self) -> tuple[Path, int] | None:
        """A new folder and its lock; None where `forget` took it before it was locked."""
        folder = Path(tempfile.mkdtemp(dir=self._tmp))
        try:
            fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        with suppress(BlockingIOError):
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if folder.exists():
                return folder, fd
        os.close(fd)
        return None

    def forget(self) -> None:
        """Remove what crashed processes left under tmp/."""
        for folder in self._tmp.iterdir():
            with suppress(FileNotFoundError):  # its owner finished meanwhile
                fd = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
                try:
                    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    if stat.S_ISDIR(os.fstat(fd).st_mode):
                        remove_tree(folder)
                    else:
                        folder.unlink()
                except BlockingIOError:
                    continue
                finally:
                    os.close(fd)

    @contextmanager
    def lock(self, *, alone: bool = False) -> Iterator[None]:
        """Held from finding or making a layer until the snapshot that names it is in place."""
        fd = os.open(self.root / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
            yield
        finally:
            os.close(fd)

    def write(self, manifest: Manifest, place: Place) -> Manifest:
        """Make a layer from its manifest; `place` supplies the files. Nothing is written where it exists."""
        if manifest.id not in self:
            with self.temporary() as aside:
                fs = aside / "layer" / "fs"
                fs.mkdir(parents=True)
                write_tree(fs, manifest.entries, manifest.root, place)
                self.adopt(manifest, fs)
        return manifest

    def adopt(self, manifest: Manifest, fs: Path) -> None:
        """Make a layer of a folder that holds exactly what `manifest` says. `fs` is its name; it lies under tmp/."""
        write_durably(fs.parent / "manifest.json", manifest.encoded, flush=False)
        with _open(self._layers) as fd:
            sync_file_system(fd)
            try:
                fs.parent.rename(self._layers / manifest.id)
            except OSError:
                if manifest.id not in self:
                    raise
                return  # sealed by another meanwhile
            os.fsync(fd)

    def remove(self, layer: LayerId) -> int:
        """Remove a layer; the bytes that the disk got back. The caller holds the lock alone."""
        freed = 0

        def seen(status: os.stat_result) -> None:
            nonlocal freed
            if status.st_nlink == 1:
                freed += status.st_blocks * 512

        with self.temporary() as aside:
            (self._layers / layer).rename(aside / "gone")  # atomic: a layer is there whole or not at all
            remove_tree(aside / "gone", seen=seen)
        return freed


class Reader:
    """Files of layers by location, for as long as a copy, a merge or a squash takes."""

    def __init__(self, layers: Layers) -> None:
        self._layers = layers
        self._open: dict[LayerId, Descent] = {}

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *_: object) -> None:
        for descent in self._open.values():
            descent.close()

    def descent(self, layer: LayerId) -> Descent:
        if layer not in self._open:
            self._open[layer] = Descent(self._layers.fs(layer))
        return self._open[layer]

    def link(self, path: str, located: Located, parent: int, name: str) -> None:
        with _present(path, located):
            place_link(self.descent(located.layer), path, located.entry, parent, name)

    def copy(self, path: str, located: Located, parent: int, name: str) -> None:
        with _present(path, located):
            place_copy(self.descent(located.layer), path, located.entry, parent, name, verify=False)

    def read(self, view: View, path: str) -> bytes:
        """A file's bytes. Raises `PathNotFound`; `SnapshotCorrupt` where they are not what was sealed."""
        located = view.locate(path)
        if located is None or located.entry.kind is not EntryKind.FILE:
            what = "nothing" if located is None else f"a {located.entry.kind.value}"
            raise PathNotFound(f"{path}: {what} there in this snapshot, not a file")
        with _present(path, located):
            parent, name = self.descent(located.layer).parent(path)
            with file(name, parent) as fd, os.fdopen(os.dup(fd), "rb") as stream:
                data = stream.read()
        if digest_bytes(data) != located.entry.digest:
            raise SnapshotCorrupt(
                f"layer {located.layer}: {path} is not what was sealed. Go back to another snapshot"
            )
        return data


@contextmanager
def _present(path: str, located: Located) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise SnapshotCorrupt(f"layer {located.layer}: {path} is missing. Go back to another snapshot") from None


@contextmanager
def _open(folder: Path) -> Iterator[int]:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)


def write_durably(path: Path, data: bytes, *, flush: bool = True) -> None:
    """A new file; with `flush`, on disk when this returns (its folder's entry is the caller's to flush)."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    try:
        write_all(fd, data)
        if flush:
            os.fsync(fd)
    finally:
        os.close(fd)


def replace_durably(path: Path, data: bytes, aside: Path) -> None:
    """Put `data` at `path`, atomically and for good. `aside`: a temporary folder on the same file system."""
    write_durably(aside / path.name, data)
    (aside / path.name).rename(path)
    flush_folder(path.parent)


def flush_folder(folder: Path) -> None:
    with _open(folder) as fd:
        os.fsync(fd)


def _missing(layer: LayerId, path: Path) -> SnapshotCorrupt:
    return SnapshotCorrupt(
        f"layer {layer}: {path} is missing. Delete the snapshots that use it, or restore the folder"
    )
