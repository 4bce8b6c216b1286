"""The loop behind a compiled app ends, and leaves nobody waiting for it."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading

import pytest

from ramify.runtime.langgraph.thread.portal import Portal


def test_who_waits_for_what_is_not_done_is_told_so() -> None:
    """A node that was given up still has its thread, which Python waits for at its end."""
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
