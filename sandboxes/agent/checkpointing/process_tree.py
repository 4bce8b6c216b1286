"""Dump a whole process tree, for other worlds: checkpoint tier "tree". Stdlib only; agent side; x86_64.

Each process is dumped as a Python session is (process_dump.py), into a folder of its own that is named by its pid.
This module adds what makes them a tree: parents, sessions and groups. `tree_restore.py` restores it, and forks share
the pages of the images until they write. What such images cannot hold (threads, sockets, pipes between processes, a
terminal) is refused with a reason: then CRIU dumps the tree.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

from ramify.sandboxes.agent.checkpointing.criu_runner import DumpNote
from ramify.sandboxes.agent.checkpointing.memory_image import CannotDump
from ramify.sandboxes.agent.checkpointing.process_dump import OpenFile, open_files, scheduling_of, working_folder
from ramify.sandboxes.linux import processes
from ramify.sandboxes.linux.ptrace import share_open_file_among

TREE_NOTE = "tree.json"  # in the folder of the tree's root
MOST_MEMBERS = 64
UNFILTERED = "0"  # in /proc/PID/status
NAMESPACES = ("user", "mnt", "pid", "net", "ipc", "uts")
LIKE_THE_ROOT = ("Uid", "Gid", "Groups", "CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "NoNewPrivs", "Seccomp")
HARMLESS_DEVICES = frozenset(os.makedev(1, minor) for minor in (3, 5, 7, 8, 9))  # null, zero, full, random, urandom
OF_A_STOP = sum(1 << (number - 1) for number in (17, 18, 19))  # SIGCHLD, SIGCONT, SIGSTOP


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
) -> tuple[Member, ...]:
    """The members of the tree of these processes, the root first. Raises `CannotDump` for what images cannot hold.

    `sharing`: processes that were restored with pages of an image, under a filter that their children inherit.
    """
    if len(found) > MOST_MEMBERS:
        raise CannotDump(f"{len(found)} processes are more than {MOST_MEMBERS}")
    pids = {process.pid for process in found}
    for process in processes.all_processes().values():
        if process.parent in pids and process.pid not in pids:
            raise CannotDump(f"process {process.pid} has ended, and its parent has not asked for its exit code")
    members, root = [], dict[str, str]()
    parents: dict[int, Member] = {}
    opened: dict[int, list[OpenFile]] = {}
    filtered: set[int] = set()
    for process in found:
        try:
            member = parents[process.pid] = _member(process.pid)
            mine = _status(process.pid)
            if (process.key in sharing or member.parent in filtered) and mine.get("Seccomp_filters") == "1":
                filtered.add(member.pid)
                mine["Seccomp"] = UNFILTERED  # by anything else
            root = root or mine
            _check(member, parents.get(member.parent), root, mine)
            opened[process.pid] = open_files(process.pid, private, pipes, locks=True)
        except CannotDump as error:
            raise CannotDump(f"process {process.pid}: {error}") from None
        members.append(member)
    _check_devices(opened)
    _check_shared(opened)
    return tuple(members)


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


def _check(member: Member, parent: Member | None, root: Mapping[str, str], mine: Mapping[str, str]) -> None:
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
    here = Path("/proc", str(member.pid))
    if any((here / "ns" / name).readlink() != Path("/proc/self/ns", name).readlink() for name in NAMESPACES):
        raise CannotDump("it is in a namespace of its own")
    if str((here / "root").readlink()) != "/":
        raise CannotDump("it has another root folder")
    working_folder(member.pid)


def _status(pid: int) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def is_filtered(pid: int) -> bool:
    """Whether it runs under a filter of system calls. False if it has ended."""
    try:
        return _status(pid).get("Seccomp") != UNFILTERED
    except (FileNotFoundError, ProcessLookupError):
        return False


def _check_devices(opened: Mapping[int, Sequence[OpenFile]]) -> None:
    for pid, files in opened.items():
        for file in files:
            found = Path(f"/proc/{pid}/fd/{file.number}").stat()
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
            if not appends and stat.S_ISREG(Path(f"/proc/{pid}/fd/{file.number}").stat().st_mode):
                yield pid, file
