"""SOCKS 5 (RFC 1928), the part that a world needs: CONNECT without authentication, by name or by address."""

from __future__ import annotations

import asyncio
from ipaddress import IPv4Address, IPv6Address

from ramify.sandboxes.egress.connections import Pipe
from ramify.sandboxes.egress.errors import Refused
from ramify.sandboxes.egress.hosts import Target, plain, read_target

VERSION = 5
NO_AUTHENTICATION, NO_METHOD = 0, 0xFF
CONNECT = 1
IPV4, NAME, IPV6 = 1, 3, 4
SUCCEEDED, FAILED, NOT_ALLOWED, UNREACHABLE, NO_SUCH_COMMAND, NO_SUCH_ADDRESS = 0, 1, 2, 4, 7, 8


async def read_request(world: Pipe) -> Target:
    """The target, after the version's byte was read. Answers what it cannot serve, and then raises `Refused`; also
    `asyncio.IncompleteReadError`."""
    reader = world.reader
    (count,) = await reader.readexactly(1)
    methods = await reader.readexactly(count)
    if NO_AUTHENTICATION not in methods:
        await _write(world, bytes((VERSION, NO_METHOD)))
        raise Refused("the SOCKS client offers no access without a password")
    await _write(world, bytes((VERSION, NO_AUTHENTICATION)))
    version, command, _, kind = await reader.readexactly(4)
    if version != VERSION or command != CONNECT:
        await answer(world, NO_SUCH_COMMAND)
        raise Refused("the SOCKS request is no CONNECT: a world makes TCP connections only")
    try:
        return await _target(reader, kind)
    except Refused:
        await answer(world, NO_SUCH_ADDRESS)
        raise


async def _target(reader: asyncio.StreamReader, kind: int) -> Target:
    if kind == NAME:
        (length,) = await reader.readexactly(1)
        host = (await reader.readexactly(length)).decode("latin-1")
        port = int.from_bytes(await reader.readexactly(2))
        if ":" in host:
            raise Refused("the SOCKS request has an address where a name is due")
        return read_target(f"{host}:{port}")
    if kind not in (IPV4, IPV6):
        raise Refused("the SOCKS request has an unknown kind of address")
    packed = await reader.readexactly(4 if kind == IPV4 else 16)
    address = plain(IPv4Address(packed) if kind == IPV4 else IPv6Address(packed))
    return Target(str(address), int.from_bytes(await reader.readexactly(2)), address)


async def answer(world: Pipe, reply: int) -> None:
    await _write(world, bytes((VERSION, reply, 0, IPV4, 0, 0, 0, 0, 0, 0)))


async def _write(world: Pipe, data: bytes) -> None:
    world.writer.write(data)
    await world.writer.drain()
