"""Ports of the world's network namespace, for the host: sockets that listen, and connections. Stdlib only.

`Listeners` opens listening sockets. The host asks for a port by a message of its decimal digits, and gets the socket,
or a text that says why not. It accepts the connections itself: inside there is only the listening end. The socket for
this comes along with `Start`, with the first ports in it, so that these listen before any command runs.

`dial` connects to a port: the world's network namespace is this process's.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket

from ramify.sandboxes.agent.framing import encode
from ramify.sandboxes.agent.messages import Dial, Dialled

ADDRESS = "127.0.0.1"
BACKLOG = 128  # connections that wait to be accepted; more wait in their programs
LONGEST = 64  # bytes of a message from the host
OPENED = b"open"


class Listeners:
    """The agent's end of the host's socket, a SOCK_SEQPACKET."""

    def __init__(self, descriptor: int) -> None:
        self._sock = socket.socket(fileno=descriptor)
        self._sock.setblocking(False)

    def fileno(self) -> int:
        return self._sock.fileno()

    def serve(self) -> bool:
        """Open the ports that have been asked for. False if the host has hung up."""
        while True:
            try:
                asked = self._sock.recv(LONGEST)
            except BlockingIOError:
                return True
            except OSError:
                asked = b""
            if not asked:
                return False
            try:
                self._open(int(asked))
            except OSError as error:
                with contextlib.suppress(OSError):  # the host has hung up: the next turn tells
                    self._sock.send((error.strerror or str(error)).encode())

    def _open(self, port: int) -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((ADDRESS, port))
            listener.listen(BACKLOG)
            socket.send_fds(self._sock, [OPENED], [listener.fileno()])

    def close(self) -> None:
        os.close(self._sock.detach())


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
