"""Workflows that are generators: what they yield is passed on as it comes, and is their result as a list.

What was yielded is not journalled: a resumed run goes through its function again and yields the same again, since all
that its values come from is recorded. Whoever streams a run a second time hears it from the beginning.
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
Alone = Callable[[AsyncGenerator[Any, None]], Iterator[Any]]

_listener: ContextVar[Hear | None] = ContextVar("ramify_listener", default=None)


async def outcome(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """What a workflow's function gives: its value, or all that it yields. One that is not async runs in a thread.

    Raises `NotSerialisable` where it yields what cannot be kept.
    """
    hear = _listener.get()
    _listener.set(None)  # it is for this run, not for those that it may start
    items: list[Any] = []

    async def yielded(item: Any) -> None:
        items.append(codec.decode(codec.encode(item, "what it yielded")))  # as it will be when the run is resumed
        if hear is not None:
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
                    f"a workflow that yields returns {end.value!r} besides: what it yields is its result, so yield "
                    "that too, or return nothing"
                ) from None
            return
        hear(item)


class Stream(Generic[T]):
    """What a workflow yields, as it comes: `async for item in stream`, or `for item in stream` in a plain function.

    `alone`: iterates where no run and no loop is.
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
                "a stream was read with `for` where an event loop runs, which would stand still meanwhile. "
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
            with suppress(Abandoned):  # it was raised before, by what was cancelled
                start_on_run_loop(what, self._items.aclose)


class _ReaderLeft(Exception):
    """Told to what yields, never to its generator: that is closed."""


async def streamed(
    run: Callable[[], Coroutine[Any, Any, Any]], *, in_turn: bool = False
) -> AsyncGenerator[Any, None]:
    """What `run` yields, at most one item ahead of the reader. Left early, the run is cancelled, to be resumed.

    `in_turn`: not ahead at all. So a part of a run begins nothing beside what reads it; left early, it is closed
    where it yielded, as a generator is, and its `finally` may still begin steps.
    """
    ready: asyncio.Queue[Any] = asyncio.Queue(maxsize=1)
    more: asyncio.Queue[bool] = asyncio.Queue()

    here = asyncio.get_running_loop()

    async def hear(item: Any) -> None:
        await await_on_loop(here, lambda: ready.put(item))  # the run may be on its runtime's
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
            task.exception()  # whoever read it was told, or has left
