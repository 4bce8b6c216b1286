"""Receive file descriptors over a socket, closed on exec from the start. Stdlib only.

`socket.recv_fds` ignores its flags before Python 3.12, so what it returns is inherited by every program.
"""

from __future__ import annotations

import array
import socket


def receive(sock: socket.socket, size: int, most: int, flags: int = 0) -> tuple[bytes, list[int]]:
    """At most `size` bytes and `most` descriptors; b"" if the other end hung up. Raises `OSError`."""
    found = array.array("i")
    space = socket.CMSG_LEN(most * found.itemsize)
    data, ancillary, _, _ = sock.recvmsg(size, space, flags | socket.MSG_CMSG_CLOEXEC)
    for level, kind, content in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            found.frombytes(content[: len(content) - len(content) % found.itemsize])
    return data, list(found)
