"""Connections to ports inside a world. The agent begins them in the world's network and hands them to the host."""

from __future__ import annotations

import asyncio
import socket

from ramify.sandboxes.agent.messages import Dial, Dialled, decode_packet
from ramify.sandboxes.errors import SandboxError, WorldDied
from ramify.sandboxes.host.agent_link import AgentLink
from ramify.sandboxes.linux import descriptors

LOOPBACK = ("127.0.0.1", "::1")
MOST_PACKET = 1 << 12


async def begin_connection(link: AgentLink, address: str, port: int) -> socket.socket | None:
    """A connection that is under way; None if it was refused at once. Raises `WorldDied`, `SandboxError`."""
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with here:
        here.setblocking(False)
        with there:
            await link.post(Dial(address, port), [there.fileno()])
        await _readable(here)
        packet, passed = descriptors.receive(here, MOST_PACKET, 1)
    if not packet:
        raise WorldDied(await link.loss_reason())
    answer = decode_packet(packet)
    if not isinstance(answer, Dialled):
        raise SandboxError(f"the agent answered {type(answer).__name__} where Dialled was due")
    return socket.socket(fileno=passed[0]) if passed else None


async def connected(sock: socket.socket) -> bool:
    """Wait until a connection is made or refused, and close it in the second case."""
    loop = asyncio.get_running_loop()
    due: asyncio.Future[None] = loop.create_future()
    sock.setblocking(False)
    loop.add_writer(sock, _resolve, due)
    try:
        await due
    except BaseException:
        loop.remove_writer(sock)
        sock.close()
        raise
    loop.remove_writer(sock)
    if sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
        sock.close()
        return False
    return True


async def _readable(sock: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    due: asyncio.Future[None] = loop.create_future()
    loop.add_reader(sock, _resolve, due)
    try:
        await due
    finally:
        loop.remove_reader(sock)


def _resolve(due: asyncio.Future[None]) -> None:
    if not due.done():
        due.set_result(None)
