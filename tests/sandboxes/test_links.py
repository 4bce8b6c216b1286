"""The host's end of a world's socket."""

from __future__ import annotations

import asyncio
import socket

import pytest

from ramify.sandboxes.links import Line
from ramify.sandboxes.wire import Done, Failed, Thaw, encode


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
