"""Keep forked children from inheriting locks, sockets and database connections.

`fork` copies every file descriptor. A `flock` lock and a connected socket last as long as any copy of their
descriptor exists. Without this module a child would keep its parent's run locked, its worlds alive and its database
connection open, even after the parent has ended.

Descriptors registered here are replaced in every child that Python forks (`os.fork`, `multiprocessing`): each becomes
a socket whose other end is closed. The descriptor number stays taken, so an object that closes it later cannot close
a descriptor that the child opened itself, and a driver that sends a goodbye message (as PostgreSQL's does) sends it
to nobody. Programs started by `subprocess` inherit nothing, because every descriptor is closed on exec. C code that
calls `fork` itself runs none of Python's hooks: its children keep the copies until they call `exec`.

The hooks are installed by the first registration, not at import.
"""

from __future__ import annotations

import fcntl
import os
import socket
import threading
from contextlib import suppress
from pathlib import Path

_registered: dict[int, tuple[int, int]] = {}  # descriptor → (device, inode) of the file that it refers to
# also held while this process forks, so that no child sees a lock that is open but not registered
_lock = threading.RLock()
_hooked = False


def close_in_children(descriptor: int) -> None:
    """Replace this descriptor in every forked child.

    The descriptor may be closed without telling this module: if its number now refers to another file, it is left
    alone.
    """
    _hook()
    with _lock:
        _register(descriptor)


def open_lock(path: str | Path, flags: int) -> int:
    """Open a file that will be locked, as `os.open` does. Forked children do not keep the lock. Close it with
    `close_lock`."""
    _hook()
    with _lock:
        descriptor = os.open(path, flags | os.O_CLOEXEC, 0o600)
        _register(descriptor)
    return descriptor


def close_lock(descriptor: int) -> None:
    """Unlock and close a descriptor. The explicit unlock also releases a lock that a child forked by C code holds a
    copy of."""
    with suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_UN)
    with _lock:
        _registered.pop(descriptor, None)
        os.close(descriptor)


def hang_up(sock: socket.socket) -> None:
    """Shut the connection down now, even if a child holds a copy of the socket."""
    with suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)


def refuse_in_child(owner: int, what: str, raised: type[Exception]) -> None:
    """Raise `raised` unless this process is `owner`, the process that opened `what`."""
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
                continue  # it was closed, and its number was reused
            if dead is None:
                os.close(descriptor)  # no more files can be opened
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
