"""A node as LangGraph runs it over worlds: the user's code, on the world of its task.

`invoke` and `ainvoke` differ only in how they wait for the portal. The user's code runs as LangGraph runs it in a
plain graph, so that traces and event streams are the same: a sequence runs step by step, each step under its number,
and if somebody listens to events, the steps run as streams.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, aclosing
from typing import Any

from langchain_core.callbacks import BaseCallbackManager
from langchain_core.runnables import Runnable, RunnableConfig
from langchain_core.runnables.base import RunnableSequence
from langchain_core.runnables.config import patch_config, var_child_runnable_config
from langgraph.constants import START
from langgraph.types import CachePolicy

from ramify.compiler.plan import Effect
from ramify.runtime.langgraph.compat import (
    CONF,
    CONFIG_KEY_SEND,
    CONFIG_KEY_TASK_ID,
    ChannelWrite,
    RunnableCallable,
    RunnableSeq,
    identifier,
    patch_configurable,
)
from ramify.runtime.langgraph.node import node_outside_graph
from ramify.runtime.langgraph.node.nested_graphs import Instrument
from ramify.runtime.langgraph.node.node_execution import NodeExecution
from ramify.runtime.langgraph.node.task_calls import Call
from ramify.runtime.langgraph.node.task_config import INVOCATION, Reading, is_run, read
from ramify.runtime.langgraph.thread.positions import ENV, StoredPosition
from ramify.runtime.langgraph.thread.session import Session
from ramify.runtime.user_code.sandbox import node_sandbox_parameter, sandbox_parameter


class Code:
    """The runnable that the user gave to `add_node`; a sequence is unpacked.

    Graphs and tasks that the code calls without a config use the ambient one, which is set while it runs."""

    def __init__(self, bound: Runnable[Any, Any]) -> None:
        steps = bound.steps if isinstance(bound, RunnableSequence | RunnableSeq) else [bound]
        self._first, self._rest = steps[0], steps[1:]

    @property
    def is_function(self) -> bool:
        """Whether it is one function."""
        return not self._rest and isinstance(self._first, RunnableCallable)

    @property
    def places(self) -> list[Runnable[Any, Any]]:
        """Placeholders for every step but the first, so that the writes after them keep their numbers. The first
        place runs all steps."""
        return [_PassThrough() for _ in self._rest]

    def run(self, value: Any, config: RunnableConfig, extra: dict[str, Any], *, streamed: bool) -> Any:
        """Run the steps. `extra` holds keyword arguments for the first step. If `streamed`, each step gets the chunks
        of the one before."""
        token = var_child_runnable_config.set(config)
        try:
            if streamed:
                chunks = self._first.stream(value, config, **extra)
                for number, step in enumerate(self._rest, 2):
                    chunks = step.transform(chunks, _numbered(config, number))
                return _joined(list(chunks))
            value = self._first.invoke(value, config, **extra)
            for number, step in enumerate(self._rest, 2):
                value = step.invoke(value, _numbered(config, number))
        finally:
            var_child_runnable_config.reset(token)
        return value

    async def arun(self, value: Any, config: RunnableConfig, extra: dict[str, Any], *, streamed: bool) -> Any:
        """The async counterpart of `run`."""
        token = var_child_runnable_config.set(config)
        try:
            if streamed:
                return await self._astreamed(value, config, extra)
            value = await self._first.ainvoke(value, config, **extra)
            for number, step in enumerate(self._rest, 2):
                value = await step.ainvoke(value, _numbered(config, number))
        finally:
            var_child_runnable_config.reset(token)
        return value

    async def _astreamed(self, value: Any, config: RunnableConfig, extra: dict[str, Any]) -> Any:
        async with AsyncExitStack() as stack:
            chunks: AsyncIterator[Any] = self._first.astream(value, config, **extra)
            _closed_by(stack, chunks)
            for number, step in enumerate(self._rest, 2):
                chunks = step.atransform(chunks, _numbered(config, number))
                _closed_by(stack, chunks)
            return _joined([chunk async for chunk in chunks])


class _PassThrough(Runnable[Any, Any]):
    def invoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        return input

    async def ainvoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        return input


def _closed_by(stack: AsyncExitStack, chunks: Any) -> None:
    if hasattr(chunks, "aclose"):
        stack.push_async_callback(chunks.aclose)


def _joined(chunks: list[Any]) -> Any:
    """Combine the chunks of a stream as a sequence does: their sum, or the last one if they cannot be added."""
    whole, *rest = chunks or [None]
    for chunk in rest:
        try:
            whole = whole + chunk
        except TypeError:
            whole = chunk
    return whole


def _numbered(config: RunnableConfig, number: int) -> RunnableConfig:
    """Return the first step's config with the number of another step."""
    manager = config.get("callbacks")
    if not isinstance(manager, BaseCallbackManager):
        return config
    mine = manager.copy()
    mine.remove_tags(["seq:step:1"])
    mine.add_tags([f"seq:step:{number}"], inherit=False)
    return patch_config(config, callbacks=mine)


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
        return self._run_task(self._read(config), input, config, kwargs, streamed=False)

    def stream(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Iterator[Any]:
        if self._is_outside(config):
            yield from node_outside_graph.stream(self, input, config, kwargs)
        else:
            yield self._run_task(self._read(config), input, config, kwargs, streamed=True)

    async def ainvoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        if self._is_outside(config):
            return await node_outside_graph.ainvoke(self, input, config, kwargs)
        return await self._arun_task(self._read(config), input, config, kwargs, streamed=False)

    async def astream(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> AsyncIterator[Any]:
        if self._is_outside(config):
            async with aclosing(node_outside_graph.astream(self, input, config, kwargs)) as chunks:
                async for chunk in chunks:
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
    conf[CONFIG_KEY_SEND]([(ENV, env), *sent])
    del conf[INVOCATION].unsent[conf[CONFIG_KEY_TASK_ID]]


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
