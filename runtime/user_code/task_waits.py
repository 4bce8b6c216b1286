"""Whether somebody waited for a task in which steps run, though the wait may have ended before the task did.

A `gather` in which another one fails, a `wait` for the first and a `wait_for` around a `shield` leave what they
waited for running, and most of them take their callback off it again. So the callbacks that a task has when it is
first seen are looked at, and each that comes later. A task that is awaited directly is never left: the `await` ends
with it, or cancels it. A callback of the program's own (`tasks.discard`) is no wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import Context
from dataclasses import dataclass, field
from functools import partial
from inspect import CORO_CLOSED, CORO_CREATED, getcoroutinestate
from types import CoroutineType
from typing import Any
from weakref import WeakSet, ref

LEFT = "left by those who waited for it"
"""The message of the cancellation that ends what is left."""

_WAITS = ("asyncio", "_asyncio", "anyio")  # the packages whose callbacks are waits

Task = asyncio.Task[Any]


@dataclass(eq=False, slots=True)
class Begun:
    """A step that was called and is not done: its coroutine, the task that called it and the one that it runs in."""

    step: CoroutineType[Any, Any, Any]
    caller: Task | None
    task: Task | None = None

    @property
    def started(self) -> bool:
        return getcoroutinestate(self.step) != CORO_CREATED

    @property
    def ended(self) -> bool:
        return getcoroutinestate(self.step) == CORO_CLOSED


@dataclass(eq=False, slots=True)
class Waits:
    """The tasks of a run that are watched, and those of them that somebody waited for."""

    _seen: WeakSet[Task] = field(default_factory=WeakSet)
    _waited: WeakSet[Task] = field(default_factory=WeakSet)

    def watch(self, task: Task | None) -> None:
        if task is None or task in self._seen:
            return
        self._seen.add(task)
        if any(_is_wait(callback) for callback, _ in getattr(task, "_callbacks", None) or ()):
            self._waited.add(task)
            return
        weak = ref(task)  # the task holds the function, which must not hold the task

        def add(callback: Callable[[Task], object], /, *, context: Context | None = None) -> None:
            watched = weak()
            assert watched is not None  # it is its method
            if _is_wait(callback):
                self._waited.add(watched)
            type(watched).add_done_callback(watched, callback, context=context)

        task.add_done_callback = add  # type: ignore[method-assign]

    def for_step(self, begun: Begun, workflow: Task | None) -> bool:
        """Whether the step was waited for, and so was whoever called it. `workflow`: the task that all began in."""
        callers = {begun.task, begun.caller} - {workflow, None}
        return begun.task is not None and all(
            task in self._waited or (task is not begun.task and task.done()) for task in callers if task is not None
        )


def _is_wait(callback: object) -> bool:
    if isinstance(callback, partial):
        return _is_wait(callback.func)
    owner = getattr(callback, "__self__", None)
    if isinstance(owner, asyncio.Future):
        return True  # a task's own wakeup: it awaits this one
    module = getattr(callback, "__module__", None) or type(callback).__module__
    return module.partition(".")[0] in _WAITS
