"""What a node's config says of the task that runs: the one place that looks inside LangGraph.

LangGraph hands a node its channels by `CONFIG_KEY_READ`, takes its writes by `CONFIG_KEY_SEND`, and gives it, in
`CONFIG_KEY_CALL`, a way to start more tasks: that leads to the loop, which knows the superstep.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph._internal._constants import (
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
)
from langgraph.cache.base import BaseCache
from langgraph.pregel._algo import task_path_str
from langgraph.pregel._loop import PregelLoop

from ramify.runtime.langgraph.errors import LangGraphChanged, UnsupportedGraph
from ramify.runtime.langgraph.thread.graph_run import REPLAY, Task
from ramify.runtime.langgraph.thread.positions import ENV, StoredPosition
from ramify.runtime.langgraph.thread.session import Invocation

INVOCATION = "__pregel_ramify"
"""Where our invocation travels in a config. Keys that begin otherwise leak into debug streams."""

CALLER = "__pregel_ramify_caller"
"""Where the node that runs is found, by the graphs and tasks that its code starts."""


@dataclass(frozen=True, slots=True)
class Reading:
    """A task as its config shows it."""

    invocation: Invocation
    id: str  # LangGraph's, of the task
    task: Task
    env: StoredPosition | None
    saving: concurrent.futures.Future[Any] | asyncio.Future[Any] | None  # until the checkpoint below is durable
    serde: Any
    cache: BaseCache[Any] | None

    @property
    def saved(self) -> concurrent.futures.Future[Any] | None:
        """What is still to be waited for before anything is recorded under the superstep's id: it must not outlive
        the checkpoint. None on a loop, where `until_saved` was awaited."""
        return self.saving if isinstance(self.saving, concurrent.futures.Future) else None

    async def until_saved(self) -> None:
        """On the caller's own loop, before the node's code runs: that may block the loop later, to ask for its
        world."""
        if isinstance(self.saving, asyncio.Future) and not self.saving.done():
            await asyncio.shield(self.saving)


def is_run(config: RunnableConfig) -> bool:
    """Whether an invocation of the app runs here."""
    return INVOCATION in config.get(CONF, {})


def read(config: RunnableConfig, node: str, *, is_task: bool = False) -> Reading:
    """Raises `LangGraphChanged` where something is not where it used to be."""
    conf = config.get(CONF, {})
    loop = _loop(conf)
    loop_ns = conf.get(CONFIG_KEY_CHECKPOINT_NS, "")
    invocation = conf.get(INVOCATION)
    if not isinstance(invocation, Invocation):
        raise UnsupportedGraph(f"node {node!r} was run outside of its app's own invoke, stream or their like")
    invocation.loop = loop
    thread = str(conf.get(CONFIG_KEY_THREAD_ID) or "")
    task_id = conf[CONFIG_KEY_TASK_ID]
    parent_ns = loop_ns.rpartition("|")[0]
    order = _order(invocation, loop)
    info = getattr(conf.get(CONFIG_KEY_RUNTIME), "execution_info", None)
    task = Task(
        node=node,
        key=key_of(conf, invocation, loop),
        superstep=f"{thread}|{parent_ns}|{loop.checkpoint['id']}{_replay(invocation, loop)}",
        index=order.get(task_id, len(order)),
        width=len(order),
        attempt=getattr(info, "node_attempt", 1),
        durable=loop.checkpointer is not None,
        inner=is_task or invocation.within is not None,
    )
    serde = loop.checkpointer.serde if loop.checkpointer is not None else None
    saving = getattr(loop, "_put_checkpoint_fut", None)
    return Reading(invocation, task_id, task, env_of(loop), saving, serde, loop.cache)


def key_of(conf: dict[str, Any], invocation: Invocation, loop: PregelLoop) -> str:
    """The journal's key of a task, by the task's own config."""
    key = f"{conf.get(CONFIG_KEY_THREAD_ID) or ''}|{conf.get(CONFIG_KEY_CHECKPOINT_NS, '')}"
    run = invocation.instead if invocation.within is None else invocation.within.run
    if run is not None and key in run.recorded_keys:
        return run.recorded_keys[key]
    return f"{key}{_replay(invocation, loop)}"


def _replay(invocation: Invocation, loop: PregelLoop) -> str:
    """A key suffix for tasks that LangGraph runs again, under their old ids, on a checkpoint that the caller names.
    With it, the journal does not answer such a task with its earlier result.

    If LangGraph saved a fork of that checkpoint first, the tasks have new ids and need no suffix. A process that goes
    on after a kill finds their results by these ids."""
    return f"{REPLAY}{invocation.number}" if loop.is_replaying and not _has_forked(loop) else ""


def _has_forked(loop: PregelLoop) -> bool:
    """Whether the loop stands on another checkpoint than the one that its caller named."""
    conf = loop.config.get(CONF, {})
    named = conf.get(CONFIG_KEY_CHECKPOINT_MAP, {}).get(conf.get(CONFIG_KEY_CHECKPOINT_NS, ""))
    named = named or conf.get(CONFIG_KEY_CHECKPOINT_ID)
    return named is not None and named != loop.checkpoint["id"]


def _order(invocation: Invocation, loop: PregelLoop) -> dict[str, int]:
    """The tasks of a superstep as their writes will be applied; found once, since each of them asks."""
    checkpoint = loop.checkpoint["id"]
    known, order = invocation.order
    if known != checkpoint:
        tasks = sorted(loop.tasks, key=lambda id: task_path_str(loop.tasks[id].path))
        order = {id: number for number, id in enumerate(tasks)}
        invocation.order = checkpoint, order
    return order


def env_of(loop: PregelLoop) -> StoredPosition | None:
    channel = loop.channels.get(ENV)
    return channel.get() if channel is not None and channel.is_available() else None


def scheduler(conf: dict[str, Any]) -> Callable[..., Any] | None:
    """The loop's `accept_push`. A node with a timeout finds its way to call tasks wrapped in a function."""
    found = conf.get(CONFIG_KEY_CALL)
    inside = [found, *(cell.cell_contents for cell in getattr(found, "__closure__", None) or ())]
    calls = (one for one in inside if isinstance(one, functools.partial))
    return next((call.keywords["schedule_task"] for call in calls if "schedule_task" in call.keywords), None)


def _loop(conf: dict[str, Any]) -> PregelLoop:
    loop = getattr(scheduler(conf), "__self__", None)
    if not isinstance(loop, PregelLoop) or CONFIG_KEY_READ not in conf or CONFIG_KEY_SEND not in conf:
        raise LangGraphChanged("way to its superstep")
    return loop
