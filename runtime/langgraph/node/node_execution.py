"""One execution of a node: what happens before and after the user's code, the node's cache, and what its code can
reach.

**Cache.** LangGraph's cache key is made of the input of a node or `@task` alone. A hit would skip its changes to
files, and a changed file would not be a miss. So LangGraph is not given the `CachePolicy`. The cache is asked here,
with the content of the world in the key, and a hit also brings the files back.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol

from langchain_core.runnables import Runnable, RunnableConfig
from langgraph.cache.base import BaseCache, FullKey
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.errors import GraphBubbleUp, ParentCommand
from langgraph.func import entrypoint
from langgraph.types import CachePolicy, Command
from pydantic import BaseModel

from ramify.fork_engine.errors import SnapshotNotFound
from ramify.runtime.langgraph.checkpointer.serializers import FINAL
from ramify.runtime.langgraph.compat import (
    CACHE_NS_WRITES,
    CONF,
    CONFIG_KEY_CALL,
    CONFIG_KEY_READ,
    ROOT,
    get_cached_annotated_keys,
    get_update_as_tuples,
    patch_configurable,
    tell_cached,
)
from ramify.runtime.langgraph.node.nested_graphs import Caller, Instrument
from ramify.runtime.langgraph.node.task_calls import Call, Calls
from ramify.runtime.langgraph.node.task_config import CALLER, Reading, without_world_channel
from ramify.runtime.langgraph.thread.attempt import Attempt
from ramify.runtime.langgraph.thread.graph_run import GraphRun
from ramify.runtime.langgraph.thread.portal import Portal, PortalFuture
from ramify.runtime.langgraph.thread.positions import StoredPosition
from ramify.runtime.langgraph.thread.session import Session
from ramify.runtime.langgraph.thread.standing_attempt import StandingAttempt
from ramify.runtime.user_code.call_sites import CallSite
from ramify.runtime.user_code.call_slo import CallSLO
from ramify.runtime.user_code.sandbox import Sandbox, SyncSandbox
from ramify.runtime.user_code.scope import enter, leave, scope_here
from ramify.serving.transport import tag, untag
from ramify.serving.types import ChatRequest, ChatResult


@dataclass(frozen=True, slots=True)
class Cached:
    """The cache entry of one attempt at a node or `@task`."""

    cache: BaseCache[Any]
    policy: CachePolicy[Any]
    key: FullKey

    async def hit(self, attempt: StandingAttempt) -> tuple[Any] | None:
        """Return the node's cached result in a tuple and bring its files into the attempt's world; None if the node
        has to run."""
        found = await asyncio.to_thread(self.cache.get, [self.key])
        if self.key not in found:
            return None
        value, snapshot = found[self.key]
        try:
            await attempt.take_back(attempt.start.snapshot.id, snapshot)
        except SnapshotNotFound:  # deleted since, or cached by an app with another home
            return None
        return (value,)

    async def keep(self, value: Any, snapshot: str) -> None:
        """Store the result. Raises what the cache's serialiser raises, as LangGraph does."""
        await asyncio.to_thread(self.cache.set, {self.key: ([value, snapshot], self.policy.ttl)})


def cached(
    cache: BaseCache[Any] | None, attempt: Attempt, standing: StandingAttempt, node: ExecutableNode, input: Any
) -> Cached | None:
    """Return None without a cache, or if the world's content is unknown because processes run in it."""
    policy = node.cache_policy
    world = standing.start.snapshot.content_key if attempt.has_world else "-"
    if cache is None or policy is None or not world or standing.start.unsealed:
        return None
    place: tuple[str, ...]  # what `clear_cache` of the app, of the graph in a node, or of the task deletes
    if node.call is None:
        key, code = policy.key_func(input), attempt.code
        place = CACHE_NS_WRITES, node.cached_as or "__dynamic__", node.name
    else:
        args, kwargs = input
        key, code, place = policy.key_func(*args, **kwargs), node.name, (CACHE_NS_WRITES, node.call.function)
    packed = key if isinstance(key, bytes) else key.encode()
    digest = hashlib.sha256(b"\0".join([world.encode(), code.encode(), packed])).hexdigest()
    return Cached(cache, policy, (place, digest))


class NodeScope:
    """What a node's code reaches through `ramify.current_sandbox()` and `ramify.llm`, in a block for that code. HTTP
    clients that it makes there carry the run's deadline (serving/transport.py)."""

    __slots__ = ("_attempt", "_beat", "_portal", "_scope", "_tags")

    def __init__(self, attempt: Attempt, portal: Portal, beat: Callable[[], None]) -> None:
        """`beat` tells LangGraph that the node is not idle."""
        self._attempt = attempt
        self._portal = portal
        self._beat = beat

    def __enter__(self) -> None:
        self._scope, self._tags = enter(self), tag(self._attempt.calls.tags)

    def __exit__(self, *raised: object) -> None:
        untag(self._tags)
        leave(self._scope)

    @property
    def again(self) -> GraphRun | None:
        """The node's run, if the node is being run again to recompute its files; else None."""
        return self._attempt.run if self._attempt.run.again is not None else None

    @property
    def sandbox(self) -> Sandbox | None:
        """The node's sandbox, made now if nothing asked for it before. It is async where an event loop runs, else
        blocking."""
        if not self._attempt.has_world:
            return None
        face = self._attempt.face
        if face is None:
            face = self._portal.wait(self._attempt.sandbox())
            self._beat()
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return SyncSandbox(face, self._portal.loop)  # type: ignore[return-value]  # the blocking face of the same
        return face

    def call_llm(
        self, requests: list[ChatRequest], site: CallSite, method: str, said: CallSLO
    ) -> Awaitable[list[ChatResult]]:
        return PortalFuture(self._portal.submit(self._attempt.call_llm(requests, said)))


def current_rerun() -> GraphRun | None:
    """Return the run of the calling node, if that node is being run again to recompute its files."""
    scope = scope_here()
    return scope.again if isinstance(scope, NodeScope) else None


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


class NodeExecution:
    """What runs before and after a node's code, as coroutines for the portal's loop."""

    def __init__(self, session: Session, node: ExecutableNode, reading: Reading, input: Any) -> None:
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
        self.has_begun = self._attempt is not None and not caches and node.parameter is None and not node.handles
        """Whether the node's code may start at once; otherwise `begin` has to run first. LangGraph runs an error
        handler that is done again (its issue 9002), so the journal is asked."""

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
            self.served = unpacked_result(reading.serde, kind, packed), env
            return
        try:
            if (again := self._attempt.run.again) is not None:
                again(self._node, reading.task)
            await self._prepare()
        except BaseException:
            await self._attempt.dropped()
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
            face = await self.attempt.sandbox()
            blocking = not self._node.is_async
            self.extra[self._node.parameter] = SyncSandbox(face, self._session.portal.loop) if blocking else face

    def config(self, config: RunnableConfig | None) -> RunnableConfig:
        """Return the config for the node's own code, by which graphs and tasks that it starts find this node."""
        conf = (config or {}).get(CONF, {})
        limit = (config or {}).get("max_concurrency")
        given: dict[str, Any] = {CALLER: Caller(self._session, self.attempt, self._node.instrument)}
        if CONFIG_KEY_CALL in conf:  # a node that runs outside of its graph can call no tasks, as in LangGraph
            given[CONFIG_KEY_CALL] = self._calls = Calls(
                self.attempt, self._node.task, conf, self._node.graph_policy, in_turn=limit is not None
            )
        if (read := conf.get(CONFIG_KEY_READ)) is not None:
            given[CONFIG_KEY_READ] = without_world_channel(read, self._reading.invocation)
        return patch_configurable(config, given)

    def scope(self) -> NodeScope:
        """Return a block for the node's own code."""
        return NodeScope(self.attempt, self._session.portal, self._reading.beat)

    def ended_clean(self, value: Any) -> bool:
        """Tell whether the node returned without having used its world, a model or a task; then nothing else has to
        be done."""
        return self.has_begun and not self._has_calls() and self.attempt.end_clean(value)

    def failed_clean(self, error: BaseException) -> bool:
        if not isinstance(error, Exception) or isinstance(error, GraphBubbleUp):
            return False
        return self.has_begun and not self._has_calls() and self.attempt.fail_clean(error)

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
        if self.has_begun and self.attempt.end_clean(value):  # the tasks did not use the world either
            return None
        env = await self._done(value, self._packed(value))
        if self._cached is not None:
            branch = (await self.attempt.stand()).branch
            if not branch.unsealed:
                await self._cached.keep(self._kept(value), branch.snapshot.id)
        if _leaves(value):
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


def updates_only(value: Any) -> Any:
    """Return a node's result with each Pydantic model replaced by the updates that it stands for. LangGraph's
    serialiser does not keep which fields were set, and a model that comes back writes the others, too."""
    if isinstance(value, BaseModel):
        return dict(get_update_as_tuples(value, get_cached_annotated_keys(type(value))))
    if isinstance(value, Command) and isinstance(value.update, BaseModel):
        return replace(value, update=updates_only(value.update))
    if isinstance(value, list | tuple) and any(isinstance(one, Command) for one in value):
        return [updates_only(one) for one in value]
    return value


def packed_result(serde: SerializerProtocol, value: Any) -> tuple[str, bytes]:
    """Return what a node returned as the journal keeps it: (kind, bytes). Raises what the serialiser raises.

    LangGraph never stores an `entrypoint.final` itself, and its serialiser returns a dictionary for one.
    """
    if not isinstance(value, entrypoint.final):
        return serde.dumps_typed(value)
    kind, packed = serde.dumps_typed([value.value, value.save])
    return f"{FINAL}{kind}", packed


def unpacked_result(serde: SerializerProtocol, kind: str, packed: bytes) -> Any:
    """Return what was given to `packed_result`."""
    if not kind.startswith(FINAL):
        return serde.loads_typed((kind, packed))
    value, save = serde.loads_typed((kind.removeprefix(FINAL), packed))
    return entrypoint.final(value=value, save=save)


def _leaves(value: Any) -> bool:
    """Tell whether a node's result hands over to the parent graph. LangGraph raises `ParentCommand` for it after the
    node."""
    each = value if isinstance(value, list | tuple) else [value]
    return any(isinstance(one, Command) and one.graph is not None for one in each)
