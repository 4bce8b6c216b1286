"""A node as LangGraph runs it over worlds: the user's code, on the world of its task.

`invoke` and `ainvoke` differ only in how they wait for the portal. `app.nodes[name].invoke(state)` runs a node
outside of its graph (`node_outside_graph.py`). With the config of a running node, it runs as a part of that node, on
its world.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing
from typing import Any

from langchain_core.runnables import Runnable, RunnableConfig
from langgraph.checkpoint.base import WRITES_IDX_MAP
from langgraph.constants import START
from langgraph.types import CachePolicy

from ramify.compiler.plan import Effect
from ramify.runtime.langgraph.compat import (
    CONF,
    CONFIG_KEY_SEND,
    CONFIG_KEY_TASK_ID,
    ChannelWrite,
    PregelLoop,
    RunnableCallable,
    identifier,
    patch_configurable,
)
from ramify.runtime.langgraph.node import node_outside_graph
from ramify.runtime.langgraph.node.nested_graphs import Instrument
from ramify.runtime.langgraph.node.node_code import Code
from ramify.runtime.langgraph.node.node_execution import NodeExecution
from ramify.runtime.langgraph.node.task_calls import Call
from ramify.runtime.langgraph.node.task_config import CALLER, INVOCATION, Reading, is_run, read
from ramify.runtime.langgraph.thread.positions import ENV, StoredPosition
from ramify.runtime.langgraph.thread.session import Session
from ramify.runtime.user_code.sandbox import node_sandbox_parameter, sandbox_parameter

Writes = list[tuple[str, Any]]


class WorldNode(Runnable[Any, Any]):
    """Takes the place of `bound` in a `PregelNode`."""

    name: str

    def __init__(
        self,
        name: str,
        bound: Runnable[Any, Any],
        session: Session,
        instrument: Instrument,
        call: Call | None = None,
        *,
        starts: bool = False,
        handles: bool = False,
        cache_policy: CachePolicy[Any] | None = None,
        graph_policy: CachePolicy[Any] | None = None,
        declared: Effect | None = None,
    ) -> None:
        """`call` is set for a `@task` that a node called. `starts`: no node runs before this one, and it takes the
        graph's input itself. `handles`: it handles errors of another node. `graph_policy` is the cache policy of
        `@task`s without one of their own. `declared` is the effect that its code declares."""
        self.name = name
        self.starts = starts
        self.handles = handles
        self.cache_policy = cache_policy
        self.graph_policy = graph_policy
        self.declared = declared
        self.call = call
        self.instrument = instrument
        self.bound = bound
        self.session = session
        self.code = Code(bound)
        self.cached_as = identifier(bound)  # the name by which LangGraph's `clear_cache` finds the node's results
        if self.cached_as is not None:
            self.__module__, _, self.__qualname__ = self.cached_as.rpartition(".")
        function = user_function(bound)
        named = node_sandbox_parameter if call is None else sandbox_parameter
        self.parameter = named(function) if function is not None else None
        self.is_async = inspect.iscoroutinefunction(function)

    def invoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        if self._is_outside(config):
            return node_outside_graph.invoke(self, input, config, kwargs)
        if (caller := _called_by(config)) is not None:
            return self.bound.invoke(input, config, **kwargs, **caller.lent(self))
        return self._run_task(self._read(config), input, config, kwargs, streamed=False)

    def stream(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Iterator[Any]:
        if self._is_outside(config):
            yield from node_outside_graph.stream(self, input, config, kwargs)
        elif (caller := _called_by(config)) is not None:
            yield from self.bound.stream(input, config, **kwargs, **caller.lent(self))
        else:
            yield self._run_task(self._read(config), input, config, kwargs, streamed=True)

    async def ainvoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        if self._is_outside(config):
            return await node_outside_graph.ainvoke(self, input, config, kwargs)
        if (caller := _called_by(config)) is not None:
            return await self.bound.ainvoke(input, config, **kwargs, **caller.lent(self))
        return await self._arun_task(self._read(config), input, config, kwargs, streamed=False)

    async def astream(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> AsyncIterator[Any]:
        if self._is_outside(config):
            async with aclosing(node_outside_graph.astream(self, input, config, kwargs)) as chunks:
                async for chunk in chunks:
                    yield chunk
        elif (caller := _called_by(config)) is not None:
            async for chunk in self.bound.astream(input, config, **kwargs, **caller.lent(self)):
                yield chunk
        else:
            yield await self._arun_task(self._read(config), input, config, kwargs, streamed=True)

    def stream_events(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        return node_outside_graph.with_events(self).stream_events(input, config, **kwargs)

    def astream_events(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        if kwargs.get("version") == "v3":
            return node_outside_graph.with_events(self).astream_events(input, config, **kwargs)
        return super().astream_events(input, config, **kwargs)

    def _is_outside(self, config: RunnableConfig | None) -> bool:
        """Whether the caller runs this node outside of its graph."""
        return self.call is None and not is_run(config or {})

    def _read(self, config: RunnableConfig | None) -> Reading:
        if self.call is None:
            return read(config or {}, self.name)
        return read(config or {}, self.name, is_task=True)._replace(beat_caller=self.call.beat)

    def _run_task(
        self, reading: Reading, input: Any, config: RunnableConfig | None, kwargs: dict[str, Any], *, streamed: bool
    ) -> Any:
        wait = self.session.portal.wait
        running = NodeExecution(self.session, self, reading, input)
        if not running.has_begun:
            wait(running.begin())
        if running.served is not None:
            value, env = running.served
        else:
            try:
                try:
                    with running:
                        extra = kwargs if running.extra is None else {**kwargs, **running.extra}
                        value = self.code.run(input, running.config(config), extra, streamed=streamed)
                finally:
                    if running.streams:
                        running.close_streams()
                if running.unmerged is not None:
                    raise running.unmerged
            except BaseException as error:
                if not running.failed_clean(error):
                    self._leave(reading, wait(running.raised(error)))
                raise
            if running.ended_clean(value):
                return value
            env = wait(running.done(value))
        self._leave(reading, env)
        return value

    async def _arun_task(
        self, reading: Reading, input: Any, config: RunnableConfig | None, kwargs: dict[str, Any], *, streamed: bool
    ) -> Any:
        cross = self.session.portal.cross
        if reading.is_being_saved:
            await reading.until_saved()
        running = NodeExecution(self.session, self, reading, input)
        if not running.has_begun:
            await reading.while_alive(cross(running.begin()))
        if running.served is not None:
            value, env = running.served
        else:
            try:
                try:
                    with running:
                        extra = kwargs if running.extra is None else {**kwargs, **running.extra}
                        value = await self.code.arun(input, running.config(config), extra, streamed=streamed)
                finally:
                    if running.streams:
                        await running.aclose_streams()
                if running.unmerged is not None:
                    raise running.unmerged
            except BaseException as error:
                if not running.failed_clean(error):
                    self._leave(reading, await cross(running.raised(error)))
                raise
            if running.ended_clean(value):
                return value
            env = await cross(running.done(value))
        self._leave(reading, env)
        return value

    def _leave(self, reading: Reading, env: StoredPosition | None) -> None:
        if self.call is None:  # the world of a task goes to the node that called it
            _keep(reading, env)

    def task(self, name: str, bound: Runnable[Any, Any], call: Call) -> WorldNode:
        """Return the node for a task that this node's code calls."""
        made = WorldNode(name, bound, self.session, self.instrument, call, cache_policy=call.cache_policy)
        made.graph_policy = self.graph_policy
        return made


def _called_by(config: RunnableConfig | None) -> NodeExecution | None:
    """Return the running node whose code calls a node with its own config, in place of LangGraph."""
    conf = (config or {}).get(CONF, {})
    caller = conf.get(CALLER)
    return caller if isinstance(caller, NodeExecution) and caller.id == conf.get(CONFIG_KEY_TASK_ID) else None


class WorldWrite(ChannelWrite):
    """A node's own write, with the write to the world channel before it.

    It replaces one `ChannelWrite` by another, so that streams and traces show no difference. If the node's own write
    fails (no dictionary, or a hand-over to the parent graph), the world channel is not written either.

    A checkpointer knows a write by its place among the writes of its task, and keeps the first one of each place. The
    world channel comes first, so that a task that runs again and writes one more channel still finds that place free.
    """

    def __init__(self, first: ChannelWrite) -> None:
        super().__init__(first.writes, tags=first.tags and list(first.tags))

    def _write(self, input: Any, config: RunnableConfig) -> Any:
        if (env := _unsent(config)) is None:
            return super()._write(input, config)
        sent = list[tuple[str, Any]]()
        super()._write(input, _collecting(config, sent))
        _send(config, env, sent)
        return input

    async def _awrite(self, input: Any, config: RunnableConfig) -> Any:
        if (env := _unsent(config)) is None:
            return await super()._awrite(input, config)
        sent = list[tuple[str, Any]]()
        await super()._awrite(input, _collecting(config, sent))
        _send(config, env, sent)
        return input


class StartWrite(WorldWrite):
    """The first write of a graph. It also writes where the thread's world begins."""

    def __init__(self, first: ChannelWrite, session: Session) -> None:
        super().__init__(first)
        self._session = session

    def _write(self, input: Any, config: RunnableConfig) -> Any:
        if is_run(config):  # otherwise the graph is drawn, or its state is updated by hand
            reading = read(config, START)
            if not _begins_later(reading):
                _keep(reading, self._session.portal.wait(self._start(reading)))
        return super()._write(input, config)

    async def _awrite(self, input: Any, config: RunnableConfig) -> Any:
        if is_run(config):
            reading = read(config, START)
            if not _begins_later(reading):
                _keep(reading, await self._session.portal.cross(self._start(reading)))
        return await super()._awrite(input, config)

    async def _start(self, reading: Reading) -> StoredPosition | None:
        return await self._session.start(reading.invocation, reading.task, reading.env)


def _begins_later(reading: Reading) -> bool:
    """Tell whether a graph that a node's code calls begins without a world. A graph that began on an earlier fork
    does not: its channel still holds that position."""
    invocation = reading.invocation
    return invocation.within is not None and reading.env is None and invocation.forks_later


def _keep(reading: Reading, env: StoredPosition | None) -> None:
    """Keep the position for `_send`, which runs after the task's other writes."""
    if env is not None:
        reading.invocation.unsent[reading.id] = env


def _collecting(config: RunnableConfig, sent: Writes) -> RunnableConfig:
    """Return the config for a node's own write, which `_send` passes on."""
    return patch_configurable(config, {CONFIG_KEY_SEND: sent.extend})


def _send(config: RunnableConfig, env: StoredPosition, sent: Writes) -> None:
    conf = config[CONF]
    invocation, task = conf[INVOCATION], conf[CONFIG_KEY_TASK_ID]
    first = not _has_written_without_world(invocation.loop, task)
    conf[CONFIG_KEY_SEND]([(ENV, env), *sent] if first else [*sent, (ENV, env)])
    del invocation.unsent[task]


def _has_written_without_world(loop: PregelLoop | None, task: str) -> bool:
    """Tell whether the checkpointer holds writes of an earlier run of the task, none of them to the world channel. A
    caller who answers an interrupt at an earlier checkpoint runs its tasks again under their old ids."""
    written = [channel for id, channel, _ in (() if loop is None else loop.checkpoint_pending_writes) if id == task]
    return ENV not in written and any(channel not in WRITES_IDX_MAP for channel in written)


def _unsent(config: RunnableConfig) -> StoredPosition | None:
    """Return what `_keep` kept for the running task."""
    conf = config.get(CONF, {})
    if INVOCATION not in conf or not (unsent := conf[INVOCATION].unsent):
        return None
    return unsent.get(conf[CONFIG_KEY_TASK_ID])  # type: ignore[no-any-return]


def user_function(bound: Runnable[Any, Any]) -> Callable[..., Any] | None:
    """Return the function that the user gave to `add_node`, or the `__call__` of an object; None for anything
    else."""
    if not isinstance(bound, RunnableCallable):
        return None
    function: Any = bound.func or bound.afunc
    while isinstance(function, functools.partial):
        function = function.func
    if not inspect.isroutine(function):
        function = function.__call__
    return function if inspect.isfunction(function) or inspect.ismethod(function) else None
