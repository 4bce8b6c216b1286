"""Which task of a workflow reads a streamed answer. Pieces come by chance, so two such tasks take turns by chance, as
two threads do.
"""

from __future__ import annotations

import asyncio
from contextvars import ContextVar
from weakref import ref


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
