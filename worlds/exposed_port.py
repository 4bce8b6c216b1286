"""An address of the host that reaches a port inside a world: a listener, a connection, and bytes between them."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from ramify.sandboxes.errors import SandboxError
from ramify.worlds.errors import PortUnavailable, WorldError

HOST = "127.0.0.1"
CHUNK = 1 << 16

Connect = Callable[[], Awaitable[socket.socket]]


@dataclass(frozen=True, slots=True)
class ExposedPort:
    """Where a port of a world is reached from this machine."""

    host: str  # "" with a Unix socket
    port: int  # 0 with a Unix socket
    unix_socket: Path | None = None

    @property
    def url(self) -> str:
        """For HTTP. With a Unix socket the host in it stands for nothing."""
        return "http://localhost" if self.unix_socket is not None else f"http://{self.host}:{self.port}"


@asynccontextmanager
async def exposed(connect: Connect, host_port: int, unix_socket: Path | None) -> AsyncIterator[ExposedPort]:
    """Listen, and connect each client with what `connect` gives. Raises `PortUnavailable`."""
    clients: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        clients.add(task)
        try:
            with suppress(asyncio.CancelledError):  # `exposed` ends it: Python 3.11 would log that as an error
                await _serve(connect, reader, writer)
        finally:
            clients.discard(task)

    server, found = await _listen(serve, host_port, unix_socket)
    try:
        yield found
    finally:
        server.close()
        if unix_socket is not None:
            unix_socket.unlink(missing_ok=True)
        for task in list(clients):
            task.cancel()
        if clients:
            await asyncio.wait(set(clients))


async def _listen(
    serve: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
    host_port: int,
    unix_socket: Path | None,
) -> tuple[asyncio.Server, ExposedPort]:
    where = str(unix_socket) if unix_socket is not None else f"port {host_port} of {HOST}"
    try:
        if unix_socket is None:
            server = await asyncio.start_server(serve, HOST, host_port)
            return server, ExposedPort(HOST, server.sockets[0].getsockname()[1])
        return await asyncio.start_unix_server(serve, sock=_bound(unix_socket)), ExposedPort("", 0, unix_socket)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise PortUnavailable(f"{where} is taken: name another, or leave it out for a free one") from error
        raise PortUnavailable(f"{where} cannot be listened on: {error.strerror or error}") from error


def _bound(path: Path) -> socket.socket:
    """A Unix socket that only this user can connect to: nobody can before it listens."""
    sock = socket.socket(socket.AF_UNIX)
    try:
        sock.bind(str(path))
        path.chmod(0o600)
    except BaseException:
        sock.close()
        raise
    return sock


async def _serve(connect: Connect, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        with suppress(OSError, SandboxError, WorldError):  # nothing answers inside, or one side is gone
            inner_reader, inner_writer = await asyncio.open_connection(sock=await connect())
            try:
                await asyncio.gather(_pump(reader, inner_writer), _pump(inner_reader, writer))
            finally:
                inner_writer.close()
    finally:
        writer.close()


async def _pump(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    """Pass bytes on, no faster than they are taken, and then the end, also if one side has gone."""
    with suppress(OSError):
        while data := await source.read(CHUNK):
            target.write(data)
            await target.drain()
    with suppress(OSError):
        target.write_eof()
