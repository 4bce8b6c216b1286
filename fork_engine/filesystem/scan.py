"""Scan a folder on disk into entries. Only reads, except for modes that are widened and restored (`openat.py`)."""

from __future__ import annotations

import errno
import os
import stat
import struct
import time
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path

from ramify.fork_engine.errors import ForkEngineError
from ramify.fork_engine.filesystem.file_content import HashPool, digest_bytes, digest_fd
from ramify.fork_engine.filesystem.openat import file, open_folder, proc_path
from ramify.fork_engine.types import WHITEOUT, Entry, EntryKind, Skipped

OPAQUE = "user.overlay.opaque"
MAX_DEPTH = 400  # nested folders: each one is an open descriptor and a Python frame while the walk is below it

ACL = "system.posix_acl_access"
_FOREIGN = frozenset({"security.capability", ACL, "system.posix_acl_default"})
"""Extended attributes that an import leaves out too. Otherwise a sealed world would differ from a copy of its
snapshot."""
_ACL_ENTRY = struct.Struct("<HHI")  # linux/posix_acl_xattr.h: tag, permissions, id; they follow four bytes of version
_ACL_GROUP, _ACL_MASK = 0x04, 0x10
_SMALL = 1 << 15  # bytes: handing a smaller file to another thread costs more than hashing it

_SKIP_REASONS = {
    stat.S_IFSOCK: "a socket: nothing listens on it after a restore",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


class TooDeep(ForkEngineError):
    """The folders are nested so deep that a walk would run out of descriptors."""


@dataclass(slots=True)
class FoundPath:
    """One path found on a walk. Its descriptors are valid until the walk continues."""

    path: str
    name: str
    parent: int
    stat: os.stat_result
    folder: int = -1  # an open descriptor if it is a folder
    _attributes: list[str] | None = None

    @property
    def attributes(self) -> list[str]:
        """The names of its extended attributes."""
        if self._attributes is None:
            self._attributes = _list_xattrs(
                self.folder if self.folder >= 0 else f"{proc_path(self.parent)}/{self.name}"
            )
        return self._attributes

    @property
    def mode(self) -> int:
        """Its mode without its ACL."""
        mode = stat.S_IMODE(self.stat.st_mode)
        if stat.S_ISLNK(self.stat.st_mode) or ACL not in self.attributes:
            return mode
        return _mode_without(self.folder if self.folder >= 0 else f"{proc_path(self.parent)}/{self.name}", mode)


Stamp = tuple[int, int, int, int]
"""Identifies an unchanged file: inode, size, modification time, and inode change time, which no program can set."""

Stamps = Mapping[str, tuple[Stamp, str]]
"""Stamp and digest of each file, by path."""

_TICK_NS = 50_000_000  # a file changed more recently than this may be written again without a later timestamp


@dataclass(slots=True)
class Scan:
    root: Entry
    entries: dict[str, Entry] = field(default_factory=dict)
    skipped: list[Skipped] = field(default_factory=list)
    marked: dict[str, list[str]] = field(default_factory=dict)  # foreign attributes by path ("" is the root)
    stamps: Stamps = field(default_factory=dict)
    owners: dict[str, int] = field(default_factory=dict)  # owners that differ from that of the top folder, by path


def walk(root: Path, *, grant: int = 0o500) -> Generator[FoundPath, None, None]:
    """Yield everything below `root`, each folder before its content, without following links.

    `grant`: see `open_folder`; 0 widens no mode. An OSError gets the path inside the tree as its filename.
    """
    opened = open_folder(root.resolve(), grant=grant)
    try:
        yield from _walk(opened.fd, "", grant, 0)
    finally:
        opened.close()


def _walk(fd: int, prefix: str, grant: int, depth: int) -> Generator[FoundPath, None, None]:
    if depth > MAX_DEPTH:
        raise TooDeep(f"{prefix[:80]}…: folders nested more than {MAX_DEPTH} deep. Flatten them, or leave them out")
    with os.scandir(fd) as found:
        names = sorted(child.name for child in found)
    for name in names:
        path = prefix + name
        try:
            status = os.stat(name, dir_fd=fd, follow_symlinks=False)
            if not stat.S_ISDIR(status.st_mode):
                yield FoundPath(path, name, fd, status)
                continue
            opened = open_folder(name, fd, grant=grant)
        except OSError as error:
            error.filename = path
            raise
        try:
            yield FoundPath(path, name, fd, status, opened.fd)
            yield from _walk(opened.fd, path + "/", grant, depth + 1)
        finally:
            opened.close()


def entry_of(found: FoundPath, digest: Callable[[FoundPath], str]) -> Entry | None:
    """Return a path's entry, or None if its kind cannot be an entry. `digest` reads a file if needed."""
    kind, mode, mtime = stat.S_IFMT(found.stat.st_mode), found.mode, found.stat.st_mtime_ns
    if kind == stat.S_IFDIR:
        return Entry(EntryKind.DIR, mode, mtime_ns=mtime, xattrs=_xattrs(found.folder, found.attributes))
    if kind == stat.S_IFREG:
        return Entry(EntryKind.FILE, mode, found.stat.st_size, mtime, digest(found), xattrs=_file_xattrs(found))
    if kind == stat.S_IFLNK:
        target = os.readlink(found.name, dir_fd=found.parent)
        raw = os.fsencode(target)
        return Entry(EntryKind.SYMLINK, mode, len(raw), mtime, digest_bytes(raw), target=target)
    if kind == stat.S_IFIFO:
        return Entry(EntryKind.FIFO, mode, mtime_ns=mtime)
    return None


def root_entry(root: Path) -> Entry:
    """Return the top folder's own entry: only its mode and time, which a mount takes from the uppermost layer."""
    status = root.stat()
    mode = stat.S_IMODE(status.st_mode)
    if ACL in _list_xattrs(os.fspath(root.resolve())):
        mode = _mode_without(os.fspath(root), mode)
    return Entry(EntryKind.DIR, mode, mtime_ns=status.st_mtime_ns)


def _mode_without(where: int | str, mode: int) -> int:
    """Return the mode of a file without its ACL.

    With an ACL, the mode's group bits are the upper limit for everybody whom the ACL names. The rights of the file's
    own group, often fewer, are an entry of the ACL.
    """
    entries = _ACL_ENTRY.iter_unpack(os.getxattr(where, ACL)[4:])
    said: dict[int, int] = {tag: allowed for tag, allowed, _ in entries if tag in (_ACL_GROUP, _ACL_MASK)}
    return mode & ~stat.S_IRWXG | (said[_ACL_GROUP] & said.get(_ACL_MASK, 0o7)) << 3


def skip(found: FoundPath) -> Skipped:
    return Skipped(found.path, _SKIP_REASONS.get(stat.S_IFMT(found.stat.st_mode), "of a kind that cannot be kept"))


def hash_file(found: FoundPath) -> str:
    with file(found.name, found.parent) as fd:
        return digest_fd(fd)


def _file_xattrs(found: FoundPath) -> tuple[tuple[str, str], ...]:
    if not any(map(_is_users, found.attributes)):
        return ()
    with file(found.name, found.parent) as fd:  # values need read permission, names do not
        return _xattrs(fd, found.attributes)


def _xattrs(fd: int, names: list[str]) -> tuple[tuple[str, str], ...]:
    return tuple(sorted((name, os.getxattr(fd, name).hex()) for name in names if _is_users(name)))


def _is_users(name: str) -> bool:
    return name.startswith("user.") and not is_overlays(name)


def is_overlays(name: str) -> bool:
    """Return whether overlayfs uses this attribute itself, or a world set one of that name."""
    return name.startswith(("user.overlay.", "trusted.overlay."))


def is_foreign(name: str) -> bool:
    """Return whether layers leave this attribute out."""
    return is_overlays(name) or name in _FOREIGN


def is_mark(name: str, what: str) -> bool:
    """Return whether overlayfs itself set this attribute to mean `what`, in either spelling.

    Mounts with userxattr write user.*, root's mounts may write trusted.*. If a world sets such a name, overlayfs
    stores it one level deeper, as `user.overlay.overlay.opaque`, which has no meaning.
    """
    return name in (f"user.overlay.{what}", f"trusted.overlay.{what}")


def _list_xattrs(where: int | str) -> list[str]:
    try:
        return os.listxattr(where) if isinstance(where, int) else os.listxattr(where, follow_symlinks=False)
    except OSError as error:
        if error.errno == errno.EOPNOTSUPP:
            return []
        raise


def relink(entries: Mapping[str, Entry], groups: Iterable[Iterable[str]]) -> dict[str, Entry]:
    """Return `entries` with `link` set from groups of paths that share a file."""
    linked = dict(entries)
    for group in groups:
        first, *others = sorted(group)
        linked[first] = replace(linked[first], link="")
        for path in others:
            linked[path] = replace(linked[path], link=first)
    return linked


def link_inodes(entries: Mapping[str, Entry], inodes: Mapping[tuple[int, int], list[str]]) -> dict[str, Entry]:
    return relink(entries, (paths for paths in inodes.values() if len(paths) > 1))


def scan_tree(root: Path, known: Mapping[str, Entry]) -> Scan:
    """Scan a plain folder. A file with the size and mtime that `known` has is not read again."""

    def digest(found: FoundPath) -> str:
        before = known.get(found.path)
        if (
            before is not None
            and before.kind is EntryKind.FILE
            and before.size == found.stat.st_size
            and before.mtime_ns == found.stat.st_mtime_ns
        ):
            return before.digest
        return hash_file(found)

    result = Scan(root_entry(root))
    inodes: dict[tuple[int, int], list[str]] = {}
    with closing(walk(root)) as walked:
        for found in walked:
            entry = entry_of(found, digest)
            if entry is None:
                result.skipped.append(skip(found))
                continue
            result.entries[found.path] = entry
            _note_inode(inodes, found, entry)
    result.entries = link_inodes(result.entries, inodes)
    return result


def scan_upper(root: Path, known: Stamps | None = None) -> Scan:
    """Scan the upper folder of an overlay mount: read whiteouts and opaque folders as such, and note foreign
    attributes.

    `known`: the `stamps` of an earlier scan of the same folder. A file with the same stamp is not read again.
    """
    result = Scan(root_entry(root))
    owner = root.stat().st_uid
    steady, known = time.time_ns() - _TICK_NS, known or {}
    stamps: dict[str, Stamp] = {}
    if marks := list(filter(is_foreign, _list_xattrs(os.fspath(root)))):
        result.marked[""] = marks
    inodes: dict[tuple[int, int], list[str]] = {}
    with closing(HashPool()) as hashing, closing(walk(root)) as walked:

        def digest(found: FoundPath) -> str:
            now = found.stat
            stamp = (now.st_ino, now.st_size, now.st_mtime_ns, now.st_ctime_ns)
            if max(now.st_mtime_ns, now.st_ctime_ns) < steady:
                stamps[found.path] = stamp
            before, digest = known.get(found.path, (None, ""))
            if stamp == before:
                return digest
            if found.stat.st_size < _SMALL:
                return hash_file(found)
            with file(found.name, found.parent) as fd:
                hashing.start(found.path, fd, found.stat.st_size)
            return ""

        for found in walked:
            if found.stat.st_uid != owner:
                result.owners[found.path] = found.stat.st_uid
            if stat.S_ISCHR(found.stat.st_mode) and found.stat.st_rdev == 0:
                result.entries[found.path] = WHITEOUT
                continue
            entry = entry_of(found, digest)
            if entry is None:
                result.skipped.append(skip(found))
                continue
            if marks := _overlay_marks(found):
                result.marked[found.path] = marks
                if entry.kind is EntryKind.DIR and _is_opaque(found.folder, marks):
                    entry = replace(entry, opaque=True)
            result.entries[found.path] = entry
            _note_inode(inodes, found, entry)
        for path, found_digest in hashing.finish().items():
            result.entries[path] = replace(result.entries[path], digest=found_digest)
    result.stamps = {path: (stamp, result.entries[path].digest) for path, stamp in stamps.items()}
    result.entries = link_inodes(result.entries, inodes)
    return result


def _note_inode(inodes: dict[tuple[int, int], list[str]], found: FoundPath, entry: Entry) -> None:
    if entry.kind is EntryKind.FILE and found.stat.st_nlink > 1:
        inodes.setdefault((found.stat.st_dev, found.stat.st_ino), []).append(found.path)


def _overlay_marks(found: FoundPath) -> list[str]:
    marks = list(filter(is_foreign, found.attributes))
    for name in marks:
        if is_mark(name, "redirect") or is_mark(name, "metacopy"):
            raise ForkEngineError(
                f"{found.path}: overlayfs stored it as a reference ({name}), which a layer cannot hold. "
                f"Mount with redirect_dir=off,metacopy=off (userxattr does)"
            )
    return marks


def _is_opaque(folder: int, marks: list[str]) -> bool:
    return any(is_mark(name, "opaque") and os.getxattr(folder, name) == b"y" for name in marks)
