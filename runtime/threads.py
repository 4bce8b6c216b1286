"""Functions that are not async run in threads that nobody has to wait for, and what they call of a run is done on its
loop while they wait.

`asyncio.to_thread` takes threads of the loop's executor, and those are waited for when the loop ends: Ctrl-C would
last as long as whatever a cancelled step is doing. These are daemon threads. Where the call is cancelled or times
out, its thread gets `Abandoned` at its next instruction of Python; what waits in C (`time.sleep`, a socket) gets it
when it comes back, and ends with the process at the latest. Its world is gone by then, and what it writes with it.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import ctypes
import threading
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from ramify.runtime.errors import NotInARun

T = TypeVar("T")


class Abandoned(SystemExit):
    """Raised inside the thread of a call that was cancelled. Ends the thread, and is told to nobody."""


async def in_thread(function: Callable[..., T], *args: Any) -> T:
    """Call it in a thread of its own, in this task's context. Cancelled, it leaves the thread to end by itself, but
    waits for what the thread began on this loop."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()
    call = _Call(loop, done, lambda: function(*args))
    work = contextvars.copy_context().run
    thread = threading.Thread(target=work, args=(call.work,), name="ramify step", daemon=True)
    thread.start()
    try:
        return await done
    except asyncio.CancelledError:
        call.abandon(thread)
        raise
    finally:
        await call.end()


def from_here(what: str, begin: Callable[[], Awaitable[T]]) -> Awaitable[T]:
    """What `begin` gives. On the run's loop that is something to await. Called by a function that runs in a thread of
    its own, it is the result itself: the function waits while the loop does the work.

    `begin` is called on the loop. Raises `NotInARun` in a thread that no run knows of.
    """
    call, running = _call.get(), running_loop()
    if running is not None and (call is None or running is call.loop):
        return begin()
    if call is None:
        raise NotInARun(
            f"{what} in a thread beside its run, which cannot await it: call it from the workflow itself, or from a "
            "step that is a plain `def`"
        )
    answer = call.ask(what, begin)
    if running is not None:  # asyncio.run(...) in a plain function
        return asyncio.wrap_future(answer, loop=running)
    return answer.result()  # type: ignore[return-value]  # by static types always to be awaited: decision 242


def waits_here() -> asyncio.AbstractEventLoop | None:
    """The run's loop, where the running code stands in a thread beside it and has no loop to await on."""
    call = _call.get()
    return call.loop if call is not None and running_loop() is None else None


def running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


async def on_loop(loop: asyncio.AbstractEventLoop, begin: Callable[[], Awaitable[T]]) -> T:
    """What `begin` gives, on that loop, which another thread may run."""
    if loop is asyncio.get_running_loop():
        return await begin()

    async def begun() -> T:
        return await begin()

    return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(begun(), loop))


class _Call:
    """What the thread does, whether it is still at it, and what it began on the loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, done: asyncio.Future[Any], call: Callable[[], Any]) -> None:
        self.loop, self._done, self._call = loop, done, call
        self._lock = threading.Lock()
        self._over = self._abandoned = False
        self._begun: set[asyncio.Task[None]] = set()

    def work(self) -> None:
        _call.set(self)
        try:
            result = self._call()
        except StopIteration as error:  # no future holds one
            self._tell(self._done.set_exception, RuntimeError(f"a function of the run raised StopIteration: {error}"))
        except BaseException as error:  # noqa: BLE001  it is the awaiting task's
            self._tell(self._done.set_exception, error)
        else:
            self._tell(self._done.set_result, result)

    def ask(self, what: str, begin: Callable[[], Awaitable[T]]) -> concurrent.futures.Future[T]:
        """Begin something on the loop, in the context of the thread that asks."""
        if self._abandoned:
            raise Abandoned
        answer: concurrent.futures.Future[T] = concurrent.futures.Future()
        self.loop.call_soon_threadsafe(self._begin, what, begin, answer)
        return answer

    def _begin(self, what: str, begin: Callable[[], Awaitable[T]], answer: concurrent.futures.Future[T]) -> None:
        if self._over:
            late = NotInARun(f"{what} by a thread for which the function that started it did not wait")
            answer.set_exception(Abandoned() if self._abandoned else late)
            return

        def ended(task: asyncio.Task[None]) -> None:
            self._begun.discard(task)
            if not answer.done():  # it was cancelled before it began
                answer.set_exception(asyncio.CancelledError())

        task = self.loop.create_task(_answered(begin, answer))
        self._begun.add(task)
        task.add_done_callback(ended)

    def abandon(self, thread: threading.Thread) -> None:
        with self._lock:
            self._abandoned = True
            if not self._over and thread.ident is not None:
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(Abandoned))

    async def end(self) -> None:
        """Nothing that the thread began goes on without it."""
        self._over = True
        if self._begun:
            for task in self._begun:
                task.cancel()
            await asyncio.wait(self._begun)

    def _tell(self, settle: Callable[[Any], None], outcome: object) -> None:
        with self._lock:
            self._over = True
        if self.loop.is_closed():
            return  # whoever waited has gone
        self.loop.call_soon_threadsafe(self._settle, settle, outcome)

    def _settle(self, settle: Callable[[Any], None], outcome: object) -> None:
        if not self._done.done():
            settle(outcome)


_call: contextvars.ContextVar[_Call | None] = contextvars.ContextVar("ramify_thread", default=None)


async def _answered(begin: Callable[[], Awaitable[T]], answer: concurrent.futures.Future[T]) -> None:
    """Whatever comes of it is the asking thread's, a wish to exit too: no task of ours raises it through the loop."""
    try:
        result = await begin()
    except BaseException as error:
        answer.set_exception(error)
        if isinstance(error, asyncio.CancelledError):
            raise
    else:
        answer.set_result(result)
