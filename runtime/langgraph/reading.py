"""What a node's config says of the task that runs: the one place that looks inside LangGraph.

LangGraph hands a node its channels by `CONFIG_KEY_READ`, takes its writes by `CONFIG_KEY_SEND`, and gives it, in
`CONFIG_KEY_CALL`, a way to start more tasks: that leads to the loop, which knows the superstep.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph._internal._config import patch_configurable
from langgraph._internal._constants import (
    CONF,
    CONFIG_KEY_CALL,
    CONFIG_KEY_CHECKPOINT_NS,
    CONFIG_KEY_CHECKPOINTER,
    CONFIG_KEY_READ,
    CONFIG_KEY_RUNTIME,
    CONFIG_KEY_SEND,
    CONFIG_KEY_TASK_ID,
    CONFIG_KEY_THREAD_ID,
)
from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple
from langgraph.pregel._algo import task_path_str
from langgraph.pregel._loop import PregelLoop

from ramify.runtime.langgraph.channel import ENV, Env
from ramify.runtime.langgraph.errors import LangGraphChanged, UnsupportedGraph
from ramify.runtime.langgraph.session import Invocation
from ramify.runtime.langgraph.thread import Task

INVOCATION = "__pregel_ramify"
"""Where our invocation travels in a config. Keys that begin otherwise leak into debug streams."""


@dataclass(frozen=True, slots=True)
class Reading:
    """A task as its config shows it."""

    invocation: Invocation
    task: Task
    env: Env | None
    send: Callable[[list[tuple[str, Any]]], None]
    saved: concurrent.futures.Future[Any] | None  # when the parent checkpoint is durable
    serde: Any


def is_run(config: RunnableConfig) -> bool:
    """Whether an invocation of the app runs here."""
    return INVOCATION in config.get(CONF, {})


def read(config: RunnableConfig, node: str) -> Reading:
    """Raises `LangGraphChanged` where something is not where it used to be."""
    conf = config.get(CONF, {})
    loop = _loop(conf)
    loop_ns = conf.get(CONFIG_KEY_CHECKPOINT_NS, "")
    invocation = conf.get(INVOCATION)
    if not isinstance(invocation, Invocation):
        raise UnsupportedGraph(f"node {node!r} was run outside of its app's own invoke, stream or their like")
    invocation.env = lambda: env_of(loop) if loop.status == "done" else None
    thread = str(conf.get(CONFIG_KEY_THREAD_ID) or "")
    task_id = conf[CONFIG_KEY_TASK_ID]
    parent_ns = loop_ns.rpartition("|")[0]
    tasks = sorted(loop.tasks, key=lambda id: task_path_str(loop.tasks[id].path))  # as their writes are applied
    info = getattr(conf.get(CONFIG_KEY_RUNTIME), "execution_info", None)
    task = Task(
        node=node,
        key=f"{thread}|{loop_ns}",
        superstep=f"{thread}|{parent_ns}|{loop.checkpoint['id']}",
        index=tasks.index(task_id) if task_id in tasks else len(tasks),
        width=len(tasks),
        attempt=getattr(info, "node_attempt", 1),
        durable=loop.checkpointer is not None,
    )
    serde = loop.checkpointer.serde if loop.checkpointer is not None else None
    return Reading(invocation, task, env_of(loop), conf[CONFIG_KEY_SEND], _saved(loop), serde)


def guarded(config: RunnableConfig, node: str) -> RunnableConfig:
    """The config for the node's own code: what would save half of a node, and forget its files, raises instead."""

    def refuse_task(*_: Any, **__: Any) -> Any:
        raise UnsupportedGraph(
            f"node {node!r} called a LangGraph @task: a finished one is not run again on resume, so the files it "
            "changed would be lost. Call a plain function, or make it a node"
        )

    patch: dict[str, Any] = {CONFIG_KEY_CALL: refuse_task}
    if config.get(CONF, {}).get(CONFIG_KEY_CHECKPOINTER):
        patch[CONFIG_KEY_CHECKPOINTER] = RefusingSaver(node)
    return patch_configurable(config, patch)


class RefusingSaver(BaseCheckpointSaver[str]):
    """Lent to graphs that a node calls: their checkpoints would not hold the files."""

    def __init__(self, node: str) -> None:
        super().__init__()
        self._node = node

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        raise UnsupportedGraph(
            f"node {self._node!r} runs a graph with checkpoints of its own, which do not hold the world yet: its "
            "finished nodes would not run again on resume, and their files would be lost. Compile that graph with "
            "checkpointer=False (it then runs as one step), or add its nodes to this one"
        )

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        return self.get_tuple(config)


def env_of(loop: PregelLoop) -> Env | None:
    channel = loop.channels.get(ENV)
    return channel.get() if channel is not None and channel.is_available() else None


def _loop(conf: dict[str, Any]) -> PregelLoop:
    schedule = getattr(conf.get(CONFIG_KEY_CALL), "keywords", {}).get("schedule_task")
    loop = getattr(schedule, "__self__", None)
    if not isinstance(loop, PregelLoop) or CONFIG_KEY_READ not in conf or CONFIG_KEY_SEND not in conf:
        raise LangGraphChanged("way to its superstep")
    return loop


def _saved(loop: PregelLoop) -> concurrent.futures.Future[Any] | None:
    """Done when the checkpoint that the superstep stands on is saved: what is recorded under its id must not
    outlive it. Called on the caller's own loop, if it has one."""
    saving: Any = getattr(loop, "_put_checkpoint_fut", None)
    if saving is None or isinstance(saving, concurrent.futures.Future):
        return saving
    crossed = concurrent.futures.Future[Any]()

    def copy(task: asyncio.Future[Any]) -> None:
        if task.cancelled():
            crossed.cancel()
        elif (error := task.exception()) is not None:
            crossed.set_exception(error)
        else:
            crossed.set_result(None)

    saving.add_done_callback(copy)
    return crossed
