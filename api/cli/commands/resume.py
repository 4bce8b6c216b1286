"""Whether a home is the user's own: going on with a run runs the code that its rows name."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ramify.runtime.errors import RunError

if TYPE_CHECKING:
    from ramify.cli.console import App

trust_option = click.option(
    "--trust-home",
    is_flag=True,
    help="Also in a home that belongs to another user, or that others may write to.",
)


class HomeNotTrusted(RunError):
    """Others wrote the home, or may have: its rows say which code is to be run."""


def need_own_home(app: App) -> None:
    """Raises `HomeNotTrusted`. A server's database is the server's to guard."""
    from ramify.runtime.store.address import parse

    if (why := next(_strange([app.home, *parse(app.database).files]), None)) is not None:
        raise HomeNotTrusted(
            f"{why}. To go on with a run is to run the code that its rows name, and others could have written them. "
            "Look at the run first (`ramify show`, `ramify log` run nothing); if you trust it: --trust-home"
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
    """Whether nobody else gets at it: the folder that it lies in is the user's alone."""
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
