"""How many connections the gateway answers at once, by the descriptors that its process may have.

A client's connection takes one descriptor, and its call in an engine another one. Without a limit, a process that has
none left accepts nobody: clients wait without a word, and calls that are already here cannot reach their engine.
"""

from __future__ import annotations

import errno
import logging
import os
import resource
import socket
import sys
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus

from ramify.serving.gateway import sse
from ramify.serving.gateway.errors import ApiError, no_descriptor
from ramify.serving.gateway.records.logs import log
from ramify.serving.http_guard import REQUEST_ID, request_id

_RESERVED = 64  # for the listener, engines, the analyzer, log files, health questions, and clients that are sent away
_MOST_READ = 64 * 1024  # bytes of a request that are read before its connection is closed


@dataclass(frozen=True, slots=True)
class ConnectionRoom:
    """Connections beyond `most` are refused, and so is one whose descriptor is `highest` or more: the system gives
    the lowest number that is free, so nearly all are taken."""

    most: int = sys.maxsize
    highest: int = sys.maxsize

    @classmethod
    def of_process(cls, inside: int = 0) -> ConnectionRoom:
        """The room of this process, whose engines take `inside` calls together."""
        allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        if allowed == resource.RLIM_INFINITY:
            return cls()
        reserved = min(_RESERVED, allowed // 2)
        free = allowed - reserved
        return cls(max(1, free - inside, free // 2), allowed - reserved // 2)

    def has(self, connections: int, descriptor: int) -> bool:
        """Is there room for the newest of so many connections?"""
        return connections <= self.most and descriptor < self.highest


class Listener(socket.socket):
    """A listening socket that answers 503 where there is no descriptor left for a connection.

    Where asyncio finds none, it accepts nobody for a second, and up to Python 3.12 it also logs that thousands of
    times.
    """

    def __init__(self, bound: socket.socket) -> None:
        super().__init__(fileno=bound.detach())
        self.highest = ConnectionRoom.of_process().highest
        self._spare = _open_spare()  # the descriptor that a client gets who is sent away

    def accept(self) -> tuple[socket.socket, object]:
        while True:
            try:
                client, address = super().accept()
            except OSError as error:
                if error.errno not in (errno.EMFILE, errno.ENFILE):
                    raise
                self._accept_in_place_of_the_spare()
                continue
            if client.fileno() < self.highest:
                return client, address
            _turn_away(client)

    def close(self) -> None:
        if self._spare >= 0:
            os.close(self._spare)
            self._spare = -1
        super().close()

    def _accept_in_place_of_the_spare(self) -> None:
        """Send one client away. Raises BlockingIOError if none waits, or another thread took the spare descriptor."""
        if self._spare >= 0:
            os.close(self._spare)
            self._spare = -1
        try:
            client = super().accept()[0]
        except OSError as error:
            raise BlockingIOError(str(error)) from error
        else:
            _turn_away(client)
        finally:
            with suppress(OSError):
                self._spare = _open_spare()


def _open_spare() -> int:
    return os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)


def _turn_away(client: socket.socket) -> None:
    """Answer 503 and close. What the client has sent is read before, because closing would otherwise break the
    connection, and the client would see that instead of the answer."""
    with client, suppress(OSError):
        client.setblocking(False)
        with suppress(BlockingIOError):
            client.recv(_MOST_READ)
        client.send(response(too_many()))


def response(error: ApiError) -> bytes:
    """The HTTP response that says an error and ends its connection."""
    body = sse.encode(error.body())
    head = f"HTTP/1.1 {error.status} {HTTPStatus(error.status).phrase}\r\nconnection: close\r\n"
    head += f"{REQUEST_ID}: {request_id()}\r\n"
    head += "".join(f"{name}: {value}\r\n" for name, value in error.headers.items())
    return f"{head}content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body


def too_many() -> ApiError:
    """The error for a connection that there is no room for."""
    log("connection_refused", level=logging.WARNING)
    return no_descriptor("take another connection")
