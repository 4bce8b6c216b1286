"""Read the members of a tar that may be hostile, with bounded memory.

`tarfile` reads extended headers and maps of holes into memory, keeps them for each member until the end, and calls
itself for each header before a member. A compressed tar of a few megabytes can hold gigabytes of all of these.
"""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from typing import Any, cast

from ramify.fork_engine.errors import ImageError

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
UNREADABLE = (tarfile.TarError, EOFError, UnicodeError, OverflowError, RecursionError)
"""What `tarfile` raises for damaged tars, and for one with very many headers before a member."""


class BoundedHeaders(tarfile.TarInfo):
    """A member whose headers cannot fill the memory. Reading it raises `ImageError` for larger ones."""

    def _proc_member(self, opened: tarfile.TarFile) -> tarfile.TarInfo:
        if self.type in _HEADERS and self.size > MAX_HEADER:
            raise _too_large(f"{self.size} bytes")
        file = opened.fileobj
        opened.fileobj = cast("Any", _Counted(file))
        try:
            member = cast("tarfile.TarInfo", super()._proc_member(opened))  # type: ignore[misc]
        finally:
            opened.fileobj = file
        shared = opened.pax_headers
        if len(shared) > _MAX_GLOBAL or sum(map(len, shared.values())) > MAX_HEADER:
            raise _too_large("all global headers together")
        return member


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
