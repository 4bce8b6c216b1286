from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from ramify.sandboxes.linux import processes
from ramify.sandboxes.linux.processes import Process

FAMILY = "trap '' TERM; sleep 1000 & (sleep 1000 & setsid sleep 1000 & echo ready; wait)"


@pytest.fixture
def family() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(["bash", "-c", FAMILY], stdout=subprocess.PIPE)
    assert process.stdout is not None
    with process, process.stdout:
        process.stdout.readline()
        yield process
        processes.kill(lambda: below(process), lambda: None)
        process.kill()


def below(process: subprocess.Popen[bytes]) -> list[Process]:
    return processes.descendants(process.pid)


def test_descendants_are_found_whatever_their_session(family: subprocess.Popen[bytes]) -> None:
    found = below(family)
    assert len(found) == 4
    assert family.pid not in {process.pid for process in found}
    assert (
        processes.descendants(family.pid, spare={process.key for process in found if process.parent == family.pid})
        == []
    )
    assert family.pid in {process.pid for process in processes.descendants(os.getpid())}


def test_freeze_stops_all_and_returns_those_that_it_stopped(family: subprocess.Popen[bytes]) -> None:
    already = below(family)[0]
    processes.send_signal(already, signal.SIGSTOP)
    while processes.all_processes()[already.pid].state != "T":
        pass
    stopped = processes.freeze(lambda: below(family))
    assert {process.state for process in below(family)} == {"T"}
    assert {process.key for process in stopped} == {process.key for process in below(family)} - {already.key}
    for process in below(family):
        processes.send_signal(process, signal.SIGCONT)
    processes.kill(lambda: below(family), lambda: None)


def test_kill_ends_all_and_an_ended_process_is_no_error(family: subprocess.Popen[bytes]) -> None:
    found = below(family)
    processes.kill(lambda: below(family), lambda: None)
    assert below(family) == []
    for process in found:
        processes.send_signal(process, signal.SIGKILL)


def test_a_family_is_found_without_reading_all_of_proc() -> None:
    script = "import subprocess as s; p = s.Popen(['sleep', '99']); print(p.pid, flush=True); p.wait()"
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        assert processes.family(parent.pid) == [parent.pid, child]
        assert set(processes.family(os.getpid())) >= {os.getpid(), parent.pid, child}
        os.kill(child, signal.SIGKILL)
    assert processes.family(parent.pid) == [parent.pid]  # it has ended
