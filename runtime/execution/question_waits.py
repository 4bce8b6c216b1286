"""The questions that one process of a run has met: which of them wait for a person, and when the run waits with them.

A question without an answer parks its task. The other tasks of the workflow go on: steps that have begun are not
stopped, and further questions are met. When nothing of the run works any more, every parked task gets `Asked`, which
unwinds the workflow, and the run waits with all of its questions. An answer that a person stores meanwhile is picked
up, and its task goes on.

An answer is bound to the key of its question, so the order in which a replay meets the questions does not matter.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

LOOK_S = 0.25
"""How often a run that works while it asks looks for answers."""
BUSY_S = 0.02
"""How often it looks whether it still works."""
SETTLE_S = 0.05
"""How long nothing of a run may happen before it waits, where its workflow has several tasks: one of them may be in
a pause of its own, which nobody else knows of."""
UNWIND_S = 1.0
"""How long a workflow that was told to stop may do nothing before it is cancelled."""
_TURNS = 5  # of the event loop, in which a task that was woken begins what it does next


class Asked(BaseException):
    """Unwinds the workflow. Not an `Exception`: a workflow's own handlers are not meant for it."""

    def __init__(self, keys: Collection[str] = ()) -> None:
        self.keys = tuple(keys)
        super().__init__("the run waits for answers")


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What `Asking` needs of its run.

    `works`: whether an operation of the run is under way. `pulse`: a value that changes with each operation. `stop`:
    nothing new begins from now on; gives the reason, which may be an earlier one. `look`: the answers stored so far.
    `waits_on`: called once where other steps go on while questions wait.
    """

    works: Callable[[], bool]
    pulse: Callable[[], object]
    stop: Callable[[BaseException], BaseException]
    look: Callable[[], Awaitable[Mapping[str, str]]]
    waits_on: Callable[[Collection[str]], None]


class Asking:
    """`answers`: by key, encoded. `asked`: the keys of questions that earlier processes of the run asked, and nobody
    had answered when this process began."""

    def __init__(self, around: Surroundings, *, answers: Mapping[str, str], asked: Collection[str]) -> None:
        self._around = around
        self._answers = dict(answers)
        self._before = frozenset(asked)
        self._met: set[str] = set()
        self._parked: dict[str, asyncio.Future[str]] = {}
        self._tasks: dict[str, asyncio.Task[Any] | None] = {}
        self._watch: asyncio.Task[None] | None = None
        self._main: asyncio.Task[Any] | None = None
        self._told = False

    def begin(self) -> None:
        """The workflow's function is about to be called in the current task."""
        self._main = asyncio.current_task()

    def answer(self, key: str) -> str | None:
        """What a person answered to the question, if anybody has; the question is met."""
        self._met.add(key)
        return self._answers.get(key)

    def is_new(self, key: str) -> bool:
        """Whether no process of the run has written down that it asks this."""
        return key not in self._before

    @property
    def not_met(self) -> list[str]:
        """Questions of earlier processes that this one did not come to."""
        return sorted(self._before - self._met)

    async def wait(self, key: str) -> str:
        """Park this task until a person answers. Raises `Asked`, or what else the run stops with."""
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
        """The workflow is over, whatever its questions. Call it before the run's rows are closed."""
        for future in self._parked.values():
            future.cancel()
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.cancel()
            await asyncio.wait({watch})

    # Below: the task that watches

    async def _until_nothing_works(self) -> None:
        try:
            await self._watching()
        except asyncio.CancelledError:
            raise
        except Exception as error:  # noqa: BLE001  the database is gone: who waits must not wait for ever
            self._raise(error)
        finally:
            self._watch = None

    async def _watching(self) -> None:
        loop = asyncio.get_running_loop()
        looked = loop.time()
        while self._parked:
            if await self._nothing_works():
                if await self._answered():
                    continue
                self._raise(self._around.stop(Asked(self._parked)))
                await self._unwound()
                return
            if self._around.works() and not self._told:
                self._told = True
                self._around.waits_on(tuple(self._parked))
            await asyncio.sleep(BUSY_S)
            if loop.time() - looked >= LOOK_S:
                looked = loop.time()
                await self._answered()

    async def _nothing_works(self) -> bool:
        before = self._state()
        for _ in range(_TURNS):
            await asyncio.sleep(0)
        if self._around.works() or self._state() != before:
            return False
        if set(self._tasks.values()) != {self._main}:
            await asyncio.sleep(SETTLE_S)
        return bool(self._parked) and not self._around.works() and self._state() == before

    async def _unwound(self) -> None:
        """`end` cancels this. A workflow that comes to no end by itself waits for what a task of its own would have
        done, as for a queue whose worker asked: it is cancelled."""
        while self._main is not None:
            before = self._state()
            await asyncio.sleep(UNWIND_S)
            if not self._around.works() and self._state() == before:
                self._main.cancel()

    def _state(self) -> object:
        return self._around.pulse(), tuple(self._parked)

    async def _answered(self) -> bool:
        """Whether somebody answered a question that waits: its task goes on."""
        found = await self._around.look()
        self._answers.update(found)
        answered = [key for key in self._parked if key in found]
        for key in answered:
            future = self._parked[key]
            if not future.done():
                future.set_result(found[key])
        return bool(answered)

    def _raise(self, error: BaseException) -> None:
        for key, future in self._parked.items():
            if future.done():
                continue
            future.set_exception(Asked(error.keys) if isinstance(error, Asked) else error)
            task = self._tasks[key]
            if task is not None:
                task.add_done_callback(_heard)


def _heard(task: asyncio.Task[Any]) -> None:
    """Nobody need await a task that a question ended: the run says so itself."""
    if not task.cancelled():
        task.exception()
