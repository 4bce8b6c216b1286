"""Find, freeze and kill processes through /proc. Stdlib only: used by the agent.

A world's processes are the descendants of its agent. The agent is PID 1 of its namespace or a child subreaper, so a
process that daemonises (double fork, `setsid`) becomes its child again and is still found.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Container
from pathlib import Path
from typing import NamedTuple

READ_AT_ONCE = 1 << 16
LONGEST_S = 4.0
"""Seconds for which a freeze pursues processes that start faster than they are stopped."""
SHORTEST_PAUSE_S, LONGEST_PAUSE_S = 0.00005, 0.0005
"""Between two looks of a freeze: a process that sleeps stops as soon as it is scheduled."""


class Process(NamedTuple):
    """One process, as /proc/PID/stat describes it."""

    pid: int
    started: int  # clock ticks since boot; with the pid it identifies a process for good
    parent: int
    state: str  # a letter as in proc(5)

    @property
    def key(self) -> tuple[int, int]:
        return (self.pid, self.started)


def all_processes() -> dict[int, Process]:
    found: dict[int, Process] = {}
    for pid in [int(entry.name) for entry in os.scandir("/proc") if entry.name.isdigit()]:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it ended while we looked
            state, parent, *rest = _stat(f"/proc/{pid}/stat")
            found[pid] = Process(pid, int(rest[17]), int(parent), state.decode())
    return found


def stat_of(pid: int) -> list[bytes]:
    """The fields of /proc/PID/stat from the third (the state) on. Raises `FileNotFoundError`."""
    return _stat(f"/proc/{pid}/stat")


def status_of(pid: int) -> dict[str, str]:
    """The lines of /proc/PID/status. Raises `FileNotFoundError` and `ProcessLookupError`."""
    lines = contents(f"/proc/{pid}/status").decode(errors="surrogateescape").split("\n")
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def contents(path: str) -> bytes:
    """What a file of /proc says. `open` makes twice as many system calls, and there are hundreds of such files."""
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        parts = []
        while part := os.read(file, READ_AT_ONCE):
            parts.append(part)
    finally:
        os.close(file)
    return b"".join(parts)


def _stat(path: str) -> list[bytes]:
    """The fields of a stat file from the third (the state) on. The second, a name, may contain anything."""
    file = os.open(path, os.O_RDONLY)
    try:
        stat = os.read(file, 4096)
    finally:
        os.close(file)
    return stat[stat.rindex(b")") + 2 :].split()


def children(pid: int) -> list[int]:
    """The children of a single-threaded process, including zombies. Raises `FileNotFoundError` if the kernel has no
    such lists."""
    with open(f"/proc/{pid}/task/{pid}/children", "rb") as listed:  # noqa: PTH123  (a few microseconds count here)
        return [int(child) for child in listed.read().split()]


def family(root: int) -> list[int]:
    """`root` and its descendants, including zombies, without reading about other processes of the machine.

    Processes forked meanwhile may be missed: repeat until nothing is new. Raises `FileNotFoundError` as `children`
    does.
    """
    found, queue = [root], [root]
    while queue:
        pid = queue.pop()
        with contextlib.suppress(ProcessLookupError):  # it has ended
            for thread in _threads(pid):
                below = _listed(f"/proc/{pid}/task/{thread}")
                found += below
                queue += below
    return found


def _threads(pid: int) -> list[str]:
    try:
        return [entry.name for entry in os.scandir(f"/proc/{pid}/task")]
    except FileNotFoundError:
        return []  # it has ended


def _listed(thread: str) -> list[int]:
    try:
        with open(f"{thread}/children", "rb") as listed:  # noqa: PTH123  (as above)
            return [int(child) for child in listed.read().split()]
    except FileNotFoundError:
        if Path(thread).exists():
            raise
        return []


def descendants(root: int, spare: Container[tuple[int, int]] = ()) -> list[Process]:
    """The living descendants of `root`, without zombies, and without those in `spare` and their descendants."""
    table = all_processes()
    children: dict[int, list[Process]] = {}
    for process in table.values():
        children.setdefault(process.parent, []).append(process)
    found: list[Process] = []
    queue = [root]
    while queue:
        for child in children.get(queue.pop(), ()):
            if child.key in spare:
                continue
            queue.append(child.pid)
            if child.state not in "ZX":
                found.append(child)
    return found


class Family:
    """A child of this process and what it has started, to be killed: whoever was found once is found until it has
    ended, even if its parent ends first. Made anew for each kill."""

    def __init__(self, root: int, spare: Container[tuple[int, int]] = ()) -> None:
        self._root, self._spare = root, spare
        self._seen: set[tuple[int, int]] = set()

    def __call__(self) -> list[Process]:
        found: list[Process] = []
        members: set[int] = set()
        for process in descendants(os.getpid(), self._spare):  # parents come before their children
            if process.pid == self._root or process.key in self._seen or process.parent in members:
                found.append(process)
                members.add(process.pid)
        self._seen.update(process.key for process in found)
        return found


def send_signal(process: Process, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):  # it ended before, as wanted
        os.kill(process.pid, number)


def is_stopped(process: Process) -> bool:
    """Whether all of its threads are stopped, or it has ended. A stop reaches the threads one after the other."""
    with contextlib.suppress(FileNotFoundError), os.scandir(f"/proc/{process.pid}/task") as tasks:
        for task in tasks:
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                if _stat(f"{task.path}/stat")[0] not in (b"T", b"t", b"Z", b"X"):
                    return False
    return True


def freeze(select: Callable[[], list[Process]], patience_s: float = 0.4) -> list[Process]:
    """Stop everything that `select` finds, repeatedly, because processes may fork while we stop them.

    Returns the processes that this call stopped, to be continued later. One in uninterruptible sleep stops when it
    wakes; it is left alone after `patience_s` seconds.
    """
    stopped: dict[tuple[int, int], Process] = {}
    began = time.monotonic()
    deadline, pause_s = began + patience_s, SHORTEST_PAUSE_S
    while True:
        found = select()
        # stop what clearly runs before looking closely at anything, or a fork bomb outruns us
        fresh = [p for p in found if p.key not in stopped and p.state not in "Tt"]
        running = [] if fresh else [p for p in found if not is_stopped(p)]
        for process in fresh or [p for p in running if p.key not in stopped]:
            stopped[process.key] = process
            send_signal(process, signal.SIGSTOP)
        now = time.monotonic()
        if fresh and now < began + LONGEST_S:
            deadline = max(deadline, now + patience_s)
        elif not (fresh or running) or now > deadline:
            return list(stopped.values())
        else:
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)


def kill(select: Callable[[], list[Process]], reap: Callable[[], None], patience_s: float = 5.0) -> None:
    """Kill everything that `select` finds, frozen first so that nothing escapes by forking; wait until nothing is
    left."""
    deadline = time.monotonic() + patience_s
    while True:
        freeze(select, patience_s=0.2)
        left = select()
        for process in left:
            send_signal(process, signal.SIGKILL)
        reap()
        if not left or time.monotonic() > deadline:
            return
        time.sleep(0.0005)
