"""Tasks of a run that wait for a person's answer, and when the run itself stops to wait.

A question without an answer suspends its task. The other tasks of the workflow continue: running steps are not
stopped, and more questions may be asked. When nothing in the run makes progress any more, every suspended task gets
`AnswersNeeded`, which unwinds the workflow, and the run ends in the state WAITING with all open questions. If a
person answers before that, the task of that question continues.

An answer is bound to the key of its question, so the order in which a replay reaches the questions does not matter.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from ramify.runtime.user_code.workflow_tasks import LEFT

LOOK_S = 0.25
"""Seconds between two looks for answers in the database, while other tasks of the run make progress."""
BUSY_S = 0.02
"""Seconds between two checks whether the run still makes progress."""
SETTLE_S = 0.05
"""Seconds without progress before the run stops to wait, if its workflow has several tasks. One of them may be in an
`asyncio.sleep` of its own, which the runtime cannot see."""
UNWIND_S = 1.0
"""Seconds without progress before a workflow that was asked to stop is cancelled."""
_TURNS = 5  # turns of the event loop within which a resumed task starts its next operation


class AnswersNeeded(BaseException):
    """Unwinds the workflow. Not an `Exception`, so that the workflow's own `except Exception` does not catch it."""

    def __init__(self, keys: Collection[str] = ()) -> None:
        self.keys = tuple(keys)
        super().__init__("the run waits for answers")


@dataclass(frozen=True, slots=True)
class RunCallbacks:
    """The functions of a run that `QuestionWaits` calls.

    works: returns whether an operation of the run is in progress.
    pulse: returns a value that changes with each operation.
    stop: prevents new operations and returns the reason, which may be an earlier one.
    look: returns the answers that are stored so far, by key.
    waits_on: is called once, with the keys, if other steps continue while questions are open.
    """

    works: Callable[[], bool]
    pulse: Callable[[], object]
    stop: Callable[[BaseException], BaseException]
    look: Callable[[], Awaitable[Mapping[str, str]]]
    waits_on: Callable[[Collection[str]], None]


class QuestionWaits:
    """The questions of one run in this process.

    answers: encoded answers, by the key of the question.
    asked: keys of questions that earlier processes of the run asked and that were open when this process began.
    """

    def __init__(self, around: RunCallbacks, *, answers: Mapping[str, str], asked: Collection[str]) -> None:
        self._around = around
        self._answers = dict(answers)
        self._before = frozenset(asked)
        self._met: set[str] = set()
        self._parked: dict[str, asyncio.Future[str]] = {}
        self._tasks: dict[str, asyncio.Task[Any] | None] = {}
        self._watch: asyncio.Task[None] | None = None
        self._main: asyncio.Task[Any] | None = None
        self._reported = False

    def begin(self) -> None:
        """Call this in the task that will run the workflow function, right before it."""
        self._main = asyncio.current_task()

    def is_main(self, task: asyncio.Task[Any] | None) -> bool:
        """Whether the task is the one that runs the workflow function."""
        return task is not None and task is self._main

    def answer(self, key: str) -> str | None:
        """Return the encoded answer to the question, or None. Marks the question as reached in this process."""
        self._met.add(key)
        return self._answers.get(key)

    def is_new(self, key: str) -> bool:
        """Whether no process of the run has recorded this question yet."""
        return key not in self._before

    @property
    def not_met(self) -> list[str]:
        """Keys of questions that earlier processes asked and this process did not reach."""
        return sorted(self._before - self._met)

    async def wait(self, key: str) -> str:
        """Suspend this task until a person answers; return the encoded answer. Raises `AnswersNeeded`, or the error
        that stops the run."""
        future = asyncio.get_running_loop().create_future()
        self._parked[key], self._tasks[key] = future, asyncio.current_task()
        if self._watch is None:
            self._watch = asyncio.get_running_loop().create_task(self._until_nothing_works())
        try:
            answer: str = await future
            return answer
        finally:
            del self._parked[key], self._tasks[key]

    async def end(self) -> None:
        """Cancel all waiting tasks: the workflow has ended. Call this before the journal is closed."""
        for future in self._parked.values():
            future.cancel(LEFT)
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.cancel()
            await asyncio.wait({watch})

    # The watching task

    async def _until_nothing_works(self) -> None:
        try:
            await self._watching()
        except asyncio.CancelledError:
            raise
        except Exception as error:  # noqa: BLE001  for example a lost database: the waiting tasks must hear of it
            self._stop_waiting(error)
        finally:
            self._watch = None

    async def _watching(self) -> None:
        loop = asyncio.get_running_loop()
        looked = loop.time()
        while self._parked:
            if await self._nothing_works():
                if await self._resume_answered():
                    continue
                self._stop_waiting(self._around.stop(AnswersNeeded(self._parked)))
                await self._cancel_if_stuck()
                return
            if self._around.works() and not self._reported:
                self._reported = True
                self._around.waits_on(tuple(self._parked))
            await asyncio.sleep(BUSY_S)
            if loop.time() - looked >= LOOK_S:
                looked = loop.time()
                await self._resume_answered()

    async def _nothing_works(self) -> bool:
        before = self._state()
        for _ in range(_TURNS):
            await asyncio.sleep(0)
        if self._around.works() or self._state() != before:
            return False
        if set(self._tasks.values()) != {self._main}:
            await asyncio.sleep(SETTLE_S)
        return bool(self._parked) and not self._around.works() and self._state() == before

    async def _cancel_if_stuck(self) -> None:
        """Cancel a workflow that does not end by itself, for example because it waits for a queue whose worker task
        was unwound. `end` cancels this coroutine."""
        while self._main is not None:
            before = self._state()
            await asyncio.sleep(UNWIND_S)
            if not self._around.works() and self._state() == before:
                self._main.cancel()

    def _state(self) -> object:
        return self._around.pulse(), tuple(self._parked)

    async def _resume_answered(self) -> bool:
        """Resume the tasks whose questions were answered; return whether there were any."""
        found = await self._around.look()
        self._answers.update(found)
        answered = [key for key in self._parked if key in found]
        for key in answered:
            future = self._parked[key]
            if not future.done():
                future.set_result(found[key])
        return bool(answered)

    def _stop_waiting(self, error: BaseException) -> None:
        for key, future in self._parked.items():
            if future.done():
                continue
            future.set_exception(AnswersNeeded(error.keys) if isinstance(error, AnswersNeeded) else error)
            task = self._tasks[key]
            if task is not None:
                task.add_done_callback(_retrieve_exception)


def _retrieve_exception(task: asyncio.Task[Any]) -> None:
    """Retrieve the task's exception, so that asyncio does not log it: the run reports it."""
    if not task.cancelled():
        task.exception()
