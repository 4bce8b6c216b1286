"""Workflows that are generators: their items are streamed as they are yielded, and the list of items is the result.

Items are not journalled: a resumed run executes its function again and yields the same items, because everything that
they depend on is recorded. If a run is streamed a second time, the stream starts at the beginning.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Generator,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import aclosing, closing, suppress
from contextvars import ContextVar
from typing import Any, Generic, TypeVar

from ramify.runtime.codec import codec
from ramify.runtime.errors import WouldBlock
from ramify.runtime.user_code.worker_threads import (
    Abandoned,
    await_on_loop,
    in_thread,
    run_loop_of_thread,
    running_loop,
    start_on_run_loop,
)

T = TypeVar("T")

Hear = Callable[[Any], Awaitable[None]]

_listener: ContextVar[Hear | None] = ContextVar("ramify_listener", default=None)


async def outcome(
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    durable: Callable[[], Awaitable[None]] | None = None,
) -> Any:
    """Run a workflow's function. Returns its value, or the list of its items. A function that is not async runs in a
    thread.

    durable: returns when all is recorded that an item may depend on. It is awaited before a reader gets the item.

    Raises `NotSerialisable` if it yields an item that cannot be stored.
    """
    hear = _listener.get()
    _listener.set(None)  # the listener is for this run only, not for runs that it starts
    items: list[Any] = []

    async def yielded(item: Any) -> None:
        items.append(codec.decode(codec.encode(item, "what it yielded")))  # as it will be when the run is resumed
        if hear is not None:
            if durable is not None:
                await durable()
            await hear(items[-1])

    def blocking() -> Any:
        made = function(*args, **kwargs)
        if isinstance(made, Generator):
            with closing(made):
                _all_of(made, lambda item: start_on_run_loop("an item was yielded", lambda: yielded(item)))
        return made

    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        made = function(*args, **kwargs)
    else:
        made = await in_thread(blocking, what=f"workflow {function.__name__!r}")
    if isinstance(made, AsyncGenerator):
        async with aclosing(made):
            async for item in made:
                await yielded(item)
    elif isinstance(made, Awaitable):
        return await made
    elif not isinstance(made, Generator):
        return made
    return items


def _all_of(made: Generator[Any, None, Any], hear: Callable[[Any], object]) -> None:
    while True:
        try:
            item = next(made)
        except StopIteration as end:
            if end.value is not None:
                raise TypeError(
                    f"a workflow that yields also returns {end.value!r}: its items are its result, so yield the "
                    "value, or return nothing"
                ) from None
            return
        hear(item)


class Stream(Generic[T]):
    """The items of a workflow as they are yielded: `async for item in stream`, or `for item in stream` in a plain
    function.

    `alone`: iterates the items outside a run, if no event loop is running.
    """

    def __init__(
        self, items: AsyncGenerator[T, None], alone: Callable[[AsyncGenerator[T, None]], Iterator[T]]
    ) -> None:
        self._items = items
        self._alone = alone

    def __aiter__(self) -> AsyncIterator[T]:
        return self._items

    async def aclose(self) -> None:
        await self._items.aclose()

    def __iter__(self) -> Iterator[T]:
        if run_loop_of_thread() is not None:
            return self._waiting()
        if running_loop() is not None:
            raise WouldBlock(
                "a stream was read with `for` while an event loop runs, which would be blocked. "
                "Write `async for item in workflow.stream(...)`, or read it in a thread (`asyncio.to_thread`)"
            )
        return self._alone(self._items)

    def _waiting(self) -> Iterator[T]:
        what = "a stream was read"
        try:
            while True:
                try:
                    item: Any = start_on_run_loop(what, self._items.__anext__)
                except StopAsyncIteration:
                    return
                yield item
        finally:
            with suppress(Abandoned):  # the cancelled call raised it before
                start_on_run_loop(what, self._items.aclose)


class _ReaderLeft(Exception):
    """Raised where an item is delivered after the reader has left; the generator itself is closed instead."""


async def streamed(
    run: Callable[[], Coroutine[Any, Any, Any]], *, in_turn: bool = False
) -> AsyncGenerator[Any, None]:
    """Yield the items of `run`, which is at most one item ahead of the reader. If the reader leaves early, the run is
    cancelled and can be resumed.

    in_turn: the run waits until the reader asks for the next item. So a workflow inside a run starts no operation
        beside its reader. If the reader leaves early, it is closed at its `yield`, like a generator, and its
        `finally` blocks may still run steps.
    """
    ready: asyncio.Queue[Any] = asyncio.Queue(maxsize=1)
    more: asyncio.Queue[bool] = asyncio.Queue()

    here = asyncio.get_running_loop()

    async def hear(item: Any) -> None:
        await await_on_loop(here, lambda: ready.put(item))  # the run may be on another loop, its runtime's
        if in_turn and not await more.get():
            raise _ReaderLeft

    token = _listener.set(hear)
    try:
        task = asyncio.create_task(run())
    finally:
        _listener.reset(token)
    try:
        while not (task.done() and ready.empty()):
            item = asyncio.ensure_future(ready.get())
            try:
                await asyncio.wait({task, item}, return_when=asyncio.FIRST_COMPLETED)
            except asyncio.CancelledError:
                item.cancel()
                raise
            if item.done():
                yield item.result()
                more.put_nowait(True)
            else:
                item.cancel()
        await task
    except GeneratorExit:
        if in_turn:
            more.put_nowait(False)
            with suppress(_ReaderLeft):
                await task
        raise
    finally:
        task.cancel()
        await asyncio.wait({task})
        if not task.cancelled():
            task.exception()  # the reader got the error, or has left
