"""The connections of clients: how many the gateway answers at once, and time limits for slow clients.

A client's connection takes one descriptor, and its call in an engine another one. Without a limit, a process that has
none left accepts nobody: clients wait without a word, and calls that are already here cannot reach their engine. So
`ConnectionRoom` limits them by the descriptors that the process may have.

`SlowClientProtocol` is uvicorn's HTTP protocol with time limits for request heads that come too slowly or never end,
and for clients that do not read their answers. uvicorn waits for a head as long as its sender likes, so a few
thousand sockets that send a byte a minute would use up all descriptors. It also waits without a limit for a client to
read its answer, while that call holds a slot in the engine. Bytes that are not HTTP get an error that OpenAI's
clients can read, as everything else does. Clients that there is no room for are told so.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import resource
import socket
import sys
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from ramify.serving.gateway import sse
from ramify.serving.gateway.errors import ApiError, bad_request, no_descriptor
from ramify.serving.gateway.records.logs import log
from ramify.serving.http_guard import REQUEST_ID, request_id, with_target_host

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


HEAD_S = 15.0
UNREAD_S = 60.0  # as long as most web servers wait
LINGER_S = 2.0  # how long a client that is turned away may go on sending
MAX_HEAD = 512 * 1024  # bytes before a head is complete; most of a packet may be the body that follows
MAX_FRAMING = 512 * 1024  # bytes around a body, beyond 16 for each byte of it: chunk extensions and trailers
_UPGRADES = (b"upgrade", b"http2-settings")
_SLOW = bad_request("head", f"the request's head was not complete within {HEAD_S:g} s", status=408)
_LONG = bad_request("head", f"the request's head is longer than {MAX_HEAD} bytes", status=431)
_FRAMING = bad_request("body", f"body: more than {MAX_FRAMING} bytes of chunk extensions or trailers")
_NO_HTTP = bad_request("request", "this is not an HTTP request, or its body is not as long as its head says")


class SlowClientProtocol(HttpToolsProtocol):
    """Answers 408 if a head is not complete `head_s` seconds after its connection was made, or after it began.

    Breaks the connection if more is to be sent than fits on the way, and the client reads no byte of it for
    `unread_s` seconds.

    Answers 503 to a connection for which `room` has no place.
    """

    head_s = HEAD_S
    unread_s = UNREAD_S
    room = ConnectionRoom()
    _full = False
    _refused = False
    _unread = 0
    _reads: asyncio.TimerHandle | None = None
    _waits: asyncio.TimerHandle | None = None
    _seen = 0
    _framing = 0  # bytes after the head that are not of the body, less 16 for each byte that is

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        taken = transport.get_extra_info("socket")
        self._full = not self.room.has(len(self.connections), taken.fileno() if taken is not None else 0)
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        self._came()
        self._taken()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._waits is not None and not self._refused:
            self._seen += len(data)
            if self._seen > MAX_HEAD:
                self._refuse(_LONG)
                return
        elif self._waits is None:
            self._framing += len(data)
        self._parse(data)
        if self._framing > MAX_FRAMING:
            self._refuse(_FRAMING)

    def _parse(self, data: bytes) -> None:
        """Read a request. One that would rather speak another protocol is read once more without that wish, which a
        server may ignore (RFC 9110, 7.8): uvicorn would lose its body. Java's HTTP client asks for HTTP/2 so."""
        self._unset_keepalive_if_required()
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as wish:
            if self.parser.get_method() == b"CONNECT":
                self._refuse(_NO_HTTP)
                return
            head = self._without_upgrade()
            self.parser = httptools.HttpRequestParser(self)
            self._parse(head + data[wish.args[0] :])
        except httptools.HttpParserError:
            self.logger.warning("Invalid HTTP request received.")
            self._refuse(_NO_HTTP)

    def _without_upgrade(self) -> bytes:
        """The head of the request, without the wish for another protocol."""
        version = self.parser.get_http_version().encode()
        lines = [b"%b %b HTTP/%b" % (self.parser.get_method(), self.url, version)]
        for name, value in self.headers:
            kept = value
            if name == b"connection":
                tokens = (token.strip() for token in value.split(b","))
                kept = b", ".join(token for token in tokens if token.lower() not in _UPGRADES)
            if name not in _UPGRADES:
                lines.append(b"%b: %b" % (name, kept))
        return b"\r\n".join([*lines, b"", b""])

    def on_message_begin(self) -> None:
        super().on_message_begin()
        if self._waits is None:  # another request on this connection
            self._wait()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Trailers are passed over, as a server may (RFC 9110, 6.5.1). uvicorn would keep any number of them."""
        if self._waits is not None and not self._refused:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._came()
        self._framing = 0
        if self.parser.should_upgrade():
            return  # the request is read once more
        if self._full:
            self._turn_away()
            return
        with_target_host(self.url, self.headers)
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._framing -= 17 * len(body)
        if not self._refused:
            super().on_body(body)

    def on_message_complete(self) -> None:
        if self.parser.should_upgrade():
            return
        if not self._refused:
            super().on_message_complete()
        elif not self.transport.is_closing():
            self.transport.close()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._look_later()

    def resume_writing(self) -> None:
        self._taken()
        super().resume_writing()

    def _look_later(self) -> None:
        self._unread = self.transport.get_write_buffer_size()
        self._reads = self.loop.call_later(self.unread_s, self._look)

    def _look(self) -> None:
        """Check whether the client has read: only then is there less to send."""
        if self.transport.get_write_buffer_size() < self._unread:
            self._look_later()
        else:
            self.transport.abort()  # close() would wait until all is read

    def _taken(self) -> None:
        if self._reads is not None:
            self._reads.cancel()
            self._reads = None

    def _wait(self) -> None:
        self._seen = 0
        within_s = min(self.head_s, LINGER_S) if self._full else self.head_s
        self._waits = self.loop.call_later(within_s, self._refuse, _SLOW)

    def _came(self) -> None:
        if self._waits is not None:
            self._waits.cancel()
            self._waits = None

    def send_400_response(self, msg: str) -> None:
        self._refuse(_NO_HTTP)

    def _turn_away(self) -> None:
        """Answer 503. The connection stays open until the request has been read: closing it before breaks it, and the
        client would see that instead of the answer."""
        self._refused = True
        if not self.transport.is_closing():
            self.transport.write(response(too_many()))
            self._waits = self.loop.call_later(LINGER_S, self.transport.close)

    def _refuse(self, error: ApiError) -> None:
        self._came()
        if not self.transport.is_closing():
            if self.cycle is None or self.cycle.response_complete or not self.cycle.response_started:
                self.transport.write(response(error))
            self.transport.close()
