"""What every adapter needs of a world: output as one stream, and files by any path inside."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from ramify.integrations.errors import FileAccessFailed
from ramify.worlds.errors import PathRefused
from ramify.worlds.world import World

MOST_READ = 100 << 20
"""Bytes of the largest file that an adapter reads."""

_READ = """
[ -d "$1" ] && exit 21
[ -e "$1" ] || exit 2
[ -r "$1" ] || exit 13
[ "$(stat -L -c %s -- "$1")" -le "$2" ] || exit 27
exec cat -- "$1"
"""
_WRITE = """
[ -d "$1" ] && exit 21
mkdir -p -- "$(dirname -- "$1")" || exit 13
cat > "$1" || exit 13
"""
_REASONS = {2: "missing", 13: "permission", 21: "folder", 27: "too_large"}
_SAID = {
    "missing": "no such file in the world",
    "permission": "the world does not allow it",
    "folder": "it is a directory",
    "too_large": "the file is too large",
    "other": "the command failed",
}


def with_merged_output(command: str, interpreter: Sequence[str] = ("bash", "-c")) -> list[str]:
    """Return a command whose standard error goes where its standard output goes, in the order of writing."""
    return merged([*interpreter, command])


def merged(words: Sequence[str]) -> list[str]:
    """As `with_merged_output`, for a program and its arguments."""
    return ["bash", "-c", 'exec 2>&1; exec "$@"', "bash", *words]


async def read_file(world: World, path: str, *, most: int = MOST_READ) -> bytes:
    """Return a file's bytes. A relative path starts where commands start; an absolute one may be anywhere inside the
    world. Raises `FileAccessFailed`."""
    if _is_in_tree(world, path):
        try:
            return await world.read(str(world.workdir / path), most=most)
        except PathRefused:
            pass  # a link, a device, or missing: inside the world, where links lead nowhere else, tell which
    result = await world.exec(["bash", "-c", _READ, "bash", path, str(most)])
    if result.truncated:
        raise FileAccessFailed(f"cannot read {path}: {_SAID['too_large']}", "too_large")
    _check(result.exit_code, "read", path)
    return result.stdout_bytes


async def write_file(world: World, path: str, data: bytes) -> None:
    """Write a file, and make the folders above it. Paths are as for `read_file`. Raises `FileAccessFailed`."""
    result = await world.exec(["bash", "-c", _WRITE, "bash", path], stdin=data)
    _check(result.exit_code, "write", path)


async def upload(world: World, source: Path, target: str) -> None:
    """Copy a file or a folder of this machine into the world, at any path inside. Raises `FileAccessFailed`."""
    if _is_in_tree(world, target):
        await world.upload(source, str(world.workdir / target))
        return
    files = [source] if source.is_file() else sorted(path for path in source.rglob("*") if path.is_file())
    for file in files:
        inside = PurePosixPath(target) if file == source else PurePosixPath(target) / file.relative_to(source)
        await write_file(world, str(inside), file.read_bytes())
        if file.stat().st_mode & 0o111:
            await world.exec(["chmod", "+x", "--", str(inside)], check=True)


def as_os_error(error: FileAccessFailed) -> OSError:
    """The error that a file on this machine would have given."""
    kinds: dict[str, type[OSError]] = {
        "missing": FileNotFoundError,
        "folder": IsADirectoryError,
        "permission": PermissionError,
    }
    return kinds.get(error.reason, OSError)(str(error))


def _is_in_tree(world: World, path: str) -> bool:
    given = world.workdir / path
    return ".." not in given.parts and given.is_relative_to(str(world.mount_at))


def _check(exit_code: int, act: str, path: str) -> None:
    if exit_code:
        reason = _REASONS.get(exit_code, "other")
        raise FileAccessFailed(f"cannot {act} {path}: {_SAID[reason]}", reason)
