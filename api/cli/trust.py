"""Commands that execute what a home names ask first whether it is the user's own."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import click

from ramify.inspect.home import Home
from ramify.runtime.errors import RunError

trust_option = click.option(
    "--trust-home",
    is_flag=True,
    help="Do it even if the home belongs to another user, or others may write to it.",
)


RUNS_CODE = "Resuming a run executes the code that its rows name"
APART = "Its files say how a world is isolated from this machine, if at all"


class HomeNotTrusted(RunError):
    """Others wrote to the home, or may have: it names the code to execute, or how a world is isolated."""


def need_own_home(home: Home, act: str) -> None:
    """`act`: what the home decides. Raises `HomeNotTrusted`. A database server guards its own data."""
    from ramify.runtime.store.address import parse

    if (why := next(_strange([home.folder, *parse(home.database).files]), None)) is not None:
        raise HomeNotTrusted(
            f"{why}. {act}, and others could have written them. "
            "Inspect it first (`ramify show` and `ramify log` execute nothing); if you trust it: --trust-home"
        )


def _strange(places: list[Path]) -> Iterator[str]:
    me = os.geteuid()
    for place in places:
        try:
            status = place.stat()
        except OSError:
            continue
        if status.st_uid != me:
            yield f"{place} belongs to {_user(status.st_uid)}"
        elif status.st_mode & stat.S_IWOTH and not _is_closed(place):
            yield f"{place} may be written to by anybody"
        elif status.st_mode & stat.S_IWGRP and not _is_private(status.st_gid) and not _is_closed(place):
            yield f"{place} may be written to by its group"


def _is_closed(place: Path) -> bool:
    """Whether nobody else can reach it: its folder is accessible to the user only."""
    status = place.parent.stat()
    return status.st_uid == os.geteuid() and not status.st_mode & 0o077


def _is_private(group: int) -> bool:
    """Whether it is the user's own group, as many systems give each user one."""
    import grp
    import pwd

    try:
        me, found = pwd.getpwuid(os.geteuid()), grp.getgrgid(group)
    except KeyError:
        return False
    return found.gr_name == me.pw_name and set(found.gr_mem) <= {me.pw_name}


def _user(uid: int) -> str:
    import pwd

    try:
        return f"user {pwd.getpwuid(uid).pw_name}"
    except KeyError:
        return f"user {uid}"
