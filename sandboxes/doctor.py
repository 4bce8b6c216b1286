"""What this machine can do, found by doing it: each no comes with its reason and what would make it a yes."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from ramify.sandboxes.copying import CopyBackend
from ramify.sandboxes.docker.backend import DockerBackend
from ramify.sandboxes.docker.connecting import connect
from ramify.sandboxes.errors import BackendUnavailable
from ramify.sandboxes.features import Capabilities, flags
from ramify.sandboxes.helper import find_bash
from ramify.sandboxes.namespaces.backend import NamespaceBackend
from ramify.sandboxes.namespaces.mountinfo import MountTable
from ramify.sandboxes.namespaces.probe import Found, probe
from ramify.sandboxes.safety import report
from ramify.sandboxes.scratch import Session

MOST_UNCOVERED = 8  # places that are named one by one
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
    found = _try_namespaces(scratch)
    return Capabilities(
        NamespaceBackend.name,
        flags(NamespaceBackend.missing()),
        found.failure,
        notes=(
            "the host's files are readable inside, except /tmp, /var/tmp, /run and ramify's own",
            *_coverage(found.uncovered),
            *report.notes(),
        ),
    )


def _coverage(uncovered: Sequence[str]) -> tuple[str, ...]:
    """What of the host's files a world sees as they are, where it should see overlays over them."""
    most = MOST_UNCOVERED if len(uncovered) > MOST_UNCOVERED + 1 else len(uncovered)
    told = [f"locks, leases and watches from inside reach {place}" for place in uncovered[:most]]
    return (*told, *([f"and {len(uncovered) - most} more such places"] if len(uncovered) > most else []))


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


def _try_namespaces(scratch: Path) -> Found:
    """Whether a world can be made and a command can write a file in it."""
    try:
        bash = find_bash()
    except BackendUnavailable as error:
        return Found(str(error))
    session = Session(scratch.resolve())
    try:
        session.open()
    except OSError as error:
        return Found(f"{scratch} cannot hold worlds: {error}")
    try:
        found = probe(session.folder, bash)
        if found.failure:
            found.failure = f"{found.failure}. {_cause(session.folder)}"
        return found
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
    return MountTable.read().of(str(folder)).kind
