"""Restore a process tree from its images, in another world: checkpoint tier "tree". Stdlib only; agent side.

The agent forks the tree: each process forks its children under the pids that they had. Then every one is confined
like any command, executes its own program and stops before the first instruction, and the agent rebuilds it there
(process_restore.py). No process runs before all are rebuilt. Pages are mapped from the images and shared until they
are written.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ramify.sandboxes.agent.checkpointing.criu_runner import PidCounter
from ramify.sandboxes.agent.checkpointing.process_dump import ALL_SIGNALS, BASE_PAGES, MMAP, PAGES, Image
from ramify.sandboxes.agent.checkpointing.process_restore import (
    CannotRestore,
    become_program,
    check_compatible,
    rebuild,
)
from ramify.sandboxes.agent.checkpointing.process_tree import Member, ProcessTree
from ramify.sandboxes.linux import kernel, memory_map, resource_limits
from ramify.sandboxes.linux.memory_map import Area, FileId
from ramify.sandboxes.linux.ptrace import EXIT_KILL, TRACE_EXEC, Tracee

PIECE = 1 << 18  # bytes


@dataclass(frozen=True, slots=True)
class _Source:
    """What one process is rebuilt from. `memory`: descriptors of its base's pages and of its own."""

    image: Image
    memory: tuple[int, int]


def restore_tree(
    tree: ProcessTree,
    images: Path,
    pipes: Mapping[str, int],
    confine: Callable[[], None],
    pids: PidCounter,
    open_files: int | None,
    *,
    frozen: bool = False,
) -> dict[int, Image]:
    """Restore the tree as descendants of this process; return the images by pid. `frozen`: leave all stopped.

    `pipes`, `confine`, `open_files`: as for `process_restore.restore`. Raises `CannotRestore`; then nothing of it is
    left.
    """
    go, go_in = os.pipe()
    with contextlib.ExitStack() as held:
        for descriptor in (go, go_in):
            held.callback(os.close, descriptor)
        sources = {member.pid: _open(images / str(member.pid), held) for member in tree.members}
        forked = _Forking(tree, sources, pipes, confine, pids, go)
        try:
            forked.fork_root()
            tracees = [held.enter_context(Tracee.seize(one.pid, TRACE_EXEC | EXIT_KILL)) for one in tree.members]
            os.write(go_in, b"." * len(tracees))
            for tracee in tracees:
                tracee.await_exec()
                source = sources[tracee.pid]
                rebuild(tracee, source.image, source.memory[1])
                resource_limits.limit_restored(tracee.pid, source.image.program.limits, open_files)
            for member in tree.members if frozen else ():
                os.kill(member.pid, signal.SIGSTOP)  # it stops when it is released
        except BaseException as error:
            for member in tree.members:  # before they are released: none may run half restored
                with contextlib.suppress(ProcessLookupError):
                    os.kill(member.pid, signal.SIGKILL)
            if isinstance(error, OSError):
                raise CannotRestore(f"the processes could not be restored: {error}") from error
            raise
    return {pid: source.image for pid, source in sources.items()}


def _open(folder: Path, held: contextlib.ExitStack) -> _Source:
    image = Image.read(folder)
    check_compatible(image)
    pages = os.open(folder / PAGES, os.O_RDONLY | os.O_CLOEXEC)
    held.callback(os.close, pages)
    if not any(kept.below >= 0 for kept in image.areas):
        return _Source(image, (pages, pages))
    base = os.open(folder / BASE_PAGES, os.O_RDONLY | os.O_CLOEXEC)
    held.callback(os.close, base)
    return _Source(image, (base, pages))


@dataclass(frozen=True, slots=True)
class _Forking:
    """Forks the tree. Pids are taken one after the other, so a parent waits until the branch below a child stands."""

    tree: ProcessTree
    sources: Mapping[int, _Source]
    pipes: Mapping[str, int]
    confine: Callable[[], None]
    pids: PidCounter
    go: int

    def fork_root(self) -> None:
        """Raises `OSError` if a pid is taken or a process cannot be forked."""
        before = self.pids.last
        try:
            self._fork(self.tree.members[0])
        finally:
            self.pids.last = max(before, self.tree.note.last_pid)

    def _fork(self, member: Member, inherited: Sequence[int] = ()) -> None:
        stands, stands_in = os.pipe()
        self.pids.last = member.pid - 1
        pid = os.fork()
        if pid == 0:
            self._be(member, stands_in, (*inherited, stands))
        os.close(stands_in)
        told = os.read(stands, 1)
        os.close(stands)
        if not told:
            raise OSError("a process ended while the tree was forked")
        if pid != member.pid:
            raise OSError(f"the pid {member.pid} is taken")

    def _be(self, member: Member, stands: int, inherited: Sequence[int]) -> None:
        """The new process. Does not return."""
        try:
            for descriptor in inherited:
                os.close(descriptor)
            if member.session == member.pid:
                os.setsid()
            elif member.group == member.pid:
                os.setpgid(0, 0)
            for child in self.tree.children(member.pid):
                self._fork(child, (stands,))
            os.write(stands, b".")
            source = self.sources[member.pid]
            if source.image.thread.subreaper:
                kernel.become_subreaper()
            kernel.set_death_signal(source.image.thread.death_signal)
            become_program(source.image, source.memory, self.pipes, self.confine, self.go)
        finally:
            os._exit(127)


def leave_image(pid: int, restored_from: Collection[FileId]) -> None:
    """Copy what a running process has mapped from images into memory of its own. Raises `OSError`."""
    with Tracee.seize(pid) as tracee:
        tracee.interrupt()
        registers, blocked = tracee.registers, tracee.blocked
        tracee.blocked = ALL_SIGNALS
        try:
            found = memory_map.areas(pid)
            tracee.step_from(next(area for area in found if area.name == "[vdso]"))
            for area in found:
                if area.of in restored_from:
                    _copy_into_own(tracee, area)
        finally:
            tracee.registers, tracee.blocked = registers, blocked


def _copy_into_own(tracee: Tracee, area: Area) -> None:
    own = replace(area, inode=0, name="")
    held: list[tuple[int, bytes]] = []
    for at in range(area.start, area.end, PIECE):
        data = os.pread(tracee.memory, min(PIECE, area.end - at), at)
        if data.count(0) != len(data):
            held.append((at, data))
    tracee.call(MMAP, area.start, area.size, area.protection, own.flags, -1, 0)
    for at, data in held:
        os.pwrite(tracee.memory, data, at)
