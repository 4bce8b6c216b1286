"""What a forked child must not keep of its parent: locks, sockets, connections to databases.

`fork` copies every descriptor. A lock by `flock` and a connected socket belong to what a descriptor refers to, so
both last as long as any copy of it does. Without this module a child keeps its parent's run locked, its worlds alive
and its connection to the database open, even after the parent has ended.

Descriptors that are registered here are replaced in every child that Python forks (`os.fork`, `multiprocessing`):
each one becomes a socket whose other end is closed. The number stays taken, so that objects which close it later
close nothing of the child's own, and a driver that says goodbye on it (as PostgreSQL's does) says it to nobody. A
program that is started (`subprocess`) keeps nothing: every descriptor is closed on exec. C code that calls `fork`
itself runs no hooks of Python's; a child of it that does not `exec` keeps the copies.

The hooks are installed with the first registration, not at import.
"""

from __future__ import annotations

import fcntl
import os
import socket
import threading
from contextlib import suppress
from pathlib import Path

_registered: dict[int, tuple[int, int]] = {}  # by descriptor: the device and the inode of what it refers to
_lock = threading.RLock()  # also held while this process forks: no child sees a lock that is open and not registered
_hooked = False


def close_in_children(descriptor: int) -> None:
    """Have no forked child keep this descriptor. It may be closed without notice: one that was closed, and whose
    number is another file's since, is left alone."""
    _hook()
    with _lock:
        _register(descriptor)


def open_lock(path: str | Path, flags: int, mode: int = 0o600) -> int:
    """`os.open` for a file that is to be locked. No forked child keeps the lock. Close it by `close_lock`."""
    _hook()
    with _lock:
        descriptor = os.open(path, flags | os.O_CLOEXEC, mode)
        _register(descriptor)
    return descriptor


def close_lock(descriptor: int) -> None:
    """Unlock and close. Unlocking first also ends the lock of a copy that C code's child may hold."""
    with suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_UN)
    with _lock:
        _registered.pop(descriptor, None)
        os.close(descriptor)


def hang_up(sock: socket.socket) -> None:
    """Have the other end see the end of this connection now, even where a child holds a copy of the socket."""
    with suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)


def refuse_in_child(owner: int, what: str, raised: type[Exception]) -> None:
    """Raise `raised` unless this is the process `owner`, in which `what` was opened."""
    if os.getpid() != owner:
        raise raised(
            f"{what} was opened by process {owner} and is used in process {os.getpid()}, which was forked from it. "
            "Open a new one in the child, or start the child by multiprocessing's 'spawn' method"
        )


def _register(descriptor: int) -> None:
    found = os.fstat(descriptor)
    _registered[descriptor] = (found.st_dev, found.st_ino)


def _hook() -> None:
    global _hooked
    with _lock:
        if not _hooked:
            _hooked = True
            os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)


def _before() -> None:
    _lock.acquire()


def _in_parent() -> None:
    _lock.release()


def _in_child() -> None:
    global _lock
    _lock = threading.RLock()
    inherited = dict(_registered)
    _registered.clear()
    dead = _dead_socket() if inherited else None
    for descriptor, identity in inherited.items():
        with suppress(OSError):
            found = os.fstat(descriptor)
            if (found.st_dev, found.st_ino) != identity:
                continue  # it was closed, and the number is another's
            if dead is None:
                os.close(descriptor)  # no more files may be opened
            else:
                os.dup2(dead, descriptor, inheritable=False)
    if dead is not None:
        os.close(dead)


def _dead_socket() -> int | None:
    try:
        ours, theirs = socket.socketpair()
    except OSError:
        return None
    theirs.close()
    return ours.detach()
