"""The network of a live world: its connections to the outside, and ports inside it that the host reaches.

`WorldEgress` has the world's allow-list and the log of its connections. `exposed` opens an address of the host that
reaches a port inside: a listener, a connection, and bytes between them.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from ramify.sandboxes import contract
from ramify.sandboxes.contract import Brokered, WorldSpec
from ramify.sandboxes.egress.broker import EgressBroker
from ramify.sandboxes.egress.connection_log import Connection, ConnectionFiles
from ramify.sandboxes.egress.settings import Egress, Header
from ramify.sandboxes.errors import SandboxError
from ramify.sandboxes.host.concurrency import finish_before_cancelling
from ramify.worlds.errors import PortUnavailable, WorldError
from ramify.worlds.home import WorldHome
from ramify.worlds.references import Reference

HOST = "127.0.0.1"
CHUNK = 1 << 16

Connect = Callable[[], Awaitable[socket.socket]]
Allowed = Egress | Sequence[str]


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
    """Pass bytes on, no faster than they are taken, and then the end, even if one side has gone."""
    with suppress(OSError):
        while data := await source.read(CHUNK):
            target.write(data)
            await target.drain()
    with suppress(OSError):
        target.write_eof()


class WorldEgress(ABC):
    """The part of `World` that is about its connections."""

    _home: WorldHome
    _spec: WorldSpec
    _reference: Reference | None
    _egress_turn: asyncio.Lock  # the policy that was asked for last is the one that holds, and is recorded

    @abstractmethod
    def _alive(self) -> contract.World:
        """The live sandbox. Raises `WorldClosed`."""

    def _keep_connections(self, live: contract.World) -> None:
        """From now on, write the connections of a named world into its log."""
        broker = _broker(live)
        if broker is not None and self._reference is not None:
            broker.log.keep_in(self._connection_files(self._reference))

    def _connection_files(self, reference: Reference) -> ConnectionFiles:
        return ConnectionFiles(self._home.references.connections(reference.name))

    async def set_egress(self, egress: Allowed) -> None:
        """Change what the world may connect to, while it runs: an allow-list, or an `Egress` with credentials. New
        connections follow it, and connections that it does not allow are cut. Forks inherit it; a named world keeps
        it, without the credentials.

        Raises `BadEntry`, `BadCredential`; `PortTaken` if a command uses the port of a new entry such as
        127.0.0.1:8000; `WorldError` if the world was made without `egress=`.
        """
        broker, changed = _broker(self._alive()), Egress.of(egress)
        if broker is None:
            raise WorldError("this world was made without a broker: make it with egress=[], which allows nothing yet")
        async with self._egress_turn:
            self._alive()
            await finish_before_cancelling(self._apply_egress(broker, changed))

    async def _apply_egress(self, broker: EgressBroker, changed: Egress) -> None:
        """Also if the caller is cancelled: what is recorded, what forks get and what holds are one policy."""
        self._spec = replace(self._spec, egress=changed)
        if self._reference is not None:
            found = await asyncio.to_thread(self._home.egress_changed, self._reference, changed)
            if self._reference is not None:  # it may stand for another state by now, or for none
                self._reference = replace(self._reference, egress=found.egress, credentials=found.credentials)
        await broker.apply(changed)

    async def connections(self) -> list[Connection]:
        """The connections that the world made, or tried to make, oldest first. The log is bounded
        (`connection_log.py`); for a named world it goes back to earlier processes."""
        broker = _broker(self._alive())
        found: dict[str, Connection] = {}
        if self._reference is not None:
            earlier = await asyncio.to_thread(self._connection_files(self._reference).read)
            found = {one.id: one for one in earlier}
        if broker is not None:
            found |= {one.id: one for one in broker.connections()}
        return sorted(found.values(), key=lambda one: one.at)


def recorded_egress(reference: Reference, credentials: Mapping[str, Header] | None) -> Egress | None:
    """The egress with which a named world goes on. Raises `BadEntry`, `BadCredential`, `WorldError`."""
    if reference.egress is None:
        if credentials:
            raise WorldError(
                f"the world {reference.name!r} was made without egress=, so credentials have no effect: leave "
                "them out, or make the world with egress=[]"
            )
        return None
    return Egress(reference.egress, credentials or {}).without(reference.credentials)


def _broker(live: contract.World) -> EgressBroker | None:
    return live.broker if isinstance(live, Brokered) else None
