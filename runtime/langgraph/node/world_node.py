"""A node as LangGraph runs it here: its own code, on the world of its task.

`invoke` and `ainvoke` differ only in how they wait for the portal.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

from langchain_core.runnables import Runnable, RunnableConfig
from langgraph._internal._config import patch_configurable
from langgraph._internal._constants import CONF, CONFIG_KEY_CALL, CONFIG_KEY_SEND, CONFIG_KEY_TASK_ID
from langgraph._internal._runnable import RunnableCallable
from langgraph.constants import START
from langgraph.errors import GraphBubbleUp, ParentCommand
from langgraph.pregel._write import ChannelWrite
from langgraph.types import CachePolicy, Command

from ramify.compiler.plan import Effect
from ramify.runtime.langgraph.node.nested_graphs import Caller, Instrument
from ramify.runtime.langgraph.node.node_execution import Cached, cached
from ramify.runtime.langgraph.node.task_calls import Call, Calls
from ramify.runtime.langgraph.node.task_config import CALLER, INVOCATION, Reading, is_run, read
from ramify.runtime.langgraph.node.user_code import Code
from ramify.runtime.langgraph.thread.attempt import Attempt
from ramify.runtime.langgraph.thread.graph_run import GraphRun
from ramify.runtime.langgraph.thread.portal import Crossing, Portal
from ramify.runtime.langgraph.thread.positions import ENV, StoredPosition
from ramify.runtime.langgraph.thread.session import Session
from ramify.runtime.user_code.call_sites import CallSite
from ramify.runtime.user_code.sandbox import Sandbox, SyncSandbox, node_sandbox_parameter, sandbox_parameter
from ramify.runtime.user_code.scope import entered, scope_here
from ramify.serving.transport import tagged
from ramify.serving.types import ChatRequest, ChatResult


class NodeScope:
    """What a node's code reaches by `ramify.current_sandbox()` and `ramify.llm`."""

    def __init__(self, attempt: Attempt, portal: Portal) -> None:
        self._attempt = attempt
        self._portal = portal

    @property
    def again(self) -> GraphRun | None:
        """Its run, where the node is only run again."""
        return self._attempt.run if self._attempt.run.again is not None else None

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


def current_rerun() -> GraphRun | None:
    """The run of the node whose code runs here, where that is only run again."""
    scope = scope_here()
    return scope.again if isinstance(scope, NodeScope) else None


class Running:
    """From before the node's code to after it, as coroutines for the portal."""

    def __init__(self, session: Session, node: WorldNode, reading: Reading, input: Any) -> None:
        self._session = session
        self._input = input
        self._cached: Cached | None = None
        self._node = node
        self._reading = reading
        self._attempt: Attempt | None = None
        if node.call is not None:
            self._attempt = node.call.quick(reading.task, reading.saved)
        elif not (node.starts and reading.invocation.within is not None and reading.env is not None):
            self._attempt = session.quick(reading.invocation, reading.task, reading.env, reading.saved)
        self._calls: Calls | None = None
        self.served: tuple[Any, StoredPosition | None] | None = None
        self.extra: dict[str, Any] = {}
        caches = reading.cache is not None and node.cache_policy is not None
        self.has_begun = self._attempt is not None and not caches and node.parameter is None
        """Whether the node's code may run at once; else `begin` comes first."""

    @property
    def attempt(self) -> Attempt:
        assert self._attempt is not None, "begin comes first"
        return self._attempt

    async def begin(self) -> None:
        reading = self._reading
        if self._attempt is None and self._node.call is not None:
            self._attempt = self._node.call.attempt(reading.task, reading.saved)
        elif self._attempt is None:
            env = None if self._node.starts and reading.invocation.within is not None else reading.env
            self._attempt = await self._session.begin(reading.invocation, reading.task, env, reading.saved)
        recorded = await self._attempt.begin()
        if recorded is not None:
            (kind, packed), env = recorded
            self.served = reading.serde.loads_typed((kind, packed)), env
            return
        try:
            if (again := self._attempt.run.again) is not None:
                again(self._node, reading.task)
            await self._prepare()
        except BaseException:
            await self._attempt.dropped()
            raise

    async def _prepare(self) -> None:
        """What the node needs before its code runs, unless a cache has its result."""
        self._cached = cached(
            self._reading.cache, self._node.cache_policy, self.attempt, self._node._named(), self._input
        )
        if self._cached is not None and (hit := await self._cached.hit(self.attempt)) is not None:
            self._cached = None
            self.served = hit[0], await self._done(hit[0], self._packed(hit[0]))
        elif self._node.parameter is not None:
            face = await self.attempt.sandbox()
            blocking = not self._node.is_async
            self.extra[self._node.parameter] = SyncSandbox(face, self._session.portal.loop) if blocking else face

    def config(self, config: RunnableConfig | None) -> RunnableConfig:
        """For the node's own code: graphs and tasks that it starts find the node by this."""
        conf = (config or {}).get(CONF, {})
        limit = (config or {}).get("max_concurrency")
        self._calls = Calls(self.attempt, self._node.task, conf, in_turn=limit is not None)
        caller = Caller(self._session, self.attempt, self._node.instrument)
        return patch_configurable(config, {CALLER: caller, CONFIG_KEY_CALL: self._calls})

    @contextmanager
    def scope(self) -> Iterator[None]:
        """For the node's own code; a client of its own (serving/transport.py) carries the run's deadline."""
        with entered(NodeScope(self.attempt, self._session.portal)), tagged(self.attempt.calls.tags):
            yield

    def ended_clean(self, value: Any) -> bool:
        """Whether the node returned without having touched anything: then that is all."""
        return self._is_clean() and not self._has_calls() and self.attempt.end_clean(value)

    def failed_clean(self, error: BaseException) -> bool:
        if not isinstance(error, Exception) or isinstance(error, GraphBubbleUp):
            return False
        return self._is_clean() and not self._has_calls() and self.attempt.fail_clean(error)

    def _is_clean(self) -> bool:
        return self.has_begun and not self.attempt.stands

    def _has_calls(self) -> bool:
        """Whether it called tasks, which may not be over."""
        return self._calls is not None and self._calls.made

    async def done(self, value: Any) -> StoredPosition | None:
        """The channel write of a node that returned."""
        if self._calls is not None:
            try:
                await self._calls.settle()
            except BaseException as error:
                await self.raised(error)
                raise
        if self._is_clean() and self.attempt.end_clean(value):  # nor did its tasks ask for anything
            return None
        env = await self._done(value, self._packed(value))
        if self._cached is not None and not self.attempt.branch.unsealed:
            await self._cached.keep(value, self.attempt.branch.snapshot.id)
        if _leaves(value):
            self._reading.invocation.left = env
        return env

    async def _done(self, value: Any, packed: tuple[str, bytes] | None) -> StoredPosition | None:
        return await self.attempt.done(value, packed)

    def _packed(self, value: Any) -> tuple[str, bytes] | None:
        serde = self._reading.serde
        try:
            packed: tuple[str, bytes] | None = serde.dumps_typed(value) if serde is not None else None
        except (TypeError, ValueError):
            # such as an open connection for an UntrackedValue: LangGraph does not keep it either, and if its own
            # record of the task is lost as well, the node runs again
            return None
        return packed

    async def raised(self, error: BaseException) -> StoredPosition | None:
        """The channel write of a node that raised, if it has one."""
        if isinstance(error, ParentCommand):  # the way out of a node that hands over to the graph above
            self._reading.invocation.left = env = await self.attempt.done()
            return env
        if isinstance(error, Exception) and not isinstance(error, GraphBubbleUp):
            await self.attempt.failed(error)
        else:
            await self.attempt.dropped()
        if isinstance(error, Exception):
            self.attempt.run.journal.refuse_when_stopped()  # by a wrong hit, which the node's code has caught
        return None


class WorldNode(Runnable[Any, Any]):
    """Stands where a `PregelNode` has its `bound`."""

    def __init__(
        self,
        name: str,
        bound: Runnable[Any, Any],
        session: Session,
        instrument: Instrument,
        call: Call | None = None,
        *,
        starts: bool = False,
        cache_policy: CachePolicy[Any] | None = None,
        declared: Effect | None = None,
    ) -> None:
        """`call`: it is a `@task` that a node called. `starts`: nothing runs before it, it takes the input itself.
        `declared`: the effect that its code says it has."""
        self.name = name
        self.starts = starts
        self.cache_policy = cache_policy
        self.declared = declared
        self.call = call
        self.instrument = instrument
        self.bound = bound
        self.session = session
        self.code = Code(bound)
        function = user_function(bound)
        named = node_sandbox_parameter if call is None else sandbox_parameter
        self.parameter = named(function) if function is not None else None
        self.is_async = inspect.iscoroutinefunction(function)

    def invoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        return self._run(input, config, kwargs, streamed=False)

    def stream(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Iterator[Any]:
        yield self._run(input, config, kwargs, streamed=True)

    async def ainvoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        return await self._arun(input, config, kwargs, streamed=False)

    async def astream(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> AsyncIterator[Any]:
        yield await self._arun(input, config, kwargs, streamed=True)

    def _run(self, input: Any, config: RunnableConfig | None, kwargs: dict[str, Any], *, streamed: bool) -> Any:
        reading = read(config or {}, self._named(), is_task=self.call is not None)
        wait = self.session.portal.wait
        running = Running(self.session, self, reading, input)
        if not running.has_begun:
            wait(running.begin())
        if running.served is not None:
            value, env = running.served
        else:
            try:
                with running.scope():
                    extra = {**kwargs, **running.extra}
                    value = self.code.run(input, running.config(config), extra, streamed=streamed)
            except BaseException as error:
                if not running.failed_clean(error):
                    self._leave(reading, wait(running.raised(error)))
                raise
            env = None if running.ended_clean(value) else wait(running.done(value))
        self._leave(reading, env)
        return value

    async def _arun(
        self, input: Any, config: RunnableConfig | None, kwargs: dict[str, Any], *, streamed: bool
    ) -> Any:
        reading = read(config or {}, self._named(), is_task=self.call is not None)
        cross = self.session.portal.cross
        await reading.until_saved()
        running = Running(self.session, self, reading, input)
        if not running.has_begun:
            await cross(running.begin())
        if running.served is not None:
            value, env = running.served
        else:
            try:
                with running.scope():
                    extra = {**kwargs, **running.extra}
                    value = await self.code.arun(input, running.config(config), extra, streamed=streamed)
            except BaseException as error:
                if not running.failed_clean(error):
                    self._leave(reading, await cross(running.raised(error)))
                raise
            env = None if running.ended_clean(value) else await cross(running.done(value))
        self._leave(reading, env)
        return value

    def _leave(self, reading: Reading, env: StoredPosition | None) -> None:
        if self.call is None:  # a task's world goes to the node that called it
            _keep(reading, env)

    def task(self, name: str, bound: Runnable[Any, Any], call: Call) -> WorldNode:
        """A task that this node's code calls."""
        return WorldNode(name, bound, self.session, self.instrument, call)

    def _named(self) -> str:
        return self.name or ""


class WorldWrite(ChannelWrite):
    """A node's own write, and after it that of its world. It replaces a `ChannelWrite` by one like it, so that no
    stream and no trace shows a difference. A node whose write fails (no dictionary, a hand-over to the graph above)
    has then written no more than in the plain graph."""

    def __init__(self, first: ChannelWrite) -> None:
        super().__init__(first.writes, tags=first.tags and list(first.tags))

    def _write(self, input: Any, config: RunnableConfig) -> Any:
        super()._write(input, config)
        _send(config)
        return input

    async def _awrite(self, input: Any, config: RunnableConfig) -> Any:
        await super()._awrite(input, config)
        _send(config)
        return input


class StartWrite(WorldWrite):
    """The first write of a graph, and with it where its thread's world begins."""

    def __init__(self, first: ChannelWrite, session: Session) -> None:
        super().__init__(first)
        self._session = session

    def _write(self, input: Any, config: RunnableConfig) -> Any:
        if is_run(config):  # else somebody draws the graph, or updates its state
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
    """Whether a graph that a node's code calls begins without a world. One that stood on an earlier loan does not:
    its channel still says so."""
    invocation = reading.invocation
    return invocation.within is not None and reading.env is None and invocation.lends_later


def _keep(reading: Reading, env: StoredPosition | None) -> None:
    """For `_send`, which comes when the task's other writes are done."""
    if env is not None:
        reading.invocation.unsent[reading.id] = env


def _send(config: RunnableConfig) -> None:
    if not is_run(config):
        return
    conf = config[CONF]
    env = conf[INVOCATION].unsent.pop(conf[CONFIG_KEY_TASK_ID], None)
    if env is not None:
        conf[CONFIG_KEY_SEND]([(ENV, env)])


def _leaves(value: Any) -> bool:
    """Whether a node's result hands over to the graph above, which LangGraph raises after the node."""
    each = value if isinstance(value, list | tuple) else [value]
    return any(isinstance(one, Command) and one.graph is not None for one in each)


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
