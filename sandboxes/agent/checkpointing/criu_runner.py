"""Dump a world's processes to files and restore them, with CRIU. Stdlib only; agent side.

The agent runs CRIU inside the world and is not dumped itself. The dump covers one process tree: the shell with its
descendants. The shell is a child subreaper, so daemonised jobs stay in its tree. The shell's own streams are named
pipes in the agent's private folder; the agent of the restored world creates them again before CRIU opens them.

CRIU opens the dumped processes' files by path, and those processes control what is at these paths: a folder may have
been replaced by a link. So nothing of the host is within CRIU's reach: the agent closes itself to it
(`kernel.set_undumpable`), and the folders that it is given, images and a working folder, lead nowhere else (decision
037).

A restored process has the pid that it had before. So the world's processes have pids above `FIRST_PID`, and CRIU
itself runs below it.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

from ramify.sandboxes.linux import kernel

FIRST_PID = 300
CRIU_PID = 10  # CRIU and its helper processes run from this pid on
NOTE = "ramify.json"
FEATURES = "criu.kdat"
LOG = "criu.log"
PATIENCE_S = 60.0
COMMON = (
    "--unprivileged",
    "--shell-job",
    "--manage-cgroups=ignore",
    "--network-lock=skip",
    "--file-locks",
    "--link-remap",
    "--ghost-limit=64M",
)
NOT_FOUND = "Can't open mapped ["
HOMES_OWN = (
    ". Programs and libraries in your home folder cannot be dumped while Ramify's own folder is in it:"
    " set RAMIFY_HOME to a folder outside"
)


@dataclass(frozen=True, slots=True)
class DumpNote:
    """What the agent that restores the tree must know. Stored as a file in the image folder."""

    shell: int  # its pid, and the tree's root
    last_pid: int
    pwd: str
    oldpwd: str
    state: str  # latin-1: bytes, exact
    sessions: dict[str, int]  # the Python sessions' pids

    def write(self, images: Path) -> None:
        (images / NOTE).write_text(json.dumps(asdict(self)))

    @classmethod
    def read(cls, images: Path) -> Self:
        return cls(**json.loads((images / NOTE).read_text()))


class PidCounter:
    """The pid of the next process. Only the owner of the pid namespace may set it."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor  # of ns_last_pid, opened before /proc/sys became read-only

    @property
    def last(self) -> int:
        return int(os.pread(self._descriptor, 16, 0))

    @last.setter
    def last(self, pid: int) -> None:
        os.pwrite(self._descriptor, str(pid).encode(), 0)


class CriuProgram:
    """The CRIU program as this world sees it. A failure is an `OSError` that ends with CRIU's own first error."""

    def __init__(self, command: Sequence[str], pids: PidCounter) -> None:
        self.pids = pids
        self._command = command
        self._features = b""  # CRIU's findings about this kernel, valid until the next boot: they save it 15 ms

    def dump(self, root: int, images: int) -> None:
        """Dump the process tree of `root` and leave it stopped. If the dump fails, all processes run on."""
        self._run("dump", images, "-t", str(root), "--leave-stopped")
        if self._features:
            _place(images, FEATURES).write_bytes(_boot_id() + self._features)

    def restore(self, images: int) -> None:
        """Restore the tree as running children of this process."""
        with contextlib.suppress(FileNotFoundError):
            known = _place(images, FEATURES).read_bytes()
            if known.startswith(_boot_id()):
                self._features = known.removeprefix(_boot_id())
        self._run("restore", images, "--restore-detached")

    def _run(self, verb: str, images: int, *arguments: str) -> None:
        """Run CRIU in a new folder on a tmpfs, where it keeps the kernel's features. Restored processes may keep that
        folder open, so after a restore only the log of a failed one is read from it."""
        folder = kernel.empty_tmpfs("16m")
        before, self.pids.last = self.pids.last, CRIU_PID
        try:
            if self._features:
                _place(folder, FEATURES).write_bytes(self._features)
            work = f"/proc/self/fd/{folder}"
            places = ("-D", f"/proc/self/fd/{images}", "-W", work, "-v2", "-o", LOG)
            environment = {"XDG_RUNTIME_DIR": work, "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
            status = _run_to_end([*self._command, verb, *places, *COMMON, *arguments], environment, (images, folder))
            if status != 0:
                raise OSError(f"criu {verb} ended with {status}: {_first_error(_place(folder, LOG))}")
            if verb == "dump" and _place(folder, FEATURES).exists():
                self._features = _place(folder, FEATURES).read_bytes()
        finally:
            self.pids.last = before
            os.close(folder)


def _place(folder: int, name: str) -> Path:
    return Path(f"/proc/self/fd/{folder}/{name}")


def _run_to_end(words: list[str], env: dict[str, str], handed: Sequence[int]) -> int:
    """Run a program to its end with these descriptors; return its exit code, negative for a signal. A program that
    hangs is killed. This process is closed to it meanwhile."""
    kernel.set_undumpable(closed=True)
    try:
        pid = os.fork()
        if pid == 0:
            try:
                for number in (0, 1, 2):
                    os.dup2(os.open("/dev/null", os.O_RDWR), number)
                for number in handed:
                    os.set_inheritable(number, True)
                signal.set_wakeup_fd(-1)
                for reset in (signal.SIGPIPE, signal.SIGINT, signal.SIGCHLD):
                    signal.signal(reset, signal.SIG_DFL)
                if os.geteuid() != 0:  # without root, CRIU must not try to become root
                    kernel.keep_capabilities_on_exec(but=frozenset({kernel.CAP_SETUID, kernel.CAP_SETGID}))
                os.execve(words[0], words, env)
            finally:
                os._exit(127)
        ended = os.pidfd_open(pid)
        try:
            if not select.select([ended], [], [], PATIENCE_S)[0]:
                os.kill(pid, signal.SIGKILL)
            return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        finally:
            os.close(ended)
    finally:
        kernel.set_undumpable(closed=False)


def _boot_id() -> bytes:
    return Path("/proc/sys/kernel/random/boot_id").read_bytes()


def _first_error(log: Path) -> str:
    try:
        with os.fdopen(os.open(log, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), errors="replace") as file:
            lines = file.read().splitlines()
    except OSError:
        return "it left no log"
    errors = [line.strip() for line in lines if "Error" in line and "RLIMIT_NOFILE for self" not in line]
    if errors and NOT_FOUND in errors[0] and " (deleted)]" not in errors[0]:
        return f"{errors[0]}{HOMES_OWN}"
    return errors[0] if errors else f"its log of {len(lines)} lines has no error"
