from __future__ import annotations

import os
import subprocess
from functools import partial

from ramify.sandboxes.linux.scheduling import SCHEDULED_AS_ITS_PARENT, Scheduling


def scheduled(how: Scheduling) -> Scheduling:
    """What a program is found to have that was started so."""
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, preexec_fn=partial(Scheduling.apply, how)) as program:
        found = Scheduling.of(program.pid)
        assert program.stdin is not None
        program.stdin.close()
    return found


def test_what_differs_is_recorded_and_set_again() -> None:
    assert scheduled(SCHEDULED_AS_ITS_PARENT) == SCHEDULED_AS_ITS_PARENT
    mine = os.sched_getaffinity(0)
    cpus = (max(mine),) if len(mine) > 1 else None
    nicer = min(19, os.getpriority(os.PRIO_PROCESS, 0) + 1)
    policy = os.SCHED_BATCH if os.sched_getscheduler(0) != os.SCHED_BATCH else os.SCHED_OTHER
    how = Scheduling(cpus, policy, nicer if nicer != os.getpriority(os.PRIO_PROCESS, 0) else None)
    assert scheduled(how) == how


def test_cpus_that_are_not_here_change_nothing() -> None:
    assert scheduled(Scheduling(cpus=(1 << 14,))) == SCHEDULED_AS_ITS_PARENT
