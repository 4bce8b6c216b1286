"""Unpack the tar of a root file system, which may be hostile.

Members are written by file descriptors (`openat.py`), never by path, so no link in the tar can lead a later member
out of the folder. Absolute names and links refer to the world's own root, as they will when it runs.

A `..` in a name, and a hard link to something that is not in the tar, are refused, and more bytes than the disk has
room for. Devices and sockets are left out, and owners are dropped.

`unpack_layer` unpacks a layer of an OCI image from a stream, with its whiteouts (image-spec, layer.md).

`members_of` reads the members of a tar with bounded memory. `tarfile` reads extended headers and maps of holes into
memory, keeps them for each member until the end, and calls itself for each header before a member. A compressed tar
of a few megabytes can hold gigabytes of all of these.
"""

from __future__ import annotations

import errno
import lzma
import os
import stat
import tarfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import IO, Any, cast

from ramify.fork_engine.errors import ImageError, StoreUnusable
from ramify.fork_engine.filesystem.file_content import write_all
from ramify.fork_engine.filesystem.openat import OpenatWalker, parent_folders, remove_any
from ramify.fork_engine.filesystem.scan import MAX_DEPTH, OPAQUE

MAX_MEMBERS = 5_000_000
_MOST_TEXT = 100 * MAX_MEMBERS  # characters of all names and attributes, which are in memory until the import ends
_NO_SUCH_MEMBER = {
    errno.ENAMETOOLONG, errno.EINVAL, errno.ENOENT, errno.ENOTDIR, errno.EEXIST, errno.EOPNOTSUPP, errno.ERANGE,
    errno.E2BIG, errno.EMLINK, errno.EOVERFLOW, errno.ENOTEMPTY, errno.EFBIG,
}  # fmt: skip
_CHUNK = 1 << 20
_KEPT_XATTRS = "SCHILY.xattr.user."  # the spelling of user attributes in pax headers
_OVERLAY_XATTRS = "SCHILY.xattr.user.overlay."  # overlayfs would act on them
_MEMBER_BYTES = 4096  # what a member takes on the disk beside its bytes
_RESERVE = 0.05  # of the free space, which an import leaves
_WHITEOUT, _OPAQUE, _AUFS = ".wh.", ".wh..wh..opq", ".wh..wh."
MAX_HEADER = 1 << 20
"""Bytes of all headers of one member, its map of holes among them, and of all global headers."""
_MAX_GLOBAL = 100  # keys
_HEADERS = (
    tarfile.XHDTYPE,
    tarfile.XGLTYPE,
    tarfile.SOLARIS_XHDTYPE,
    tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
)
UNREADABLE = (tarfile.TarError, EOFError, ValueError, OverflowError, RecursionError)
"""What `tarfile` raises for damaged tars, for numbers that are none, and for very many headers before a member."""


class BoundedHeaders(tarfile.TarInfo):
    """A member whose headers cannot fill the memory. Reading it raises `ImageError` for larger ones."""

    def _proc_member(self, opened: tarfile.TarFile) -> tarfile.TarInfo:
        _check_size(self)
        if self.type in _HEADERS and self.size > MAX_HEADER:
            raise _too_large(f"{self.size} bytes")
        file = opened.fileobj
        opened.fileobj = cast("Any", _Counted(file))
        try:
            member = cast("tarfile.TarInfo", super()._proc_member(opened))  # type: ignore[misc]
        finally:
            opened.fileobj = file
        _check_size(member)  # an extended header may give another one
        shared = opened.pax_headers
        if len(shared) > _MAX_GLOBAL or sum(map(len, shared.values())) > MAX_HEADER:
            raise _too_large("all global headers together")
        return member


def _check_size(member: tarfile.TarInfo) -> None:
    """Python before 3.14 takes a negative size for a number of bytes, and `read` takes it for all that follows."""
    if member.size < 0:
        raise ImageError(f"a member of {member.size} bytes: the tar is damaged or hostile")


class _Counted:
    """A file of which at most `MAX_HEADER` bytes are read, and a block for each of two nested headers."""

    def __init__(self, file: Any) -> None:
        self._file, self._left = file, MAX_HEADER + 4 * tarfile.BLOCKSIZE

    def read(self, size: int) -> bytes:
        self._left -= size
        if self._left < 0:
            raise _too_large(f"more than {MAX_HEADER} bytes")
        return cast("bytes", self._file.read(size))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def members_of(opened: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    """The members in their order. None of them is kept."""
    while (member := opened.next()) is not None:
        yield member
        cast("Any", opened).members.clear()


def _too_large(what: str) -> ImageError:
    return ImageError(f"a header of {what}, more than {MAX_HEADER}: the tar is damaged or hostile")


@dataclass(slots=True)
class _Unpacking:
    tar: Path | str  # its name, for messages
    room: int  # bytes left for files, including holes, because everything is read again to be digested
    tree: OpenatWalker = field(init=False)
    linked: OpenatWalker = field(init=False)  # for the targets of hard links
    folders: dict[str, tuple[int, int]] = field(default_factory=dict)  # path → mode and time, set at the end
    children: dict[str, set[str]] = field(default_factory=dict)  # folder → the folders in it
    count: int = 0
    text: int = 0  # characters of the names and attributes so far
    layer: bool = False  # of an image: names with ".wh." are whiteouts
    implied: set[str] = field(default_factory=set)  # folders that no member declares
    whiteouts: set[str] = field(default_factory=set)
    opaque: set[str] = field(default_factory=set)


def unpack(tar: Path, dest: Path, *, room: int | None = None) -> None:
    """Unpack `tar` into the empty folder `dest`. Raises `ImageError`, and `StoreUnusable` if the disk has no room.
    What was written until then stays in `dest`.

    `room`: bytes that the tar may hold; by default the free space of the disk.
    """
    unpacking = _Unpacking(tar, room=_free(dest) if room is None else room)
    with _explained(tar), tarfile.open(tar, errorlevel=2, tarinfo=BoundedHeaders) as opened:
        _unpack_all(opened, dest, unpacking)


def unpack_layer(stream: IO[bytes], dest: Path, *, name: str, room: int | None = None) -> frozenset[str]:
    """Unpack an image's layer, an uncompressed tar, into the empty folder `dest`, as overlayfs has it: whiteouts as
    devices 0/0, opaque folders by their attribute. Returns the folders that no member declares ("" is the top one):
    they have mode 0755 and time 0. A whiteout hides nothing of its own layer. `name`: for messages.

    Raises `ImageError`, and `StoreUnusable` if the disk has no room.
    """
    unpacking = _Unpacking(name, room=_free(dest) if room is None else room, layer=True)
    with (
        _explained(name),
        tarfile.open(fileobj=stream, mode="r|", bufsize=_CHUNK, errorlevel=2, tarinfo=BoundedHeaders) as opened,
    ):
        opened.fileobj.seekable = lambda: True  # type: ignore[attr-defined,union-attr,unused-ignore]  # forwards only
        _unpack_all(opened, dest, unpacking)
    return frozenset(unpacking.implied & unpacking.folders.keys())


def _free(dest: Path) -> int:
    status = os.statvfs(dest)
    return int(status.f_bavail * status.f_frsize * (1 - _RESERVE))


def _unpack_all(opened: tarfile.TarFile, dest: Path, unpacking: _Unpacking) -> None:
    with OpenatWalker(dest, grant=0o700) as tree, OpenatWalker(dest, grant=0o700) as linked:
        unpacking.tree, unpacking.linked = tree, linked
        for member in members_of(opened):
            _unpack(member, opened, unpacking)
        if unpacking.layer:
            _hide(unpacking)
        for path in sorted(unpacking.folders, reverse=True):
            mode, time_ns = unpacking.folders[path]
            fd = tree.folder(path)
            os.utime(fd, ns=(time_ns, time_ns))
            os.fchmod(fd, mode)


@contextmanager
def _explained(tar: Path | str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno is None:  # of a decompressor
            raise ImageError(f"{tar}: it does not decompress ({error}). Create it again") from None
        if error.errno not in _NO_SUCH_MEMBER:
            raise
        raise ImageError(f"{tar}: a member that no file system can hold ({error}). Create the tar again") from None
    except (*UNREADABLE, zlib.error, lzma.LZMAError) as error:
        # the first line: `tarfile` lists all tries
        why = str(error).splitlines()[0].rstrip(":") if str(error) else type(error).__name__
        raise ImageError(f"{tar}: not a complete tar ({why}). Create it again with tar") from None


def _note_whiteout(path: str, member: tarfile.TarInfo, unpacking: _Unpacking) -> bool:
    """Remember a whiteout. Returns False if the member is none."""
    folder, _, base = path.rpartition("/")
    if not base.startswith(_WHITEOUT):
        return False
    if base == _OPAQUE:
        if not folder:
            raise _refused(unpacking.tar, member.name, "it hides every layer below")
        unpacking.opaque.add(folder)
    elif not base.startswith(_AUFS):  # the rest is aufs's own
        hidden = base.removeprefix(_WHITEOUT)
        if hidden in ("", ".", ".."):
            raise _refused(unpacking.tar, member.name, "it is a whiteout that leads out of its folder")
        unpacking.whiteouts.add(f"{folder}/{hidden}" if folder else hidden)
    return True


def _hide(unpacking: _Unpacking) -> None:
    """Write the whiteouts. What the layer itself has at such a path stands, and hides what is below it."""
    for path in sorted(unpacking.whiteouts):
        if any(_kind(folder, unpacking) not in (None, stat.S_IFDIR) for folder in parent_folders(path)):
            continue  # below a file of this layer: hidden already
        kind = _kind(path, unpacking)
        if kind == stat.S_IFDIR:
            unpacking.opaque.add(path)
        elif kind is None:
            _ensure_parents(path, unpacking)
            parent, name = unpacking.tree.parent(path)
            os.mknod(name, stat.S_IFCHR, os.makedev(0, 0), dir_fd=parent)
    for path in sorted(unpacking.opaque):
        if all(_kind(folder, unpacking) in (None, stat.S_IFDIR) for folder in (*parent_folders(path), path)):
            _folder(path, unpacking)
            os.setxattr(unpacking.tree.folder(path), OPAQUE, b"y")
    if "" not in unpacking.folders:
        unpacking.folders[""] = (0o755, 0)
        unpacking.implied.add("")


def _kind(path: str, unpacking: _Unpacking) -> int | None:
    """The type of what is at the path, None for nothing."""
    if not path or path in unpacking.folders:
        return stat.S_IFDIR
    try:
        parent, name = unpacking.tree.parent(path)
        return stat.S_IFMT(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return None


def _unpack(member: tarfile.TarInfo, opened: tarfile.TarFile, unpacking: _Unpacking) -> None:
    path = _member_path(member.name, unpacking.tar)
    unpacking.count += 1
    if unpacking.count > MAX_MEMBERS:
        raise ImageError(f"{unpacking.tar}: more than {MAX_MEMBERS} members, which no root file system has")
    _take_room(_MEMBER_BYTES, member, unpacking)
    _take_text(path, member, unpacking)
    if unpacking.layer and _note_whiteout(path, member, unpacking):
        return
    if member.ischr() or member.isblk():
        return
    if member.isdir():
        _folder(path, unpacking)
        unpacking.implied.discard(path)
        _note_folder(path, (stat.S_IMODE(member.mode), _time_ns(member)), unpacking)
        return
    if not path:
        raise _refused(unpacking.tar, member.name, "it is the root itself, but not a folder")
    _ensure_parents(path, unpacking)
    parent, name = unpacking.tree.parent(path)
    remove_any(name, parent)
    if path in unpacking.folders:
        _forget_folder(path, unpacking)
    if member.issym():
        os.symlink(member.linkname, name, dir_fd=parent)
        os.utime(name, ns=(_time_ns(member),) * 2, dir_fd=parent, follow_symlinks=False)
    elif member.islnk():
        _link(path, member, unpacking)
    elif member.isfifo():
        os.mkfifo(name, 0o600, dir_fd=parent)
        os.chmod(name, stat.S_IMODE(member.mode), dir_fd=parent)
        os.utime(name, ns=(_time_ns(member),) * 2, dir_fd=parent)
    elif member.isreg():
        _file(member, opened, unpacking, parent, name)
    else:
        raise _refused(unpacking.tar, member.name, f"its type {member.type!r} is unknown")


def _forget_folder(path: str, unpacking: _Unpacking) -> None:
    """Forget a folder and those below it. Costs what is forgotten: a tar may replace each of many folders."""
    unpacking.children[path.rpartition("/")[0]].discard(path)
    pending = [path]
    while pending:
        lost = pending.pop()
        del unpacking.folders[lost]
        pending += unpacking.children.pop(lost, ())


def _note_folder(path: str, mode_and_time: tuple[int, int], unpacking: _Unpacking) -> None:
    unpacking.folders[path] = mode_and_time
    if path:
        unpacking.children.setdefault(path.rpartition("/")[0], set()).add(path)


def _member_path(name: str, tar: Path | str) -> str:
    """Return a member's path below the root. Absolute names are accepted: tars of a root often begin with "/"."""
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if ".." in parts or "\0" in name:
        raise _refused(tar, name, "its name leads out of the root file system")
    if len(parts) > MAX_DEPTH:
        raise _refused(tar, name, f"it lies more than {MAX_DEPTH} folders deep")
    return "/".join(parts)


def _ensure_parents(path: str, unpacking: _Unpacking) -> None:
    for folder in reversed(list(parent_folders(path))):
        _folder(folder, unpacking)


def _folder(path: str, unpacking: _Unpacking) -> None:
    """Make sure that a folder is at the path. A tar that writes through a link is refused."""
    if not path or path in unpacking.folders:
        return
    _ensure_parents(path, unpacking)
    parent, name = unpacking.tree.parent(path)
    try:
        os.mkdir(name, 0o700, dir_fd=parent)
    except FileExistsError:
        if not stat.S_ISDIR(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode):
            raise _refused(unpacking.tar, path, "another member replaced the folder by a link or a file") from None
    _note_folder(path, (0o755, 0), unpacking)
    unpacking.implied.add(path)


def _link(path: str, member: tarfile.TarInfo, unpacking: _Unpacking) -> None:
    target = _member_path(member.linkname, unpacking.tar)
    try:
        from_fd, from_name = unpacking.linked.parent(target)
        found = os.stat(from_name, dir_fd=from_fd, follow_symlinks=False)
    except (FileNotFoundError, NotADirectoryError):
        raise _refused(unpacking.tar, member.name, f"it is a hard link to {target!r}, not in the tar") from None
    if not stat.S_ISREG(found.st_mode):
        raise _refused(unpacking.tar, member.name, f"it is a hard link to {target!r}, which is not a file")
    parent, name = unpacking.tree.parent(path)
    os.link(from_name, name, src_dir_fd=from_fd, dst_dir_fd=parent, follow_symlinks=False)


def _file(member: tarfile.TarInfo, opened: tarfile.TarFile, unpacking: _Unpacking, parent: int, name: str) -> None:
    _take_room(member.size, member, unpacking)
    source = opened.extractfile(member)
    assert source is not None
    fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=parent)
    try:
        for offset, chunk in _data(source, member, unpacking):
            write_all(fd, chunk, offset)
        os.ftruncate(fd, member.size)
        for key, value in member.pax_headers.items():
            if key.startswith(_KEPT_XATTRS) and not key.startswith(_OVERLAY_XATTRS):
                os.setxattr(fd, key.removeprefix("SCHILY.xattr."), value.encode("utf-8", "surrogateescape"))
        os.fchmod(fd, stat.S_IMODE(member.mode))
        os.utime(fd, ns=(_time_ns(member),) * 2)
    except OverflowError:
        raise _refused(unpacking.tar, member.name, f"no file can have its size, {member.size}") from None
    finally:
        os.close(fd)


def _take_room(size: int, member: tarfile.TarInfo, unpacking: _Unpacking) -> None:
    unpacking.room -= size
    if unpacking.room < 0:
        raise StoreUnusable(
            f"{unpacking.tar}: the disk has no room for its member {member.name!r}, which is to have {member.size} "
            "bytes. Free some space, or delete snapshots"
        )


def _take_text(path: str, member: tarfile.TarInfo, unpacking: _Unpacking) -> None:
    attributes = sum(len(value) for key, value in member.pax_headers.items() if key.startswith(_KEPT_XATTRS))
    unpacking.text += len(path) + len(member.linkname) + attributes
    if unpacking.text > _MOST_TEXT:
        raise ImageError(
            f"{unpacking.tar}: more than {_MOST_TEXT} characters of names, which no root file system has"
        )


def _data(source: IO[bytes], member: tarfile.TarInfo, unpacking: _Unpacking) -> Iterator[tuple[int, bytes]]:
    """Yield (offset, bytes) of everything that is not a hole."""
    ranges = cast("list[tuple[int, int]] | None", member.sparse)  # typeshed declares it as bytes
    ranges = [(0, member.size)] if ranges is None else ranges
    for start, length in ranges:
        if start < 0 or length < 0 or start + length > member.size:
            raise _refused(unpacking.tar, member.name, "its map of holes is invalid")
        source.seek(start)
        end = start + length
        while start < end:
            chunk = source.read(min(_CHUNK, end - start))
            if not chunk:
                raise _refused(unpacking.tar, member.name, "the tar ends before its bytes do")
            yield start, chunk
            start += len(chunk)


def _time_ns(member: tarfile.TarInfo) -> int:
    """Return the modification time in nanoseconds. Exact if the tar is (pax)."""
    try:
        found = int(Decimal(member.pax_headers.get("mtime", str(member.mtime))) * 10**9)
    except (ArithmeticError, ValueError):  # endless, or no number
        return 0
    return found if abs(found) < 1 << 63 else 0


def _refused(tar: Path | str, name: str, why: str) -> ImageError:
    return ImageError(f"{tar}: its member {name!r} is refused: {why}. Create the tar again from a root file system")
