"""From a target to a connection, and connections that are going on.

`dialing`: check the policy, resolve the name, check each address, connect to that address. A `Flow` is a connection
that was permitted: its bytes are counted, and it can be cut.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from ramify.sandboxes.egress.connection_log import Connection, Outcome
from ramify.sandboxes.egress.errors import Refused, Unreachable
from ramify.sandboxes.egress.hosts import IpAddress, Resolver, Target, read_address, why_not_public
from ramify.sandboxes.egress.settings import LOCALHOST, EgressPolicy

CONNECT_S = 15.0  # for one address, with TLS
DISCARD_S = 2.0  # for the other side to stop sending
LINGER_S = 30.0  # for the other side to take what was written last
MOST_TRIED = 6  # addresses of one name
_AT_ONCE = struct.pack("ii", 1, 0)  # struct linger: a reset instead of an orderly end
BUFFER = 1 << 18  # bytes that are read ahead of the other side, each way


@dataclass(slots=True)
class Pipe:
    """A connection's two halves."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    def abort(self) -> None:
        """End it at once, both ways. Does nothing if it has ended."""
        self.writer.transport.abort()

    def reset(self) -> None:
        """The same, so that the other side sees an error: an ordinary end could pass for the end of an answer."""
        sock: socket.socket | None = self.writer.get_extra_info("socket")
        if sock is not None:
            with suppress(OSError):
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _AT_ONCE)
        self.abort()

    async def end(self) -> None:
        """End it in order: the other side gets all that was written, though it may still be sending. A socket that is
        closed with unread bytes in it would send a reset, which overtakes an answer."""
        if self.writer.can_write_eof() and not self.writer.is_closing():
            self.writer.write_eof()
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(DISCARD_S):
                while await self.reader.read(BUFFER):
                    pass
        await self.close()

    async def close(self) -> None:
        """End it when all that was written has been taken, or after a time."""
        try:
            self.writer.close()
            with suppress(OSError, TimeoutError):
                await asyncio.wait_for(self.writer.wait_closed(), LINGER_S)
        finally:
            self.abort()


def check_allowed(policy: EgressPolicy, target: Target) -> None:
    """Raises `Refused`."""
    if policy.allows(target):
        return
    if target.address is not None:
        raise Refused(f"no entry of the allow-list names the address {target}")
    raise Refused(f"no entry of the allow-list names {target}")


async def permitted_addresses(policy: EgressPolicy, target: Target, resolver: Resolver) -> list[IpAddress]:
    """The addresses that a connection to the target may go to. Raises `Refused`, `Unreachable`."""
    check_allowed(policy, target)
    if target.address is not None:
        return [target.address]
    found = await resolver(target.host)
    if not found:
        raise Unreachable("the name has no address")
    permitted, why = [], ""
    for address in found:
        reason = "" if policy.names_address(address, target.port) else why_not_public(address)
        if not reason:
            permitted.append(address)
        why = why or (f"the name leads to {address}, and {reason}" if reason else "")
    if not permitted:
        raise Refused(f"{why}: an entry has to name that address")
    return permitted[:MOST_TRIED]


def still_permitted(policy: EgressPolicy, target: Target, address: str) -> bool:
    """Whether a policy allows a connection that was made under an earlier one."""
    if not policy.allows(target):
        return False
    went = read_address(address)
    return went is None or policy.names_address(went, target.port) or not why_not_public(went)


async def dial(addresses: Sequence[IpAddress], target: Target, tls: ssl.SSLContext | None) -> tuple[str, Pipe]:
    """Connect to the first of these addresses that answers; with `tls`, as the target's host. Raises
    `Unreachable`."""
    why = "nothing answered"
    for address in addresses:
        try:
            return str(address), await asyncio.wait_for(_connected(address, target, tls), CONNECT_S)
        except TimeoutError:
            why = f"{address} did not answer within {CONNECT_S:g} s"
        except ssl.SSLError as error:
            why = f"TLS with {address} failed: {error.reason or type(error).__name__}"
        except OSError as error:
            why = f"{address}: {error.strerror or type(error).__name__}"
    raise Unreachable(why)


async def _connected(address: IpAddress, target: Target, tls: ssl.SSLContext | None) -> Pipe:
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    sock = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        await asyncio.get_running_loop().sock_connect(sock, (str(address), target.port))
        host = target.host if tls is not None else None
        reader, writer = await asyncio.open_connection(sock=sock, ssl=tls, server_hostname=host, limit=BUFFER)
    except BaseException:
        sock.close()
        raise
    return Pipe(reader, writer)


def name_localhost(target: Target) -> Target:
    """`localhost` is 127.0.0.1, without a look-up."""
    if target.host != "localhost":
        return target
    return Target(LOCALHOST, target.port, read_address(LOCALHOST))


IDLE_S = 900.0  # without a byte in either direction; a model may think for minutes
PIECE = 1 << 18
LOST = (OSError, asyncio.IncompleteReadError)


@dataclass(slots=True, eq=False)
class Flow:
    """A permitted connection: `world` is the side of the world, `host` the other one."""

    record: Connection
    target: Target
    world: Pipe
    host: Pipe
    sent: int = 0  # bytes from the world
    received: int = 0  # bytes to the world
    moved_at: float = 0.0  # when a byte last moved, by the event loop's clock
    cut_because: str = ""
    broken: bool = False  # it ended by an error

    async def send(self, piece: bytes) -> None:
        """To the host; waits while it reads slowly."""
        self.sent += len(piece)
        await self._pass_on(piece, self.host)

    async def deliver(self, piece: bytes) -> None:
        """To the world; waits while it reads slowly."""
        self.received += len(piece)
        await self._pass_on(piece, self.world)

    async def _pass_on(self, piece: bytes, to: Pipe) -> None:
        self.moved_at = asyncio.get_running_loop().time()
        to.writer.write(piece)
        await to.writer.drain()

    def cut(self, why: str) -> None:
        """End both sides at once."""
        self.cut_because = self.cut_because or why
        self.host.reset()
        self.world.reset()

    def result(self) -> Connection:
        """The record of it when it has ended."""
        outcome = Outcome.CUT if self.cut_because else Outcome.FAILED if self.broken else Outcome.DONE
        why = self.cut_because or ("it broke off" if self.broken else "")
        return replace(self.record, outcome=outcome, why=why, sent=self.sent, received=self.received)

    async def relay(self, idle_s: float = IDLE_S) -> None:
        """Pass bytes both ways until both sides have ended. The end of one side is passed on, and so is a reset, by
        which many programs end a connection that they have done with."""
        try:
            await self.watch(idle_s, self._pump(self.world, self.host), self._pump(self.host, self.world))
        except LOST:
            self.host.reset()
            self.world.reset()

    async def _pump(self, source: Pipe, to: Pipe) -> None:
        count = self.send if to is self.host else self.deliver
        while piece := await source.reader.read(PIECE):
            await count(piece)
        if to.writer.can_write_eof():
            to.writer.write_eof()

    async def watch(self, idle_s: float, *jobs: Coroutine[Any, Any, None]) -> None:
        """Run jobs until all are done or one fails, which it raises. Cuts the flow if no byte moves for `idle_s`
        seconds."""
        loop = asyncio.get_running_loop()
        self.moved_at = loop.time()
        tasks = {loop.create_task(job) for job in jobs}
        try:
            waiting = set(tasks)
            while waiting:
                left = self.moved_at + idle_s - loop.time()
                if left <= 0:
                    self.cut(f"no byte moved for {idle_s:g} s")
                done, waiting = await asyncio.wait(
                    waiting, timeout=max(left, 0.0), return_when=asyncio.FIRST_EXCEPTION
                )
                for task in done:
                    task.result()
                if left <= 0:
                    return
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            for task in tasks:
                _ = task.cancelled() or task.exception()  # read: one of them is raised above
