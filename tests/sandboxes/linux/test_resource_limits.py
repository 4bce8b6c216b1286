from __future__ import annotations

import os
import subprocess
import sys

import pytest

from ramify.sandboxes.linux.resource_limits import SCHEDULED_AS_ITS_PARENT, Scheduling

PROGRAM = """
import sys
from ramify.sandboxes.linux.resource_limits import Scheduling
Scheduling(*eval(sys.argv[1])).apply()
print(flush=True)
sys.stdin.read()
"""


def scheduled(how: Scheduling) -> Scheduling:
    """What a program is found to have that was scheduled so."""
    words = [sys.executable, "-c", PROGRAM, repr((how.cpus, how.policy, how.nice))]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as program:
        assert program.stdin is not None
        assert program.stdout is not None
        assert program.stdout.readline() == b"\n"
        found = Scheduling.of(program.pid)
        program.stdin.close()
    return found


def test_what_differs_is_recorded_and_set_again() -> None:
    assert scheduled(SCHEDULED_AS_ITS_PARENT) == SCHEDULED_AS_ITS_PARENT
    mine, nice = os.sched_getaffinity(0), os.getpriority(os.PRIO_PROCESS, 0)
    how = Scheduling(
        cpus=(max(mine),) if len(mine) > 1 else None,
        policy=os.SCHED_BATCH if os.sched_getscheduler(0) != os.SCHED_BATCH else None,
        nice=nice + 1 if nice < 19 else None,
    )
    assert scheduled(how) == how


REAL_TIME = """
import os, subprocess, sys
from ramify.sandboxes.linux.resource_limits import Scheduling
try:
    os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
except PermissionError:
    sys.exit(77)
with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as child:
    print(Scheduling.of(child.pid))
    os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
    try:
        print(Scheduling.of(child.pid))
    except ValueError as error:
        print(error)
"""


def test_only_a_real_time_policy_of_its_own_is_refused() -> None:
    done = subprocess.run([sys.executable, "-c", REAL_TIME], capture_output=True, text=True)
    if done.returncode == 77:
        pytest.skip("this user may not set a real-time policy")
    assert done.stdout.splitlines() == [str(SCHEDULED_AS_ITS_PARENT), "it has a real-time scheduling policy"], (
        done.stderr
    )


def test_cpus_that_are_not_here_change_nothing() -> None:
    assert scheduled(Scheduling(cpus=(1 << 14,))) == SCHEDULED_AS_ITS_PARENT
