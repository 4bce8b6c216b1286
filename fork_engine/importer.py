"""Import folders and layers of images into layers of the store. A user's folder is never written to.

Folders are workspaces, root file systems and process images. A second import of a folder reads only what changed: an
index in the store records the size, times and inode of each file when it was read. Unchanged files are hard-linked
from the earlier base layer. A file that changed so recently that a later write could leave the same times is not
indexed.

One layer of an OCI image is one layer of the store. It may leave out the folders above its files. Such a folder has
the mode that the layers below give it, so the same tar makes another layer over other modes, which is rare:
`ImportedLayer.implied` names such folders.
"""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Collection, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from ramify.fork_engine import crash_points
from ramify.fork_engine.errors import ForkEngineError, ImageError, SnapshotCorrupt, WorkspaceError
from ramify.fork_engine.filesystem.file_content import copy_bytes, digest_bytes, digest_fd
from ramify.fork_engine.filesystem.openat import OpenatWalker, file
from ramify.fork_engine.filesystem.scan import (
    FoundPath,
    TooDeep,
    entry_of,
    link_inodes,
    root_entry,
    scan_tree,
    scan_upper,
    skip,
    walk,
)
from ramify.fork_engine.filesystem.untar import unpack, unpack_layer
from ramify.fork_engine.filesystem.write import finish
from ramify.fork_engine.layers import LayerReader, Layers
from ramify.fork_engine.manifest import FORMAT, MALFORMED, Manifest, canonical_json
from ramify.fork_engine.seal import ReadUpper, make_layer_from_upper
from ramify.fork_engine.store_folder import make_folder, read_store_file, write_new
from ramify.fork_engine.types import Entry, EntryKind, LayerId, Skipped
from ramify.fork_engine.view import LocatedEntry, View, find_in_stack

_GONE = {errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENXIO}
"""Errors of opening a path that was replaced or removed a moment before."""

Stamp = tuple[int, int, int, int, int]
"""Of a file: its size, times, inode and device."""

IMPLIED_MODE = 0o755  # of folders above a layer's files, unless the layers below say otherwise


@dataclass(frozen=True, slots=True)
class ImportIndex:
    """The index of an earlier import: each file's stamp at that time."""

    manifest: Manifest | None = None
    stamps: Mapping[str, Stamp] = field(default_factory=dict)


@dataclass(slots=True)
class _Read:
    """The state of one pass over the folder."""

    root: os.stat_result
    top: Entry
    entries: dict[str, Entry] = field(default_factory=dict)
    skipped: list[Skipped] = field(default_factory=list)
    stamps: dict[str, Stamp] = field(default_factory=dict)
    copied: dict[str, str] = field(default_factory=dict)  # path → name under incoming/
    inodes: dict[tuple[int, int], list[str]] = field(default_factory=dict)


def import_folder(
    folder: Path, layers: Layers, without: Collection[Path] = ()
) -> tuple[Manifest, tuple[Skipped, ...]]:
    """Import a folder as a base layer. Returns its manifest and the paths that were skipped.

    `without`: files to leave out. Raises `WorkspaceError`. The caller holds the store's lock.
    """
    folder = _checked_workspace(folder, layers.folder.root)
    index_path = layers.folder.root / "index" / f"{digest_bytes(os.fsencode(folder))}.json"
    make_folder(index_path.parent)
    index = _load_index(index_path, layers)
    with layers.folder.temporary() as aside:
        incoming = aside / "incoming"
        incoming.mkdir()
        now = incoming.stat().st_ctime_ns  # by the clock of file timestamps
        read = _read(
            folder,
            index,
            incoming,
            {str(path.relative_to(folder)) for path in without if path.is_relative_to(folder)},
        )
        manifest = _write_layer(read, index, incoming, layers)
        steady = {path: stamp for path, stamp in read.stamps.items() if max(stamp[1], stamp[2]) < now}
        _save_index(index_path, manifest.id, steady, aside)
    return manifest, tuple(read.skipped)


def _checked_workspace(folder: Path, store: Path) -> Path:
    try:
        resolved = folder.resolve(strict=True)
    except (OSError, RuntimeError) as error:  # RuntimeError: a loop of links
        reason = error.strerror if isinstance(error, OSError) else "a loop of links"
        raise WorkspaceError(f"{folder}: {reason}. Name an existing folder as the workspace") from None
    if not resolved.is_dir():
        raise WorkspaceError(f"{folder}: not a folder. Name the folder that holds it as the workspace")
    if store.resolve().is_relative_to(resolved):
        raise WorkspaceError(
            f"{folder}: holds Ramify's own store, {store}. Move the store out of it, or name a subfolder"
        )
    return resolved


def _read(folder: Path, index: ImportIndex, incoming: Path, without: Collection[str]) -> _Read:
    read = _Read(folder.stat(), root_entry(folder))
    try:
        with closing(walk(folder, grant=0)) as walked:
            for found in walked:
                if found.path in without:
                    read.skipped.append(Skipped(found.path, "Ramify's own database"))
                    continue
                try:
                    _read_one(found, read, index, incoming)
                except OSError as error:
                    error.filename = found.path
                    raise
        read.entries = link_inodes(read.entries, read.inodes)
        _check_unchanged(folder, read)
    except OSError as error:
        if error.errno in _GONE:
            raise _changed(folder, error.filename) from None
        if error.errno not in (errno.EACCES, errno.EPERM, errno.EIO):
            raise
        raise WorkspaceError(
            f"{folder}: {error.filename!r} cannot be read ({error.strerror}). "
            f"Make it readable, or move it out of the workspace"
        ) from None
    except _ChangedWhileRead as error:
        raise _changed(folder, error.path) from None
    except TooDeep as error:
        raise WorkspaceError(f"{folder}: {error}") from None
    return read


class _ChangedWhileRead(Exception):
    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.path = path


def _changed(folder: Path, path: str) -> WorkspaceError:
    return WorkspaceError(
        f"{folder}: {path!r} changed while it was being read. Stop what writes to it, then try again"
    )


def _stamp(status: os.stat_result) -> Stamp:
    return (status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino, status.st_dev)


def _read_one(found: FoundPath, read: _Read, index: ImportIndex, incoming: Path) -> None:
    path, stamp = found.path, _stamp(found.stat)
    regular = stat.S_ISREG(found.stat.st_mode)
    if regular and index.manifest is not None and index.stamps.get(path) == stamp:
        entry: Entry | None = index.manifest.entries[path]
    else:
        entry = entry_of(found, lambda at: _copy_in(at, read, incoming))
    if entry is None:
        read.skipped.append(skip(found))
        return
    read.entries[path] = entry
    if regular or entry.kind is EntryKind.DIR:
        read.stamps[path] = stamp
    if regular and found.stat.st_nlink > 1:
        read.inodes.setdefault((found.stat.st_dev, found.stat.st_ino), []).append(path)


def _copy_in(found: FoundPath, read: _Read, incoming: Path) -> str:
    """Copy a file to incoming/ and hash the copy, so that the digest is that of the kept bytes."""
    name = str(len(read.copied))
    dest = os.open(incoming / name, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with file(found.name, found.parent, grant=False) as source:
            copy_bytes(source, dest)
            if _stamp(os.fstat(source)) != _stamp(found.stat):
                raise _ChangedWhileRead(found.path)
        digest = digest_fd(dest)
    finally:
        os.close(dest)
    read.copied[found.path] = name
    return digest


def _check_unchanged(folder: Path, read: _Read) -> None:
    """Check the folders once more at the end: if a name was added, removed or replaced meanwhile, the folder's times
    changed."""
    with OpenatWalker(folder, grant=0) as tree:
        if _stamp(os.fstat(tree.root)) != _stamp(read.root):
            raise _ChangedWhileRead(".")
        for path, entry in sorted(read.entries.items()):
            if entry.kind is EntryKind.DIR and _stamp(os.fstat(tree.folder(path))) != read.stamps.pop(path):
                raise _ChangedWhileRead(path)


def _write_layer(read: _Read, index: ImportIndex, incoming: Path, layers: Layers) -> Manifest:
    taken: set[int] = set()
    with OpenatWalker(incoming) as copies, LayerReader(layers) as earlier:

        def place(path: str, entry: Entry, parent: int, name: str) -> None:
            if path in read.copied:
                os.rename(read.copied[path], name, src_dir_fd=copies.root, dst_dir_fd=parent)
                fd = os.open(name, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
                try:
                    finish(entry, fd)
                finally:
                    os.close(fd)
                return
            assert index.manifest is not None
            located = LocatedEntry(index.manifest.entries[path], index.manifest.id)
            from_fd, from_name = earlier.descent(located.layer).parent(path)
            inode = os.stat(from_name, dir_fd=from_fd, follow_symlinks=False).st_ino
            # Two files that were hard links at the last import and no longer are need an inode each.
            (earlier.copy if inode in taken else earlier.link)(path, located, parent, name)
            taken.add(inode)

        return layers.write(Manifest(read.entries, read.top), place)


def _load_index(path: Path, layers: Layers) -> ImportIndex:
    """Load the index of the last import. Returns an empty one if it, or its layer, is missing or unreadable."""
    known = read_index(path)  # a damaged index costs only time: every file is read again
    if known is None or known[0] not in layers:
        return ImportIndex()
    try:
        manifest = layers.manifest(known[0])
    except SnapshotCorrupt:
        return ImportIndex()
    return ImportIndex(manifest, {name: stamp for name, stamp in known[1].items() if name in manifest.entries})


def read_index(path: Path) -> tuple[LayerId, dict[str, Stamp]] | None:
    """Return an index's layer and stamps, or None if its checksum does not match."""
    try:
        encoded = read_store_file(path)
        raw = json.loads(encoded)
        if encoded != canonical_json(raw) or raw.pop("check") != digest_bytes(canonical_json(raw)):
            return None
        if raw["format"] != FORMAT:
            return None
        return LayerId(raw["layer"]), {name: (a, b, c, d, e) for name, (a, b, c, d, e) in raw["stamps"].items()}
    except (SnapshotCorrupt, OSError, *MALFORMED):
        return None


def _save_index(path: Path, layer: LayerId, stamps: Mapping[str, Stamp], aside: Path) -> None:
    spelled = {"format": FORMAT, "layer": layer, "stamps": stamps}
    write_new(aside / path.name, canonical_json({**spelled, "check": digest_bytes(canonical_json(spelled))}))
    (aside / path.name).rename(path)
    crash_points.point("indexed")


def import_image(path: Path, layers: Layers) -> Manifest:
    """Import a root file system, a folder or a tar, as a layer. Raises `ImageError`. The caller holds the store's
    lock."""
    if path.is_dir():
        try:
            return import_folder(path, layers)[0]
        except WorkspaceError as error:
            raise ImageError(str(error)) from None
    if not path.is_file():
        raise ImageError(f"{path}: neither a folder nor a tar. Name the folder, or the tar, of a root file system")
    with layers.folder.temporary() as aside:
        (aside / "root").mkdir()
        unpack(path, aside / "root")
        return _move_into_layer(aside / "root", layers, {})


def _move_into_layer(folder: Path, layers: Layers, known: Mapping[str, Entry]) -> Manifest:
    scan = scan_tree(folder, known)
    made = Manifest(scan.entries, scan.root)
    return make_layer_from_upper(ReadUpper(folder, scan, made, View(made)), layers, move=True)


def import_process_image(folder: Path, images: Layers, like: LayerId) -> Manifest:
    """Move a folder of process images into the store. Raises `ForkEngineError` if it holds anything but files and
    folders.

    `like`: an image that shares files with it by hard links; these are not read again.
    """
    for found in folder.rglob("*"):
        if not (found.is_dir() or found.is_file()) or found.is_symlink():
            raise ForkEngineError(f"{found}: neither a file nor a folder. Process images hold nothing else")
    made = _move_into_layer(folder, images, _shared_files(folder, images, like) if like and like in images else {})
    os.utime(images.fs(made.id).parent)  # as if new, even if it existed already: see snapshots.UNNAMED_GRACE_S
    return made


def _shared_files(folder: Path, images: Layers, like: LayerId) -> dict[str, Entry]:
    """Return the entries of the files that the folder shares with an image, by path."""
    there = images.fs(like)
    files = {
        _file_identity(there / path): entry
        for path, entry in images.manifest(like).entries.items()
        if entry.kind is EntryKind.FILE
    }
    mine = ((path, _file_identity(path)) for path in folder.rglob("*"))
    return {str(path.relative_to(folder)): files[file] for path, file in mine if file in files}


def _file_identity(path: Path) -> tuple[int, int]:
    found = path.lstat()
    return (found.st_dev, found.st_ino)


@dataclass(frozen=True, slots=True)
class ImportedLayer:
    layer: LayerId
    bytes: int  # of its files, hard links counted once
    implied: frozenset[str]  # folders that the tar does not declare; "" is the top one
    modes: Mapping[str, int]  # those of them that got another mode than 0755 from the layers below


def import_layer(
    stream: IO[bytes], below: Sequence[LayerId], layers: Layers, *, name: str, room: int | None
) -> ImportedLayer:
    """Unpack an uncompressed tar over the layers `below` (lowest first). Reads the stream to its end, where it may
    raise: then no layer is made. Raises `ImageError`. The caller holds the store's lock."""
    with layers.folder.temporary() as aside:
        tree = aside / "root"
        tree.mkdir()
        implied = unpack_layer(stream, tree, name=name, room=room)
        while stream.read(1 << 20):
            pass
        modes = implied_modes(implied, [layers.fs(layer) for layer in below])
        for path, mode in modes.items():
            (tree / path).chmod(mode)
        scan = scan_upper(tree)
        made = Manifest(scan.entries, scan.root)
        manifest = make_layer_from_upper(ReadUpper(tree, scan, made, View(made)), layers, move=True)
    size = sum(entry.size for entry in manifest.entries.values() if not entry.link)
    return ImportedLayer(manifest.id, size, implied, modes)


def implied_modes(implied: frozenset[str], below: Sequence[Path]) -> dict[str, int]:
    """The modes, other than 0755, that folders have in a stack of layer folders (lowest first)."""
    modes = {}
    for path in sorted(implied):
        found = find_in_stack(below, path)
        status = None if found is None else found.lstat()
        if status is not None and stat.S_ISDIR(status.st_mode) and stat.S_IMODE(status.st_mode) != IMPLIED_MODE:
            modes[path] = stat.S_IMODE(status.st_mode)
    return modes


def empty_layer(layers: Layers) -> Manifest:
    """The layer of an empty workspace. The caller holds the store's lock."""
    return layers.write(Manifest({}, Entry(EntryKind.DIR, IMPLIED_MODE)), _no_file)


def _no_file(path: str, entry: Entry, parent: int, name: str) -> None:
    raise ForkEngineError(f"an empty layer has no {path}")
