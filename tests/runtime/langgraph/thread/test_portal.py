"""The event loop of a compiled app ends, and no caller waits for it for ever."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading

import pytest

from ramify.runtime.langgraph.thread.portal import Portal


def test_stopping_the_portal_wakes_waiting_threads() -> None:
    """An abandoned node still has its thread, and Python waits for such threads when it exits."""
    portal, begun, ended = Portal(), threading.Event(), []

    async def endless() -> None:
        begun.set()
        await asyncio.Event().wait()

    def node() -> None:
        with pytest.raises(concurrent.futures.CancelledError):
            portal.wait(endless())
        ended.append(1)

    thread = threading.Thread(target=node, daemon=True)
    thread.start()
    assert begun.wait(30)
    portal.stop()
    thread.join(30)
    assert ended == [1]
