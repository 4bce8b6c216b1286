"""Iterate over a stream without an event loop: meanwhile the run has a loop of its own, in a thread."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import AsyncGenerator, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from ramify.runtime.langgraph.thread.portal import Portal

R = TypeVar("R")


class BlockingStream(Iterator[R]):
    """The items of a stream, for a caller without an event loop.

    When the iterator is garbage collected it is closed, and the run is cancelled. At the end of the process it is not
    closed, because the thread can no longer be waited for: the run then ends as one whose process was killed.
    """

    def __init__(self, items: AsyncGenerator[R, None]) -> None:
        from ramify.runtime.langgraph.thread.portal import Portal

        self._items, self._portal = items, Portal()
        self._turn = asyncio.Lock()  # an abandoned item is cancelled before the rest is closed
        self.close = weakref.finalize(self, _closed, self._items, self._portal, self._turn)
        self.close.atexit = False

    def __next__(self) -> R:
        if not self.close.alive:
            raise StopIteration
        try:
            return self._portal.wait(self._following())
        except StopAsyncIteration:
            self.close()
            raise StopIteration from None
        except BaseException:
            self.close()
            raise

    async def _following(self) -> R:
        async with self._turn:
            return await anext(self._items)


def _closed(items: AsyncGenerator[Any, None], portal: Portal, turn: asyncio.Lock) -> None:
    async def last() -> None:
        async with turn:
            await items.aclose()

    if portal.is_here:  # garbage was collected on the loop itself, which cannot wait for itself
        portal.keep(last())
        portal.retire()
    else:
        portal.wait(last())
        portal.stop()
