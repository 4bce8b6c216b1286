"""Dump a whole process tree and restore it in other worlds: checkpoint tier "tree". Stdlib only; agent side; x86_64.

Each process is dumped as a Python session is (process_dump.py), into a folder of its own that is named by its pid.
This module adds what makes them a tree: parents, sessions and groups. Forks share the pages of the images until they
write. What such images cannot hold (threads, sockets, pipes between processes, a terminal) is refused with a reason:
then CRIU dumps the tree.

To restore the tree, the agent forks it: each process forks its children under the pids that they had. Then every one
is confined like any command, executes its own program and stops before the first instruction, and the agent rebuilds
it there (process_restore.py). No process runs before all are rebuilt.

A process with much memory has its pages mapped from the image, where all forks share them until they write. Such
memory cannot do all that other memory can, and a filter of system calls refuses the rest (`seccomp.py`). Programs
that it starts inherit the filter, and CRIU dumps none of them. So a process with little memory gets a copy.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import signal
import stat
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

from ramify.sandboxes.agent.checkpointing.criu_runner import DumpNote, PidCounter
from ramify.sandboxes.agent.checkpointing.ephemeral_state import CannotKeep
from ramify.sandboxes.agent.checkpointing.memory_image import CannotDump
from ramify.sandboxes.agent.checkpointing.process_dump import open_files, scheduling_of, working_folder
from ramify.sandboxes.agent.checkpointing.process_image import BASE_PAGES, PAGES, Image, OpenFile
from ramify.sandboxes.agent.checkpointing.process_restore import (
    CannotRestore,
    become_program,
    check_compatible,
    continue_clocks,
    rebuild,
    written_files,
)
from ramify.sandboxes.linux import kernel, processes, resource_limits
from ramify.sandboxes.linux.process_memory import Area, areas
from ramify.sandboxes.linux.ptrace import (
    EXIT_KILL,
    FOLDERS,
    MEMORY,
    TABLE_OF_FILES,
    TRACE_EXEC,
    Tracee,
    pair_that_shares,
    share_open_file_among,
)

TREE_NOTE = "tree.json"  # in the folder of the tree's root
MOST_MEMBERS = 64
UNFILTERED = "0"  # in /proc/PID/status
NAMESPACES = ("user", "mnt", "pid", "net", "ipc", "uts")
LIKE_THE_ROOT = ("Uid", "Gid", "Groups", "CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "NoNewPrivs", "Seccomp")
HARMLESS_DEVICES = frozenset(os.makedev(1, minor) for minor in (3, 5, 7, 8, 9))  # null, zero, full, random, urandom
OF_A_STOP = sum(1 << (number - 1) for number in (17, 18, 19))  # SIGCHLD, SIGCONT, SIGSTOP
SHARED_BY_CLONE = ((MEMORY, "memory"), (TABLE_OF_FILES, "table of open files"), (FOLDERS, "working folder"))


@dataclass(frozen=True, slots=True)
class Member:
    """One process of a tree, as /proc/PID/stat describes it."""

    pid: int
    parent: int
    group: int
    session: int


@dataclass(frozen=True, slots=True)
class ProcessTree:
    """What the images of the processes do not say. `members`: parents before their children."""

    note: DumpNote
    members: tuple[Member, ...]

    def write(self, images: Path) -> None:
        (images / str(self.members[0].pid) / TREE_NOTE).write_text(json.dumps(asdict(self)))

    @classmethod
    def find(cls, images: Path) -> Self | None:
        """The tree in a folder of images; None if these are images of Python sessions."""
        for folder in images.iterdir():
            if (folder / TREE_NOTE).exists():
                raw = json.loads((folder / TREE_NOTE).read_text())
                return cls(DumpNote(**raw["note"]), tuple(Member(**one) for one in raw["members"]))
        return None

    def children(self, pid: int) -> list[Member]:
        return [one for one in self.members[1:] if one.parent == pid]


def members_of(
    found: Sequence[processes.Process],
    private: str,
    pipes: Sequence[str],
    sharing: Collection[tuple[int, int]] = (),
) -> tuple[tuple[Member, ...], dict[int, list[OpenFile]]]:
    """The members of the tree of these processes, the root first, and their open files. Raises `CannotDump` for what
    images cannot hold.

    `sharing`: processes that were restored with pages of an image, under a filter that their children inherit.
    """
    if len(found) > MOST_MEMBERS:
        raise CannotDump(f"{len(found)} processes are more than {MOST_MEMBERS}")
    pids = {process.pid for process in found}
    for process in processes.all_processes().values():
        if process.parent in pids and process.pid not in pids:
            raise CannotDump(f"process {process.pid} has ended, and its parent has not asked for its exit code")
    members, root = list[Member](), dict[str, str]()
    parents: dict[int, Member] = {}
    opened: dict[int, list[OpenFile]] = {}
    filtered: set[int] = set()
    here = _namespaces("self")
    for process in found:
        try:
            member = parents[process.pid] = _member(process.pid)
            mine = processes.status_of(process.pid)
            if (process.key in sharing or member.parent in filtered) and mine.get("Seccomp_filters") == "1":
                filtered.add(member.pid)
                mine["Seccomp"] = UNFILTERED  # by anything else
            if members and member.parent not in parents:
                raise CannotDump("it does not descend from the shell")
            root = root or mine
            _check(member, parents.get(member.parent), root, mine, here)
            opened[process.pid] = open_files(process.pid, private, pipes, locks=True)
        except CannotDump as error:
            raise type(error)(f"process {process.pid}: {error}") from None
        except PermissionError:
            raise CannotKeep(f"process {process.pid}: it is closed to others, as by PR_SET_DUMPABLE") from None
        members.append(member)
    _check_devices(opened)
    _check_shared(opened)
    for kind, what in SHARED_BY_CLONE:
        if pair := pair_that_shares(sorted(opened), kind):
            raise CannotDump(f"processes {pair[0]} and {pair[1]} share their {what}, as by clone")
    return tuple(members), opened


def _member(pid: int) -> Member:
    fields = processes.stat_of(pid)
    parent, group, session, terminal = map(int, fields[1:5])
    threads = int(fields[17])
    if threads != 1:
        raise CannotDump(f"it has {threads} threads")
    if terminal:
        raise CannotDump("it has a terminal")
    scheduling_of(pid)
    return Member(pid, parent, group, session)


def _check(
    member: Member, parent: Member | None, root: Mapping[str, str], mine: Mapping[str, str], here: Sequence[str]
) -> None:
    """Raise `CannotDump` for a process that cannot be such a member. `here`: the namespaces of this process."""
    if parent is not None and member.session not in (member.pid, parent.session):
        raise CannotDump("the leader of its session has ended")
    if member.group != member.pid and (parent is None or member.group != parent.group):
        raise CannotDump("it is in the process group of another")
    if member.session == member.pid != member.group:
        raise CannotDump("it leads a session from another process group")
    if any(mine.get(name) != root.get(name) for name in LIKE_THE_ROOT):
        raise CannotDump("it has other rights than the shell")
    if mine.get("VmLck", "0 kB").split()[0] != "0":
        raise CannotDump("it has locked memory")
    if any(int(mine[name], 16) & ~OF_A_STOP for name in ("SigPnd", "ShdPnd")):
        raise CannotDump("a signal waits for it")
    if _namespaces(member.pid) != here:
        raise CannotDump("it is in a namespace of its own")
    if os.readlink(f"/proc/{member.pid}/root") != "/":  # noqa: PTH115
        raise CannotDump("it has another root folder")
    working_folder(member.pid)


def _namespaces(pid: int | str) -> list[str]:
    return [os.readlink(f"/proc/{pid}/ns/{name}") for name in NAMESPACES]  # noqa: PTH115


def is_filtered(pid: int) -> bool:
    """Whether it runs under a filter of system calls. False if it has ended."""
    try:
        return processes.status_of(pid).get("Seccomp") != UNFILTERED
    except (FileNotFoundError, ProcessLookupError):
        return False


def _check_devices(opened: Mapping[int, Sequence[OpenFile]]) -> None:
    for pid, files in opened.items():
        for file in files:
            found = _stat(pid, file)
            if stat.S_ISCHR(found.st_mode) and found.st_rdev not in HARMLESS_DEVICES:
                raise CannotDump(f"process {pid}: it holds the device {file.path} open")


def _check_shared(opened: Mapping[int, Sequence[OpenFile]]) -> None:
    """Refuse files whose position two processes share, unless all writes go to the end."""
    seen: dict[str, list[tuple[int, int]]] = {}
    for pid, file in _with_a_position(opened):
        for other, number in seen.setdefault(file.path, []):
            if other != pid and share_open_file_among((other, number), (pid, file.number)):
                raise CannotDump(f"processes {other} and {pid} share the open file {file.path}")
        seen[file.path].append((pid, file.number))


def _with_a_position(opened: Mapping[int, Sequence[OpenFile]]) -> Iterator[tuple[int, OpenFile]]:
    for pid, files in opened.items():
        for file in files:
            appends = file.flags & os.O_APPEND and file.flags & os.O_ACCMODE == os.O_WRONLY
            if not appends and stat.S_ISREG(_stat(pid, file).st_mode):
                yield pid, file


def _stat(pid: int, file: OpenFile) -> os.stat_result:
    return os.stat(f"/proc/{pid}/fd/{file.number}")  # noqa: PTH116


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
    """One process that was restored. `shares`: it has pages of the image, and the filter for them. `found`: what it
    had mapped before it ran on; nothing for a copy, which maps no image."""

    image: Image
    shares: bool
    found: tuple[Area, ...]


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
    pages. Raises `CannotRestore`; then nothing of it is left.
    """
    go, go_in = os.pipe()
    with contextlib.ExitStack() as held:
        for descriptor in (go, go_in):
            held.callback(os.close, descriptor)
        sources = {member.pid: _open(images / str(member.pid), held) for member in tree.members}
        continue_clocks(sources[tree.members[0].pid].image)
        forked = _Forking(tree, sources, pipes, confine, pids, go)
        try:
            forked.fork_root()
            found = dict[int, tuple[Area, ...]]()
            tracees = [held.enter_context(Tracee.seize(one.pid, TRACE_EXEC | EXIT_KILL)) for one in tree.members]
            os.write(go_in, b"." * len(tracees))
            written = {path for source in sources.values() for path in written_files(source.image)}
            for tracee in tracees:
                tracee.await_exec()
                source = sources[tracee.pid]
                rebuild(tracee, source.image, source.memory, shares=source.shares, written=written)
                found[tracee.pid] = tuple(areas(tracee.pid)) if source.shares else ()
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
    return {pid: Restored(source.image, source.shares, found[pid]) for pid, source in sources.items()}


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
