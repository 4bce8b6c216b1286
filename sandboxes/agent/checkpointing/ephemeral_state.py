"""What ends with a world and is in no snapshot, though its programs count on it. Stdlib only; agent side.

A snapshot keeps the files of the tree, the home and /tmp. The world's other places in memory (/dev/shm, /run,
/var/tmp) and its IPC namespace (System V IPC, POSIX message queues) are new in each world. Neither Ramify's images
nor CRIU hold them. Programs that use them are not kept, so that none goes on without what it had.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterable
from pathlib import Path

from ramify.sandboxes.agent.checkpointing.memory_image import CannotDump
from ramify.sandboxes.linux import kernel, process_memory
from ramify.sandboxes.linux.mount_table import is_within, parse
from ramify.sandboxes.linux.processes import contents

SHARED_MEMORY = "/dev/shm"
PLACES = (SHARED_MEMORY, "/run", "/var/tmp", "/tmp")  # of these, those that are a tmpfs
SYSTEM_V = {"shm": "shared memory", "sem": "semaphores", "msg": "message queues"}
MEMORY_FILE = "/memfd:"

FileKey = tuple[int, int]
"""A file's device and inode."""


class CannotKeep(CannotDump):
    """Some state that CRIU cannot hold either. The text says what."""


class EphemeralState:
    """Looks for such state in one world. `private`: the agent's own folder, which is made again in each world."""

    def __init__(self, private: str) -> None:
        mounts = parse(Path("/proc/self/mountinfo").read_text(errors="surrogateescape"))
        places = {mount.point: mount.device.split(":") for mount in mounts if mount.kind == "tmpfs"}
        found = {point: os.makedev(*map(int, places[point])) for point in PLACES if point in places}
        self._private = private
        self._places = {device: point for point, device in found.items()}
        self._by_name = {f"{os.major(device):02x}:{os.minor(device):02x}": at for device, at in self._places.items()}
        self._queues = -1
        with contextlib.suppress(OSError):  # a kernel without them
            self._queues = kernel.message_queues()

    def refuse_of_world(self) -> None:
        """Raise `CannotKeep` for what belongs to no process."""
        for name, what in SYSTEM_V.items():
            with contextlib.suppress(FileNotFoundError):  # a kernel without it
                if len(contents(f"/proc/sysvipc/{name}").splitlines()) > 1:
                    raise CannotKeep(f"the world has {what} of System V, which no snapshot keeps")
        if self._queues >= 0 and (queues := os.listdir(f"/proc/self/fd/{self._queues}")):  # noqa: PTH208
            raise CannotKeep(f"the world has the POSIX message queue /{queues[0]}, which no snapshot keeps")
        if files := os.listdir(SHARED_MEMORY):  # noqa: PTH208
            raise CannotKeep(f"the world has {SHARED_MEMORY}/{files[0]}, and no snapshot keeps {SHARED_MEMORY}")

    def refuse_of_process(self, pid: int, *, stands: bool = True) -> None:
        """Raise `CannotKeep` for what a process stands in, holds open or has mapped. `stands`: it stands still. One
        that starts a program or ends has nothing mapped for a moment."""
        here = f"/proc/{pid}"
        if contents(f"{here}/personality") != contents("/proc/self/personality"):
            raise CannotKeep(f"process {pid}: it has a personality of its own, as by setarch")
        program = os.readlink(f"{here}/exe")  # noqa: PTH115
        if not os.access(program, os.X_OK):
            raise CannotKeep(f"process {pid}: its program was removed or may no longer be executed: {program}")
        mapped = contents(f"{here}/maps")
        if stands and b" [vdso]\n" not in mapped:
            raise CannotKeep(f"process {pid}: it has given back its vDSO, without which it cannot be restored")
        for device, place in self._by_name.items():
            if f" {device} ".encode() in mapped:
                raise CannotKeep(f"process {pid}: it has mapped a file of {place}, which no snapshot keeps")
        cwd = f"{here}/cwd"
        self._refuse(pid, cwd, os.stat(cwd), "its working folder is")  # noqa: PTH116
        for number in os.listdir(f"{here}/fd"):  # noqa: PTH208
            with contextlib.suppress(FileNotFoundError):  # closed meanwhile
                link = f"{here}/fd/{number}"
                found = os.stat(link)  # noqa: PTH116
                self._refuse(pid, link, found, "it has open")
                if stat.S_ISDIR(found.st_mode) and _noted(pid, number, "pos"):
                    path = os.readlink(link)  # noqa: PTH115
                    raise CannotKeep(f"process {pid}: it is listing {path}, and a fork may list it otherwise")

    def refuse_of_any(self, pids: Iterable[int], *, stand: bool) -> None:
        """Raise `CannotKeep` for all of the above and for what CRIU alone would lose. `stand`: they stand still."""
        self.refuse_of_world()
        seen, written = list[tuple[int, str, FileKey]](), dict[FileKey, int]()
        for pid in pids:
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has ended
                self.refuse_of_process(pid, stands=stand)
                for area in process_memory.areas(pid):
                    if "p" in area.modes and area.name.startswith(MEMORY_FILE):
                        raise CannotKeep(f"process {pid}: it has private memory of {area.name}, which CRIU loses")
                    if "s" in area.modes and "w" not in area.modes and area.name.startswith("/"):
                        seen += [(pid, area.name, key) for key in _keys(Path(area.name))]
                for entry in Path("/proc", str(pid), "fd").iterdir():
                    with contextlib.suppress(FileNotFoundError):
                        if _noted(pid, entry.name, "flags", base=8) & os.O_ACCMODE != os.O_RDONLY:
                            written |= dict.fromkeys(_keys(entry), pid)
        for pid, name, key in seen:
            if written.get(key, pid) != pid:
                raise CannotKeep(
                    f"process {pid}: it has mapped {name}, to which process {written[key]} writes: restored by CRIU, "
                    "it might not see that"
                )

    def _refuse(self, pid: int, link: str, found: os.stat_result, how: str) -> None:
        place = self._places.get(found.st_dev)
        if place is None or not found.st_nlink or stat.S_ISCHR(found.st_mode):
            return
        path = os.readlink(link)  # noqa: PTH115
        of_agent = stat.S_ISFIFO(found.st_mode) and is_within(path, self._private)
        if path != place and not of_agent:
            raise CannotKeep(f"process {pid}: {how} {path}, and no snapshot keeps {place}")


def _noted(pid: int, descriptor: str, name: str, *, base: int = 10) -> int:
    """A number in the kernel's notes on a descriptor. Raises `FileNotFoundError`."""
    for line in contents(f"/proc/{pid}/fdinfo/{descriptor}").splitlines():
        if line.startswith(f"{name}:".encode()):
            return int(line.split()[1], base)
    return 0


def _keys(path: Path) -> list[FileKey]:
    """The identity of the regular file at a path, if there is one."""
    try:
        found = path.stat()
    except OSError:
        return []
    return [(found.st_dev, found.st_ino)] if stat.S_ISREG(found.st_mode) else []
