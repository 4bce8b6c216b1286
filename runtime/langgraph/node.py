"""A node as LangGraph runs it here: its own code, on the world of its task.

`invoke` and `ainvoke` differ only in how they wait for the portal.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from langchain_core.runnables import Runnable, RunnableConfig
from langchain_core.runnables.base import RunnableSequence
from langchain_core.runnables.config import var_child_runnable_config
from langgraph._internal._runnable import RunnableCallable, RunnableSeq
from langgraph.errors import GraphBubbleUp, ParentCommand
from langgraph.pregel._write import ChannelWrite

from ramify.runtime.langgraph.attempt import Attempt
from ramify.runtime.langgraph.channel import ENV, Env
from ramify.runtime.langgraph.portal import Crossing, Portal
from ramify.runtime.langgraph.reading import Reading, guarded, is_run, read
from ramify.runtime.langgraph.session import Session
from ramify.runtime.sandbox import Sandbox, SyncSandbox, sandbox_parameter
from ramify.runtime.scope import entered
from ramify.runtime.sites import CallSite
from ramify.serving.types import ChatRequest, ChatResult


class NodeScope:
    """What a node's code reaches by `ramify.current_sandbox()` and `ramify.llm`."""

    def __init__(self, attempt: Attempt, portal: Portal) -> None:
        self._attempt = attempt
        self._portal = portal

    @property
    def sandbox(self) -> Sandbox | None:
        """The world, made now if nobody asked before: awaitable where a loop runs, blocking elsewhere."""
        if not self._attempt.has_world:
            return None
        face = self._attempt.face or self._portal.wait(self._attempt.sandbox())
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return SyncSandbox(face, self._portal.loop)  # type: ignore[return-value]  # the blocking face of the same
        return face

    def call_llm(self, requests: list[ChatRequest], site: CallSite, method: str) -> Awaitable[list[ChatResult]]:
        return Crossing(self._portal.submit(self._attempt.call_llm(requests)))


class Running:
    """From before the node's code to after it, as coroutines for the portal."""

    def __init__(self, session: Session, node: WorldNode, reading: Reading) -> None:
        self._session = session
        self._node = node
        self._reading = reading
        self._attempt: Attempt | None = None
        self.served: tuple[Any, Env] | None = None
        self.extra: dict[str, Any] = {}

    @property
    def attempt(self) -> Attempt:
        assert self._attempt is not None, "begin comes first"
        return self._attempt

    async def begin(self) -> None:
        reading = self._reading
        if reading.saved is not None:
            await asyncio.wrap_future(reading.saved)
        self._attempt = await self._session.begin(reading.invocation, reading.task, reading.env)
        recorded = await self._attempt.begin()
        if recorded is not None:
            (kind, packed), env = recorded
            self.served = reading.serde.loads_typed((kind, packed)), env
        elif self._node.parameter is not None:
            try:
                face = await self._attempt.sandbox()
            except BaseException:
                await self._attempt.dropped()
                raise
            blocking = not self._node.is_async
            self.extra[self._node.parameter] = SyncSandbox(face, self._session.portal.loop) if blocking else face

    def scope(self) -> AbstractContextManager[None]:
        return entered(NodeScope(self.attempt, self._session.portal))

    async def done(self, value: Any) -> Env:
        """The channel write of a node that returned."""
        try:
            packed = self._reading.serde.dumps_typed(value) if self._reading.serde is not None else None
        except (TypeError, ValueError):
            # such as an open connection for an UntrackedValue: LangGraph does not keep it either, and if its own
            # record of the task is lost as well, the node runs again
            packed = None
        return await self.attempt.done("" if value is None else str(value), packed)

    async def raised(self, error: BaseException) -> Env | None:
        """The channel write of a node that raised, if it has one."""
        if isinstance(error, ParentCommand):  # the way out of a node that hands over to the graph above
            return await self.attempt.done()
        if isinstance(error, Exception) and not isinstance(error, GraphBubbleUp):
            await self.attempt.failed(error)
        else:
            await self.attempt.dropped()
        return None


class WorldNode(Runnable[Any, Any]):
    """Stands where a `PregelNode` has its `bound`."""

    def __init__(self, name: str, bound: Runnable[Any, Any], session: Session) -> None:
        self.name = name
        self.bound = bound
        self.session = session
        # a sequence is run step by step, as LangGraph would, which unpacks it: no chain of its own in the traces
        self._steps = list(bound.steps) if isinstance(bound, RunnableSequence | RunnableSeq) else [bound]
        function = user_function(bound)
        self.parameter = sandbox_parameter(function) if function is not None else None
        self.is_async = inspect.iscoroutinefunction(function)

    def invoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        reading = read(config or {}, self._named())
        wait = self.session.portal.wait
        running = Running(self.session, self, reading)
        wait(running.begin())
        if running.served is not None:
            value, env = running.served
        else:
            try:
                with running.scope():
                    value = self._call(input, guarded(config or {}, self._named()), {**kwargs, **running.extra})
            except BaseException as error:
                _send(reading, wait(running.raised(error)))
                raise
            env = wait(running.done(value))
        _send(reading, env)
        return value

    async def ainvoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        reading = read(config or {}, self._named())
        cross = self.session.portal.cross
        running = Running(self.session, self, reading)
        await cross(running.begin())
        if running.served is not None:
            value, env = running.served
        else:
            try:
                with running.scope():
                    value = await self._acall(
                        input, guarded(config or {}, self._named()), {**kwargs, **running.extra}
                    )
            except BaseException as error:
                _send(reading, await cross(running.raised(error)))
                raise
            env = await cross(running.done(value))
        _send(reading, env)
        return value

    def _call(self, value: Any, config: RunnableConfig, extra: dict[str, Any]) -> Any:
        with ambient(config):
            for step in self._steps:
                value = step.invoke(value, config, **extra)
        return value

    async def _acall(self, value: Any, config: RunnableConfig, extra: dict[str, Any]) -> Any:
        with ambient(config):
            for step in self._steps:
                value = await step.ainvoke(value, config, **extra)
        return value

    def _named(self) -> str:
        return self.name or ""


class StartWrite(ChannelWrite):
    """The first write of a graph, and with it where its thread's world begins. A `ChannelWrite` like the one it
    replaces, so that no stream and no trace shows a difference."""

    def __init__(self, first: ChannelWrite, session: Session) -> None:
        super().__init__(first.writes, tags=first.tags and list(first.tags))
        self._session = session

    def _write(self, input: Any, config: RunnableConfig) -> None:
        if is_run(config):  # else somebody draws the graph, or updates its state
            reading = read(config, "__start__")
            _send(reading, self._session.portal.wait(self._start(reading)))
        return super()._write(input, config)

    async def _awrite(self, input: Any, config: RunnableConfig) -> None:
        if is_run(config):
            reading = read(config, "__start__")
            _send(reading, await self._session.portal.cross(self._start(reading)))
        return await super()._awrite(input, config)

    async def _start(self, reading: Reading) -> Env | None:
        return await self._session.start(reading.invocation, reading.task, reading.env)


@contextmanager
def ambient(config: RunnableConfig) -> Iterator[None]:
    """Graphs and tasks that a node calls without a config find this one."""
    token = var_child_runnable_config.set(config)
    try:
        yield
    finally:
        var_child_runnable_config.reset(token)


def _send(reading: Reading, env: Env | None) -> None:
    if env is not None:
        reading.send([(ENV, env)])


def user_function(bound: Runnable[Any, Any]) -> Callable[..., Any] | None:
    """What the user gave to `add_node`, where it is a function, or the method that makes an object one."""
    if not isinstance(bound, RunnableCallable):
        return None
    function: Any = bound.func or bound.afunc
    while isinstance(function, functools.partial):
        function = function.func
    if not inspect.isroutine(function):
        function = function.__call__
    return function if inspect.isfunction(function) or inspect.ismethod(function) else None
