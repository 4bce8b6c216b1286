"""Workflows that are async generators: what they yield is passed on as it comes, and is their result as a list.

What was yielded is not journalled: a resumed run goes through its function again and yields the same again, since all
that its values come from is recorded. Whoever streams a run a second time hears it from the beginning.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from contextlib import aclosing
from contextvars import ContextVar
from typing import Any

from ramify.runtime import codec

Hear = Callable[[Any], Awaitable[None]]

_listener: ContextVar[Hear | None] = ContextVar("ramify_listener", default=None)


async def outcome(made: Awaitable[Any] | AsyncGenerator[Any, None]) -> Any:
    """What a workflow's function gave: its value, or all that it yielded. Raises `NotSerialisable` where it yields
    what cannot be kept."""
    if not isinstance(made, AsyncGenerator):
        return await made
    hear = _listener.get()
    _listener.set(None)  # it is for this run, not for those that it may start
    items: list[Any] = []
    async with aclosing(made):
        async for item in made:
            items.append(codec.decode(codec.encode(item, "what it yielded")))  # as it will be when the run is resumed
            if hear is not None:
                await hear(items[-1])
    return items


async def streamed(run: Callable[[], Coroutine[Any, Any, Any]]) -> AsyncGenerator[Any, None]:
    """What `run` yields, at most one item ahead of the reader. Left early, the run is cancelled, to be resumed."""
    ready: asyncio.Queue[Any] = asyncio.Queue(maxsize=1)
    token = _listener.set(ready.put)
    try:
        task = asyncio.create_task(run())
    finally:
        _listener.reset(token)
    try:
        while not (task.done() and ready.empty()):
            item = asyncio.ensure_future(ready.get())
            await asyncio.wait({task, item}, return_when=asyncio.FIRST_COMPLETED)
            if item.done():
                yield item.result()
            else:
                item.cancel()
        await task
    finally:
        task.cancel()
        await asyncio.wait({task})
