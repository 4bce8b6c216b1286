"""Control groups around whole worlds, where this process may make them; version 1 and 2. Host side.

They are the kernel's own limit behind the watchdog: they stop a process that allocates or forks faster than anyone
looks, and count what /proc does not show (memory of files that nobody maps). Root may make groups nearly everywhere,
a user where systemd delegates. Elsewhere only the watchdog and the rlimits hold, and `find` says why.

A group's name contains the process that made it, so that a later process recognises and removes what a crash left
behind, and a number, since one process may have several backends open.
"""

from __future__ import annotations

import errno
import itertools
import os
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from io import FileIO
from pathlib import Path

from ramify.sandboxes.linux import processes
from ramify.sandboxes.linux.resource_limits import FORKS_AHEAD, Bounds

ROOT = Path("/sys/fs/cgroup")
NEEDED = ("memory", "pids")
MEMORY_AHEAD = 64 << 20  # for the agent, the kernel's own use, and time for the watchdog to name the culprit
PATIENCE_S = 20.0  # until a group's last process has ended; slow on a loaded machine

_numbers = itertools.count()  # counts this process's groups, over all `Groups`


@dataclass(frozen=True)
class Group:
    """One world's control group. `places`: its folder by controller; the same one twice under version 2."""

    places: Mapping[str, Path]

    def add(self, pid: int) -> None:
        """Move a process and all its present descendants into the group; later descendants start in it."""
        seen: set[int] = set()
        while fresh := [one for one in _family(pid) if one not in seen]:
            for one in fresh:
                seen.add(one)
                for place in set(self.places.values()):
                    with suppress(ProcessLookupError):  # it ended meanwhile
                        (place / "cgroup.procs").write_text(str(one))

    def limit(self, bounds: Bounds) -> None:
        if bounds.memory_bytes is not None:
            memory = self.places["memory"]
            most = memory / "memory.max"
            (most if most.exists() else memory / "memory.limit_in_bytes").write_text(
                str(bounds.memory_bytes + MEMORY_AHEAD)
            )
        if bounds.processes is not None:
            (self.places["pids"] / "pids.max").write_text(str(bounds.processes + FORKS_AHEAD))

    def out_of_memory(self) -> int:
        """How many processes the kernel killed here for memory. Raises `ValueError` once the group is removed."""
        if self._kills is None:
            return 0
        lines = os.pread(self._kills.fileno(), 4096, 0).splitlines()
        return next((int(line.split()[1]) for line in lines if line.startswith(b"oom_kill ")), 0)

    @cached_property
    def _kills(self) -> FileIO | None:
        """The file with the count, held open: it is read after every command."""
        files = (self.places["memory"] / name for name in ("memory.events", "memory.oom_control"))
        return next((FileIO(file) for file in files if file.exists()), None)

    def remove(self, patience_s: float = PATIENCE_S) -> None:
        """Remove the group. Raises `OSError` if it still holds a process after that time. Blocks."""
        if (counts := vars(self).get("_kills")) is not None:
            counts.close()
        deadline = time.monotonic() + patience_s
        for place in set(self.places.values()):
            while True:
                try:
                    place.rmdir()
                    break
                except FileNotFoundError:
                    break
                except OSError as error:
                    if error.errno != errno.EBUSY or time.monotonic() > deadline:
                        raise
                    time.sleep(0.005)


@dataclass(frozen=True)
class Groups:
    """Where new groups are made: a folder for each controller."""

    places: Mapping[str, Path]
    owner: str

    def hold(self, pid: int) -> Group:
        """A new group with all processes of the world whose agent is `pid`.

        Blocks for up to about 10 ms, together with every process of the machine that forks, so do it early in a
        world's life.
        """
        group = self.group()
        try:
            for place in set(group.places.values()):
                place.mkdir()
            group.add(pid)
        except OSError:
            group.remove()
            raise
        return group

    def group(self) -> Group:
        """A group with an unused name; not created yet."""
        name = f"{self.owner}-{next(_numbers)}"
        return Group({controller: place / name for controller, place in self.places.items()})


def find(root: Path = ROOT, own: Path = Path("/proc/self/cgroup")) -> Groups | str:
    """Where this process may make groups, after removing those of crashed processes; else why it may not."""
    lines = [line.split(":", 2) for line in own.read_text().splitlines()] if own.exists() else []
    ours = {controller: group for _, controllers, group in lines for controller in controllers.split(",")}
    places: dict[str, Path] = {}
    for controller in NEEDED:
        place = _version_1(root, controller, ours) or _version_2(root, controller, ours)
        if place is None:
            return f"the control groups of this process provide no usable {controller} controller"
        places[controller] = place
    me = os.getpid()
    groups = Groups(places, f"ramify-{me}-{processes.all_processes()[me].started}")
    try:
        _make_and_remove(groups.group())
    except OSError as error:
        return f"no control group can be made and removed: {error.strerror}: {error.filename}"
    _remove_abandoned(set(places.values()))
    return groups


def _make_and_remove(probe: Group) -> None:
    try:
        for place in set(probe.places.values()):
            place.mkdir()
    finally:
        probe.remove()


def _version_1(root: Path, controller: str, ours: Mapping[str, str]) -> Path | None:
    if controller not in ours:
        return None
    place = root / controller / ours[controller].lstrip("/")
    return place if os.access(place, os.W_OK) else None


def _version_2(root: Path, controller: str, ours: Mapping[str, str]) -> Path | None:
    """The nearest group above us whose children have the controller, and in which we may move processes."""
    if controller in ours or "" not in ours:
        return None
    top = root if (root / "cgroup.procs").exists() else root / "unified"
    own = top / ours[""].lstrip("/")
    for place in (own, *own.parents):
        granted = place / "cgroup.subtree_control"
        if not granted.exists():
            return None
        if controller in granted.read_text().split():
            usable = os.access(place, os.W_OK) and os.access(place / "cgroup.procs", os.W_OK)
            return place if usable else None
    return None


def _remove_abandoned(places: set[Path]) -> None:
    """Remove groups whose maker has ended, except those that still hold a process."""
    living = processes.all_processes()
    for group in (found for place in places for found in place.glob("ramify-*-*-*")):
        _, pid, started, _ = group.name.split("-", 3)
        maker = living.get(int(pid)) if pid.isdigit() else None
        if maker is None or str(maker.started) != started:
            with suppress(OSError):  # EBUSY: see above; or another process removed it first
                group.rmdir()


def _family(pid: int) -> list[int]:
    """A process and its descendants, by the kernel's own lists if it keeps them: else each of a hundred starting
    worlds would read all of /proc."""
    try:
        return processes.family(pid)
    except FileNotFoundError:  # a kernel without CONFIG_PROC_CHILDREN
        return [pid, *(process.pid for process in processes.descendants(pid))]


def kills_for_memory(pid: int, root: Path = ROOT) -> int:
    """How many processes were killed for memory in the control group of `pid`; 0 if the kernel does not count."""
    own = Path(f"/proc/{pid}/cgroup")
    try:
        groups = dict(_memberships(own.read_text()))
    except (FileNotFoundError, ProcessLookupError):
        return 0  # the container has ended
    if "memory" in groups:
        return _count(root / "memory" / groups["memory"].lstrip("/") / "memory.oom_control", "oom_kill")
    return _count(root / groups.get("", "/").lstrip("/") / "memory.events", "oom_kill")


def _memberships(text: str) -> list[tuple[str, str]]:
    """(controller, group) for each line `4:memory:/docker/…`; the controller of version 2 is ""."""
    lines = (line.split(":", 2) for line in text.splitlines())
    return [(controller, group) for _, controllers, group in lines for controller in controllers.split(",")]


def _count(file: Path, name: str) -> int:
    if not file.exists():
        return 0
    pairs = (line.split() for line in file.read_text().splitlines())
    return next((int(pair[1]) for pair in pairs if pair[0] == name), 0)
