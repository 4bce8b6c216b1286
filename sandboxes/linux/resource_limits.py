"""What a world may use (`Bounds`), the kernel's limits on each process, and how it schedules one. Stdlib only.

`Bounds` is `contract.Limits` without what the agent cannot import. `apply` sets limits for good,
`limit_behind_exit_code` tells from an exit code which one ended a command; `read_rlimits` and `restore_rlimits` carry
a shell's own limits (`ulimit`) to the next one.

`Scheduling` is a process's CPUs, policy and niceness. A process inherits all of it. So only what differs from this
process's own is recorded: a world on another machine, or one that was started with `nice`, keeps its own way for
everything else.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import resource
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Self


@dataclass(frozen=True, slots=True)
class Bounds:
    """The fields are those of `Limits`; None means no limit."""

    memory_bytes: int | None = None
    processes: int | None = None
    file_bytes: int | None = None
    disk_bytes: int | None = None
    open_files: int | None = None
    cpu_s: int | None = None


FORKS_AHEAD = 64
"""How many processes above its limit a world may have before the kernel stops it. The watchdog, which kills what
exceeds the limit, looks only a few times a second.
"""

NO_CORE = 1
"""The limit for core files: one byte, so that none is written. With 0 the kernel would still pipe a core to the
program that `core_pattern` names, on the host and as root.
"""


FIRST_TO_GO = 500  # of 1000, in the kernel's score of which process to kill for memory
_SCORE = "/proc/self/oom_score_adj"


def apply(bounds: Bounds, *, isolated: bool) -> None:
    """Set this process's limits, which its descendants inherit and cannot lift. Never raises a limit."""
    if resource.getrlimit(resource.RLIMIT_CORE)[1] != 0:  # a user may not raise it again, not even to this
        resource.setrlimit(resource.RLIMIT_CORE, (NO_CORE, NO_CORE))
    _raise_oom_score()
    if bounds.file_bytes is not None:
        _lower(resource.RLIMIT_FSIZE, bounds.file_bytes)
    if bounds.open_files is not None:
        _lower(resource.RLIMIT_NOFILE, bounds.open_files)
    if bounds.cpu_s is not None:
        _lower(resource.RLIMIT_CPU, bounds.cpu_s, bounds.cpu_s + 1)  # SIGXCPU, then SIGKILL
    if bounds.processes is not None and isolated and nproc_is_per_namespace():
        _lower(resource.RLIMIT_NPROC, bounds.processes + FORKS_AHEAD)


class OomScore:
    """This process's out-of-memory score, its file held open.

    An agent that closes itself to its commands cannot open the file again; nor can its children until they execute a
    program.
    """

    def __init__(self) -> None:
        self._file = os.open(_SCORE, os.O_RDWR | os.O_CLOEXEC)

    @contextmanager
    def raised_for_children(self) -> Iterator[None]:
        """Processes forked inside this context are among the first to be killed for memory; this process is not."""
        mine = os.pread(self._file, 16, 0)
        if int(mine) >= FIRST_TO_GO:
            yield
            return
        os.pwrite(self._file, str(FIRST_TO_GO).encode(), 0)
        try:
            yield
        finally:
            os.pwrite(self._file, mine, 0)


def _raise_oom_score() -> None:
    """Let the kernel kill this command for memory before the world's agent, and before the host's own processes."""
    with open(_SCORE) as file:  # noqa: PTH123  # a fork waits for this
        if int(file.read()) >= FIRST_TO_GO:
            return
    with open(_SCORE, "w") as file:  # noqa: PTH123
        file.write(str(FIRST_TO_GO))


def _lower(what: int, soft: int, hard: int | None = None, pid: int = 0) -> None:
    now, ceiling = resource.prlimit(pid, what)
    top = _least(soft if hard is None else hard, ceiling)
    resource.prlimit(pid, what, (min(_least(soft, now), top), top))


@functools.cache
def nproc_is_per_namespace() -> bool:
    """Whether RLIMIT_NPROC counts each user namespace separately, as it does since Linux 5.14.

    Before, it counts all processes of the user, and a busy host would starve the world. Root is never bound by it:
    control groups bind root.
    """
    major, minor = re.findall(r"\d+", os.uname().release)[:2]
    return (int(major), int(minor)) >= (5, 14)


def limit_behind_exit_code(bounds: Bounds, exit_code: int) -> str:
    """The limit that a command's exit code shows, "" for none: for two limits the kernel sends a signal of its
    own."""
    if bounds.cpu_s is not None and exit_code == 128 + signal.SIGXCPU:
        return "cpu_s"
    if bounds.file_bytes is not None and exit_code == 128 + signal.SIGXFSZ:
        return "file_bytes"
    return ""


RLIMITS = {name: getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")}


def read_rlimits(pid: int) -> str:
    """The limits of a process, in the format of `shell.Report`. Raises `ProcessLookupError`."""
    pairs = ((name, *resource.prlimit(pid, number)) for name, number in RLIMITS.items())
    return "".join(f"{name} {soft} {hard}\n" for name, soft, hard in pairs)


def restore_rlimits(limits: Mapping[str, Sequence[int]], pid: int = 0) -> None:
    """Set the limits of a process, by default this one, as a shell had them, as far as its world allows."""
    for name, (soft, hard) in limits.items():
        _, highest = resource.prlimit(pid, RLIMITS[name])
        hard, soft = _least(hard, highest), _least(soft, highest)
        resource.prlimit(pid, RLIMITS[name], (_least(soft, hard), hard))


def raise_open_files() -> None:
    """Let this process open as many files as any program here may."""
    _, highest = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest, highest))


def limit_restored(pid: int, limits: Mapping[str, Sequence[int]], open_files: int | None) -> None:
    """Give a process that was restored, and has not run yet, the limits that it had. `open_files`: its world's."""
    restore_rlimits(limits, pid)
    if open_files is not None:
        _lower(resource.RLIMIT_NOFILE, open_files, pid=pid)


def _least(a: int, b: int) -> int:
    if resource.RLIM_INFINITY in (a, b):
        return b if a == resource.RLIM_INFINITY else a
    return min(a, b)


RESTORABLE = frozenset({os.SCHED_OTHER, os.SCHED_BATCH, os.SCHED_IDLE})
"""Policies that any user may set. The others are for real time."""


@dataclass(frozen=True, slots=True)
class Scheduling:
    """What differs from the process that starts it; None for what does not."""

    cpus: tuple[int, ...] | None = None
    policy: int | None = None  # with SCHED_RESET_ON_FORK, if it is set
    nice: int | None = None

    @classmethod
    def of(cls, pid: int) -> Self:
        """The scheduling of a process of one thread. Raises `OSError`, and `ValueError` for a real-time policy of its
        own."""
        cpus, policy = os.sched_getaffinity(pid), _policy(pid)
        nice, inherited = os.getpriority(os.PRIO_PROCESS, pid), policy == _policy(0)
        if not inherited and policy[0] & ~os.SCHED_RESET_ON_FORK not in RESTORABLE:
            raise ValueError("it has a real-time scheduling policy")
        return cls(
            tuple(sorted(cpus)) if cpus != os.sched_getaffinity(0) else None,
            None if inherited else policy[0],
            nice if nice != os.getpriority(os.PRIO_PROCESS, 0) else None,
        )

    def apply(self) -> None:
        """Schedule this process so, as far as this machine and user allow: scheduling changes no result."""
        if self.cpus is not None:
            with contextlib.suppress(OSError):  # none of these CPUs is here
                os.sched_setaffinity(0, self.cpus)
        if self.policy is not None:
            with contextlib.suppress(OSError):
                os.sched_setscheduler(0, self.policy, os.sched_param(0))
        if self.nice is not None:
            with contextlib.suppress(OSError):  # less nice than Ramify is here
                os.setpriority(os.PRIO_PROCESS, 0, self.nice)


def _policy(pid: int) -> tuple[int, int]:
    """A process's policy, and its priority under it."""
    return os.sched_getscheduler(pid), os.sched_getparam(pid).sched_priority


SCHEDULED_AS_ITS_PARENT = Scheduling()
