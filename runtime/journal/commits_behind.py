"""The commit of a step that goes on while the workflow asks the model.

A step's state is taken, hashed and flushed, and its rows are committed, after the workflow has the step's result. The
rows stay in their order: whatever is recorded next waits for this commit, and so does the next step and the end of
the run. Only a model's answer is waited for meanwhile. If the process dies first, the step has no row and runs again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

_here: ContextVar[bool] = ContextVar("ramify_commits_behind", default=False)


class CommitsBehind:
    """The commits of one run that go on behind it, one at a time."""

    def __init__(self) -> None:
        self._task: asyncio.Task[None] | None = None
        self._announced: asyncio.Future[None] | None = None
        self._error: BaseException | None = None

    @property
    def under_way(self) -> bool:
        return self._task is not None and not self._task.done()

    @property
    def began(self) -> bool:
        """Whether there ever was one in this process, or is about to be: otherwise nothing has to be waited for."""
        return self._task is not None or self._announced is not None

    @contextmanager
    def announced(self) -> Iterator[None]:
        """A commit is about to begin in this block: who waits for the commits waits for it, too. Otherwise it could
        queue for the branch's lock before the commit does, and the two would wait for each other."""
        mine = self._announced = asyncio.get_running_loop().create_future()
        try:
            yield
        finally:
            self._announced = None
            mine.set_result(None)

    def begin(self, commit: Coroutine[Any, Any, None]) -> None:
        """Let the commit go on. The one before must have ended."""
        assert not self.under_way, "commits follow each other"
        self._task = asyncio.create_task(self._marked(commit))
        self._task.add_done_callback(self._ended)

    async def _marked(self, commit: Coroutine[Any, Any, None]) -> None:
        _here.set(True)  # what it records does not wait for itself
        await commit

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._error = self._error or (asyncio.CancelledError() if task.cancelled() else task.exception())

    async def ended(self) -> None:
        """Return when none is under way."""
        if _here.get():
            return
        if self._announced is not None:
            await asyncio.wait({self._announced})
        if self._task is not None:
            await asyncio.wait({self._task})

    async def settled(self) -> None:
        """As `ended`. Raises the error if one of them has failed: what follows from it must not be recorded."""
        await self.ended()
        self.refuse_when_failed()

    def refuse_when_failed(self) -> None:
        if self._error is not None and not _here.get():
            raise self._error
