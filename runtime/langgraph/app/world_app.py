"""The compiled graph over worlds: LangGraph's class and interface with instrumented nodes and channels.

Nodes under `@step` that declare `retry`, `timeout` or `reuse` are refused with `UnsupportedGraph`; LangGraph has its
own retry and timeout policies. docs/langgraph.md lists what differs from a plain graph on purpose.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from contextlib import aclosing, contextmanager
from contextvars import ContextVar
from copy import copy
from types import TracebackType
from typing import Any, Self, TypeVar

from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.graph import Graph
from langgraph.graph.state import CompiledStateGraph
from langgraph.pregel import Pregel
from langgraph.types import StateSnapshot, StateUpdate

from ramify.fork_engine.errors import WorkspaceError
from ramify.runtime.durations import seconds
from ramify.runtime.langgraph.app.instrumentation import instrumented_nodes
from ramify.runtime.langgraph.app.rerun_node import NodeRerunner
from ramify.runtime.langgraph.app.time_travel import fork_at_subgraph_checkpoint, names_subgraph_checkpoint, saved_at
from ramify.runtime.langgraph.checkpointer import Saver
from ramify.runtime.langgraph.compat import (
    CONF,
    CONFIG_KEY_CHECKPOINT_ID,
    CONFIG_KEY_CHECKPOINT_NS,
    CONFIG_KEY_DURABILITY,
    CONFIG_KEY_TASK_ID,
    CONFIG_KEY_THREAD_ID,
    checkpointer_of,
    ensure_config,
    merge_configs,
    patch_configurable,
    without_sync,
)
from ramify.runtime.langgraph.errors import InvokedWhileLoaded
from ramify.runtime.langgraph.node.nested_graphs import InstrumentedGraph, intercepted_graphs
from ramify.runtime.langgraph.node.task_config import INVOCATION
from ramify.runtime.langgraph.node.world_node import WorldNode, user_function
from ramify.runtime.langgraph.thread.channels import WorldChannel, instrumented_channels, note_unserializable_channel
from ramify.runtime.langgraph.thread.positions import ENV, StoredPosition
from ramify.runtime.langgraph.thread.session import Invocation, Session

_is_looked_for: ContextVar[bool] = ContextVar("ramify_app_looked_for", default=False)


@contextmanager
def refuse_invocations() -> Iterator[None]:
    """Make invocations raise `InvokedWhileLoaded`, while a user's file is imported to find its apps."""
    token = _is_looked_for.set(True)
    try:
        yield
    finally:
        _is_looked_for.reset(token)


DEADLINE = "ramify_deadline"
"""The key in a config's `configurable` for the deadline of one invocation, in the form that `ramify.compile`
takes."""


class WorldApp(InstrumentedGraph, Pregel[Any, Any, Any, Any]):
    """What `ramify.compile` returns. Close it or use it as a context manager: worlds are processes.

    An app that is not closed ends when it is garbage-collected, and at the latest with its process: no world and no
    engine outlives it.
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
        """Stream as LangGraph does.

        Raises `NodesConflict` if nodes of one superstep changed the same file, `WorkspaceError` if the thread begins
        and its workspace folder cannot be read.
        """
        if names_subgraph_checkpoint(self, merge_configs(self.config, config)):
            config = self._forked_inside(config)
        config, invocation = self._invocation(config, options, is_async=False)
        outcome: BaseException | None = None
        try:
            with intercepted_graphs():
                yield from self.for_invocation(invocation).langgraph_stream(input, config, options)
            if invocation.ran_nothing:
                goes_on = bool(self.get_state(self._asked(config)).next)
                self.session.portal.wait(self.session.caught_up(invocation, goes_on=goes_on))
        except WorkspaceError as error:
            outcome = error
            raise _without_langgraph(error) from None
        except BaseException as error:
            outcome = error
            note_unserializable_channel(error, invocation.loop)
            raise
        finally:
            if invocation.calls:
                self.session.portal.wait(self.session.end(invocation, outcome))
            invocation.loop = None  # they refer to each other: without this, LangGraph's loop would wait for gc

    async def astream(self, input: Any, config: RunnableConfig | None = None, **options: Any) -> AsyncIterator[Any]:
        """Stream as LangGraph does. Raises as `stream`."""
        if names_subgraph_checkpoint(self, merge_configs(self.config, config)):
            config = await asyncio.to_thread(self._forked_inside, config)
        config, invocation = self._invocation(config, options, is_async=True)
        outcome: BaseException | None = None
        try:
            with intercepted_graphs():
                async with aclosing(
                    self.for_invocation(invocation).langgraph_astream(input, config, options)
                ) as chunks:
                    async for chunk in chunks:
                        yield chunk
            if invocation.ran_nothing:
                goes_on = bool((await self.aget_state(self._asked(config))).next)
                await self.session.portal.cross(self.session.caught_up(invocation, goes_on=goes_on))
        except WorkspaceError as error:
            outcome = error
            raise _without_langgraph(error) from None
        except BaseException as error:
            outcome = error
            note_unserializable_channel(error, invocation.loop)
            raise
        finally:
            if invocation.calls:
                await self.session.portal.cross(self.session.end(invocation, outcome))
            invocation.loop = None

    def get_state(self, config: RunnableConfig, *, subgraphs: bool = False) -> StateSnapshot:
        return super(WorldApp, _looking(self)).get_state(config, subgraphs=subgraphs)

    async def aget_state(self, config: RunnableConfig, *, subgraphs: bool = False) -> StateSnapshot:
        return await super(WorldApp, _looking(self)).aget_state(config, subgraphs=subgraphs)

    def bulk_update_state(
        self, config: RunnableConfig, supersteps: Sequence[Sequence[StateUpdate]]
    ) -> RunnableConfig:
        return super(WorldApp, self._updated_at(config)).bulk_update_state(config, supersteps)

    async def abulk_update_state(
        self, config: RunnableConfig, supersteps: Sequence[Sequence[StateUpdate]]
    ) -> RunnableConfig:
        return await super(WorldApp, self._updated_at(config)).abulk_update_state(config, supersteps)

    def _updated_at(self, config: RunnableConfig) -> Self:
        """Return the graph for an update of its state at a checkpoint. A subgraph without the world channel would
        leave the files out of the checkpoint that it writes."""
        return _looking(self) if config.get(CONF, {}).get(CONFIG_KEY_CHECKPOINT_NS) else self

    def get_graph(self, config: RunnableConfig | None = None, *, xray: int | bool = False) -> Graph:
        return super(WorldApp, _drawn(self)).get_graph(config, xray=xray)

    async def aget_graph(self, config: RunnableConfig | None = None, *, xray: int | bool = False) -> Graph:
        return await super(WorldApp, _drawn(self)).aget_graph(config, xray=xray)

    def _asked(self, config: RunnableConfig | None) -> RunnableConfig:
        """Return the config as LangGraph sees it, without our invocation. A node's code that calls this app need not
        pass a config."""
        given = ensure_config(self.config, config)
        return {**given, CONF: {key: value for key, value in given.get(CONF, {}).items() if key != INVOCATION}}

    def _forked_inside(self, config: RunnableConfig | None) -> RunnableConfig:
        """Fork the thread at the subgraph's checkpoint, and return the config for the newest checkpoint, which is the
        fork."""
        merged = merge_configs(self.config, config)
        fork_at_subgraph_checkpoint(self, merged)
        return {**merged, CONF: {k: v for k, v in merged[CONF].items() if not k.startswith("checkpoint_")}}

    def langgraph_stream(self, input: Any, config: RunnableConfig | None, options: dict[str, Any]) -> Iterator[Any]:
        return super().stream(input, config, **options)

    def langgraph_astream(
        self, input: Any, config: RunnableConfig | None, options: dict[str, Any]
    ) -> AsyncGenerator[Any]:
        return super().astream(input, config, **options)  # type: ignore[return-value]

    def for_invocation(self, invocation: Invocation) -> Self:
        """Return this graph with a world channel that the invocation can read."""
        mine = copy(self)
        mine.channels = {**self.channels, ENV: WorldChannel(made=invocation.made)}
        return mine

    def rerunner(self, config: RunnableConfig) -> NodeRerunner | None:
        """Return what reruns nodes to recompute lost states of the thread, for callers that read or edit it."""
        return self._rerunner(ensure_config(self.config, config), None, is_async=False)

    @property
    def has_async_nodes(self) -> bool:
        """Whether the code of a node needs an event loop. A thread that began with a sync graph may have such nodes
        later."""
        return _is_async(self)

    def _rerunner(self, merged: RunnableConfig, context: Any, *, is_async: bool) -> NodeRerunner | None:
        saver, thread = checkpointer_of(self, merged), merged[CONF].get(CONFIG_KEY_THREAD_ID)
        if saver is None or thread is None or CONFIG_KEY_TASK_ID in merged[CONF]:
            return None  # CONFIG_KEY_TASK_ID: the thread belongs to an enclosing graph
        return NodeRerunner(self, saver, str(thread), merged, context, is_async=is_async)

    def _invocation(
        self, config: RunnableConfig | None, options: dict[str, Any], *, is_async: bool
    ) -> tuple[RunnableConfig | None, Invocation]:
        if _is_looked_for.get():
            raise InvokedWhileLoaded
        # merged with the config of an enclosing call, as LangGraph will see it
        merged = ensure_config(self.config, config)
        conf = merged[CONF]
        saver = checkpointer_of(self, merged)
        if saver is not None:
            _raise_durability(options, conf)
        else:
            config = without_sync(config, options)
        thread = conf.get(CONFIG_KEY_THREAD_ID)
        deadline = conf.get(DEADLINE)
        invocation = Invocation(
            None if thread is None else str(thread),
            addressed=bool(conf.get(CONFIG_KEY_CHECKPOINT_ID)),
            deadline_s=None if deadline is None else seconds(deadline),
            saver=saver if isinstance(saver, Saver) else None,
        )
        invocation.rerunner = self._rerunner(merged, options.get("context"), is_async=is_async)
        if config is not None and DEADLINE in config.get(CONF, {}):  # our key: hide it from the graph
            config = {**config, CONF: {key: value for key, value in config[CONF].items() if key != DEADLINE}}
        if saver is not None and not conf:
            return config, invocation  # LangGraph reports what is missing
        return patch_configurable(config, {INVOCATION: invocation}), invocation


def _is_async(graph: Pregel[Any, Any, Any, Any]) -> bool:
    """Tell whether a node of the graph, or of a graph that is one of its nodes, has async code only."""
    for node in graph.nodes.values():
        bound = node.bound.bound if isinstance(node.bound, WorldNode) else node.bound
        if _is_async(bound) if isinstance(bound, Pregel) else inspect.iscoroutinefunction(user_function(bound)):
            return True
    return False


def _drawn(graph: _Graph) -> _Graph:
    """Return a copy of the graph for drawing: it shows the runnables that the user gave, not ours, and of an app that
    is a node the graph that it was made of."""
    drawn = copy(graph)
    drawn.nodes = {
        name: node.copy({"bound": _given(node.bound.bound)}) if isinstance(node.bound, WorldNode) else node
        for name, node in graph.nodes.items()
    }
    return drawn


def _given(bound: Any) -> Any:
    if not isinstance(bound, WorldApp):
        return bound
    return copied(_drawn(bound), CompiledStateGraph if isinstance(bound, WorldGraph) else Pregel, {})


def _looking(graph: _Graph) -> _Graph:
    """Return a copy of the graph for its state. Tasks in its subgraphs' checkpoints wrote to the world channel, so
    the subgraphs are copied with that channel too."""
    looking = copy(graph)
    looking.channels = {ENV: WorldChannel(), **graph.channels}
    looking.stream_channels = graph.stream_channels_asis

    def subgraphs(**options: Any) -> Iterator[tuple[str, Any]]:
        for name, each in graph.get_subgraphs(**options):
            yield name, _looking(each) if isinstance(each, Pregel) else each

    looking.get_subgraphs = subgraphs  # type: ignore[method-assign]
    return looking


_Graph = TypeVar("_Graph", bound="Pregel[Any, Any, Any, Any]")


def _raise_durability(options: dict[str, Any], conf: dict[str, Any]) -> None:
    """Raise durability "exit" to "sync": with checkpoints only at the end, a killed run could not be resumed."""
    if options.get("checkpoint_during") is False and options.get("durability") is None:
        options["checkpoint_during"] = True  # the older name, of which LangGraph warns
    elif "exit" in (options.get("durability"), conf.get(CONFIG_KEY_DURABILITY)):
        options["durability"] = "sync"


def _without_langgraph(error: WorkspaceError) -> WorkspaceError:
    """Remove the traceback: the caller's folder is wrong, before any node ran, and LangGraph's frames would hide
    that."""
    vars(error).pop("__notes__", None)
    return error.with_traceback(None)


class WorldGraph(WorldApp, CompiledStateGraph[Any, Any, Any, Any]):
    """A `StateGraph` over worlds."""


class WorldEntrypoint(WorldApp):
    """A function under LangGraph's `@entrypoint` over worlds."""


def instrument(graph: Pregel[Any, Any, Any, Any], session: Session) -> WorldApp:
    """Return the graph over worlds; the given one stays as it is. Raises `UnsupportedGraph`."""
    kind = WorldGraph if isinstance(graph, CompiledStateGraph) else WorldEntrypoint
    changes = {
        "nodes": instrumented_nodes(graph, session),
        "channels": {**instrumented_channels(graph.channels), ENV: WorldChannel()},
        "cache_policy": None,  # LangGraph's cache key ignores the world: the nodes ask the cache themselves
    }
    return copied(graph, kind, {**changes, "session": session})


_Made = TypeVar("_Made", bound="Pregel[Any, Any, Any, Any]")


def copied(graph: Pregel[Any, Any, Any, Any], kind: type[_Made], changes: dict[str, Any]) -> _Made:
    """Return a graph like this one, of another class.

    The copy keeps attributes that were set after construction, such as those by which LangGraph returns a state as
    its Pydantic model or dataclass. `Pregel.copy` does not keep them.
    """
    constructors = [vars(base)["__init__"] for base in kind.__mro__ if "__init__" in vars(base)]
    taken = {name for constructor in constructors for name in _keywords(constructor)}
    given = {name: value for name, value in vars(graph).items() if name in taken}
    made = kind(**{**given, **changes})
    vars(made).update({name: value for name, value in vars(graph).items() if name not in taken})
    return made


def _keywords(constructor: Any) -> set[str]:
    if not inspect.isfunction(constructor):  # object.__init__
        return set()
    kinds = inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD
    return {each.name for each in inspect.signature(constructor).parameters.values() if each.kind in kinds}


def env_at(graph: WorldApp, config: RunnableConfig) -> StoredPosition | None:
    """Return the world channel's value at a checkpoint; None before the thread's first node."""
    return saved_at(graph, config)[1].checkpoint["channel_values"].get(ENV)
