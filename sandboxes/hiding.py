"""What of the host's files no world may see, whatever it is given besides: the host's side.

A backend hides its own store and worlds, the homes that Ramify uses by default, and what its caller names (`hide`):
the home in use, the database. Files that this process writes (a log, a trace) are found by its own descriptors.
"""

from __future__ import annotations

import fcntl
import os
import pwd
import stat
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from ramify import paths


def hidden(named: Iterable[Path]) -> tuple[Path, ...]:
    """What `named` lists, the default homes and the files that this process writes: resolved, none within another."""
    found = {path.resolve() for path in (*named, *default_homes(), *written())} - {Path("/")}
    user = {Path("~").expanduser().resolve(), *_own_home()}
    for home in [path for path in found if any(folder.is_relative_to(path) for folder in user)]:
        found.remove(home)  # the user's home is not hidden whole: what Ramify keeps in it is
        found.update((home / name).resolve() for name in paths.KEPT)
    return tuple(sorted(path for path in found if not any(above in found for above in path.parents)))


def default_homes() -> set[Path]:
    """Where Ramify's home is when nobody names one, and the one that the environment names."""
    homes = {paths.home(), paths.usual(Path("~").expanduser())}
    return homes | {paths.usual(folder) for folder in _own_home()}


def _own_home() -> set[Path]:
    """The user's home as the system knows it, which $HOME need not be."""
    with suppress(KeyError, OSError):
        return {Path(pwd.getpwuid(os.geteuid()).pw_dir).resolve()} - {Path("/")}
    return set()


def written() -> set[Path]:
    """The logs and traces that this process writes: the regular files that it appends to, and its standard streams.

    Not all that it writes: data that a program has open may be what its worlds are to read."""
    found = set()
    for link in list(Path("/proc/self/fd").iterdir()):
        with suppress(OSError, ValueError):  # the one that they are listed by
            flags = fcntl.fcntl(int(link.name), fcntl.F_GETFL)
            appended = flags & os.O_APPEND or int(link.name) in (1, 2)
            if not (appended and flags & (os.O_WRONLY | os.O_RDWR)):
                continue
            path, status = link.readlink(), os.fstat(int(link.name))
            if stat.S_ISREG(status.st_mode) and os.path.samestat(status, path.lstat()):  # else it has no name left
                found.add(path)
    return found
