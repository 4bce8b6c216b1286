"""The kernel's own limits on each process of a world, and how a command's end tells which one it met. Stdlib only."""

from __future__ import annotations

import functools
import os
import re
import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Bounds:
    """The fields are those of `Limits`; none: as much as there is."""

    memory_bytes: int | None = None
    processes: int | None = None
    file_bytes: int | None = None
    disk_bytes: int | None = None
    open_files: int | None = None
    cpu_s: int | None = None


FORKS_AHEAD = 64
"""How many processes over its limit a world may reach before the kernel stops it: the watchdog, which kills what
goes over, looks a few times a second only."""

NO_CORE = 1
"""Of a core file, one byte: less than any, so none is written. Not 0, which does not keep the kernel from piping it
to the program that `core_pattern` names, on the host and as root."""


FIRST_TO_GO = 500  # of 1000, in the kernel's reckoning of whom to kill for memory
_SCORE = "/proc/self/oom_score_adj"


def apply(bounds: Bounds, *, isolated: bool) -> None:
    """Set this process's limits, which all that it starts inherits and cannot lift. Never above what is set."""
    if resource.getrlimit(resource.RLIMIT_CORE)[1] != 0:  # a user may not raise it again, not even to this
        resource.setrlimit(resource.RLIMIT_CORE, (NO_CORE, NO_CORE))
    _volunteer()
    if bounds.file_bytes is not None:
        _lower(resource.RLIMIT_FSIZE, bounds.file_bytes)
    if bounds.open_files is not None:
        _lower(resource.RLIMIT_NOFILE, bounds.open_files)
    if bounds.cpu_s is not None:
        _lower(resource.RLIMIT_CPU, bounds.cpu_s, bounds.cpu_s + 1)  # SIGXCPU, then SIGKILL
    if bounds.processes is not None and isolated and nproc_is_per_namespace():
        _lower(resource.RLIMIT_NPROC, bounds.processes + FORKS_AHEAD)


class Score:
    """This process's own, kept open: an agent that shuts itself to its commands cannot open it again, nor can what it
    forks, until that has executed something."""

    def __init__(self) -> None:
        self._file = os.open(_SCORE, os.O_RDWR | os.O_CLOEXEC)

    @contextmanager
    def handed_on(self) -> Iterator[None]:
        """What is forked meanwhile is among the first to go; this process is not."""
        mine = os.pread(self._file, 16, 0)
        if int(mine) >= FIRST_TO_GO:
            yield
            return
        os.pwrite(self._file, str(FIRST_TO_GO).encode(), 0)
        try:
            yield
        finally:
            os.pwrite(self._file, mine, 0)


def _volunteer() -> None:
    """Where memory runs out, have the kernel end a command before the world's agent, and before the host's own."""
    with open(_SCORE) as file:  # noqa: PTH123  (a fork waits)
        if int(file.read()) >= FIRST_TO_GO:
            return
    with open(_SCORE, "w") as file:  # noqa: PTH123
        file.write(str(FIRST_TO_GO))


def _lower(what: int, soft: int, hard: int | None = None) -> None:
    now, ceiling = resource.getrlimit(what)
    top = _least(soft if hard is None else hard, ceiling)
    resource.setrlimit(what, (min(_least(soft, now), top), top))


def _least(wanted: int, now: int) -> int:
    return wanted if now == resource.RLIM_INFINITY else min(wanted, now)


@functools.cache
def nproc_is_per_namespace() -> bool:
    """Whether RLIMIT_NPROC counts a user namespace's processes by themselves, as it does since Linux 5.14.

    Before, all of the user's count, and a busy host would starve the world. Root is never held by it: cgroups are.
    """
    major, minor = re.findall(r"\d+", os.uname().release)[:2]
    return (int(major), int(minor)) >= (5, 14)


def met(bounds: Bounds, exit_code: int) -> str:
    """The limit that a command's exit code betrays, "" for none: the kernel sends a signal of its own for two."""
    if bounds.cpu_s is not None and exit_code == 128 + signal.SIGXCPU:
        return "cpu_s"
    if bounds.file_bytes is not None and exit_code == 128 + signal.SIGXFSZ:
        return "file_bytes"
    return ""
