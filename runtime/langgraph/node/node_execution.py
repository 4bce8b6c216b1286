"""One execution of a node: what happens before and after the user's code, and what its code can reach."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from langchain_core.runnables import Runnable, RunnableConfig
from langgraph.errors import GraphBubbleUp, ParentCommand
from langgraph.types import CachePolicy

from ramify.runtime.langgraph.compat import (
    CONF,
    CONFIG_KEY_CALL,
    CONFIG_KEY_READ,
    ROOT,
    tell_cached,
)
from ramify.runtime.langgraph.node.nested_graphs import Caller, Instrument, OpenStream
from ramify.runtime.langgraph.node.node_results import (
    Cached,
    cached,
    leaves,
    packed_result,
    unpacked_result,
    updates_only,
)
from ramify.runtime.langgraph.node.task_calls import Call, Calls
from ramify.runtime.langgraph.node.task_config import CALLER, Reading, without_world_channel
from ramify.runtime.langgraph.thread.attempt import Attempt, Ready
from ramify.runtime.langgraph.thread.graph_run import GraphRun
from ramify.runtime.langgraph.thread.portal import PortalFuture, PortalSandbox
from ramify.runtime.langgraph.thread.positions import StoredPosition
from ramify.runtime.langgraph.thread.session import Session
from ramify.runtime.user_code.call_sites import CallSite
from ramify.runtime.user_code.call_slo import CallSLO
from ramify.runtime.user_code.sandbox import Sandbox, SyncSandbox
from ramify.runtime.user_code.scope import enter, leave, scope_here
from ramify.serving.transport import tag, untag
from ramify.serving.types import ChatRequest, ChatResult


def current_rerun() -> GraphRun | None:
    """Return the run of the calling node, if that node is being run again to recompute its files."""
    scope = scope_here()
    return scope.again if isinstance(scope, NodeExecution) else None


_making = threading.Lock()


class ExecutableNode(Protocol):
    """What an execution needs of the node."""

    name: str
    starts: bool
    handles: bool
    cached_as: str | None
    cache_policy: CachePolicy[Any] | None
    graph_policy: CachePolicy[Any] | None
    call: Call | None
    parameter: str | None
    is_async: bool
    instrument: Instrument

    def task(self, name: str, bound: Runnable[Any, Any], call: Call) -> Runnable[Any, Any]: ...


class NodeExecution(Caller):
    """What runs before and after a node's code, as coroutines for the portal's loop; and in a block for that code,
    what it reaches through `ramify.current_sandbox()` and `ramify.llm`. HTTP clients that it makes there carry the
    run's deadline (serving/transport.py).

    Most nodes ask for nothing of that. So one object is all, and what it leads to is made when it is first asked for.
    """

    __slots__ = (
        "_attempt",
        "_cached",
        "_calls",
        "_conf",
        "_in_turn",
        "_input",
        "_node",
        "_over",
        "_reading",
        "_ready",
        "_scope",
        "_tags",
        "extra",
        "has_begun",
        "served",
        "session",
        "streams",
        "unmerged",
    )

    def __init__(self, session: Session, node: ExecutableNode, reading: Reading, input: Any) -> None:
        self.session = session
        self.streams: list[OpenStream] = []
        self.unmerged: Exception | None = None  # why files of a stream that its code has left could not be merged
        self._input = input
        self._cached: Cached | None = None
        self._node = node
        self._reading = reading
        self._attempt: Attempt | None = None
        self._over = False
        self._ready: Ready | None = None
        if node.call is not None:
            self._ready = node.call.quick(reading.task)
        elif not (node.starts and reading.invocation.within is not None and reading.env is not None):
            self._ready = session.quick(reading.invocation, reading.task, reading.env)
        self._calls: Calls | None = None
        self.served: tuple[Any, StoredPosition | None] | None = None
        self.extra: dict[str, Any] | None = None
        self.has_begun = (
            self._ready is not None
            and node.parameter is None
            and not node.handles
            and (reading.cache is None or node.cache_policy is None)
        )
        """Whether the node's code may start at once; otherwise `begin` has to run first. LangGraph runs an error
        handler that is done again (its issue 9002), so the journal is asked."""

    @property
    def attempt(self) -> Attempt:
        if self._attempt is None:
            with _making:  # threads of the node's code may ask at once
                if self._attempt is None:
                    assert self._ready is not None, "begin comes first"
                    self._attempt = self._ready.attempt(self.session.portal, self._reading.task, self._reading.saved)
                    if self._over:
                        self._attempt.end()
        return self._attempt

    @property
    def instrument(self) -> Instrument:
        return self._node.instrument

    # What the node's code reaches

    def __enter__(self) -> None:
        assert self._ready is not None, "begin comes first"
        self._scope, self._tags = enter(self), tag(self._ready.calls.tags)

    def __exit__(self, *raised: object) -> None:
        untag(self._tags)
        leave(self._scope)

    @property
    def again(self) -> GraphRun | None:
        """The node's run, if the node is being run again to recompute its files; else None."""
        run = self.attempt.run
        return run if run.again is not None else None

    @property
    def sandbox(self) -> Sandbox | None:
        """The node's sandbox, made now if nothing asked for it before. It is async where an event loop runs, else
        blocking."""
        if not self.attempt.has_world:
            return None
        face = self.attempt.face
        if face is None:
            face = self.session.portal.wait(self.attempt.sandbox())
            self._reading.beat()
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return SyncSandbox(face, self.session.portal.loop)  # type: ignore[return-value]  # the blocking face of the same
        return face

    @property
    def id(self) -> str:
        """LangGraph's id of the task."""
        return self._reading.id

    def lent(self, node: ExecutableNode) -> dict[str, Any]:
        """Return the sandbox of this node, for another node that its code runs as a part of it."""
        if node.parameter is None:
            return {}
        face = self.attempt.face
        if face is None:
            face = self.session.portal.wait(self.attempt.sandbox())
            self._reading.beat()  # the start of a world is not idle time
        return self._given(face, node)

    def _given(self, face: PortalSandbox, node: ExecutableNode) -> dict[str, Any]:
        assert node.parameter is not None, "only for a node that takes a sandbox"
        return {node.parameter: face if node.is_async else SyncSandbox(face, self.session.portal.loop)}

    def call_llm(self, requests: list[ChatRequest], site: CallSite, said: CallSLO) -> Awaitable[list[ChatResult]]:
        return PortalFuture(self.session.portal.submit(self.attempt.call_llm(requests, said)))

    # Before and after

    async def begin(self) -> None:
        reading = self._reading
        if self._ready is None and self._node.call is not None:
            self._ready = self._node.call.ready(reading.task)
        elif self._ready is None:
            env = None if self._node.starts and reading.invocation.within is not None else reading.env
            self._ready = await self.session.begin(reading.invocation, reading.task, env)
        attempt = self.attempt
        recorded = await attempt.begin()
        if recorded is not None:
            (kind, packed), env = recorded
            self.served = unpacked_result(reading.serde, kind, packed), env
            return
        try:
            if (again := attempt.run.again) is not None:
                again(self._node, reading.task)
            await self._prepare()
        except BaseException:
            await attempt.dropped()
            raise

    async def _prepare(self) -> None:
        """Prepare what the node's code needs, unless the cache has its result."""
        standing = await self.attempt.stand()
        self._cached = cached(self._reading.cache, self.attempt, standing, self._node, self._input)
        if self._cached is not None and (hit := await self._cached.hit(standing)) is not None:
            self._cached = None
            if (loop := self._reading.invocation.loop) is not None:
                tell_cached(loop, self._reading.id)
            self.served = hit[0], await self._done(hit[0], self._packed(hit[0]))
        elif self._node.parameter is not None:
            self.extra = self._given(await self.attempt.sandbox(), self._node)

    def config(self, config: RunnableConfig | None) -> RunnableConfig:
        """Return the config for the node's own code, by which graphs and tasks that it starts find this node."""
        given: RunnableConfig = {} if config is None else config
        self._conf = conf = given.get(CONF, {})
        self._in_turn = given.get("max_concurrency") is not None
        mine = {**conf, CALLER: self}
        if CONFIG_KEY_CALL in conf:  # a node that runs outside of its graph can call no tasks, as in LangGraph
            mine[CONFIG_KEY_CALL] = self._call_task
        if (read := conf.get(CONFIG_KEY_READ)) is not None:
            mine[CONFIG_KEY_READ] = without_world_channel(read, self._reading.invocation)
        return {**given, CONF: mine}

    def _call_task(self, func: Callable[..., Any], input: Any, **options: Any) -> Any:
        if self._calls is None:
            attempt, node, beat = self.attempt, self._node, self._reading.beat
            with _making:
                if self._calls is None:
                    self._calls = Calls(
                        attempt, node.task, self._conf, node.graph_policy, in_turn=self._in_turn, beat=beat
                    )
        return self._calls(func, input, **options)

    def ended_clean(self, value: Any) -> bool:
        """Tell whether the node returned without having used its world, a model or a task; then nothing else has to
        be done."""
        return self.has_begun and not self._has_calls() and self._end_clean(value)

    def _end_clean(self, value: Any) -> bool:
        if self._attempt is None:
            with _making:
                self._over = self._attempt is None
        if not self._over:
            return self.attempt.end_clean(value)
        assert self._ready is not None, "only where the node's code has begun"
        self._ready.end_clean(self._reading.task, value)
        return True

    def failed_clean(self, error: BaseException) -> bool:
        if not isinstance(error, Exception) or isinstance(error, GraphBubbleUp):
            return False
        return self.has_begun and not self._has_calls() and self.attempt.fail_clean(error)

    def fail_at_end(self, error: Exception) -> None:
        self.unmerged = self.unmerged or error

    def close_streams(self) -> None:
        """Close the streams of graphs that the node's code has left open. Call it on the node's thread."""
        for stream in list(self.streams):
            stream.close()

    async def aclose_streams(self) -> None:
        """The async counterpart of `close_streams`, for the node's event loop."""
        for stream in list(self.streams):
            await stream.aclose()

    def _has_calls(self) -> bool:
        """Tell whether the node called tasks, which may still run."""
        return self._calls is not None and self._calls.made

    async def done(self, value: Any) -> StoredPosition | None:
        """Return the world channel's write for a node that returned."""
        if self._calls is not None:
            try:
                await self._calls.settle()
            except BaseException as error:
                await self.raised(error)
                raise
        if self.has_begun and self._end_clean(value):  # the tasks did not use the world either
            return None
        env = await self._done(value, self._packed(value))
        if self._cached is not None:
            branch = (await self.attempt.stand()).branch
            if not branch.unsealed:
                await self._cached.keep(self._kept(value), branch.snapshot.id)
        if leaves(value):
            self._reading.invocation.left = env
        return env

    async def _done(self, value: Any, packed: tuple[str, bytes] | None) -> StoredPosition | None:
        return await self.attempt.done(value, packed)

    def _kept(self, value: Any) -> Any:
        """Return what the journal and the cache keep of a result."""
        loop = self._reading.invocation.loop
        has_fields = loop is not None and ROOT not in loop.channels
        is_update = has_fields and self._node.call is None and not self._node.starts
        return updates_only(value) if is_update else value

    def _packed(self, value: Any) -> tuple[str, bytes] | None:
        serde = self._reading.serde
        try:
            packed = packed_result(serde, self._kept(value)) if serde is not None else None
        except (TypeError, ValueError):
            # For example an open connection in an UntrackedValue. LangGraph does not keep it either: if LangGraph's
            # own record of the task is lost too, the node runs again.
            return None
        return packed

    async def raised(self, error: BaseException) -> StoredPosition | None:
        """Return the world channel's write for a node that raised; None if it has none."""
        if isinstance(error, ParentCommand):  # the node hands over to the parent graph
            self._reading.invocation.left = env = await self.attempt.done()
            return env
        if isinstance(error, Exception) and not isinstance(error, GraphBubbleUp):
            await self.attempt.failed(error)
        else:
            await self.attempt.dropped()
        if isinstance(error, Exception):
            # stopped by a wrong cache hit whose error the node's code has caught
            self.attempt.run.journal.refuse_when_stopped()
        return None
