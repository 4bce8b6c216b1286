"""An event loop in a daemon thread, on which worlds, the database and the model client of an app live.

LangGraph's synchronous API has no loop, and its asynchronous API gets a new loop with every `asyncio.run`. What an
app opens outlives both, so it lives on a loop of its own, and callers send work there. `BlockingStream` iterates over
the stream of a workflow without an event loop: meanwhile the run has such a loop.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import os
import threading
import weakref
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Iterator, Mapping, Sequence
from typing import Any, Generic, TypeVar

from ramify.fork_engine.close_on_fork import refuse_in_child
from ramify.runtime.errors import UsedAfterFork
from ramify.runtime.langgraph.errors import AppClosed
from ramify.runtime.user_code.sandbox import Commands, Sandbox
from ramify.sandboxes.contract import RunResult, World

T = TypeVar("T")


class Portal:
    """An event loop in a thread, started by the first call. `stop` ends the thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._stopped = False
        self._owner = os.getpid()
        self._kept: list[asyncio.Task[None]] = []

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        if self._loop is not None:
            refuse_in_child(self._owner, "the app", UsedAfterFork)
        with self._lock:
            self._refuse_when_over()
            if self._loop is None:
                self._owner = os.getpid()
                # an empty context: the loop's own reader would keep the first caller's context, and with it a node,
                # its graph and the app
                self._loop = contextvars.Context().run(asyncio.new_event_loop)
                self._thread = threading.Thread(target=self._run, args=(self._loop,), name="ramify", daemon=True)
                self._thread.start()
            return self._loop

    def _refuse_when_over(self) -> None:
        if self._stopped:
            raise AppClosed("this app was closed: compile the graph again")

    @property
    def started(self) -> bool:
        return self._loop is not None and not self._stopped

    @property
    def is_here(self) -> bool:
        """Whether the calling thread is the portal's."""
        return self._thread is threading.current_thread()

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        try:
            loop.run_forever()
            loop.run_until_complete(_what_is_left(loop))
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.run_until_complete(loop.shutdown_default_executor())
        finally:
            loop.close()

    def submit(self, work: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        """Run work on the portal's loop, in an empty context. What the work opens for good, such as the process that
        forks worlds, would otherwise keep the caller's context, and with it a node, its graph and the app."""
        try:
            loop = self.loop
            # work that is submitted before `stop` is ended by it; work submitted later would never run
            with self._lock:
                self._refuse_when_over()
                return contextvars.Context().run(asyncio.run_coroutine_threadsafe, work, loop)
        except BaseException:
            work.close()
            raise

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Run work and wait for it, for callers without a loop. If the caller is interrupted, the work is
        cancelled."""
        future = self.submit(work)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    async def cross(self, work: Coroutine[Any, Any, T]) -> T:
        """Run work and await it, for callers on a loop of their own."""
        return await asyncio.wrap_future(self.submit(work))

    def keep(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Start, on the portal's loop, work that lasts as long as the portal, in an empty context. The portal holds
        the task."""
        self._kept.append(asyncio.create_task(work, context=contextvars.Context()))
        return self._kept[-1]

    def retire(self, last: Callable[[], object] = lambda: None) -> None:
        """Call `last` on the loop, let the kept work end, and stop. It does not wait, so the garbage collector may
        call it on any thread."""
        loop = self._loop  # no lock: this thread may hold it
        if loop is not None and not self._stopped:
            self._stopped = True
            loop.call_soon_threadsafe(self._retire, loop, last)

    def _retire(self, loop: asyncio.AbstractEventLoop, last: Callable[[], object]) -> None:
        last()
        ending = asyncio.gather(*self._kept, return_exceptions=True)
        ending.add_done_callback(lambda _: loop.stop())

    def stop(self) -> None:
        with self._lock:
            self._stopped = True
            if os.getpid() != self._owner:
                return  # this is the copy in a forked child: the parent stops the thread
            loop, thread = self._loop, self._thread
        if loop is not None and thread is not None and thread.is_alive():
            loop.call_soon_threadsafe(loop.stop)
            thread.join()


async def _what_is_left(loop: asyncio.AbstractEventLoop) -> None:
    """Cancel the tasks that are left. A thread that waits for one, such as that of an abandoned node, would otherwise
    wait for ever, and Python waits for such threads when it exits."""
    left = asyncio.all_tasks(loop) - {asyncio.current_task(loop)}
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)


class PortalFuture(Generic[T]):
    """Work that was submitted in program order. It may be awaited on any loop, or never."""

    def __init__(self, future: concurrent.futures.Future[T]) -> None:
        self._future = future

    def __await__(self) -> Generator[Any, None, T]:
        return asyncio.wrap_future(self._future).__await__()


class PortalSandbox(Sandbox):
    """The sandbox of a world on the portal's loop, for code that runs on another loop."""

    def __init__(self, world: World, portal: Portal, commands: Commands | None = None) -> None:
        super().__init__(world, commands)
        self._portal = portal

    async def run(
        self,
        command: str | Sequence[str],
        *,
        stdin: str | bytes | None = None,
        timeout: float | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        check: bool = False,
        reuse: bool = False,
    ) -> RunResult:
        work = super().run(command, stdin=stdin, timeout=timeout, env=env, cwd=cwd, check=check, reuse=reuse)
        return await self._portal.cross(work)


R = TypeVar("R")


class BlockingStream(Iterator[R]):
    """The items of a stream, for a caller without an event loop.

    When the iterator is garbage collected it is closed, and the run is cancelled. At the end of the process it is not
    closed, because the thread can no longer be waited for: the run then ends as one whose process was killed.
    """

    def __init__(self, items: AsyncGenerator[R, None]) -> None:
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
