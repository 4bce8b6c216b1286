"""The host's end of a world's socket."""

from __future__ import annotations

import asyncio
import socket

import pytest

from ramify.sandboxes.agent.messages import Done, Failed, Thaw, encode
from ramify.sandboxes.errors import WorldDied
from ramify.sandboxes.host.agent_link import AgentLink, Line


async def test_last_words_that_nobody_asked_for_are_an_end_and_no_crash() -> None:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    line = await Line.over(ours)
    faults: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: faults.append(context))
    due = asyncio.get_running_loop().create_future()
    line.ask(Thaw(), due)
    with theirs:
        theirs.sendall(encode(Done()) + encode(Failed("the agent ends")))
        assert await due == Done()
    await line._ended
    with pytest.raises(ConnectionResetError):
        line.ask(Thaw(), asyncio.get_running_loop().create_future())
    assert faults == []
    await line.close()


class ForkServerClient:
    def last_words(self) -> str:
        return "what the helper last said"


@pytest.mark.parametrize("known", [True, False])
async def test_an_agent_that_said_why_it_ends_before_it_was_asked_is_quoted(known: bool) -> None:
    """As a spare does: it is asked for the first time when somebody wants a world."""
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    line = await Line.over(ours)
    with theirs:
        theirs.sendall(encode(Failed("OSError: no space for another namespace")))
    await line._ended
    ended = asyncio.get_running_loop().create_future()
    if known:
        ended.set_result(1)
    else:
        ended.cancel()  # the helper is gone, and tells nobody how agents end
    why = "no space for another namespace" if known else "what the helper last said"
    with pytest.raises(WorldDied, match=why):
        await AgentLink(ForkServerClient(), ended, line).ask(Thaw())
    await line.close()
