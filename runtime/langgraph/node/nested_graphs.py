"""Graphs that a node's code calls: their nodes act on forks of the node's world, which is merged back afterwards.

Such a graph may be the node itself, or come out of a closure, a dictionary or another module, so it is intercepted
where it starts: while an app runs, `Pregel.stream` and `Pregel.astream` check whether a node of the app called them.
All other calls go to LangGraph unchanged.

A graph that starts afresh gets the node's world by a write next to the graph's input. After that, the graph's own
checkpoints hold the position: a resumed node calls its graph again, and the graph goes on from there.

If the node's code leaves the stream of a graph before its end (`break`), the node's world gets the files of the nodes
that are done by then. If they conflict with the node's own, the node fails when its code is done.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing, contextmanager, suppress
from copy import copy
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.errors import ParentCommand
from langgraph.pregel import Pregel

from ramify.runtime.langgraph.compat import (
    CONF,
    CONFIG_KEY_THREAD_ID,
    PregelNode,
    checkpointer_of,
    ensure_config,
    patch_configurable,
    without_sync,
)
from ramify.runtime.langgraph.node.task_config import CALLER, INVOCATION
from ramify.runtime.langgraph.thread.attempt import Attempt
from ramify.runtime.langgraph.thread.channels import WorldChannel, instrumented_channels
from ramify.runtime.langgraph.thread.positions import ENV
from ramify.runtime.langgraph.thread.session import Invocation, Session
from ramify.runtime.user_code.scope import scope_here

Instrument = Callable[[Pregel[Any, Any, Any, Any], Session], dict[str, PregelNode]]

_lock = threading.Lock()
_running = 0
_stream, _astream = Pregel.stream, Pregel.astream


class InstrumentedGraph:
    """Marks a graph that is instrumented already, so that it is not instrumented again here."""


class OpenStream:
    """A stream of a graph that a node's code reads. It is closed before the node ends, since the node's world gets
    the graph's files then."""

    __slots__ = ("_chunks", "_ended", "_loop")

    def __init__(self) -> None:
        self._ended: concurrent.futures.Future[None] = concurrent.futures.Future()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._chunks: weakref.ref[Any] | None = None

    def of(self, chunks: Any) -> Any:
        """Return the stream, which lives no longer than in a plain graph."""
        self._chunks = weakref.ref(chunks)
        return chunks

    @contextmanager
    def read_by(self, caller: Caller, loop: asyncio.AbstractEventLoop | None = None) -> Iterator[None]:
        """`loop`: on which an async stream is read."""
        self._loop = loop
        caller.streams.append(self)
        try:
            yield
        finally:
            caller.streams.remove(self)
            self._ended.set_result(None)

    def close(self) -> None:
        chunks = self._chunks() if self._chunks is not None else None
        if self._loop is None and chunks is not None:
            with suppress(Exception):  # such as that another thread reads it
                chunks.close()

    async def aclose(self) -> None:
        if self._loop is not asyncio.get_running_loop():
            self.close()
        elif self._chunks is not None and (chunks := self._chunks()) is not None:
            with suppress(Exception):
                await chunks.aclose()
        else:  # the event loop is about to close it
            await asyncio.wrap_future(self._ended)


class Caller(ABC):
    """The running node, for graphs that its code starts."""

    __slots__ = ()

    session: Session
    streams: list[OpenStream]  # that its code reads

    @property
    @abstractmethod
    def attempt(self) -> Attempt:
        """The attempt at the node."""

    @property
    @abstractmethod
    def instrument(self) -> Instrument:
        """Makes nodes over worlds of a graph's nodes."""

    @abstractmethod
    def fail_at_end(self, error: Exception) -> None:
        """Have the node fail with this error when its code is done."""

    def graph(
        self, graph: Pregel[Any, Any, Any, Any], config: RunnableConfig | None, options: dict[str, Any]
    ) -> tuple[Pregel[Any, Any, Any, Any], RunnableConfig, Invocation]:
        """Return the graph over worlds and its config, for one invocation with these options, which it may change."""
        merged = ensure_config(graph.config, config)
        conf = merged[CONF]
        if checkpointer_of(graph, merged) is None:
            config = without_sync(config, options)
        thread = conf.get(CONFIG_KEY_THREAD_ID)
        invocation = Invocation(None if thread is None else str(thread), addressed=False, within=self.attempt)
        inner = copy(graph)
        inner.nodes = self.instrument(graph, self.session)
        inner.channels = {**instrumented_channels(graph.channels), ENV: WorldChannel(made=invocation.made)}
        inner.cache_policy = None
        return inner, patch_configurable(config, {INVOCATION: invocation}), invocation


@contextmanager
def intercepted_graphs() -> Iterator[None]:
    """Intercept graphs that nodes call, in this process, while at least one caller is inside this block."""
    global _running
    with _lock:
        _running += 1
        if _running == 1:
            Pregel.stream, Pregel.astream = _intercepted_stream, _intercepted_astream  # type: ignore[method-assign]
    try:
        yield
    finally:
        with _lock:
            _running -= 1
            # otherwise somebody wrapped it since: leave the wrapper, ours then passes calls through
            if _running == 0 and Pregel.stream is _intercepted_stream:
                Pregel.stream, Pregel.astream = _stream, _astream  # type: ignore[method-assign]


def _caller(graph: Any, config: RunnableConfig | None) -> Caller | None:
    if isinstance(graph, InstrumentedGraph):
        return None
    # A config that names a thread replaces the node's own, and not only its thread. A node that runs outside of its
    # graph is not in the ambient config, where LangGraph has none.
    found = [(config or {}).get(CONF, {}).get(CALLER), scope_here(), ensure_config(None)[CONF].get(CALLER)]
    return next((each for each in found if isinstance(each, Caller)), None)


@contextmanager
def _keeping_failure(caller: Caller) -> Iterator[None]:
    """Keep an error for the end of the node: nobody would see one that closing a stream raises after `break`."""
    try:
        yield
    except Exception as error:  # noqa: BLE001  # raised when the node ends
        caller.fail_at_end(error)


def _intercepted_stream(self: Any, input: Any, config: RunnableConfig | None = None, **options: Any) -> Iterator[Any]:
    caller = _caller(self, config)
    if caller is None:
        return _stream(self, input, config, **options)
    stream = OpenStream()
    chunks: Iterator[Any] = stream.of(_stream_over_worlds(stream, caller, self, input, config, options))
    return chunks


def _stream_over_worlds(
    stream: OpenStream,
    caller: Caller,
    graph: Any,
    input: Any,
    config: RunnableConfig | None,
    options: dict[str, Any],
) -> Iterator[Any]:
    inner, config, invocation = caller.graph(graph, config, options)
    with stream.read_by(caller):
        try:
            yield from _stream(inner, input, config, **options)
        except GeneratorExit:
            with _keeping_failure(caller):
                if not caller.attempt.is_over:
                    caller.session.portal.wait(invocation.take_back_midway())
            raise
        except ParentCommand:
            caller.session.portal.wait(invocation.take_back())
            raise
        caller.session.portal.wait(invocation.take_back())


def _intercepted_astream(
    self: Any, input: Any, config: RunnableConfig | None = None, **options: Any
) -> AsyncIterator[Any]:
    caller = _caller(self, config)
    if caller is None:
        return _astream(self, input, config, **options)
    stream = OpenStream()
    chunks: AsyncIterator[Any] = stream.of(_astream_over_worlds(stream, caller, self, input, config, options))
    return chunks


async def _astream_over_worlds(
    stream: OpenStream,
    caller: Caller,
    graph: Any,
    input: Any,
    config: RunnableConfig | None,
    options: dict[str, Any],
) -> AsyncIterator[Any]:
    inner, config, invocation = caller.graph(graph, config, options)
    with stream.read_by(caller, asyncio.get_running_loop()):
        try:
            async with aclosing(_astream(inner, input, config, **options)) as chunks:  # type: ignore[type-var]
                async for chunk in chunks:
                    yield chunk
        except GeneratorExit:
            with _keeping_failure(caller):
                if not caller.attempt.is_over:
                    await caller.session.portal.cross(invocation.take_back_midway())
            raise
        except ParentCommand:
            await caller.session.portal.cross(invocation.take_back())
            raise
        await caller.session.portal.cross(invocation.take_back())
