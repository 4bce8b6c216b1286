"""Listening sockets from an agent, and what an agent that lies gets."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator

import pytest

from ramify.sandboxes.agent.ports import OPENED, Listeners
from ramify.sandboxes.egress.errors import PortTaken
from ramify.sandboxes.host.ports import PortClient
from tests.open_files import SOCKETS, left_open, open_files
from tests.ports import free_port


@pytest.fixture
async def client() -> AsyncIterator[PortClient]:
    made = PortClient()
    yield made
    made.close()


async def test_sockets_come_in_the_order_of_the_requests(client: PortClient) -> None:
    ports = [free_port(), free_port()]
    asked = [client.ask(port) for port in ports]  # before there is an agent
    agent = Listeners(client.give())
    assert agent.serve()
    with await asked[0] as one, await asked[1] as two:
        assert [sock.getsockname()[1] for sock in (one, two)] == ports
        taken = client.ask(ports[0])
        assert agent.serve()
        with pytest.raises(PortTaken, match=f"the port {ports[0]} inside the world cannot be used.*in use"):
            await taken
    client.close()
    assert not agent.serve()
    agent.close()


async def test_the_agents_end_fails_requests(client: PortClient) -> None:
    asked = client.ask(free_port())
    os.close(client.give())
    with pytest.raises(ConnectionResetError):
        await asked
    with pytest.raises(ConnectionResetError):
        await client.ask(free_port())


@pytest.mark.parametrize("kind", ["pipe", "connected socket", "datagram", "nothing", "text"])
async def test_what_is_no_listening_socket_is_refused_and_closed(client: PortClient, kind: str) -> None:
    agent = socket.socket(fileno=client.give())
    before = open_files(*SOCKETS)
    asked = client.ask(1)
    if kind == "text":
        agent.send(b"\xff\x1b[31mno")
    elif kind == "pipe":
        ends = os.pipe()
        socket.send_fds(agent, [OPENED], [ends[0]])
        for end in ends:
            os.close(end)
    elif kind == "nothing":
        agent.send(OPENED)
    else:
        one, two = socket.socketpair(type=socket.SOCK_DGRAM if kind == "datagram" else socket.SOCK_STREAM)
        with one, two:
            socket.send_fds(agent, [OPENED], [one.fileno(), two.fileno()])
    with pytest.raises(PortTaken):
        await asked
    assert left_open(before, *SOCKETS) == []
    agent.close()


async def test_an_answer_that_nobody_waits_for_closes_its_socket(client: PortClient) -> None:
    agent = Listeners(client.give())
    asked = client.ask(free_port())
    asked.cancel()
    before = open_files(*SOCKETS)
    assert agent.serve()
    second = client.ask(free_port())
    assert agent.serve()
    with await second as listening:
        before[os.readlink(f"/proc/self/fd/{listening.fileno()}")] += 1  # noqa: PTH115
        assert left_open(before, *SOCKETS) == []
    await asyncio.sleep(0)
    agent.close()
