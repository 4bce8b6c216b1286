"""What keeps a machine, a container or a world from making worlds in namespaces, and what to do about it.

The kernel answers EPERM for many reasons. This module looks at what surrounds the process to name the one that
applies: docs/decisions/097-worlds-in-other-sandboxes.md says how each was found.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ramify.sandboxes.agent.mount_view import PRIVATE
from ramify.sandboxes.linux.mount_table import MountTable

OLDEST_KERNEL = (5, 12)  # overlayfs in a user namespace came with 5.11, mount_setattr with 5.12
REFUSING_FILE_SYSTEMS = frozenset({"overlay", "nfs", "nfs4", "fuse", "9p", "vfat", "ecryptfs"})
SWITCHES = (
    ("kernel/unprivileged_userns_clone", "0", "run `sysctl kernel.unprivileged_userns_clone=1` as root"),
    ("user/max_user_namespaces", "0", "run `sysctl user.max_user_namespaces=10000` as root"),
    (
        "kernel/apparmor_restrict_unprivileged_userns",
        "1",
        "give this Python an AppArmor profile with `userns,`, or run `sysctl "
        "kernel.apparmor_restrict_unprivileged_userns=0` as root",
    ),
)
"""Files of /proc/sys, the value that forbids user namespaces, and the mend."""

CONTAINER_FILES = {"docker": "/.dockerenv", "podman": "/run/.containerenv"}


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What the process runs in."""

    release: str  # of the kernel
    switches: Mapping[str, str] = field(default_factory=dict)  # those of `SWITCHES` that the kernel has
    in_world: bool = False
    container: str = ""  # "docker", "podman" or another name; "" outside of containers
    filtered: bool = False  # a seccomp filter that somebody else installed
    profile: str = "unconfined"  # of AppArmor
    hides_proc: bool = False  # parts of /proc are covered, so the kernel lets nobody mount a new one
    file_system: str = ""  # of the folder that is to hold worlds

    @classmethod
    def read(cls, folder: Path) -> Surroundings:
        mounts = MountTable.read()
        switches = {name: _text(f"/proc/sys/{name}") for name, _, _ in SWITCHES if Path("/proc/sys", name).exists()}
        named = [name for name, path in CONTAINER_FILES.items() if Path(path).exists()]
        return cls(
            release=os.uname().release,
            switches=switches,
            in_world=Path(PRIVATE).is_dir(),
            container=named[0] if named else os.environ.get("container", ""),  # noqa: SIM112
            filtered=re.search(r"^Seccomp:\s*2$", _text("/proc/self/status"), re.MULTILINE) is not None,
            profile=_text("/proc/self/attr/current").split(" ")[0] or "unconfined",
            hides_proc=mounts.has_below("/proc"),
            file_system=mounts.of(str(folder)).kind,
        )


def obstacles(around: Surroundings, folder: str) -> list[str]:
    """What is in the way, each with its mend, and the general case if nothing is known to be. `folder`: is to hold
    worlds."""
    if around.in_world:
        return [
            "this process runs in a world, whose filter lets nobody make namespaces: make or fork worlds from the "
            "process that made this one"
        ]
    found = []
    if tuple(int(part) for part in re.findall(r"\d+", around.release)[:2]) < OLDEST_KERNEL:
        found.append(f"Linux {around.release} is too old: 5.12 or later is needed")
    for name, off, remedy in SWITCHES:
        if around.switches.get(name) == off:
            found.append(f"{name.replace('/', '.')} is {off}: {remedy}")
    found += _of_container(around) if around.container else _of_filter(around)
    kind = around.file_system
    if kind in REFUSING_FILE_SYSTEMS or kind.startswith("fuse."):
        found.append(
            f"{folder} is on {kind}, which cannot hold an overlay's upper: set RAMIFY_HOME to a folder on ext4, xfs, "
            f"btrfs or tmpfs{', such as a volume of the container' if around.container else ''}"
        )
    return found or ["a container or a security module may forbid user namespaces or mounts to this process"]


def _of_container(around: Surroundings) -> list[str]:
    """What the container has to be started with."""
    options = []
    if around.filtered:
        options.append("--security-opt seccomp=unconfined")
    if around.profile not in ("unconfined", "kernel"):
        options.append("--security-opt apparmor=unconfined")
    if around.hides_proc:
        hides = "unmask=ALL" if around.container == "podman" else "systempaths=unconfined"
        options.append(f"--security-opt {hides}")
    if not options:
        return []
    return [
        f"this container ({around.container}) forbids namespaces or mounts: start it with `{' '.join(options)}`. "
        "No capability and no --privileged is needed"
    ]


def _of_filter(around: Surroundings) -> list[str]:
    if not around.filtered:
        return []
    return [
        "a seccomp filter of a parent process may forbid namespaces or mounts: run Ramify outside of it (for a "
        "systemd unit: RestrictNamespaces=no, without a SystemCallFilter= that leaves out @mount)"
    ]


def _text(path: str) -> str:
    try:
        return Path(path).read_text().strip("\0\n ")
    except OSError:
        return ""
