"""The kernel's own limits on each process of a world, and how a command's end tells which one it met. Stdlib only."""

from __future__ import annotations

import functools
import os
import re
import resource
import signal

from ramify.sandboxes.safety.bounds import Bounds

FORKS_AHEAD = 64
"""How many processes over its limit a world may reach before the kernel stops it: the watchdog, which kills what
goes over, looks a few times a second only."""

NO_CORE = 1
"""Of a core file, one byte: less than any, so none is written. Not 0, which does not keep the kernel from piping it
to the program that `core_pattern` names, on the host and as root."""


FIRST_TO_GO = 500  # of 1000, in the kernel's reckoning of whom to kill for memory


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
    if bounds.processes is not None and isolated and counts_by_namespace():
        _lower(resource.RLIMIT_NPROC, bounds.processes + FORKS_AHEAD)


def _volunteer() -> None:
    """Where memory runs out, have the kernel end a command before the world's agent, and before the host's own."""
    file = os.open("/proc/self/oom_score_adj", os.O_RDWR | os.O_CLOEXEC)
    try:
        if int(os.read(file, 16)) < FIRST_TO_GO:
            os.pwrite(file, str(FIRST_TO_GO).encode(), 0)
    finally:
        os.close(file)


def _lower(what: int, soft: int, hard: int | None = None) -> None:
    now, ceiling = resource.getrlimit(what)
    top = _least(soft if hard is None else hard, ceiling)
    resource.setrlimit(what, (min(_least(soft, now), top), top))


def _least(wanted: int, now: int) -> int:
    return wanted if now == resource.RLIM_INFINITY else min(wanted, now)


@functools.cache
def counts_by_namespace() -> bool:
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
