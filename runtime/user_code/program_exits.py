"""`sys.exit()` in a workflow or a step: it ends the program, except in a process that works on the runs of others.

There it would end the event loop, and with it the work on all runs of the process.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Generator
from contextvars import ContextVar
from types import TracebackType
from typing import Any, TypeVar

from ramify.runtime.user_code.worker_threads import Abandoned

T = TypeVar("T")

_works_for_others: ContextVar[bool] = ContextVar("ramify_works_for_others", default=False)


class ProgramEnded(Exception):
    """The user's code ended the program, which here works on runs of others as well."""


def work_for_others() -> None:
    """From now on, `sys.exit()` in a run of this context, and of tasks that it starts, is a `ProgramEnded`. Call it
    in the event loop that the runs use."""
    _works_for_others.set(True)
    loop = asyncio.get_running_loop()
    if not isinstance(loop.get_task_factory(), _Tasks):
        loop.set_task_factory(_Tasks(loop.get_task_factory()))


class ExitsOfRuns:
    """Raises `ProgramEnded` in place of a `SystemExit` that the user's code raised, after `work_for_others`."""

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, SystemExit) and not isinstance(error, Abandoned) and _works_for_others.get():
            raise ProgramEnded(f"it ended the program ({error!r}): raise an error instead") from error


class _Tasks:
    """A task factory. asyncio ends the event loop if a task ends with `SystemExit`, also one that the user's code
    made. before: the factory that the loop had."""

    def __init__(self, before: Any) -> None:
        self._before = before

    def __call__(
        self, loop: asyncio.AbstractEventLoop, made: Coroutine[Any, Any, T] | Generator[Any, None, T], **how: Any
    ) -> asyncio.Future[T]:
        of_a_run = how["context"].get(_works_for_others) if how.get("context") else _works_for_others.get()
        if of_a_run and asyncio.iscoroutine(made):
            made = _Contained(made)
        if self._before is not None:
            task: asyncio.Future[T] = self._before(loop, made, **how)
            return task
        return asyncio.Task(made, loop=loop, **how)


class _Contained(Coroutine[Any, Any, T]):
    """A coroutine whose `SystemExit` is a `ProgramEnded`. One of `async def` around it would warn that it was never
    awaited, if its task is cancelled before it begins."""

    def __init__(self, made: Coroutine[Any, Any, T]) -> None:
        self._made = made

    def send(self, value: Any) -> Any:
        with ExitsOfRuns():
            return self._made.send(value)

    def throw(self, *error: Any) -> Any:
        with ExitsOfRuns():
            return self._made.throw(*error)

    def close(self) -> None:
        self._made.close()

    def __await__(self) -> Generator[Any, Any, T]:
        return self._made.__await__()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._made, name)  # such as cr_frame, for those who look at tasks
