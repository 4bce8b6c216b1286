"""Run functions that are not async in daemon threads; their calls into the run are executed on the run's event loop.

`asyncio.to_thread` uses threads of the loop's executor, and the end of the loop waits for those: Ctrl-C would take as
long as whatever a cancelled step is doing. Nobody waits for the threads of this module. If a call is cancelled or
times out, `Abandoned` is raised in its thread at the next instruction of the user's own code. A thread that waits in
C (`time.sleep`, a socket) gets it when the wait ends, and at the latest it ends with the process. Its world is gone
by then, with everything that it writes.

`Abandoned` is never raised inside library code: between taking a lock and the `try` that releases it, the lock would
stay taken, and the next thread that logs a line, or sets a future, would wait for ever.
"""

from __future__ import annotations

import _thread
import asyncio
import concurrent.futures
import contextvars
import ctypes
import os
import sys
import sysconfig
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

from ramify.fork_engine.close_on_fork import refuse_in_child
from ramify.runtime.errors import NotInARun, RuntimeClosed, UsedAfterFork
from ramify.runtime.user_code.fork_guard import end_child
from ramify.runtime.user_code.workflow_tasks import LEFT

T = TypeVar("T")

_LOOKS_S = (0.001, 0.1)
"""Seconds between two checks of an abandoned thread's position: while it moves, and at most."""


class Abandoned(SystemExit):
    """Raised inside the thread of a cancelled call. Ends the thread silently."""


async def in_thread(function: Callable[..., T], *args: Any, what: str = "a function of the run") -> T:
    """Call `function` in a thread of its own, in this task's context, and return its result.

    If this is cancelled, the thread ends by itself; the tasks that it started on this loop are awaited.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()
    call = _Call(loop, done, lambda: function(*args), what)
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


def start_on_run_loop(what: str, begin: Callable[[], Awaitable[T]]) -> Awaitable[T]:
    """Call `begin` on the run's event loop.

    On the loop this returns the awaitable. In a function that runs in its own thread it returns the result itself:
    the function waits while the loop does the work. Raises `NotInARun` in a thread that does not belong to a run.
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
    try:
        return answer.result()  # type: ignore[return-value]  # static types always say awaitable: decision 003
    except asyncio.CancelledError:
        call.leave_if_abandoned()
        raise


def calling_thread() -> threading.Thread | None:
    """Return the thread that asked for what the run's loop begins now; None if the loop itself did."""
    return _asked_by.get()


def is_in_own_thread() -> bool:
    """Whether what the run's loop begins now was asked for by a function that runs in a thread, in that thread and
    not in one that it started."""
    thread, call = _asked_by.get(), _call.get()
    return thread is not None and call is not None and call.is_thread(thread)


def run_loop_of_thread() -> asyncio.AbstractEventLoop | None:
    """Return the run's loop if this code runs in a thread of a run and has no loop of its own; else None."""
    call = _call.get()
    return call.loop if call is not None and running_loop() is None and call.is_here else None


def running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


async def await_on_loop(loop: asyncio.AbstractEventLoop, begin: Callable[[], Awaitable[T]]) -> T:
    """Call `begin` on `loop`, which another thread may run, and return its awaited result."""
    if loop is asyncio.get_running_loop():
        return await begin()

    async def begun() -> T:
        return await begin()

    return await asyncio.wrap_future(submit(begun(), loop))


def submit(work: Coroutine[Any, Any, T], loop: asyncio.AbstractEventLoop) -> concurrent.futures.Future[T]:
    """Like `asyncio.run_coroutine_threadsafe`, but raises `RuntimeClosed` if the loop has ended."""
    try:
        return asyncio.run_coroutine_threadsafe(work, loop)
    except RuntimeError as error:
        work.close()
        if not loop.is_closed():
            raise
        raise RuntimeClosed(
            "the event loop that this run or Runtime belongs to has ended: open a Runtime on a loop that runs "
            "(`async with Runtime() as runtime`) and use it there"
        ) from error


class _Call:
    """A function call in a thread: its state, and the tasks that it started on the loop."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, done: asyncio.Future[Any], call: Callable[[], Any], what: str
    ) -> None:
        self.loop, self._done, self._call, self._what = loop, done, call, what
        self._lock = threading.Lock()
        self._over = self._abandoned = False
        self._left = False  # nothing must be raised in the thread any more
        self._thread = 0  # its id; threads that it started may call `ask` as well
        self._owner = os.getpid()
        self._begun: set[asyncio.Task[None]] = set()

    @property
    def is_here(self) -> bool:
        """Whether this is the process of the call, not a child that was forked from it."""
        return os.getpid() == self._owner

    def is_thread(self, thread: threading.Thread) -> bool:
        """Whether the function runs in that thread."""
        return thread.ident == self._thread

    def work(self) -> None:
        _call.set(self)
        self._thread = threading.get_ident()
        try:
            result = self._call()
        except StopIteration as error:  # futures refuse this exception
            end_child(self._owner, self._what, error)
            self._report(
                self._done.set_exception, RuntimeError(f"a function of the run raised StopIteration: {error}")
            )
        except BaseException as error:  # noqa: BLE001  raised in the awaiting task
            end_child(self._owner, self._what, error)
            self._report(self._done.set_exception, error)
        else:
            end_child(self._owner, self._what)
            self._report(self._done.set_result, result)

    def ask(self, what: str, begin: Callable[[], Awaitable[T]]) -> concurrent.futures.Future[T]:
        """Start `begin` on the loop, in the context of the calling thread."""
        refuse_in_child(self._owner, f"the run in which {what}", UsedAfterFork)
        self.leave_if_abandoned()
        answer: concurrent.futures.Future[T] = concurrent.futures.Future()
        _asked_by.set(threading.current_thread())
        with self._lock:  # the loop runs until the call has ended, so it answers what is asked before
            if not self._over:
                self.loop.call_soon_threadsafe(self._begin, what, begin, answer)
                return answer
        raise self._too_late(what)

    def _begin(self, what: str, begin: Callable[[], Awaitable[T]], answer: concurrent.futures.Future[T]) -> None:
        if self._over:
            answer.set_exception(self._too_late(what))
            return

        def ended(task: asyncio.Task[None]) -> None:
            self._begun.discard(task)
            if not answer.done():  # the task was cancelled before it began
                answer.set_exception(asyncio.CancelledError())

        work = _run_and_answer(begin, answer)
        try:
            task = self.loop.create_task(work)
        except BaseException as error:  # noqa: BLE001  # the loop would only log it, and the thread would wait for ever
            work.close()
            answer.set_exception(error)
            return
        self._begun.add(task)
        task.add_done_callback(ended)

    def _too_late(self, what: str) -> BaseException:
        if self._abandoned:
            return Abandoned()
        return NotInARun(f"{what} by a thread for which the function that started it did not wait")

    def abandon(self, thread: threading.Thread) -> None:
        self._abandoned = True
        # `Thread.start` would wait for it to begin, and a second Ctrl-C ends that wait.
        _thread.start_new_thread(self._end, (thread,))

    def leave_if_abandoned(self) -> None:
        """Raise `Abandoned` if the call was abandoned. Called by the thread itself, and by threads that it
        started."""
        if self._abandoned:
            if threading.get_ident() == self._thread:
                with self._lock:
                    self._left = True
            raise Abandoned

    def _end(self, thread: threading.Thread) -> None:
        """Raise `Abandoned` in the thread as soon as it executes the user's own code.

        This runs in another thread, because the loop may end first. It checks right after a sleep: a thread that has
        just got the interpreter lock keeps it for longer than checking and raising take, so the position cannot
        change.
        """
        least, most = _LOOKS_S
        pause, before = least, None
        while thread.is_alive():
            time.sleep(pause)
            with self._lock:
                if self._left:
                    return
                frame = sys._current_frames().get(thread.ident or 0)
                if frame is not None and _is_user_code(frame):
                    whom = ctypes.c_ulong(thread.ident or 0)
                    ctypes.pythonapi.PyThreadState_SetAsyncExc(whom, ctypes.py_object(Abandoned))
                    return
            now = None if frame is None else (id(frame), frame.f_lasti)
            pause = min(2 * pause, most) if now == before else least
            before = now
            del frame  # do not keep the objects of its functions alive

    async def end(self) -> None:
        """Cancel the tasks that the thread started and that still run."""
        with self._lock:
            self._over = True
        if self._begun:
            for task in self._begun:
                task.cancel(None if self._abandoned else LEFT)
            await asyncio.wait(self._begun)

    def _report(self, settle: Callable[[Any], None], outcome: object) -> None:
        with self._lock:
            self._over = self._left = True
        try:
            self.loop.call_soon_threadsafe(self._settle, settle, outcome)
        except RuntimeError:
            if not self.loop.is_closed():
                raise
            # the waiting task is gone

    def _settle(self, settle: Callable[[Any], None], outcome: object) -> None:
        if not self._done.done():
            settle(outcome)


def _is_user_code(frame: FrameType) -> bool:
    """Whether the frame executes the thread's own function or user code, not a library that these called. The
    thread's function may itself belong to a library."""
    here, body = frame.f_code.co_filename, ""
    if not _is_ramify_code(frame) and not _is_library_file(here):
        return True
    outer: FrameType | None = frame
    while outer is not None and outer.f_globals.get("__name__") != __name__:
        body = body if _is_ramify_code(outer) else outer.f_code.co_filename
        outer = outer.f_back
    return here == body


def _is_ramify_code(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__")).startswith("ramify.")


@cache
def _is_library_file(filename: str) -> bool:
    """Whether a file belongs to an installed library or to the interpreter (`<frozen ...>`)."""
    paths = sysconfig.get_paths()
    places = [Path(paths[name]).resolve() for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    file = Path(filename).resolve()
    return filename.startswith("<frozen") or any(file.is_relative_to(place) for place in places)


_call: contextvars.ContextVar[_Call | None] = contextvars.ContextVar("ramify_thread", default=None)
_asked_by: contextvars.ContextVar[threading.Thread | None] = contextvars.ContextVar("ramify_asked_by", default=None)


async def _run_and_answer(begin: Callable[[], Awaitable[T]], answer: concurrent.futures.Future[T]) -> None:
    """Pass the result or error to the waiting thread, including `SystemExit`, which must not end the loop."""
    try:
        result = await begin()
    except BaseException as error:
        with suppress(concurrent.futures.InvalidStateError):  # the caller may have cancelled it
            answer.set_exception(error)
        if isinstance(error, asyncio.CancelledError):
            raise
    else:
        with suppress(concurrent.futures.InvalidStateError):
            answer.set_result(result)
