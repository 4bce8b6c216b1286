"""Helpers for asyncio: fork n worlds, finish work that must not be left half done, and a lock that can be shared."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import TypeVar

from ramify.fork_engine.types import Snapshot
from ramify.sandboxes.contract import Backend, World, WorldSpec

T = TypeVar("T")


async def fork_all(backend: Backend, snapshot: Snapshot, spec: WorldSpec, n: int) -> list[World]:
    """Implement `Backend.fork` by `n` calls of `materialise`: all or none, even if cancelled. Raises as `materialise`
    does, and `ValueError`."""
    if n < 0:
        raise ValueError(f"a world cannot be forked {n} ways")
    begun = asyncio.gather(*(backend.materialise(snapshot, spec) for _ in range(n)), return_exceptions=True)
    try:
        done = await asyncio.shield(begun)
        for failure in done:
            if isinstance(failure, BaseException):
                raise failure
    except BaseException:
        # let started worlds finish first: one cancelled half way may leave something behind
        await asyncio.gather(*(one.close() for one in await begun if not isinstance(one, BaseException)))
        raise
    return [one for one in done if not isinstance(one, BaseException)]


async def run_all_to_end(works: Sequence[Coroutine[object, object, None]]) -> None:
    """Await all coroutines to their ends, then raise the first failure. A single one needs no task of its own."""
    if len(works) == 1:
        return await works[0]
    for failure in await asyncio.gather(*works, return_exceptions=True):
        if failure is not None:
            raise failure
    return None


async def finish_before_cancelling(
    work: Coroutine[object, object, T] | asyncio.Future[T], interrupt: Callable[[], None] | None = None
) -> T:
    """Await `work` to its end even if we are cancelled, after calling `interrupt`; the cancellation then continues.

    Work in a thread needs this: nobody can cancel a thread, and it must not go on creating what is being cleaned up.
    """
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as error:  # may come more than once: a timeout, then the end of a task group
            if cancelled is None and interrupt is not None:
                interrupt()
            cancelled = error
    if cancelled is not None:
        if not task.cancelled():
            task.exception()  # mark as retrieved: the cancellation matters more
        raise cancelled
    return task.result()


async def finish_once_begun(work: Callable[[asyncio.Future[None]], Coroutine[object, object, T]]) -> T:
    """As `finish_before_cancelling`, for work that first waits for its turn. If we are cancelled before it has set
    the future that it is given, it is cancelled at once."""
    begun: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    task = asyncio.ensure_future(work(begun))

    def interrupt() -> None:
        if not begun.done():
            task.cancel()

    return await finish_before_cancelling(task, interrupt)


class SharedLock:
    """A lock that one holds alone (`async with lock`), or any number together (`async with lock.shared()`). Who waits
    to hold it alone goes before those that come later."""

    def __init__(self) -> None:
        self._turn, self._unshared, self._sharers = asyncio.Lock(), asyncio.Event(), 0
        self._unshared.set()

    async def __aenter__(self) -> None:
        await self._turn.acquire()
        try:
            await self._unshared.wait()
        except BaseException:
            self._turn.release()
            raise

    async def __aexit__(self, *_: object) -> None:
        self._turn.release()

    @asynccontextmanager
    async def shared(self) -> AsyncIterator[None]:
        async with self._turn:
            self._sharers += 1
            self._unshared.clear()
        try:
            yield
        finally:
            self._sharers -= 1
            if not self._sharers:
                self._unshared.set()
