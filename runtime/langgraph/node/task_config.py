"""Read from a node's config which task runs: its place in the journal, its superstep and its loop.

LangGraph gives a node its channels by `CONFIG_KEY_READ`, takes its writes by `CONFIG_KEY_SEND`, and lets it start
tasks by `CONFIG_KEY_CALL`. The last leads to the loop, which knows the superstep.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import functools
from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple

from langchain_core.runnables import RunnableConfig
from langgraph.cache.base import BaseCache

from ramify.runtime.langgraph.compat import (
    CONF,
    CONFIG_KEY_CALL,
    CONFIG_KEY_CHECKPOINT_ID,
    CONFIG_KEY_CHECKPOINT_MAP,
    CONFIG_KEY_CHECKPOINT_NS,
    CONFIG_KEY_READ,
    CONFIG_KEY_RUNTIME,
    CONFIG_KEY_SEND,
    CONFIG_KEY_TASK_ID,
    CONFIG_KEY_THREAD_ID,
    MISSING,
    PregelLoop,
    Saving,
    checkpoint_being_saved,
    task_path_str,
)
from ramify.runtime.langgraph.errors import LangGraphChanged, UnsupportedGraph
from ramify.runtime.langgraph.thread.channels import WorldChannel
from ramify.runtime.langgraph.thread.positions import ENV, StoredPosition
from ramify.runtime.langgraph.thread.session import Invocation
from ramify.runtime.langgraph.thread.supersteps import REPLAY, Task

INVOCATION = "__pregel_ramify"
"""The key in a config for our invocation. Keys with another prefix would appear in debug streams."""

_BEAT_S = 0.02

CALLER = "__pregel_ramify_caller"
"""The key in a config for the running node, read by the graphs and tasks that its code starts."""


class Reading(NamedTuple):
    """A task as its config shows it."""

    invocation: Invocation
    id: str  # LangGraph's task id
    task: Task
    env: StoredPosition | None
    saving: Saving  # done when the superstep's checkpoint is durable
    serde: Any
    cache: BaseCache[Any] | None
    runtime: Any = None  # LangGraph's `Runtime`
    beat_caller: Callable[[], None] | None = None  # `beat` of the node that called this `@task`

    def beat(self) -> None:
        """Tell LangGraph that the task is not idle, if it has an `idle_timeout`: the user's code does nothing while
        its world starts. Nor does the node that waits for this task."""
        if self.runtime is not None:
            self.runtime.heartbeat()
        if self.beat_caller is not None:
            self.beat_caller()

    async def while_alive(self, work: Coroutine[Any, Any, None]) -> None:
        """Do work of ours, during which the task is not idle."""
        doing = asyncio.ensure_future(work)
        try:
            while not (await asyncio.wait([doing], timeout=_BEAT_S))[0]:
                self.beat()
        except BaseException:
            doing.cancel()
            raise
        self.beat()
        doing.result()

    @property
    def saved(self) -> concurrent.futures.Future[Any] | None:
        """The future to wait for before anything is recorded under the superstep's id, which must not outlive the
        checkpoint. None on an event loop, where `until_saved` was awaited."""
        return self.saving if isinstance(self.saving, concurrent.futures.Future) else None

    @property
    def is_being_saved(self) -> bool:
        """Whether `until_saved` would wait."""
        return self.saving is not None and isinstance(self.saving, asyncio.Future) and not self.saving.done()

    async def until_saved(self) -> None:
        """Wait on the caller's loop before the node's code runs: that code may block the loop later, when it asks for
        its world."""
        assert isinstance(self.saving, asyncio.Future), "only where it is being saved"
        await asyncio.shield(self.saving)


def is_run(config: RunnableConfig) -> bool:
    """Tell whether the config belongs to an invocation of the app."""
    return INVOCATION in config.get(CONF, {})


def read(config: RunnableConfig, node: str, *, is_task: bool = False) -> Reading:
    """Read the running task. Raises `LangGraphChanged` if LangGraph's config does not have the expected form."""
    conf = config.get(CONF, {})
    invocation = conf.get(INVOCATION)
    if type(invocation) is not Invocation:
        raise UnsupportedGraph(
            f"node {node!r} was run outside its app: call invoke, stream or their variants on the app"
        )
    if (loop := invocation.loop) is None:  # an invocation has one loop
        loop = invocation.loop = _loop(conf)
    thread, namespace = conf.get(CONFIG_KEY_THREAD_ID) or "", conf.get(CONFIG_KEY_CHECKPOINT_NS, "")
    task_id, checkpoint = conf[CONFIG_KEY_TASK_ID], loop.checkpoint["id"]
    known, order = invocation.order
    if known != checkpoint:
        order = _order(loop)
        invocation.order = checkpoint, order
    replay = _replay(invocation, loop) if loop.is_replaying else ""
    runtime, saver, width = conf.get(CONFIG_KEY_RUNTIME), loop.checkpointer, len(order)
    attempt = getattr(getattr(runtime, "execution_info", None), "node_attempt", 1)
    inner, key = is_task or invocation.within is not None, _key(f"{thread}|{namespace}", invocation, replay)
    superstep, number = f"{thread}|{namespace.rpartition('|')[0]}|{checkpoint}{replay}", order.get(task_id, width)
    task = Task(node, key, superstep, number, width, attempt, saver is not None, inner)
    serde = None if saver is None else saver.serde
    return Reading(invocation, task_id, task, env_of(loop), checkpoint_being_saved(loop), serde, loop.cache, runtime)


def alone(node: str) -> Reading:
    """Return the task of a node that runs outside of its graph: the only one of a superstep, of no thread."""
    task = Task(node=node, key=f"alone|{node}", superstep="alone", number=0, width=1)
    return Reading(Invocation(None, addressed=False), "", task, env=None, saving=None, serde=None, cache=None)


def key_of(conf: dict[str, Any], invocation: Invocation, loop: PregelLoop) -> str:
    """Return the journal key of a task from the task's own config."""
    key = f"{conf.get(CONFIG_KEY_THREAD_ID) or ''}|{conf.get(CONFIG_KEY_CHECKPOINT_NS, '')}"
    return _key(key, invocation, _replay(invocation, loop))


def _key(key: str, invocation: Invocation, replay: str) -> str:
    run = invocation.instead if invocation.within is None else invocation.within.run
    if run is not None and key in run.recorded_keys:
        return run.recorded_keys[key]
    return f"{key}{replay}"


def _replay(invocation: Invocation, loop: PregelLoop) -> str:
    """Return a key suffix for tasks that LangGraph runs again, under their old ids, on a checkpoint that the caller
    names. With it, the journal does not answer such a task with its earlier result.

    If LangGraph saved a fork of that checkpoint first, the tasks have new ids and need no suffix. A process that
    resumes after a kill finds their results by these ids.
    """
    return f"{REPLAY}{invocation.number}" if loop.is_replaying and not _has_forked(loop) else ""


def _has_forked(loop: PregelLoop) -> bool:
    """Tell whether the loop stands on another checkpoint than the one that its caller named."""
    conf = loop.config.get(CONF, {})
    named = conf.get(CONFIG_KEY_CHECKPOINT_MAP, {}).get(conf.get(CONFIG_KEY_CHECKPOINT_NS, ""))
    named = named or conf.get(CONFIG_KEY_CHECKPOINT_ID)
    return named is not None and named != loop.checkpoint["id"]


def _order(loop: PregelLoop) -> dict[str, int]:
    """Return the position of each task of the superstep in the order in which writes are applied. `read` keeps it,
    since every task asks."""
    tasks = list(loop.tasks)
    if len(tasks) > 1:
        tasks.sort(key=lambda id: task_path_str(loop.tasks[id].path))
    return {id: number for number, id in enumerate(tasks)}


def env_of(loop: PregelLoop) -> StoredPosition | None:
    channel = loop.channels.get(ENV)
    if type(channel) is WorldChannel:  # every task asks: without two calls
        return None if channel.value is MISSING else channel.value
    return channel.get() if channel is not None and channel.is_available() else None


def without_world_channel(read: Any, invocation: Invocation) -> Any:
    """Return LangGraph's function that reads a task's channels, for the user's code, which may read all of them: a
    `ToolNode` hands them to its tools as the state."""
    if not isinstance(read, functools.partial) or len(read.args) < 2 or ENV not in read.args[1]:
        return read
    scratchpad, channels = read.args[:2]
    known, shown = invocation.shown  # a loop's tasks all get one and the same dict
    if known is not channels:
        shown = {name: channel for name, channel in channels.items() if name != ENV}
        invocation.shown = channels, shown
    return functools.partial(read.func, scratchpad, shown, *read.args[2:], **read.keywords)


def scheduler(conf: dict[str, Any]) -> Callable[..., Any] | None:
    """Return the loop's `accept_push`. For a node with a timeout, the function that calls tasks is wrapped in another
    one."""
    found = conf.get(CONFIG_KEY_CALL)
    if isinstance(found, functools.partial) and "schedule_task" in found.keywords:
        return found.keywords["schedule_task"]  # type: ignore[no-any-return]
    inside = [found, *(cell.cell_contents for cell in getattr(found, "__closure__", None) or ())]
    calls = (one for one in inside if isinstance(one, functools.partial))
    return next((call.keywords["schedule_task"] for call in calls if "schedule_task" in call.keywords), None)


def _loop(conf: dict[str, Any]) -> PregelLoop:
    call = conf.get(CONFIG_KEY_CALL)
    schedule = call.keywords.get("schedule_task") if type(call) is functools.partial else None
    loop = getattr(schedule or scheduler(conf), "__self__", None)
    if not isinstance(loop, PregelLoop) or CONFIG_KEY_READ not in conf or CONFIG_KEY_SEND not in conf:
        raise LangGraphChanged("way from a node's config to its superstep")
    return loop
