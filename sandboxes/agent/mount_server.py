"""The process that mounts the worlds' trees, and the requests that the host sends to it. Stdlib only.

Each backend has one, a child of the fork server. It has its own mount namespace, with all trees mounted under
`PLACES`. So a tree exists before its world has any process. The host reaches it by `/proc/PID/root/…`, and a world's
agent gets a clone of the mount as a descriptor. All mounts end with this process. Every fork waits for this code, and
pathlib would cost as much as the mount: so it handles files with `os`.

Each request and each reply is one datagram, in the same order. Descriptors come with the reply. Paths are the host's.

Measured (docs/decisions/034-mounting-trees-ahead.md): mount(2) with layers named by `/proc/self/fd/N` keeps its
options within a page for up to about 200 layers, is no slower than `fsconfig lowerdir+`, and needs no new kernel.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import select
import socket
import stat
from dataclasses import astuple, dataclass, fields
from pathlib import Path

from ramify.sandboxes.linux import kernel

BIGGEST = 1 << 17  # bytes in a datagram
FEW = 16  # overlays in one request: other requests wait only some milliseconds


@dataclass(frozen=True, slots=True)
class Overlay:
    """Where one overlay writes, and its mount point at the mount server. With `upper` "" it is read-only."""

    upper: str  # created with the mode and time of the uppermost layer
    work: str  # created
    point: str  # its name at the mount server; "": handed out as a descriptor and not kept
    fresh: bool = False  # both exist, empty; `upper` still gets the uppermost layer's mode and time


@dataclass(frozen=True, slots=True)
class MountOverlays:
    """Mount overlays over one stack of layers, all or none. The reply has a descriptor for each that is not kept."""

    lowers: list[str]  # the bottom first; "@name/…" is an overlay or a folder that the mount server holds
    overlays: list[Overlay]


@dataclass(frozen=True, slots=True)
class LayerEntry:
    path: str
    kind: str  # "folder", "file", "whiteout"
    mode: int = 0o755
    mtime_ns: int = -1  # -1: now
    text: str = ""  # of a file


@dataclass(frozen=True, slots=True)
class MakeLayer:
    """Create a folder at the mount server, "@point" in a stack, for layers that are not in the store."""

    point: str
    entries: list[LayerEntry]  # a folder before its entries


@dataclass(frozen=True, slots=True)
class CloneMount:
    """Get a descriptor of an overlay that the mount server holds, to be attached elsewhere."""

    point: str


@dataclass(frozen=True, slots=True)
class ReplaceMount:
    """Give the overlay at `point`, if there is one, the name `aside`, and the one at `by` its name instead.

    To unmount it would wait until every processor has passed a quiet moment (RCU): that can come later.
    """

    point: str
    aside: str
    by: str = ""  # "": none takes its place yet


@dataclass(frozen=True, slots=True)
class CloneFolder:
    """Get a descriptor of a folder of the host, read-only, that leads nowhere else."""

    path: str


@dataclass(frozen=True, slots=True)
class Unmount:
    """Unmount an overlay. `ok` is false, and nothing has changed, if a process of the host has something open in
    it."""

    point: str
    lazily: bool = False  # even if something holds it: for a world that has ended


@dataclass(frozen=True, slots=True)
class MountReply:
    pid: int  # the mount server's
    ok: bool = True
    error: str = ""


MountRequest = MountOverlays | MakeLayer | CloneMount | ReplaceMount | CloneFolder | Unmount
_KINDS: dict[str, type[MountRequest | MountReply]] = {
    kind.__name__: kind
    for kind in (MountOverlays, MakeLayer, CloneMount, ReplaceMount, CloneFolder, Unmount, MountReply)
}


def pack(message: MountRequest | MountReply) -> bytes:
    return json.dumps([type(message).__name__, _plain(message)]).encode()


def _plain(message: object) -> dict[str, object]:
    values = {f.name: getattr(message, f.name) for f in fields(message)}  # type: ignore[arg-type]
    if isinstance(message, MountOverlays):
        values["overlays"] = [[over.upper, over.work, over.point, over.fresh] for over in message.overlays]
    if isinstance(message, MakeLayer):
        values["entries"] = [list(astuple(entry)) for entry in message.entries]
    return values


def unpack(data: bytes) -> MountRequest | MountReply:
    kind, values = json.loads(data)
    if kind == "MountOverlays":
        values["overlays"] = [Overlay(*over) for over in values["overlays"]]
    if kind == "MakeLayer":
        values["entries"] = [LayerEntry(*entry) for entry in values["entries"]]
    return _KINDS[kind](**values)


PLACES = "/run/ramify/trees"
"""The host has no such path, so a resolved path (`/proc/PID/root/…` reads as `/`) fails there."""

OPTIONS = "userxattr,volatile,index=off,xino=on"
# userxattr: what both root and a user can write, so that their layers are the same in the store. And no redirects,
#   whatever the machine's default: a renamed folder is a copy, and needs nothing below its layer to have a name.
# volatile: no sync at all. Sound here: an upper that a crash leaves behind is thrown away.
# xino: a file has one device and number, also where layers lie on several file systems; CRIU holds mappings to that.


def serve_mounts(control: socket.socket, host: int, anchors: list[str]) -> None:
    """Answer requests until the host hangs up or ends. `host` is its pidfd; `anchors` hold layers and uppers."""
    server = MountServer(anchors)
    poll = select.poll()
    for descriptor in (control.fileno(), host):
        poll.register(descriptor, select.POLLIN)
    while True:
        if any(descriptor == host for descriptor, _ in poll.poll()):
            return
        data = control.recv(BIGGEST)
        if not data:
            return
        request = unpack(data)
        given: list[int] = []
        try:
            if isinstance(request, MountReply):
                raise OSError(f"not an order: {request}")
            ok = server.carry_out(request, given)
            answer = MountReply(os.getpid(), ok)
        except (OSError, ValueError) as error:  # ValueError: a path that no system call takes
            answer = MountReply(os.getpid(), ok=False, error=str(error))
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # the host is gone: the poll reports it next
            socket.send_fds(control, [pack(answer)], given if not answer.error else [])
        for descriptor in given:
            os.close(descriptor)


class MountServer:
    """Makes and holds overlays, in a new mount namespace of the calling process."""

    def __init__(self, anchors: list[str]) -> None:
        kernel.unshare(kernel.CLONE_NEWNS)
        kernel.mount("none", "/", flags=kernel.MS_REC | kernel.MS_PRIVATE)
        self._anchors = [(path, os.open(path, os.O_PATH | os.O_DIRECTORY)) for path in anchors]
        kernel.mount("tmpfs", "/run", "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, "size=4m,mode=0755")
        Path(PLACES).mkdir(mode=0o700, parents=True)

    def carry_out(self, request: MountRequest, given: list[int]) -> bool:
        """Do what a request asks for; add descriptors for the reply to `given`. Raises `OSError`."""
        match request:
            case MountOverlays():
                self._mount(request, given)
            case MakeLayer():
                for entry in [LayerEntry("", "folder"), *request.entries]:
                    _make(_place(f"{request.point}/{entry.path}").rstrip("/"), entry)
                for entry in reversed(request.entries):  # adding entries changes a folder's time
                    if entry.mtime_ns >= 0:
                        os.utime(_place(f"{request.point}/{entry.path}"), ns=(entry.mtime_ns, entry.mtime_ns))
            case CloneMount():
                given.append(kernel.clone_tree(_place(request.point)))
            case ReplaceMount():
                with contextlib.suppress(FileNotFoundError):  # nothing is there
                    _move(_place(request.point), _place(request.aside))
                if request.by:
                    _move(_place(request.by), _place(request.point))
            case CloneFolder():
                given.append(kernel.clone_confined(self._openable_path(request.path)))
            case Unmount():
                return _unmount(_place(request.point), lazily=request.lazily)
        return True

    def _mount(self, request: MountOverlays, given: list[int]) -> None:
        """Mount all overlays of a request, or none."""
        with contextlib.ExitStack() as held:
            lowers = [self._hold(held, path) for path in request.lowers]
            top = os.stat(lowers[-1])
            done: list[str] = []
            try:
                for over in request.overlays:
                    point = over.point or f"passing-{len(done)}"
                    self._overlay(over, lowers, top, _place(point))
                    done.append(point)
                    if not over.point:
                        given.append(kernel.clone_tree(_place(point)))
                        _unmount(_place(point), lazily=True)
            except OSError:
                for point in done:
                    _unmount(_place(point), lazily=True)
                raise

    def _overlay(self, over: Overlay, lowers: list[str], top: os.stat_result, place: str) -> None:
        options = f"lowerdir={':'.join(reversed(lowers))},{OPTIONS}"
        _make_folder(place)
        with contextlib.ExitStack() as held:
            if over.upper:
                upper = self._openable_path(over.upper)
                if over.fresh or _make_folder(upper):  # the top of the tree shows the upper's mode and time
                    os.chmod(upper, stat.S_IMODE(top.st_mode))
                    os.utime(upper, ns=(top.st_atime_ns, top.st_mtime_ns))
                if not over.fresh:
                    _make_folder(self._openable_path(over.work))
                options += f",upperdir={self._hold(held, over.upper)},workdir={self._hold(held, over.work)}"
            kernel.mount("overlay", place, "overlay", kernel.MS_NOSUID | kernel.MS_NODEV, options)

    def _hold(self, held: contextlib.ExitStack, path: str) -> str:
        """Open a folder and return a short name for it: commas and colons in its own would mean something to
        overlayfs."""
        where = _place(path[1:]) if path.startswith("@") else self._openable_path(path)
        descriptor = os.open(where, os.O_PATH | os.O_DIRECTORY)
        held.callback(os.close, descriptor)
        return f"/proc/self/fd/{descriptor}"

    def _openable_path(self, path: str) -> str:
        """The host's path as it can be opened here, where /run is covered."""
        for anchor, descriptor in self._anchors:
            if path.startswith(anchor + "/"):
                return f"/proc/self/fd/{descriptor}/{path[len(anchor) + 1 :]}"
        return path


def _make_folder(path: str) -> bool:
    """Create a folder; False if it exists."""
    try:
        os.mkdir(path)
    except FileExistsError:
        return False
    except FileNotFoundError:
        os.makedirs(path)
    return True


def _make(place: str, entry: LayerEntry) -> None:
    match entry.kind:
        case "folder":
            Path(place).mkdir(parents=True, exist_ok=True)
            Path(place).chmod(entry.mode)
        case "file":
            made = os.open(place, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, entry.mode)
            os.write(made, entry.text.encode())
            os.close(made)
        case "whiteout":
            os.mknod(place, stat.S_IFCHR, os.makedev(0, 0))
        case _:
            raise OSError(f"unknown kind of piece: {entry.kind}")


def _place(point: str) -> str:
    return f"{PLACES}/{point}"


def _move(place: str, to: str) -> None:
    """Give a mount another place. Raises `FileNotFoundError` if nothing is mounted there."""
    _make_folder(to)
    try:
        kernel.mount(place, to, flags=kernel.MS_MOVE)
    except OSError as error:
        os.rmdir(to)
        if error.errno != errno.EINVAL:  # an empty folder that was a mount point
            raise
        raise FileNotFoundError(errno.ENOENT, "nothing is mounted there", place) from error
    with contextlib.suppress(FileNotFoundError):
        os.rmdir(place)


def _unmount(place: str, *, lazily: bool) -> bool:
    try:
        kernel.umount(place, kernel.MNT_DETACH if lazily else 0)
    except OSError as error:
        if error.errno == errno.EBUSY and not lazily:
            return False
        if error.errno not in (errno.EINVAL, errno.ENOENT):  # it was never mounted
            raise
    with contextlib.suppress(FileNotFoundError):
        os.rmdir(place)
    return True
