"""The host's side of `agent/ports.py`: listening sockets inside a world, and connections to ports there.

`PortClient` asks a world's agent for listening sockets. `begin_connection` has the agent begin a connection in the
world's network, and hand it to the host.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections import deque

from ramify.fork_engine.close_on_fork import close_in_children
from ramify.sandboxes.agent.framing import decode_packet
from ramify.sandboxes.agent.messages import Dial, Dialled
from ramify.sandboxes.agent.ports import OPENED
from ramify.sandboxes.egress.errors import PortTaken
from ramify.sandboxes.errors import SandboxError, WorldDied
from ramify.sandboxes.host.agent_link import AgentLink
from ramify.sandboxes.linux import kernel

LONGEST = 1024  # bytes of an answer


class PortClient:
    """Answers come in the order of the requests. What comes is not trusted: commands could forge no more than a
    socket of their own."""

    def __init__(self) -> None:
        self._ours, self.theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for sock in (self._ours, self.theirs):
            close_in_children(sock.fileno())
            sock.setblocking(False)
        self._waiting: deque[tuple[int, asyncio.Future[socket.socket]]] = deque()
        self._closed = False
        asyncio.get_running_loop().add_reader(self._ours, self._hear)

    def ask(self, port: int) -> asyncio.Future[socket.socket]:
        """The socket that listens at this port of the world's 127.0.0.1. Fails with `PortTaken`, or
        `ConnectionResetError` if the world ends."""
        answer: asyncio.Future[socket.socket] = asyncio.get_running_loop().create_future()
        if not self._closed:
            self._waiting.append((port, answer))
            try:
                self._ours.send(str(port).encode())
            except OSError:
                self.close()
        if self._closed and not answer.done():
            answer.set_exception(_ended())
        return answer

    def give(self) -> int:
        """The agent's end, for the world that starts; the caller closes it."""
        return self.theirs.detach()

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        asyncio.get_running_loop().remove_reader(self._ours)
        self._ours.close()
        self.theirs.close()
        while self._waiting:
            _, answer = self._waiting.popleft()
            if not answer.done():
                answer.set_exception(_ended())
                answer.exception()  # mark as retrieved: who asked may be gone

    def _hear(self) -> None:
        try:
            said, descriptors, _, _ = socket.recv_fds(self._ours, LONGEST, 4, socket.MSG_CMSG_CLOEXEC)
        except BlockingIOError:
            return
        except OSError:
            said, descriptors = b"", []
        sockets = [_as_socket(descriptor) for descriptor in descriptors]
        if not said or not self._waiting:
            self._drop(sockets)
            self.close()
            return
        port, answer = self._waiting.popleft()
        found = next((sock for sock in sockets if sock is not None), None) if said == OPENED else None
        if found is None and not answer.done():
            why = said.decode(errors="replace")[:200]
            answer.set_exception(PortTaken(f"the port {port} inside the world cannot be used for egress: {why}"))
        elif found is not None and not answer.done():
            answer.set_result(found)
            sockets.remove(found)
        self._drop(sockets)

    @staticmethod
    def _drop(sockets: list[socket.socket | None]) -> None:
        for sock in sockets:
            if sock is not None:
                sock.close()


def _as_socket(descriptor: int) -> socket.socket | None:
    """The descriptor as the listening TCP socket that it has to be; closed if it is none."""
    try:
        sock = socket.socket(fileno=descriptor)
    except OSError:  # it is no socket at all
        os.close(descriptor)
        return None
    try:
        if sock.type == socket.SOCK_STREAM and sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            return sock
    except OSError:
        pass
    sock.close()
    return None


def _ended() -> ConnectionResetError:
    return ConnectionResetError("the world has ended, or its agent does not answer")


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
        packet, passed = kernel.receive_descriptors(here, MOST_PACKET, 1)
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
