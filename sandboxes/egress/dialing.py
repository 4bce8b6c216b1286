"""From a target to a connection: check the policy, resolve the name, check each address, connect to that address."""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from ramify.sandboxes.egress.addresses import why_not_public
from ramify.sandboxes.egress.errors import Refused, Unreachable
from ramify.sandboxes.egress.policy import LOCALHOST, EgressPolicy
from ramify.sandboxes.egress.resolver import Resolver
from ramify.sandboxes.egress.targets import IpAddress, Target, read_address

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
