"""The broker of one world: it accepts the world's connections, in this process, and makes those that are allowed.

Bounds: a world has at most `MOST_CONNECTIONS` connections, and all worlds of a backend share what the process may
open. Beyond that the broker accepts nothing: connections wait in the kernel's queue inside the world, and then in the
programs that make them. A connection that says nothing, or stops, ends after a time (`HEAD_S`, `IDLE_S`).
"""

from __future__ import annotations

import asyncio
import errno
import resource
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

from ramify.fork_engine.close_on_fork import close_in_children
from ramify.sandboxes.egress import socks
from ramify.sandboxes.egress.connection_log import Connection, ConnectionLog, Outcome
from ramify.sandboxes.egress.connections import (
    BUFFER,
    LOST,
    Flow,
    Pipe,
    dial,
    name_localhost,
    permitted_addresses,
    still_permitted,
)
from ramify.sandboxes.egress.errors import EndOfConnection, PortTaken, Refused
from ramify.sandboxes.egress.hosts import Resolver, SystemResolver, Target, read_address
from ramify.sandboxes.egress.http_proxy import HEAD_S, serve_http
from ramify.sandboxes.egress.settings import LOCALHOST, PORT, Credentials, Egress, Place

MOST_CONNECTIONS, MOST_SHARED = 256, 1024  # of one world, of all worlds of a backend
RETRY_S = 0.2  # after this process could open no more files
_FULL = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class PortOpener(Protocol):
    """Opens listening sockets inside a world."""

    def ask(self, port: int) -> asyncio.Future[socket.socket]:
        """Ask for a socket that listens at 127.0.0.1. Fails with `PortTaken`, or `OSError` if the world ends."""
        ...

    def close(self) -> None: ...


class Slots:
    """How many connections all worlds of a backend may have at once. One world never gets all."""

    def __init__(self, total: int) -> None:
        self.free = asyncio.Semaphore(total)
        self.of_one_world = max(1, min(MOST_CONNECTIONS, total // 4))

    @classmethod
    def of_process(cls) -> Slots:
        """A connection needs two descriptors; at most a quarter of what this process may open is for them."""
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        return cls(min(max(soft // 8, 8), MOST_SHARED))


class EgressBroker:
    """Lives as long as its world's object, over restores. clock: Unix seconds."""

    def __init__(self, egress: Egress, slots: Slots, clock: Callable[[], float]) -> None:
        self.egress = egress
        self.log = ConnectionLog(clock)
        self._shared, self._mine = slots.free, asyncio.Semaphore(slots.of_one_world)
        self._changing = asyncio.Lock()
        self._system: Resolver | None = None
        self._tls: ssl.SSLContext | None = None
        self._opener: PortOpener | None = None
        self._accepting: dict[int, asyncio.Task[None]] = {}
        self._serving: set[asyncio.Task[None]] = set()
        self._closing: set[asyncio.Task[None]] = set()  # of connections to hosts
        self._flows: set[Flow] = set()

    # Life

    def open_ports(self, opener: PortOpener) -> None:
        """Listen in a world that is about to start. The ports are asked for at once."""
        self._opener = opener
        for port in (PORT, *sorted(self.egress.policy.local_ports)):
            self._accepting[port] = asyncio.ensure_future(self._accept(port, opener.ask(port)))

    async def hang_up(self) -> None:
        """The world has ended: end everything of it. It may start again."""
        opener, self._opener = self._opener, None
        for flow in list(self._flows):
            flow.cut("the world ended")
        await _cancelled(self._accepting.values())
        self._accepting.clear()
        await _cancelled(self._serving)
        await _cancelled(self._closing)
        if opener is not None:
            opener.close()
        await asyncio.sleep(0)  # for the event loop to close what was aborted

    async def apply(self, egress: Egress) -> None:
        """Go on with another policy: new connections follow it, and those that it does not allow are cut. Raises
        `PortTaken` for the first port that a command of the world uses, after everything else was changed."""
        self.egress = egress
        for flow in list(self._flows):
            if not still_permitted(egress.policy, flow.target, flow.record.address):
                flow.cut("the policy does not allow it any more")
        async with self._changing:
            wanted = {PORT, *self.egress.policy.local_ports}
            await _cancelled([self._accepting.pop(port) for port in set(self._accepting) - wanted])
            taken: PortTaken | None = None
            for port in sorted(wanted - set(self._accepting)):
                try:
                    await self._open_port(port)
                except PortTaken as error:
                    taken = taken or error
            if taken is not None:
                raise taken

    async def _open_port(self, port: int) -> None:
        """Listen at one more port of a world that runs. Raises `PortTaken`."""
        if self._opener is None:
            return  # the world has not started yet, or has ended
        asked = self._opener.ask(port)
        await asyncio.wait({asked})
        if isinstance(error := asked.exception(), PortTaken):
            raise error
        self._accepting[port] = asyncio.ensure_future(self._accept(port, asked))

    def connections(self) -> list[Connection]:
        """The last connections, oldest first; of those that go on, with their bytes so far."""
        now = {flow.record.id: flow for flow in self._flows}
        return [
            replace(one, sent=now[one.id].sent, received=now[one.id].received) if one.id in now else one
            for one in self.log.all()
        ]

    # Accepting

    async def _accept(self, port: int, asked: asyncio.Future[socket.socket]) -> None:
        try:
            listener = await asked
        except (OSError, PortTaken):
            return  # the world has ended, or a command took the port in between
        with listener, suppress(OSError):  # the world has ended
            close_in_children(listener.fileno())
            listener.setblocking(False)
            while True:
                await _readable(listener)
                await self._free_slot()
                sock = _accepted(listener)
                if sock is None:
                    self._release()
                    await asyncio.sleep(RETRY_S)
                    continue
                self._keep(self._serve(sock, port), self._serving).add_done_callback(partial(self._served, sock))

    async def _free_slot(self) -> None:
        await self._mine.acquire()
        try:
            await self._shared.acquire()
        except BaseException:
            self._mine.release()
            raise

    def _served(self, sock: socket.socket, _task: asyncio.Task[None]) -> None:
        sock.close()  # else one whose task was cancelled before it began would stay open
        self._release()

    @staticmethod
    def _keep(work: Coroutine[Any, Any, None], tasks: set[asyncio.Task[None]]) -> asyncio.Task[None]:
        """Work in the background, held until it is done."""
        task = asyncio.get_running_loop().create_task(work)
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        return task

    def _release(self) -> None:
        self._mine.release()
        self._shared.release()

    async def _serve(self, sock: socket.socket, port: int) -> None:
        sock.setblocking(False)
        close_in_children(sock.fileno())
        world = Pipe(*await asyncio.open_connection(sock=sock, limit=BUFFER))
        try:
            await (self._serve_proxy(world) if port == PORT else self._serve_local(world, port))
            await world.end()
        except LOST:
            world.reset()
        finally:
            world.abort()

    async def _serve_proxy(self, world: Pipe) -> None:
        try:
            async with asyncio.timeout(HEAD_S):
                first = await world.reader.read(1)
                target = await socks.read_request(world) if first == bytes((socks.VERSION,)) else None
        except TimeoutError:
            return
        except Refused as error:
            self.refuse("socks5", "", 0, error.why)
            return
        if target is not None:
            await self._serve_socks(world, target)
        elif first:
            await serve_http(self, world, first)

    async def _serve_socks(self, world: Pipe, target: Target) -> None:
        try:
            async with self.connection("socks5", name_localhost(target), world) as flow:
                await socks.answer(world, socks.SUCCEEDED)
                await flow.relay()
        except Refused:
            await socks.answer(world, socks.NOT_ALLOWED)
        except EndOfConnection:
            await socks.answer(world, socks.UNREACHABLE)

    async def _serve_local(self, world: Pipe, port: int) -> None:
        """A port of the world that stands for the same port of the host."""
        target = Target(LOCALHOST, port, read_address(LOCALHOST))
        if Place(target, tls=False) in self.credentials.places:
            await serve_http(self, world, b"", target)
            return
        with suppress(EndOfConnection):
            async with self.connection("forward", target, world) as flow:
                await flow.relay()

    # Connector

    @property
    def credentials(self) -> Credentials:
        return self.egress.keys

    def refuse(self, protocol: str, host: str, port: int, why: str) -> None:
        one = self.log.begin(protocol, host, port)
        self.log.ended(replace(one, outcome=Outcome.REFUSED, why=why))

    @asynccontextmanager
    async def connection(
        self, protocol: str, target: Target, world: Pipe, *, tls: bool = False
    ) -> AsyncIterator[Flow]:
        record = self.log.begin(protocol, target.host, target.port)
        try:
            address, host = await self._connected(target, tls)
        except BaseException as error:
            refused = isinstance(error, Refused)
            outcome = Outcome.REFUSED if refused else Outcome.FAILED
            why = error.why if isinstance(error, EndOfConnection) else "the world ended"
            self.log.ended(replace(record, outcome=outcome, why=why))
            raise
        flow = Flow(replace(record, address=address), target, world, host)
        self._flows.add(flow)
        self.log.opened(flow.record)
        try:
            yield flow
            self._keep(host.close(), self._closing)
        except BaseException as error:
            flow.broken = isinstance(error, LOST)
            host.reset()
            raise
        finally:
            self._flows.discard(flow)
            self.log.ended(flow.result())

    async def _connected(self, target: Target, tls: bool) -> tuple[str, Pipe]:
        """Raises `Refused`, `Unreachable`."""
        egress = self.egress
        addresses = await permitted_addresses(egress.policy, target, self._resolver())
        address, host = await dial(addresses, target, self._tls_context() if tls else None)
        if not still_permitted(self.egress.policy, target, address):  # changed meanwhile
            host.abort()
            raise Refused("the policy does not allow it any more")
        close_in_children(host.writer.get_extra_info("socket").fileno())
        return address, host

    def _resolver(self) -> Resolver:
        if self.egress.resolver is not None:
            return self.egress.resolver
        if self._system is None:
            self._system = SystemResolver()
        return self._system

    def _tls_context(self) -> ssl.SSLContext:
        if self.egress.tls is not None:
            return self.egress.tls
        if self._tls is None:
            self._tls = ssl.create_default_context()
        return self._tls


def _accepted(listener: socket.socket) -> socket.socket | None:
    """The next connection; None if there is none after all, or this process can open no more files."""
    try:
        return listener.accept()[0]
    except (BlockingIOError, ConnectionAbortedError):
        return None
    except OSError as error:
        if error.errno not in _FULL:
            raise
        return None


async def _cancelled(tasks: Iterable[asyncio.Task[None]]) -> None:
    """Cancel tasks, and wait for their end."""
    going = [task for task in tasks if not task.done()]
    for task in going:
        task.cancel()
    if going:
        await asyncio.wait(going)


async def _readable(sock: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_reader(sock, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(sock)
