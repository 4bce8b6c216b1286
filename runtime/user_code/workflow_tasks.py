"""Tasks of a workflow: which one reads a streamed answer, and whether anybody ever waited for one that runs a step.

Pieces of a streamed answer come by chance, so two tasks that read one take turns by chance, as two threads do.

A wait for a task may end before the task does. A `gather` in which another task fails, a `wait` for the first result
and a `wait_for` around a `shield` all return while tasks that they waited for keep running, and most of them remove
their callback from those tasks. So `TaskWaits` inspects the callbacks that a task has when it is first seen, and each
callback that is added later. A task that is awaited directly never outlives its waiter: the `await` ends with it or
cancels it. A callback of the program's own, such as `tasks.discard`, does not count as a wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import Context, ContextVar
from dataclasses import dataclass, field
from functools import partial
from inspect import CORO_CLOSED, CORO_CREATED, getcoroutinestate
from types import CoroutineType
from typing import Any
from weakref import WeakSet, ref


class ReadingTask:
    """A task that has read from a streamed answer. `outer`: the one in whose context it was made."""

    def __init__(self, task: asyncio.Task[object], outer: ReadingTask | None) -> None:
        self._task, self._outer = ref(task), outer

    def is_of(self, task: asyncio.Task[object] | None) -> bool:
        return self._task() is task

    def is_alive(self) -> bool:
        task = self._task()
        return task is not None and not task.done()

    def is_inside(self, other: ReadingTask) -> bool:
        """Whether it was made by the other one, so that it may know what that one did."""
        outer = self._outer
        return outer is not None and (outer is other or outer.is_inside(other))


_reading: ContextVar[ReadingTask | None] = ContextVar("ramify_reading", default=None)


def reading_task() -> ReadingTask | None:
    """Return the task that has read a streamed answer, and that makes this call or has begun the task that does."""
    return _reading.get()


def task_reads() -> None:
    """Note that the running task reads a streamed answer. Call it in an async generator: it shares the context of who
    reads it."""
    task, outer = asyncio.current_task(), _reading.get()
    if task is not None and (outer is None or not outer.is_of(task)):
        _reading.set(ReadingTask(task, outer))


LEFT = "left by those who waited for it"
"""The message of the cancellation that ends such a task."""

_WAITS = ("asyncio", "_asyncio", "anyio")  # the packages whose callbacks are waits

Task = asyncio.Task[Any]


@dataclass(eq=False, slots=True)
class BegunStep:
    """A step that was called and has not ended: its coroutine, the task that called it and the task that runs it."""

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
class TaskWaits:
    """The tasks of a run that are watched, and which of them somebody waited for."""

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
            assert watched is not None  # the task is alive: this is a method of it
            if _is_wait(callback):
                self._waited.add(watched)
            type(watched).add_done_callback(watched, callback, context=context)

        task.add_done_callback = add  # type: ignore[method-assign]

    def for_step(self, begun: BegunStep, workflow: Task | None) -> bool:
        """Whether somebody waited for the step's task and for the task that called it. `workflow`: the main task."""
        callers = {begun.task, begun.caller} - {workflow, None}
        return begun.task is not None and all(
            task in self._waited or (task is not begun.task and task.done()) for task in callers if task is not None
        )


def _is_wait(callback: object) -> bool:
    if isinstance(callback, partial):
        return _is_wait(callback.func)
    owner = getattr(callback, "__self__", None)
    if isinstance(owner, asyncio.Future):
        return True  # the wakeup of a task that awaits this one
    module = getattr(callback, "__module__", None) or type(callback).__module__
    return module.partition(".")[0] in _WAITS
