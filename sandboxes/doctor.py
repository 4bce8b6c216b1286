"""What this machine can do, found by doing it: each no comes with its reason and what would make it a yes."""

from __future__ import annotations

import os
import re
from pathlib import Path

from ramify.sandboxes.copying import CopyBackend
from ramify.sandboxes.docker.backend import DockerBackend
from ramify.sandboxes.docker.connecting import connect
from ramify.sandboxes.errors import BackendUnavailable
from ramify.sandboxes.features import Capabilities, flags
from ramify.sandboxes.helper import find_bash
from ramify.sandboxes.namespaces import probe
from ramify.sandboxes.namespaces.backend import NamespaceBackend
from ramify.sandboxes.safety import report
from ramify.sandboxes.scratch import Session

OLDEST_KERNEL = (5, 12)  # overlayfs in a user namespace came with 5.11, mount_setattr with 5.12
REFUSING_FILE_SYSTEMS = frozenset({"overlay", "nfs", "nfs4", "fuse", "9p", "vfat", "ecryptfs"})
SWITCHES = (
    ("kernel/unprivileged_userns_clone", "0", "sysctl kernel.unprivileged_userns_clone=1"),
    ("user/max_user_namespaces", "0", "sysctl user.max_user_namespaces=10000"),
    ("kernel/apparmor_restrict_unprivileged_userns", "1", "sysctl kernel.apparmor_restrict_unprivileged_userns=0"),
)


def capabilities(scratch: Path) -> tuple[Capabilities, ...]:
    """What each backend can do with worlds under `scratch`. Takes about a tenth of a second; blocks."""
    return (namespaces(scratch), docker(), copy())


def namespaces(scratch: Path) -> Capabilities:
    reason = _why_no_namespaces(scratch)
    return Capabilities(
        NamespaceBackend.name,
        flags(NamespaceBackend.missing()),
        reason,
        notes=(
            "the host's files are readable inside, except /tmp, /var/tmp, /run and ramify's own",
            "sockets in the host's file system outside those places can be connected to",
            *report.notes(),
        ),
    )


def docker() -> Capabilities:
    try:
        connect().close()
        reason = ""
    except BackendUnavailable as error:
        reason = str(error)
    return Capabilities(
        DockerBackend.name,
        flags(DockerBackend.missing()),
        reason,
        notes=(
            "who may use the engine is root on this machine: it is the engine's isolation that worlds have",
            "without an image, worlds stand on one of this machine's own bash, core utilities and Python",
        ),
    )


def copy() -> Capabilities:
    try:
        find_bash()
        reason = ""
    except BackendUnavailable as error:
        reason = str(error)
    return Capabilities(
        CopyBackend.name,
        flags(CopyBackend.missing()),
        reason,
        notes=("no isolation: commands can write whatever you can, and reach the network",),
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
        failed = probe.failure(session.folder, bash)
        return f"{failed}. {_cause(session.folder)}" if failed else ""
    finally:
        session.close()


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
