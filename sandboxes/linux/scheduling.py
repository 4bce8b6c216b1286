"""How the kernel schedules a process: its CPUs, its policy, its niceness. Stdlib only: used by the agent.

A process inherits all of it. So only what differs from this process's own is recorded: a world on another machine, or
one that was started with `nice`, keeps its own way for everything else.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from typing import Self

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
