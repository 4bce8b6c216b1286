"""Synchronous steps run in threads that nobody has to wait for.

`asyncio.to_thread` takes threads of the loop's executor, and those are waited for when the loop ends: Ctrl-C would
last as long as whatever a cancelled step is doing. These are daemon threads. Where the step is cancelled or times
out, its thread gets `Abandoned` at its next instruction of Python; what waits in C (`time.sleep`, a socket) gets it
when it comes back, and ends with the process at the latest. Its world is gone by then, and what it writes with it.
"""

from __future__ import annotations

import asyncio
import contextvars
import ctypes
import threading
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


class Abandoned(SystemExit):
    """Raised inside the thread of a step that was cancelled. Ends the thread, and is told to nobody."""


async def in_thread(function: Callable[..., T], *args: Any) -> T:
    """Call it in a thread of its own, in this task's context. Cancelled, it leaves the thread to end by itself."""
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


class _Call:
    """What the thread does, and whether it is still at it."""

    def __init__(self, loop: asyncio.AbstractEventLoop, done: asyncio.Future[Any], call: Callable[[], Any]) -> None:
        self._loop, self._done, self._call = loop, done, call
        self._lock = threading.Lock()
        self._over = False

    def work(self) -> None:
        try:
            result = self._call()
        except StopIteration as error:  # no future holds one
            self._tell(self._done.set_exception, RuntimeError(f"a step raised StopIteration: {error}"))
        except BaseException as error:  # noqa: BLE001  it is the awaiting task's
            self._tell(self._done.set_exception, error)
        else:
            self._tell(self._done.set_result, result)

    def abandon(self, thread: threading.Thread) -> None:
        with self._lock:
            if not self._over and thread.ident is not None:
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(Abandoned))

    def _tell(self, settle: Callable[[Any], None], outcome: object) -> None:
        with self._lock:
            self._over = True
        if self._loop.is_closed():
            return  # whoever waited has gone
        self._loop.call_soon_threadsafe(self._settle, settle, outcome)

    def _settle(self, settle: Callable[[Any], None], outcome: object) -> None:
        if not self._done.done():
            settle(outcome)
