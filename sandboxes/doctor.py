"""Find out what this machine can do, by trying it. Each missing feature has a reason and what would provide it.

For namespaces it makes a world, without an event loop, and writes a file in it. If that fails, `obstacles` says what
keeps the machine, the container or the world from making worlds in namespaces, and what to do about it. The kernel
answers EPERM for many reasons, so this looks at what surrounds the process to name the one that applies:
docs/decisions/097-worlds-in-other-sandboxes.md says how each was found.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ramify.sandboxes.agent.framing import Link
from ramify.sandboxes.agent.messages import Failed, Ran, Ready, Run, Start, View
from ramify.sandboxes.agent.mount_server import (
    BIGGEST,
    MountOverlays,
    MountReply,
    MountRequest,
    Overlay,
    pack,
    unpack,
)
from ramify.sandboxes.agent.mount_view import PRIVATE, ROOT
from ramify.sandboxes.backends.copying import CopyBackend
from ramify.sandboxes.backends.docker.backend import DockerBackend
from ramify.sandboxes.backends.docker.connection import connect
from ramify.sandboxes.backends.namespaces.backend import NamespaceBackend
from ramify.sandboxes.capabilities import Capabilities, flags
from ramify.sandboxes.errors import BackendUnavailable
from ramify.sandboxes.host.fork_server_client import PATIENCE_S, end, find_bash, launch
from ramify.sandboxes.host.scratch import ScratchSession
from ramify.sandboxes.linux import cgroups, checkpoint_support, landlock, ptrace, seccomp
from ramify.sandboxes.linux.cgroups import Groups
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
            "this process runs in a world, whose filter forbids new namespaces: make or fork worlds from the "
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


INSIDE = "/tmp/tree"


@dataclass(slots=True)
class Found:
    """The result of trying to make a world."""

    failure: str = ""  # empty if it works
    uncovered: list[str] = field(default_factory=list)  # host folders that locks and watches reach, and why


def probe(folder: Path, bash: str) -> Found:
    """Make a world in the empty `folder` and write a file in it. Blocks."""
    found = Found()
    for name in (ROOT, "lower"):
        (folder / name).mkdir()
    control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    keeping, keepers = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    log = folder / "log"
    with log.open("wb") as complaints, control, keeping:
        with theirs, keepers:
            process = launch(theirs, complaints.fileno(), keepers, [folder])
        try:
            found.failure = _try(folder, bash, control, keeping, found)
        except OSError as error:
            found.failure = log.read_text(errors="replace").strip() or f"the helper process did not answer: {error}"
    end(process)
    if not found.failure and not (folder / "upper" / "file").exists():
        found.failure = "a file that the world wrote is missing in its upper folder"
    return found


def _try(folder: Path, bash: str, control: socket.socket, keeping: socket.socket, found: Found) -> str:
    keeping.settimeout(PATIENCE_S)
    answer, given = _ask_mount_server(
        keeping, MountOverlays([str(folder / "lower")], [Overlay(str(folder / "upper"), str(folder / "work"), "")])
    )
    if answer.error:
        return answer.error
    view = View(str(folder), str(folder), [INSIDE], hidden=[str(folder)], visible=[])
    start = Start(INSIDE, PRIVATE, bash, env={}, cwd="", max_output=4096, view=view)
    ours, its = socket.socketpair()
    ours.settimeout(PATIENCE_S)
    with ours:
        with its:
            socket.send_fds(control, [b"isolated 0"], [its.fileno()])
        return _converse(Link(ours), start, given, found)


def _ask_mount_server(keeping: socket.socket, request: MountRequest) -> tuple[MountReply, list[int]]:
    keeping.send(pack(request))
    data, given, _, _ = socket.recv_fds(keeping, BIGGEST, 1, socket.MSG_CMSG_CLOEXEC)
    answer = unpack(data) if data else None
    if not isinstance(answer, MountReply):
        raise OSError("it hung up")
    return answer, given


def _converse(link: Link, start: Start, given: list[int], found: Found) -> str:
    link.send(start, given)
    for descriptor in given:
        os.close(descriptor)
    answer = link.receive()
    if isinstance(answer, Failed):
        return answer.message
    if not isinstance(answer, Ready):
        return "the world ended while it was set up"
    found.uncovered = answer.uncovered
    link.send(Run("echo works > file"))
    answer = link.receive()
    if not isinstance(answer, Ran) or answer.exit_code != 0:
        return f"a world could not run a command: {answer}"
    return ""


MOST_UNCOVERED = 8  # places that are named individually


def capabilities(scratch: Path) -> tuple[Capabilities, ...]:
    """What each backend can do with worlds under `scratch`. Takes about a tenth of a second; blocks."""
    return (namespaces(scratch), docker(), copy())


def namespaces(scratch: Path) -> Capabilities:
    """What the namespace backend can do with worlds under `scratch`."""
    found = _try_namespaces(scratch)
    return Capabilities(
        NamespaceBackend.name,
        flags(NamespaceBackend.missing()),
        found.failure,
        notes=(
            "the host's files are readable inside, except /tmp, /var/tmp, /run and ramify's own",
            *_coverage(found.uncovered),
            *checkpoint_notes(),
            *confinement_notes(),
        ),
    )


def checkpoint_notes() -> tuple[str, ...]:
    """How programs that live on are kept by snapshots of dumpable worlds, and what the kernel forbids of that."""
    if why := ptrace.why_not():
        return (f"forks of living programs do not share their memory, and are made by CRIU alone: {why}",)
    return (
        "forks of living programs (dumpable worlds) share their memory; CRIU takes what that cannot hold",
        *checkpoint_support.forbidden(),
    )


def confinement_notes() -> tuple[str, ...]:
    """One line for each mechanism that a machine may have or lack. Takes about a millisecond."""
    filtered = seccomp.why_not()
    abi = landlock.abi_version()
    groups = cgroups.find()
    alone = os.geteuid() != 0
    return (
        (
            "images: root is the only user inside: packages install, changes of owners have no effect, and no "
            "command can become another user (su, setuid)"
            if alone
            else "images: all users of the image exist inside"
        ),
        f"system calls are not filtered: {filtered}" if filtered else "system calls are filtered",
        (
            f"Landlock: ABI {abi}"
            if abi >= landlock.ABI_REFER
            else f"no Landlock: ABI {abi}, where {landlock.ABI_REFER} (Linux 5.19) is needed"
        ),
        (
            "limits: held by the kernel (control groups) and by each world's agent"
            if isinstance(groups, Groups)
            else f"limits: only watched by each world's agent, a few times a second: {groups}"
        ),
    )


def _coverage(uncovered: Sequence[str]) -> tuple[str, ...]:
    """Notes on host folders that a world sees directly instead of through an overlay."""
    most = MOST_UNCOVERED if len(uncovered) > MOST_UNCOVERED + 1 else len(uncovered)
    told = [f"locks, leases and watches from inside reach {place}" for place in uncovered[:most]]
    return (*told, *([f"and {len(uncovered) - most} more such places"] if len(uncovered) > most else []))


def docker() -> Capabilities:
    """What the docker backend can do."""
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
            "whoever may use the engine is root on this machine; worlds have the engine's isolation",
            "without an image, worlds get one with this machine's own bash, core utilities and Python",
        ),
    )


def copy() -> Capabilities:
    """What the copy backend can do."""
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
    """Test whether a world can be made and a command can write a file in it."""
    try:
        bash = find_bash()
    except BackendUnavailable as error:
        return Found(str(error))
    session = ScratchSession(scratch.resolve())
    try:
        session.open()
    except OSError as error:
        return Found(f"{scratch} cannot hold worlds: {error}")
    try:
        found = probe(session.folder, bash)
        if found.failure:
            around = Surroundings.read(session.folder)
            found.failure = f"{found.failure}. {'; '.join(obstacles(around, str(scratch)))}"
        return found
    finally:
        session.close()
