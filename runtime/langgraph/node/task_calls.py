"""LangGraph's `@task`s: each runs on a fork of the calling node's world, as that world was at the call.

A task's changes to files appear in the node's world when the node receives the task's result. They do not appear
earlier, while the node's own code works, and do not depend on which task ended first. A finished task does not run
again when its node is resumed: its files come from the journal, found by the task's own key.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import inspect
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any

from langchain_core.runnables import Runnable
from langgraph.types import CachePolicy, PregelExecutableTask

from ramify.runtime.langgraph.compat import CONF, CONFIG_KEY_CALL, RunnableSeq, identifier
from ramify.runtime.langgraph.errors import LangGraphChanged, UnsupportedGraph
from ramify.runtime.langgraph.node.task_config import INVOCATION, key_of, scheduler
from ramify.runtime.langgraph.thread.attempt import Attempt, Ready
from ramify.runtime.langgraph.thread.rewound_checkpointer import restore_task_outcome
from ramify.runtime.langgraph.thread.supersteps import DeferredFork, DeferredPosition, Position, Superstep, Task
from ramify.runtime.worlds.world_pool import Branch

Wrap = Callable[[str, Runnable[Any, Any], "Call"], Runnable[Any, Any]]
"""Turns the runnable of a task into one that runs on a world."""


@dataclass(eq=False, slots=True)
class Call:
    """One call of a task by a node."""

    caller: Attempt
    fork: DeferredFork  # of the caller's world, as it was at the call
    function: str  # by which LangGraph's `clear_cache` of a task finds its cached results
    cache_policy: CachePolicy[Any] | None
    beat: Callable[[], None]  # tells LangGraph that the calling node is not idle
    key: str = ""  # the task's journal key, set when LangGraph has made the task
    name: str = ""
    future: concurrent.futures.Future[Any] | asyncio.Future[Any] | None = None
    taken: bool = False

    def quick(self, task: Task) -> Ready | None:
        """Return what the task begins with if it needs no place in the journal before it first uses its world, else
        None. Any thread may call this."""
        run = self.caller.run
        stands = run.journal.knows(task.key) or run.again is not None or self.fork.made is not None
        return None if task.attempt > 1 or stands else self.ready(task)

    def ready(self, task: Task) -> Ready:
        """Return what the task begins with. Raises `LangGraphChanged` if this is not the task that was made for the
        call."""
        if task.key != self.key:
            raise LangGraphChanged("task identity that stays the same before and during the run")
        caller = self.caller

        async def known() -> Superstep:
            nested = await self.fork.take()
            at = nested.branch.checkpoint
            path = (await caller.stand()).branch.path
            start = Position(path, caller.task.key, nested.state, at)
            return Superstep(
                Branch(path, nested.state, at), start, nested.place, children={task.number: nested.branch}
            )

        return Ready(caller.run, DeferredPosition(caller.place, known), caller.calls, None, caller.run.clock())

    async def take(self) -> None:
        """Merge the task's changes into the caller's world, once."""
        if self.taken:
            return
        self.taken = True
        row = self.caller.run.journal.served(self.key)
        if row is not None and row.snapshot_in is not None and row.snapshot_out is not None:
            await self.caller.take_back(row.snapshot_in, row.snapshot_out)


class Calls:
    """The task calls of one attempt at a node. It replaces the function by which LangGraph lets a node call tasks."""

    def __init__(
        self,
        caller: Attempt,
        wrap: Wrap,
        conf: dict[str, Any],
        policy: CachePolicy[Any] | None,
        *,
        in_turn: bool,
        beat: Callable[[], None],
    ) -> None:
        """`policy` is that of tasks without a cache policy of their own."""
        self._caller = caller
        self._beat = beat
        self._policy = policy
        self._wrap = wrap
        self._conf = conf
        self._original: Callable[..., Any] = conf[CONFIG_KEY_CALL]
        self._in_turn = in_turn
        self._made: list[Call] = []

    def __call__(self, func: Callable[..., Any], input: Any, **options: Any) -> Any:
        """Call a task and return a future of its result, as LangGraph does. The cache is asked when the task runs,
        with its world in the key."""
        wait = self._caller.portal.wait
        fork = self._caller.reserve_fork()
        if self._caller.must_fork_now:
            wait(fork.take())
        policy = options.get("cache_policy") or self._policy
        call = Call(self._caller, fork, identifier(func) or "__dynamic__", policy, self._beat)
        self._made.append(call)
        options |= {"schedule_task": self._scheduler(call), "cache_policy": None}
        made = self._original(func, input, **options)
        call.future = made
        return _chained(made, lambda: wait(call.take()))

    @property
    def made(self) -> bool:
        return bool(self._made)

    async def settle(self) -> None:
        """Wait for tasks whose results the node never asked for, before the node ends."""
        for call in self._made:
            if call.taken or call.future is None:
                continue
            if not call.future.done() and self._in_turn:
                raise UnsupportedGraph(
                    f"node {self._caller.task.node!r} ended before its task {call.name!r}, which may wait for the "
                    "node to end (max_concurrency): take the task's result in the node, or raise max_concurrency"
                )
            if isinstance(call.future, concurrent.futures.Future):
                over = asyncio.wrap_future(call.future)
                # the node's code has seen the error
                over.add_done_callback(lambda it: it.cancelled() or it.exception())
                await asyncio.wait([over])
            else:
                await _settled(call.future)
            if not call.future.cancelled() and call.future.exception() is None:
                await call.take()

    def _scheduler(self, call: Call) -> Callable[..., Any]:
        """Wrap LangGraph's `accept_push`: note which task was made, and let it run on a world."""
        schedule = scheduler(self._conf)
        if schedule is None:
            raise LangGraphChanged("function in a node's config that calls tasks")
        # in a task that calls tasks, ours already scheduled the task
        original: Any = getattr(schedule, "__wrapped__", schedule)

        def accepted(pushed: PregelExecutableTask | None) -> PregelExecutableTask | None:
            if pushed is not None:
                conf = pushed.config[CONF]
                if self._caller.run.again is not None:
                    restore_task_outcome(pushed.writes)
                call.name = pushed.name
                call.key = key_of(conf, conf[INVOCATION], original.__self__)
                object.__setattr__(pushed, "proc", self._over_world(pushed, call))  # LangGraph's dataclass is frozen
            return pushed

        if inspect.iscoroutinefunction(original):

            async def schedule(*args: Any) -> PregelExecutableTask | None:
                return accepted(await original(*args))

            return _bound(schedule, original)
        return _bound(lambda *args: accepted(original(*args)), original)

    def _over_world(self, pushed: PregelExecutableTask, call: Call) -> Runnable[Any, Any]:
        if not isinstance(pushed.proc, RunnableSeq):
            raise LangGraphChanged("task that is a sequence of its function and its write")
        first, *rest = pushed.proc.steps
        return RunnableSeq(
            self._wrap(pushed.name, first, call),
            *rest,
            name=pushed.proc.name,
            trace_inputs=pushed.proc.trace_inputs,
        )


def _bound(schedule: Any, original: Any) -> Callable[..., Any]:
    """Keep the attributes by which a task finds its loop."""
    schedule.__self__, schedule.__wrapped__ = original.__self__, original
    bound: Callable[..., Any] = schedule
    return bound


class _Result(concurrent.futures.Future[Any]):
    """A task's result; taking it brings the task's files into the caller's world. Cancelling it cancels the task."""

    def __init__(self, made: concurrent.futures.Future[Any], take: Callable[[], None]) -> None:
        super().__init__()
        self._made = made
        self._take = take
        made.add_done_callback(self._follow)

    def result(self, timeout: float | None = None) -> Any:
        value = super().result(timeout)
        self._take()
        return value

    def cancel(self) -> bool:
        return self._made.cancel() and super().cancel()  # the first is False if the result has already been set

    def _follow(self, made: concurrent.futures.Future[Any]) -> None:
        if made.cancelled():
            super().cancel()
        if not self.set_running_or_notify_cancel():
            return
        if (error := made.exception()) is not None:
            self.set_exception(error)
        else:
            self.set_result(made.result())


class _AsyncResult(asyncio.Future[Any]):
    """The asyncio counterpart of `_Result`."""

    def __init__(self, made: asyncio.Future[Any], take: Callable[[], None]) -> None:
        super().__init__(loop=made.get_loop())
        self._made = made
        self._take = take
        made.add_done_callback(self._follow)

    def result(self) -> Any:
        value = super().result()
        self._take()
        return value

    def cancel(self, msg: Any | None = None) -> bool:
        """Cancel at once, not by a callback: the task is cancelled as soon as in a plain graph."""
        if self.done() or not (self._made.cancelled() or self._made.cancel(msg)):
            return False
        return super().cancel(msg)

    def __await__(self) -> Generator[Any, None, Any]:
        if not self.done():
            self._asyncio_future_blocking = True
            yield self
        return self.result()

    __iter__ = __await__

    def _follow(self, made: asyncio.Future[Any]) -> None:
        if self.done():
            return
        if made.cancelled():
            super().cancel()
        elif (error := made.exception()) is not None:
            self.set_exception(error)
            if not isinstance(error, Exception):
                self.exception()  # this error ends the node: suppress asyncio's warning that nobody retrieved it
        else:
            self.set_result(made.result())


def _chained(made: Any, take: Callable[[], None]) -> Any:
    return _AsyncResult(made, take) if isinstance(made, asyncio.Future) else _Result(made, take)


async def _settled(future: asyncio.Future[Any]) -> None:
    """Wait on the portal's loop for a future of the caller's loop."""
    over = concurrent.futures.Future[None]()

    def end(_: object) -> None:
        if over.set_running_or_notify_cancel():  # otherwise the waiting task was cancelled
            over.set_result(None)

    future.get_loop().call_soon_threadsafe(future.add_done_callback, end)
    await asyncio.wrap_future(over)
