"""Read, write and copy files of a live world from the host, whatever the world has planted there.

A world's tree leads through `/proc/PID/root`, and the world may put links, FIFOs and devices anywhere. Every folder
is opened relative to the one above it, never through a link. Only regular files are opened, and none of them blocks.

`WorldFiles` has the methods of `World`; the functions above it do the work, in threads.
"""

from __future__ import annotations

import asyncio
import errno
import os
import secrets
import stat
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Protocol, TypeVar, runtime_checkable

from ramify import paths
from ramify.sandboxes import contract
from ramify.sandboxes.contract import WorldSpec, why_no_argument
from ramify.sandboxes.host.concurrency import finish_before_cancelling
from ramify.sandboxes.host.scratch import remove_tree
from ramify.sandboxes.host.world_files import read_inside
from ramify.worlds.errors import PathRefused

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_CHUNK = 1 << 20
_DEEPEST = 200  # folders within each other that are copied

MOST_READ = 256 << 20
"""Bytes of the largest file that `World.read` returns by default."""


def read(tree: Path, path: str, most: int) -> bytes:
    """A file's bytes. Links inside the tree are followed. Raises `PathRefused`."""
    try:
        return read_inside(tree, path, most)
    except OSError as error:
        raise _refused(path, error) from error


def write(tree: Path, path: str, data: bytes, mode: int) -> None:
    """Write a file whole: a reader sees the old or the new one. Makes the folders above it. Raises `PathRefused`."""
    above, name = _split(path)
    try:
        with _folder(tree, above, make=True) as parent:
            _replace(parent, name, data, mode)
    except OSError as error:
        raise _refused(path, error) from error


def upload(source: Path, tree: Path, path: str, stop: threading.Event) -> None:
    """Copy a file to `path`, or into it if that is a folder; or the content of a folder into the folder `path`.
    Raises `PathRefused`."""
    try:
        if not os.path.lexists(source):
            raise PathRefused(f"{source}: it does not exist")
        if source.is_dir():
            with _folder(tree, path, make=True) as target, _opened(os.open(source, _FOLDER & ~os.O_NOFOLLOW)) as top:
                _copy_content(top, target, str(source), 0, stop)
        else:
            above, name = (path, source.name) if _is_folder(tree, path) else _split(path)
            with (
                _folder(tree, above, make=True) as parent,
                _opened(os.open(source.parent, _FOLDER & ~os.O_NOFOLLOW)) as top,
            ):
                _copy_one(source.name, top, name, parent, str(source), 0, stop)
    except OSError as error:
        raise _refused(str(source), error) from error


def download(tree: Path, path: str, target: Path, stop: threading.Event) -> None:
    """Copy a file to `target`, or the content of a folder into the folder `target`, which is missing or empty. Raises
    `PathRefused`, and then leaves nothing there."""
    above, name = _split(path) if path not in ("", ".") else ("", "")
    try:
        with _folder(tree, above, make=False) as parent:
            found = os.stat(name or ".", dir_fd=parent, follow_symlinks=False)
            if not stat.S_ISDIR(found.st_mode):
                if target.is_dir():
                    target = target / name
                if target.is_symlink() or target.exists():
                    raise PathRefused(f"{target} exists: nothing is overwritten. Name another place")
                with _naming(str(target.parent)):
                    target.parent.mkdir(parents=True, exist_ok=True)
                with _opened(os.open(target.parent, _FOLDER & ~os.O_NOFOLLOW)) as top:
                    _copy_one(name, parent, target.name, top, path, 0, stop)
                return
            with _naming(str(target)):
                target.mkdir(parents=True, exist_ok=True)
            if any(target.iterdir()):
                raise PathRefused(f"{target} is not empty: nothing is overwritten. Name another folder")
            with (
                _opened(os.open(name or ".", _FOLDER, dir_fd=parent)) as source,
                _opened(os.open(target, _FOLDER & ~os.O_NOFOLLOW)) as top,
            ):
                try:
                    _copy_content(source, top, path, 0, stop)
                except BaseException:
                    _empty(target)
                    raise
    except OSError as error:
        raise _refused(path, error) from error


def _empty(folder: Path) -> None:
    for made in folder.iterdir():
        if made.is_dir() and not made.is_symlink():
            remove_tree(made)
        else:
            made.unlink()


def _copy_content(source: int, target: int, where: str, depth: int, stop: threading.Event) -> None:
    if depth > _DEEPEST:
        raise PathRefused(f"{where}: more than {_DEEPEST} folders within each other are not copied")
    with os.scandir(source) as entries:
        names = sorted(entry.name for entry in entries)
    for name in names:
        _copy_one(name, source, name, target, f"{where}/{name}", depth, stop)


def _copy_one(name: str, source: int, new: str, target: int, where: str, depth: int, stop: threading.Event) -> None:
    """Copy one file, link or folder. FIFOs, sockets and devices are left out. Raises `PathRefused` with its name."""
    if stop.is_set():
        raise _Stopped
    try:
        _copy_entry(name, source, new, target, where, depth, stop)
    except OSError as error:
        raise _refused(where, error) from error


def _copy_entry(name: str, source: int, new: str, target: int, where: str, depth: int, stop: threading.Event) -> None:
    found = os.stat(name, dir_fd=source, follow_symlinks=False)
    if stat.S_ISLNK(found.st_mode):
        link = os.readlink(name, dir_fd=source)
        with suppress(FileNotFoundError):
            os.unlink(new, dir_fd=target)
        os.symlink(link, new, dir_fd=target)
    elif stat.S_ISDIR(found.st_mode):
        with suppress(FileExistsError):
            os.mkdir(new, 0o700, dir_fd=target)
        with (
            _opened(os.open(name, _FOLDER, dir_fd=source)) as inner,
            _opened(os.open(new, _FOLDER, dir_fd=target)) as out,
        ):
            _copy_content(inner, out, where, depth + 1, stop)
            os.fchmod(out, stat.S_IMODE(found.st_mode) & 0o777)
    elif stat.S_ISREG(found.st_mode):
        _copy_file(name, source, new, target, stop)


def _copy_file(name: str, source: int, new: str, target: int, stop: threading.Event) -> None:
    with _opened(os.open(name, _FILE, dir_fd=source)) as inner:
        found = os.fstat(inner)
        if not stat.S_ISREG(found.st_mode):
            return  # it was a regular file a moment ago: the world changes while it is copied
        with _temporary(target) as (out, temporary):
            while chunk := os.read(inner, _CHUNK):
                if stop.is_set():
                    raise _Stopped
                _write_all(out, chunk)
            os.fchmod(out, stat.S_IMODE(found.st_mode) & 0o777)  # no set-id bits of the other side
            os.utime(out, ns=(found.st_mtime_ns, found.st_mtime_ns))
            os.rename(temporary, new, src_dir_fd=target, dst_dir_fd=target)


def _replace(parent: int, name: str, data: bytes, mode: int) -> None:
    with _temporary(parent) as (out, temporary):
        _write_all(out, data)
        os.fchmod(out, mode)
        os.rename(temporary, name, src_dir_fd=parent, dst_dir_fd=parent)


@contextmanager
def _temporary(parent: int) -> Iterator[tuple[int, str]]:
    """A new file in a folder: (descriptor, name). Removed unless it was renamed."""
    name = f".ramify-{secrets.token_hex(8)}"
    out = os.open(name, _NEW, 0o600, dir_fd=parent)
    try:
        yield out, name
    finally:
        os.close(out)
        with suppress(FileNotFoundError):
            os.unlink(name, dir_fd=parent)


@contextmanager
def _folder(tree: Path, path: str, *, make: bool) -> Iterator[int]:
    """A descriptor of a folder below the tree, no link followed on the way. With `make`, missing folders are made."""
    at = os.open(tree, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with _naming(path):
            for part in (one for one in path.split("/") if one not in ("", ".")):
                if make:
                    with suppress(FileExistsError):
                        os.mkdir(part, 0o755, dir_fd=at)
                below = os.open(part, _FOLDER, dir_fd=at)
                os.close(at)
                at = below
        yield at
    finally:
        os.close(at)


def _is_folder(tree: Path, path: str) -> bool:
    with suppress(OSError, PathRefused), _folder(tree, path, make=False):
        return True
    return False


@contextmanager
def _opened(descriptor: int) -> Iterator[int]:
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _write_all(out: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(out, left) :]


def _split(path: str) -> tuple[str, str]:
    above, _, name = path.rstrip("/").rpartition("/")
    if name in ("", "."):
        raise PathRefused(f"{path!r} names no file: give a path below the world's tree")
    return above, name


_WHY = {
    errno.ENOENT: "it does not exist",
    errno.ENOTDIR: "a link or a file is in the place of a folder",
    errno.ELOOP: "a symbolic link is in the path",
    errno.EXDEV: "a link leads out of the world's tree",
    errno.EINVAL: "it is not a regular file",
    errno.EISDIR: "it is a folder",
    errno.EFBIG: "it is larger than was asked for",
}


@contextmanager
def _naming(path: str) -> Iterator[None]:
    """What the block raises is about this path: of a copy, that may be its source, its target, or a folder above."""
    try:
        yield
    except OSError as error:
        raise _refused(path, error) from error


def _refused(path: str, error: OSError) -> PathRefused:
    return PathRefused(f"{path}: {_WHY.get(error.errno or 0, error.strerror)}")


class _Stopped(Exception):
    """Whoever asked for a copy has been cancelled."""


@runtime_checkable
class _Steady(Protocol):
    """A sandbox whose tree can be held where it is."""

    def steady(self) -> AbstractAsyncContextManager[None]: ...


T = TypeVar("T")


class WorldFiles(ABC):
    """The part of `World` that reads and writes files."""

    _spec: WorldSpec

    @abstractmethod
    def _alive(self) -> contract.World:
        """The live sandbox. Raises `WorldClosed`."""

    @abstractmethod
    async def _state_taken(self) -> None:
        """Wait until the state of a snapshot that was begun is taken."""

    async def read(self, path: str | Path, *, most: int = MOST_READ) -> bytes:
        """A file's bytes. No link out of the tree is followed. Raises `PathRefused`, also for more than `most`
        bytes."""
        inside = self._relative(path)
        return await self._in_tree(lambda tree, _: read(tree, inside, most))

    async def write(self, path: str | Path, data: bytes | str, *, mode: int = 0o644) -> None:
        """Write a file, and make the folders above it. A link in its place is replaced, never followed. Raises
        `PathRefused`."""
        raw = data.encode() if isinstance(data, str) else data
        inside = self._relative(path)
        await self._in_tree(lambda tree, _: write(tree, inside, raw, mode))

    async def upload(self, source: str | Path, target: str | Path = ".") -> None:
        """Copy a file of the host to `target`, or into it if that is a folder; or what is in a folder, into the
        folder `target`. Links are copied as links. If it is cancelled, the files that were copied stay. Raises
        `PathRefused`."""
        place, inside = paths.expanded(source), self._relative(target)
        await self._in_tree(lambda tree, stop: upload(place, tree, inside, stop))

    async def download(self, source: str | Path, target: str | Path) -> None:
        """Copy a file or folder of the world to the host. Links are copied as links, and none is followed. Nothing is
        overwritten. Raises `PathRefused`."""
        place, inside = paths.expanded(target), self._relative(source)
        await self._in_tree(lambda tree, stop: download(tree, inside, place, stop))

    async def _in_tree(self, work: Callable[[Path, threading.Event], T]) -> T:
        """Work on the tree in a thread. A snapshot, a restore or a merge has ended before, or begins afterwards, also
        if we are cancelled: the event is then set, and the work ends."""
        await self._state_taken()
        live, stop = self._alive(), threading.Event()
        async with live.steady() if isinstance(live, _Steady) else nullcontext():
            tree = self._alive().path
            return await finish_before_cancelling(asyncio.to_thread(work, tree, stop), stop.set)

    def _relative(self, path: str | Path) -> str:
        if why := why_no_argument(str(path)):
            raise PathRefused(f"{path!a} is not a path: it has {why}")
        given = Path(path)
        if given.is_absolute():
            if not given.is_relative_to(self._spec.mount_at):
                raise PathRefused(
                    f"{given} lies outside the world's tree, {self._spec.mount_at}: use a command, such as "
                    "exec(['cat', …])"
                )
            given = given.relative_to(self._spec.mount_at)
        if ".." in given.parts:
            raise PathRefused(f"{path}: a path with '..' may lead out of the world's tree")
        return str(given)
