"""Connect to a port inside the world, for the host: its namespace of the network is this process's. Stdlib only."""

from __future__ import annotations

import contextlib
import errno
import socket

from ramify.sandboxes.agent.messages import Dial, Dialled, encode


def dial(message: Dial, line: int) -> None:
    """Begin a connection and hand it to the host, which waits for it. Takes over the descriptor `line`."""
    family = socket.AF_INET6 if ":" in message.address else socket.AF_INET
    with socket.socket(fileno=line) as reply, contextlib.suppress(OSError):  # the host has hung up
        try:
            with socket.socket(family, socket.SOCK_STREAM) as sock:
                sock.setblocking(False)
                error = sock.connect_ex((message.address, message.port))
                given = [] if error not in (0, errno.EINPROGRESS) else [sock.fileno()]
                socket.send_fds(reply, [encode(Dialled(0 if given else error))], given, socket.MSG_NOSIGNAL)
        except OSError as failed:  # a kernel without this family
            reply.send(encode(Dialled(failed.errno or errno.EIO)), socket.MSG_NOSIGNAL)
