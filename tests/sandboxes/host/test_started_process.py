"""Starts of processes that do not come about: nothing is left of them."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Sequence
from typing import cast

import pytest

from ramify.sandboxes.agent.framing import encode
from ramify.sandboxes.agent.messages import Message, ProcessStarted, StartProcess
from ramify.sandboxes.host.agent_link import AgentLink
from ramify.sandboxes.host.started_process import start_process


class SilentAgent:
    """A link to an agent that takes the order to start a process, and answers when the test does."""

    def __init__(self) -> None:
        self.posted = asyncio.Event()
        self.line: socket.socket | None = None  # the agent's end

    async def post(self, message: Message, passing: Sequence[int]) -> None:
        self.line = socket.socket(fileno=os.dup(passing[0]))
        self.posted.set()

    async def loss_reason(self) -> str:
        return "the test is over"


async def test_the_terminal_of_a_start_that_was_cancelled_is_closed() -> None:
    agent = SilentAgent()

    async def no_kill() -> bool:
        return False

    starting = asyncio.ensure_future(
        start_process(
            cast(AgentLink, agent),
            StartProcess(["bash"], {}, "/", rows=24, columns=80),
            stdin=False,
            killed_for_memory=no_kill,
            forget=lambda process: None,
        )
    )
    await agent.posted.wait()
    assert agent.line is not None
    terminal, other_end = os.pipe()  # the test sees that the first end is closed by writing to the second
    starting.cancel()
    with agent.line:
        socket.send_fds(agent.line, [encode(ProcessStarted(7))], [terminal])
    os.close(terminal)
    with pytest.raises(asyncio.CancelledError):
        await starting
    with pytest.raises(BrokenPipeError):
        os.write(other_end, b"x")
    os.close(other_end)
