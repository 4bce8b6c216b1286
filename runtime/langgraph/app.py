"""A compiled graph over worlds: LangGraph's own class and interface, its nodes and channels instrumented.

Not supported yet, and refused with `UnsupportedGraph` before it can lose a file:
- a node that is, or calls, a graph with checkpoints of its own (with `checkpointer=False` it runs, as one step);
- LangGraph `@task`s called in a node, and `CachePolicy` (its key does not see the world);
- `durability="exit"` with a checkpointer (the journal would be ahead of the checkpoints);
- nodes under `@step` that declare `retry`, `timeout` or `reuse`: LangGraph has its own of the first two.
Editing the world by `update_state` is not there either: an update keeps the files as they are.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import aclosing
from types import TracebackType
from typing import Any, Self

from langchain_core.runnables import Runnable, RunnableConfig
from langgraph._internal._config import merge_configs, patch_configurable
from langgraph._internal._constants import CONF, CONFIG_KEY_CHECKPOINT_ID, CONFIG_KEY_DURABILITY, CONFIG_KEY_THREAD_ID
from langgraph._internal._runnable import RunnableCallable, coerce_to_runnable
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.constants import START
from langgraph.graph.state import CompiledStateGraph
from langgraph.pregel import Pregel
from langgraph.pregel._read import PregelNode
from langgraph.pregel._write import ChannelWrite

from ramify.runtime.langgraph.channel import ENV, Env, EnvChannel
from ramify.runtime.langgraph.errors import LangGraphChanged, UnsupportedGraph
from ramify.runtime.langgraph.node import StartWrite, WorldNode
from ramify.runtime.langgraph.reading import INVOCATION
from ramify.runtime.langgraph.session import Invocation, Session


class WorldGraph(CompiledStateGraph[Any, Any, Any, Any]):
    """What `ramify.compile` returns. Close it, or use it as a context manager: worlds are processes.

    One that is never closed ends with its process: no world and no engine outlives it.
    """

    def __init__(self, *, session: Session, **fields: Any) -> None:
        super().__init__(**fields)
        self.session = session

    def close(self) -> None:
        """End every world, the model's engine and the database connections. Safe to call twice."""
        self.session.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.close)

    def stream(self, input: Any, config: RunnableConfig | None = None, **options: Any) -> Iterator[Any]:
        """As LangGraph's. Raises `NodesConflict` where siblings changed the same thing."""
        config, invocation = self._invocation(config, options)
        outcome: BaseException | None = None
        try:
            yield from super().stream(input, config, **options)
        except BaseException as error:
            outcome = error
            raise
        finally:
            if invocation.calls:
                self.session.portal.wait(self.session.end(invocation, outcome))

    async def astream(self, input: Any, config: RunnableConfig | None = None, **options: Any) -> AsyncIterator[Any]:
        """As LangGraph's. Raises `NodesConflict` where siblings changed the same thing."""
        config, invocation = self._invocation(config, options)
        outcome: BaseException | None = None
        try:
            async with aclosing(super().astream(input, config, **options)) as chunks:  # type: ignore[type-var]
                async for chunk in chunks:
                    yield chunk
        except BaseException as error:
            outcome = error
            raise
        finally:
            if invocation.calls:
                await self.session.portal.cross(self.session.end(invocation, outcome))

    def _invocation(
        self, config: RunnableConfig | None, options: Mapping[str, Any]
    ) -> tuple[RunnableConfig | None, Invocation]:
        merged = merge_configs(self.config, config)
        conf = merged.get(CONF, {})
        saver = self._resolve_checkpointer(merged)
        if saver is not None and "exit" in (options.get("durability"), conf.get(CONFIG_KEY_DURABILITY)):
            raise UnsupportedGraph(
                "durability='exit' saves checkpoints only at the end, so a killed run could not be taken up again: "
                "use 'sync' or 'async'"
            )
        thread = conf.get(CONFIG_KEY_THREAD_ID)
        invocation = Invocation(
            None if thread is None else str(thread), addressed=bool(conf.get(CONFIG_KEY_CHECKPOINT_ID))
        )
        if saver is not None and not conf:
            return config, invocation  # LangGraph says what is missing
        return patch_configurable(config, {INVOCATION: invocation}), invocation


def instrument(graph: CompiledStateGraph[Any, Any, Any, Any], session: Session) -> WorldGraph:
    """The graph over worlds; the one given stays as it is. Raises `UnsupportedGraph`."""
    if graph.cache_policy is not None:
        raise _cached("the graph")
    nodes = {name: _instrumented(name, node, graph, session) for name, node in graph.nodes.items()}
    fields = {name: value for name, value in vars(graph).items() if name not in ("__orig_class__", "session")}
    fields |= {"nodes": nodes, "channels": {**graph.channels, ENV: EnvChannel()}}
    return WorldGraph(session=session, **fields)


def _instrumented(
    name: str, node: PregelNode, graph: CompiledStateGraph[Any, Any, Any, Any], session: Session
) -> PregelNode:
    if name == START:
        return _start(node, session)
    if node.cache_policy is not None:
        raise _cached(f"node {name!r}")
    keeps = isinstance(graph.checkpointer, BaseCheckpointSaver)
    if keeps and isinstance(node.bound, Pregel) and node.bound.checkpointer is not False:
        raise UnsupportedGraph(
            f"node {name!r} is a graph, whose own checkpoints do not hold the world yet: compile it with "
            "checkpointer=False (it then runs as one step), or add its nodes to this graph"
        )
    return node.copy({"bound": WorldNode(name, _plain(name, node.bound), session)})


def _start(node: PregelNode, session: Session) -> PregelNode:
    first, *rest = node.flat_writers
    if not isinstance(first, ChannelWrite):
        raise LangGraphChanged("first write of its input")
    return node.copy({"writers": [StartWrite(first, session), *rest]})


def _plain(name: str, bound: Runnable[Any, Any]) -> Runnable[Any, Any]:
    """A function under `@step` is a node like any other: its declared effect is in the plan."""
    step = getattr(bound, "func", None) if isinstance(bound, RunnableCallable) else None
    definition = getattr(step, "definition", None)
    if definition is None or not hasattr(step, "__ramify_step__"):
        return bound
    if definition.retry or definition.timeout is not None or definition.reuse:
        raise UnsupportedGraph(
            f"node {name!r} is a step that declares retry, timeout or reuse, which is for workflows: give add_node "
            "a retry_policy or a timeout"
        )
    return coerce_to_runnable(step.__wrapped__, name=name, trace=False)  # type: ignore[union-attr]


def _cached(what: str) -> UnsupportedGraph:
    return UnsupportedGraph(
        f"{what} has a CachePolicy, whose key does not see the world: a hit would skip what the node does to files. "
        "Take it out"
    )


def env_at(graph: WorldGraph, config: RunnableConfig) -> Env | None:
    """The channel's value at a checkpoint, None before the thread's first node."""
    saved = graph._state_checkpointer(config).get_tuple(merge_configs(graph.config, config))
    if saved is None:
        raise UnsupportedGraph(f"there is no checkpoint at {config.get(CONF)}")
    return saved.checkpoint["channel_values"].get(ENV)
