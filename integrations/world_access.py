"""What every adapter needs: a world's output as one stream, its files by any path inside, and the adapters' errors.

`IntegrationError` is the root of the errors of the package `ramify.integrations`.
"""

from __future__ import annotations

import asyncio
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from ramify.sandboxes.contract import RunResult, why_no_argument
from ramify.worlds.errors import PathRefused
from ramify.worlds.world import World


class IntegrationError(Exception):
    """The root of this package's errors."""


class FileAccessFailed(IntegrationError):
    """A file of a world cannot be read or written. `reason` is one of `missing`, `folder`, `not_folder`,
    `permission`, `special` (a FIFO, a device), `too_large`, `no_path` and `other`."""

    def __init__(self, message: str, reason: str) -> None:
        super().__init__(message)
        self.reason = reason


class UnknownWorld(IntegrationError):
    """No open world has this name."""


class NotStarted(IntegrationError):
    """The environment was not started, or was stopped."""


MOST_READ = 100 << 20
"""Bytes of the largest file that an adapter reads."""

_IN_MEMORY = 8 << 20  # bytes of an archive before it goes to a temporary file
_READ = """
[ -d "$1" ] && exit 21
[ -e "$1" ] || exit 2
[ -f "$1" ] || exit 22
[ -r "$1" ] || exit 13
[ "$(stat -L -c %s -- "$1")" -le "$2" ] || exit 27
exec head -c "$(($2 + 1))" -- "$1"  # files of /proc have no size
"""
_WRITE = """
export LC_ALL=C
[ -d "$1" ] && exit 21
[ ! -e "$1" ] || [ -f "$1" ] || [ -c "$1" ] || exit 22
mkdir -p -- "$(dirname -- "$1")" && cat > "$1" || exit 1
"""
_PACK = """
[ -e "$1" ] || exit 2
[ -d "$1" ] || exit 20
folder=$1; shift
exec tar -C "$folder" "$@" -cf - .
"""
_UNPACK = """
export LC_ALL=C
mkdir -p -- "$1" || exit 1
exec tar -C "$1" -o -xf -
"""
_TOO_LARGE = 27
_REASONS = {2: "missing", 13: "permission", 20: "not_folder", 21: "folder", 22: "special", _TOO_LARGE: "too_large"}
_OF_MESSAGES = {
    "Permission denied": "permission",
    "Operation not permitted": "permission",
    "Read-only file system": "permission",
    "Not a directory": "not_folder",
    "File exists": "not_folder",  # `mkdir -p` where a file is
}
_SAID = {
    "missing": "no such file in the world",
    "permission": "the world does not allow it",
    "folder": "it is a directory",
    "not_folder": "it is not a directory",
    "special": "it is a FIFO, a socket or a device",
    "too_large": "the file is too large",
    "other": "the command failed",
}


def with_merged_output(command: str, interpreter: Sequence[str] = ("bash", "-c")) -> list[str]:
    """Return a command whose standard error goes where its standard output goes, in the order of writing."""
    return merged([*interpreter, command])


def merged(words: Sequence[str]) -> list[str]:
    """As `with_merged_output`, for a program and its arguments."""
    return ["bash", "-c", 'exec 2>&1; exec "$@"', "bash", *words]


def merged_text(result: RunResult) -> str:
    """The output of a command with merged outputs, and what was said where it could not be started."""
    return result.stdout + result.stderr


async def read_file(world: World, path: str, *, most: int = MOST_READ) -> bytes:
    """Return a file's bytes. A relative path starts where commands start; an absolute one may be anywhere inside the
    world. Raises `FileAccessFailed`."""
    _check_path("read", path)
    if _is_in_tree(world, path):
        try:
            return await world.read(str(world.workdir / path), most=most)
        except PathRefused:
            pass  # a link, a device, or missing: inside the world, where links lead nowhere else, tell which
    async with world.start(["bash", "-c", _READ, "bash", path, str(most)]) as process:
        process.stdout.collect(most)  # more than `exec` keeps
        process.stderr.collect(4096)
        code, data = await process.wait(), await process.stdout.collected()
    _check(_TOO_LARGE if process.stdout.truncated else code, "read", path)
    return data


async def write_file(world: World, path: str, data: bytes) -> None:
    """Write a file, and make the folders above it. Paths are as for `read_file`. Raises `FileAccessFailed`."""
    _check_path("write", path)
    result = await world.exec(["bash", "-c", _WRITE, "bash", path], stdin=data)
    _check(result.exit_code, "write", path, result.stderr)


async def upload(world: World, source: Path, target: str) -> None:
    """Copy a file, or what is in a folder, of this machine into the world, at any path inside. Links stay links.
    Raises `FileAccessFailed`."""
    if source.is_dir():
        with tempfile.SpooledTemporaryFile(_IN_MEMORY) as archive:
            await asyncio.to_thread(_pack_here, source, archive)
            await unpack(world, target, archive)
        return
    if source.exists() and not source.is_file():
        raise FileAccessFailed(f"cannot upload {source}: {_SAID['special']}", "special")
    await write_file(world, target, await asyncio.to_thread(source.read_bytes))
    if source.stat().st_mode & 0o111:
        await world.exec(["chmod", "+x", "--", target], check=True)


async def download(world: World, source: str, target: Path) -> None:
    """Copy what is in a folder of the world, at any path inside, into a folder of this machine. Files that are there
    are replaced; FIFOs and devices are left out. Raises `FileAccessFailed`, and `tarfile.FilterError` for a link out
    of the folder."""
    with tempfile.SpooledTemporaryFile(_IN_MEMORY) as archive:
        await pack(world, source, archive)
        await asyncio.to_thread(_extract, archive, target)


async def pack(world: World, folder: str, archive: IO[bytes], leave_out: Sequence[str] = ()) -> None:
    """Write a tar of what is in a folder of the world to an archive, and rewind it. leave_out: relative paths. Needs
    a `tar` in the world. Raises `FileAccessFailed`."""
    without = [f"--exclude=./{path}" for path in leave_out]
    async with world.start(["bash", "-c", _PACK, "bash", folder, *without]) as tar:
        tar.stderr.collect(4096)
        async for data in tar.stdout:
            await asyncio.to_thread(archive.write, data)
        code, said = await tar.wait(), await tar.stderr.collected()
    _check(code, "read", folder, said.decode("utf-8", "replace"))
    archive.seek(0)


async def unpack(world: World, folder: str, archive: IO[bytes]) -> None:
    """Extract a tar into a folder of the world, which is made. Needs a `tar` in the world. Raises
    `FileAccessFailed`."""
    result = await world.exec(["bash", "-c", _UNPACK, "bash", folder], stdin=archive)
    _check(result.exit_code, "write", folder, result.stderr)


def _pack_here(folder: Path, archive: IO[bytes]) -> None:
    with tarfile.open(fileobj=archive, mode="w") as tar:
        tar.add(folder, ".")
    archive.seek(0)


def _extract(archive: IO[bytes], folder: Path) -> None:
    def wanted(member: tarfile.TarInfo, path: str) -> tarfile.TarInfo | None:
        return None if member.isdev() else tarfile.data_filter(member, path)

    folder.mkdir(parents=True, exist_ok=True)
    with tarfile.open(fileobj=archive) as tar:
        tar.extractall(folder, filter=wanted)


def as_os_error(error: FileAccessFailed) -> OSError:
    """The error that a file on this machine would have given."""
    kinds: dict[str, type[OSError]] = {
        "missing": FileNotFoundError,
        "folder": IsADirectoryError,
        "not_folder": NotADirectoryError,
        "permission": PermissionError,
    }
    return kinds.get(error.reason, OSError)(str(error))


@contextmanager
def os_errors() -> Iterator[None]:
    """Raise `FileAccessFailed` as the `OSError` that it means."""
    try:
        yield
    except FileAccessFailed as error:
        raise as_os_error(error) from error


def write_to_host(target: Path, data: bytes) -> None:
    """Write a file of this machine, and make the folders above it."""
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(data)


def _is_in_tree(world: World, path: str) -> bool:
    given = world.workdir / path
    return ".." not in given.parts and given.is_relative_to(str(world.mount_at))


def _check_path(act: str, path: str) -> None:
    if why := why_no_argument(path):
        raise FileAccessFailed(f"cannot {act} {path!a}: it has {why}", "no_path")


def _check(exit_code: int, act: str, path: str, said: str = "") -> None:
    if exit_code:
        known = (reason for told, reason in _OF_MESSAGES.items() if told in said)
        reason = _REASONS.get(exit_code) or next(known, "other")
        told = said.strip()[-500:] if reason == "other" else ""
        raise FileAccessFailed(f"cannot {act} {path}: {told or _SAID[reason]}", reason)
