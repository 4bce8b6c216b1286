"""Restore a process tree from its images, in another world: checkpoint tier "tree". Stdlib only; agent side.

The agent forks the tree: each process forks its children under the pids that they had. Then every one is confined
like any command, executes its own program and stops before the first instruction, and the agent rebuilds it there
(process_restore.py). No process runs before all are rebuilt.

A process with much memory has its pages mapped from the image, where all forks share them until they write. Such
memory cannot do all that other memory can, and a filter of system calls refuses the rest (`seccomp.py`). Programs
that it starts inherit the filter, and CRIU dumps none of them. So a process with little memory gets a copy.
"""

from __future__ import annotations

import contextlib
import functools
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ramify.sandboxes.agent.checkpointing.criu_runner import PidCounter
from ramify.sandboxes.agent.checkpointing.process_dump import BASE_PAGES, PAGES, Image
from ramify.sandboxes.agent.checkpointing.process_restore import (
    CannotRestore,
    become_program,
    check_compatible,
    rebuild,
)
from ramify.sandboxes.agent.checkpointing.process_tree import Member, ProcessTree
from ramify.sandboxes.linux import kernel, resource_limits
from ramify.sandboxes.linux.ptrace import EXIT_KILL, TRACE_EXEC, Tracee

COPIED = 16 << 20  # bytes: a process with no more memory of its own than this gets a copy


@dataclass(frozen=True, slots=True)
class _Source:
    """What one process is rebuilt from. `memory`: descriptors of its base's pages and of its own."""

    image: Image
    memory: tuple[int, int]

    @property
    def shares(self) -> bool:
        kept = self.image.areas
        return sum(one.area.size for one in kept if one.mapped or one.below >= 0) > COPIED


@dataclass(frozen=True, slots=True)
class Restored:
    """One process that was restored. `shares`: it has pages of the image, and the filter for them."""

    image: Image
    shares: bool


def restore_tree(
    tree: ProcessTree,
    images: Path,
    pipes: Mapping[str, int],
    confine: Callable[[bool], None],
    pids: PidCounter,
    open_files: int | None,
    *,
    frozen: bool = False,
) -> dict[int, Restored]:
    """Restore the tree as descendants of this process; return what by pid. `frozen`: leave all stopped.

    `pipes`, `confine`, `open_files`: as for `process_restore.restore`; `confine` is told whether a process shares
    pages. Raises `CannotRestore`; then nothing of it is
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
                rebuild(tracee, source.image, source.memory, shares=source.shares)
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
    return {pid: Restored(source.image, source.shares) for pid, source in sources.items()}


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
    confine: Callable[[bool], None]
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
            confine = functools.partial(self.confine, source.shares)
            become_program(source.image, source.memory, self.pipes, confine, self.go)
        finally:
            os._exit(127)
