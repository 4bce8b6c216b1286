"""The host's end of a world's socket."""

from __future__ import annotations

import asyncio
import socket

import pytest

from ramify.sandboxes.agent.framing import encode
from ramify.sandboxes.agent.messages import Done, Failed, Thaw
from ramify.sandboxes.errors import WorldDied
from ramify.sandboxes.host.agent_link import AgentLink, MessageStream


async def test_an_unrequested_last_error_ends_the_link_without_a_crash() -> None:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    stream = await MessageStream.over(ours)
    faults: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: faults.append(context))
    due = asyncio.get_running_loop().create_future()
    stream.ask(Thaw(), due)
    with theirs:
        theirs.sendall(encode(Done()) + encode(Failed("the agent ends")))
        assert await due == Done()
    await stream._ended
    with pytest.raises(ConnectionResetError):
        stream.ask(Thaw(), asyncio.get_running_loop().create_future())
    assert faults == []
    await stream.close()


class ForkServerClient:
    def last_words(self) -> str:
        return "what the helper last said"


@pytest.mark.parametrize("known", [True, False])
async def test_an_error_sent_before_any_request_is_quoted(known: bool) -> None:
    """Like a spare: its first request comes when a world is needed."""
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    stream = await MessageStream.over(ours)
    with theirs:
        theirs.sendall(encode(Failed("OSError: no space for another namespace")))
    await stream._ended
    ended = asyncio.get_running_loop().create_future()
    if known:
        ended.set_result(1)
    else:
        ended.cancel()  # the helper is gone and reports no exit codes
    why = "no space for another namespace" if known else "what the helper last said"
    with pytest.raises(WorldDied, match=why):
        await AgentLink(ForkServerClient(), ended, stream).ask(Thaw())
    await stream.close()
