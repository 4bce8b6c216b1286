"""The user of a world over an image, as the image's own files name it."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ramify.fork_engine.view import find_in_stack
from ramify.sandboxes.errors import WorldStartFailed

_MOST_BYTES = 1 << 20
_LARGEST_ID = (1 << 32) - 2


@dataclass(frozen=True, slots=True)
class ImageUser:
    uid: int
    gid: int
    home: str


def image_user(layers: Sequence[Path], named: str) -> ImageUser:
    """The user that USER names: a name or a number, with a group or without; "" for root. `layers`: of the image's
    root, lowest first. Raises `WorldStartFailed` for a name that the image does not have."""
    user, _, group = (named or "0").partition(":")
    found = next((row for row in _rows(layers, "etc/passwd", 6) if user in (row[0], row[2])), None)
    if found is None and not user.isdecimal():
        raise WorldStartFailed(
            f"the image has no user {user!r} in its /etc/passwd: name one that it has, or a number"
        )
    uid = _number(user if found is None else found[2], user)
    gid = _group(layers, group) if group else _number(found[3], user) if found is not None else 0
    home = found[5] if found is not None and found[5].startswith("/") else "/root" if uid == 0 else "/"
    return ImageUser(uid, gid, home)


def _group(layers: Sequence[Path], group: str) -> int:
    if group.isdecimal():
        return _number(group, group)
    for row in _rows(layers, "etc/group", 3):
        if row[0] == group:
            return _number(row[2], group)
    raise WorldStartFailed(f"the image has no group {group!r} in its /etc/group: name one that it has, or a number")


def _number(text: str, name: str) -> int:
    if not text.isdecimal() or len(text) > 10 or int(text) > _LARGEST_ID:
        raise WorldStartFailed(f"the user or group {name!r} of the image has an invalid id, {text[:20]!r}")
    return int(text)


def _rows(layers: Sequence[Path], path: str, least: int) -> list[list[str]]:
    """The lines of a file of the image, split at colons. A link or a device in its place counts as no file."""
    at = find_in_stack(layers, path)
    if at is None or not stat.S_ISREG(at.lstat().st_mode):
        return []
    with os.fdopen(os.open(at, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb") as file:
        text = file.read(_MOST_BYTES).decode(errors="replace")
    rows = (line.split(":") for line in text.splitlines())
    return [row for row in rows if len(row) >= least]
