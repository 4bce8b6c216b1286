"""The users of a world, as its own /etc/passwd and /etc/group name them. Stdlib only: used by the agent.

The files are read as text: the C library would load the plug-ins that the world's /etc/nsswitch.conf names.
"""

from __future__ import annotations

import ctypes
import os
import stat
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ramify.sandboxes.linux.kernel import AT_FDCWD, RESOLVE_NO_MAGICLINKS, OpenHow
from ramify.sandboxes.linux.syscalls import call

PASSWD, GROUP = Path("/etc/passwd"), Path("/etc/group")
MOST_READ = 16 << 20  # bytes: commands may have written these files


class UserUnknown(Exception):
    """The world has no such user or group. The text says what to do."""


class UserForbidden(Exception):
    """The kernel does not let the agent become this user. The text says what to do."""


@dataclass(frozen=True, slots=True)
class User:
    """Who a process is."""

    uid: int
    gid: int
    groups: tuple[int, ...]  # the supplementary ones
    name: str = ""  # "" for a number without an entry
    home: str = "/"


def find(text: str) -> User:
    """The user for `NAME`, `UID`, `NAME:GROUP` or `UID:GID`. A number needs no entry. Raises `UserUnknown`."""
    who, colon, group = text.partition(":")
    entry = _entry(PASSWD, who)
    if entry is None and not _is_id(who):
        raise UserUnknown(
            f"the world's {PASSWD} has no user {who!r}: name one that it has, a uid, or add it (useradd) first"
        )
    if entry is None:
        uid, gid, name, home = int(who), 0, "", "/"
    else:
        uid, gid, name, home = int(entry[2]), int(entry[3]), entry[0], entry[5] or "/"
    if not colon:
        return User(uid, gid, tuple(_groups_of(name)) if name else (), name, home)
    found = _entry(GROUP, group)
    if found is None and not _is_id(group):
        raise UserUnknown(f"the world's {GROUP} has no group {group!r}: name one that it has, or a gid")
    return User(uid, int(found[2]) if found is not None else int(group), (), name, home)


def check_allowed(user: User, only: tuple[int, int] | None) -> User | None:
    """Return the user to become, or None if every process of the world has it already. `only`: the one user and group
    of a world over an image. Raises `UserForbidden` if no process can become `user`."""
    who = user.name or f"uid {user.uid}"
    if only is not None:
        if (user.uid, user.gid) == only:
            return None
        raise UserForbidden(
            f"this world has one user, uid {only[0]}, and cannot run commands as {who}: make the world with an image "
            "whose USER it is, or leave user= out"
        )
    if (user.uid, user.gid) == (os.geteuid(), os.getegid()):
        return user
    if os.geteuid() != 0:
        raise UserForbidden(
            f"this world runs as uid {os.geteuid()} and cannot run commands as {who}: an ordinary user of the "
            "machine has one user id in a world. Leave user= out, or run Ramify as root"
        )
    for kind, number in (("uid_map", user.uid), ("gid_map", user.gid)):
        if not _is_mapped(kind, number):
            raise UserForbidden(
                f"{who} has the id {number}, which does not exist in this world: its user namespace does not map it"
            )
    return user


def become(user: User) -> None:
    """Give up this process's user for good. Raises `OSError`."""
    if user.uid == os.geteuid() and os.geteuid() != 0:
        return  # an ordinary user has no other ids to give up
    with suppress(FileNotFoundError):
        if Path("/proc/self/setgroups").read_text().strip() == "deny":
            os.setresgid(user.gid, user.gid, user.gid)
            os.setresuid(user.uid, user.uid, user.uid)
            return
    os.setgroups(user.groups)
    os.setresgid(user.gid, user.gid, user.gid)
    os.setresuid(user.uid, user.uid, user.uid)


def _is_mapped(kind: str, number: int) -> bool:
    for line in Path(f"/proc/self/{kind}").read_text().splitlines():
        first, _, count = map(int, line.split())
        if first <= number < first + count:
            return True
    return False


def _is_id(text: str) -> bool:
    return text.isascii() and text.isdigit() and int(text) < 1 << 32


def _entry(file: Path, name: str) -> list[str] | None:
    """The entry of this name, else the one with this id."""
    by_id = None
    for fields in _lines(file):
        if fields[0] == name:
            return fields
        if by_id is None and fields[2] == name:
            by_id = fields
    return by_id


def _groups_of(name: str) -> list[int]:
    return [int(fields[2]) for fields in _lines(GROUP) if name in fields[3].split(",")]


def _lines(file: Path) -> list[list[str]]:
    """The well-formed lines of a file of accounts; none if it is missing."""
    how = OpenHow(os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC, 0, RESOLVE_NO_MAGICLINKS)
    try:
        descriptor = call(
            "openat2", AT_FDCWD, os.fsencode(file), ctypes.byref(how), ctypes.c_size_t(ctypes.sizeof(how))
        )
    except OSError:
        return []
    with os.fdopen(descriptor, "rb") as opened:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return []
        text = opened.read(MOST_READ).decode("utf-8", "surrogateescape")
    least = 6 if file == PASSWD else 4
    found = [line.split(":") for line in text.splitlines()]
    return [
        fields
        for fields in found
        if len(fields) >= least and fields[0] and _is_id(fields[2]) and (file == GROUP or _is_id(fields[3]))
    ]
