"""What this machine can do, found by doing it: each no comes with its reason and what would make it a yes."""

from __future__ import annotations

import os
import re
import socket
from pathlib import Path

from ramify.sandboxes.contract import Capabilities
from ramify.sandboxes.errors import BackendUnavailable
from ramify.sandboxes.helper import PATIENCE_S, end, find_bash, launch
from ramify.sandboxes.namespaces.view import PRIVATE
from ramify.sandboxes.scratch import Session
from ramify.sandboxes.wire import Attach, Failed, Link, Ran, Ready, Run, Start, View

OLDEST_KERNEL = (5, 12)  # overlayfs in a user namespace came with 5.11, mount_setattr with 5.12
REFUSING_FILE_SYSTEMS = frozenset({"overlay", "nfs", "nfs4", "fuse", "9p", "vfat", "ecryptfs"})
SWITCHES = (
    ("kernel/unprivileged_userns_clone", "0", "sysctl kernel.unprivileged_userns_clone=1"),
    ("user/max_user_namespaces", "0", "sysctl user.max_user_namespaces=10000"),
    ("kernel/apparmor_restrict_unprivileged_userns", "1", "sysctl kernel.apparmor_restrict_unprivileged_userns=0"),
)


def capabilities(scratch: Path) -> tuple[Capabilities, ...]:
    """What each backend can do with worlds under `scratch`. Takes about a tenth of a second; blocks."""
    return (namespaces(scratch), copy())


def namespaces(scratch: Path) -> Capabilities:
    reason = _why_no_namespaces(scratch)
    return Capabilities(
        backend="namespaces",
        available=not reason,
        reason=reason,
        isolation=True,
        network_isolation=True,
        fork_by_mount=True,
        kills_process_tree=True,
        notes=(
            "the host's files are readable inside, except /tmp, /var/tmp, /run and ramify's own",
            "sockets in the host's file system outside those places can be connected to",
        ),
    )


def copy() -> Capabilities:
    try:
        find_bash()
        reason = ""
    except BackendUnavailable as error:
        reason = str(error)
    return Capabilities(
        backend="copy",
        available=not reason,
        reason=reason,
        kills_process_tree=True,
        notes=(
            "no isolation: commands can write whatever you can, and reach the network",
            "a fork copies the tree; a seal scans it",
            "the tree does not stand at the workspace's own path",
        ),
    )


def _why_no_namespaces(scratch: Path) -> str:
    """ "" where a world could be made and a command wrote a file in it."""
    try:
        bash = find_bash()
    except BackendUnavailable as error:
        return str(error)
    session = Session(scratch.resolve())
    try:
        session.open()
    except OSError as error:
        return f"{scratch} cannot hold worlds: {error}"
    try:
        failure = _try(session.folder, bash)
        return f"{failure}. {_cause(session.folder)}" if failure else ""
    finally:
        session.close()


def _try(folder: Path, bash: str) -> str:
    """Make a world in `folder` and write a file in it. What failed, "" for nothing."""
    for name in ("root", "lower", "upper", "work"):
        (folder / name).mkdir()
    view = View(str(folder), str(folder), hidden=[str(folder)], visible=[])
    layers = Attach([str(folder / "lower")], str(folder / "upper"), str(folder / "work"))
    start = Start("/tmp/tree", PRIVATE, bash, env={}, cwd="", max_output=4096, view=view, layers=layers)
    control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours, its = socket.socketpair()
    ours.settimeout(PATIENCE_S)
    with (folder / "log").open("wb") as log, control, ours:
        with theirs:
            process = launch(theirs, log.fileno())
        try:
            with its:
                socket.send_fds(control, [b"isolate 0"], [its.fileno()])
            failure = _converse(Link(ours), start)
        except OSError as error:
            failure = f"the helper process did not answer: {error}"
    end(process)
    if not failure and not (folder / "upper" / "file").exists():
        failure = "what a world wrote did not come to its upper folder"
    return failure


def _converse(link: Link, start: Start) -> str:
    link.send(start)
    answer = link.receive()
    if isinstance(answer, Failed):
        return answer.message
    if not isinstance(answer, Ready):
        return "the world ended while it was set up"
    link.send(Run("echo works > file"))
    answer = link.receive()
    if not isinstance(answer, Ran) or answer.exit_code != 0:
        return f"a world could not run a command: {answer}"
    return ""


def _cause(folder: Path) -> str:
    """What on this machine most likely stands in the way, and what to do about it."""
    found = []
    version = tuple(int(part) for part in re.findall(r"\d+", os.uname().release)[:2])
    if version < OLDEST_KERNEL:
        found.append(f"Linux {os.uname().release} is too old: 5.12 or later is needed")
    for name, off, remedy in SWITCHES:
        switch = Path("/proc/sys", name)
        if switch.exists() and switch.read_text().strip() == off:
            found.append(f"{name.replace('/', '.')} is {off}: run `{remedy}` as root")
    kind = _file_system(folder)
    if kind in REFUSING_FILE_SYSTEMS or kind.startswith("fuse."):
        found.append(
            f"{folder.parent} is on {kind}, which cannot hold an overlay's upper: use ext4, xfs, btrfs or tmpfs"
        )
    if not found:
        found.append("a container or a security module may forbid user namespaces or mounts to this process")
    return "; ".join(found)


def _file_system(folder: Path) -> str:
    """The type of the file system that `folder` lies on, as the mount table has it."""
    best, kind = "", "unknown"
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        left, _, right = line.partition(" - ")
        point = left.split()[4].encode().decode("unicode_escape")
        if folder.is_relative_to(point) and len(point) >= len(best):
            best, kind = point, right.split()[0]
    return kind
