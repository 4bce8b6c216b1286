"""A compiled graph over worlds: LangGraph's own class and interface, its nodes and channels instrumented.

Refused with `UnsupportedGraph`: nodes under `@step` that declare `retry`, `timeout` or `reuse` (LangGraph has its own
of the first two). What differs from a plain graph on purpose is in docs/langgraph.md.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import aclosing, contextmanager
from contextvars import ContextVar
from copy import copy
from types import TracebackType
from typing import Any, Self, TypeVar

from langchain_core.runnables import Runnable, RunnableConfig
from langgraph._internal._config import ensure_config, merge_configs, patch_configurable
from langgraph._internal._constants import (
    CONF,
    CONFIG_KEY_CHECKPOINT_ID,
    CONFIG_KEY_DURABILITY,
    CONFIG_KEY_TASK_ID,
    CONFIG_KEY_THREAD_ID,
)
from langgraph._internal._runnable import RunnableCallable, RunnableSeq, coerce_to_runnable
from langgraph.constants import START
from langgraph.graph.state import CompiledStateGraph
from langgraph.pregel import Pregel
from langgraph.pregel._read import PregelNode
from langgraph.pregel._write import ChannelWrite
from langgraph.types import CachePolicy, StateSnapshot

from ramify.compiler.plan import Effect
from ramify.fork_engine.errors import WorkspaceError
from ramify.runtime.durations import seconds
from ramify.runtime.langgraph.app.instrumentation import give_tools_worlds
from ramify.runtime.langgraph.app.rerun_node import NodeRerunner
from ramify.runtime.langgraph.app.time_travel import fork_at_subgraph_checkpoint, names_subgraph_checkpoint, saved_at
from ramify.runtime.langgraph.checkpointer import Saver
from ramify.runtime.langgraph.errors import (
    InvokedWhileLoaded,
    LangGraphChanged,
    UnsupportedGraph,
    note_unserializable_channel,
)
from ramify.runtime.langgraph.node.nested_graphs import InstrumentedGraph, followed
from ramify.runtime.langgraph.node.task_config import INVOCATION
from ramify.runtime.langgraph.node.world_node import StartWrite, WorldNode, WorldWrite, user_function
from ramify.runtime.langgraph.thread.channels import WorldChannel, placed
from ramify.runtime.langgraph.thread.positions import ENV, StoredPosition
from ramify.runtime.langgraph.thread.session import Invocation, Session

_is_looked_for: ContextVar[bool] = ContextVar("ramify_app_looked_for", default=False)


@contextmanager
def refuse_invocations() -> Iterator[None]:
    """While a user's file is loaded for the apps that it makes: one that it invokes raises `InvokedWhileLoaded`."""
    token = _is_looked_for.set(True)
    try:
        yield
    finally:
        _is_looked_for.reset(token)


DEADLINE = "ramify_deadline"
"""In a config's `configurable`: the deadline of this one invocation, as `ramify.compile` takes it."""


class WorldApp(InstrumentedGraph, Pregel[Any, Any, Any, Any]):
    """What `ramify.compile` returns. Close it, or use it as a context manager: worlds are processes.

    One that is dropped without that ends when memory is collected, and with its process at the latest: no world and
    no engine outlives it.
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
        """As LangGraph's. Raises `NodesConflict` where siblings changed the same thing, `WorkspaceError` where the
        thread begins and its folder cannot be read."""
        if names_subgraph_checkpoint(merge_configs(self.config, config)):
            config = self._forked_inside(config)
        config, invocation = self._invocation(config, options, is_async=False)
        outcome: BaseException | None = None
        try:
            with followed():
                yield from self._of(invocation)._run(input, config, options)
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

    async def astream(self, input: Any, config: RunnableConfig | None = None, **options: Any) -> AsyncIterator[Any]:
        """As LangGraph's. Raises `NodesConflict` where siblings changed the same thing, `WorkspaceError` where the
        thread begins and its folder cannot be read."""
        if names_subgraph_checkpoint(merge_configs(self.config, config)):
            config = await asyncio.to_thread(self._forked_inside, config)
        config, invocation = self._invocation(config, options, is_async=True)
        outcome: BaseException | None = None
        try:
            with followed():
                async with aclosing(self._of(invocation)._arun(input, config, options)) as chunks:
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

    def get_state(self, config: RunnableConfig, *, subgraphs: bool = False) -> StateSnapshot:
        return super(WorldApp, _looking(self)).get_state(config, subgraphs=subgraphs)

    async def aget_state(self, config: RunnableConfig, *, subgraphs: bool = False) -> StateSnapshot:
        return await super(WorldApp, _looking(self)).aget_state(config, subgraphs=subgraphs)

    def _asked(self, config: RunnableConfig | None) -> RunnableConfig:
        """As the caller gave it."""
        given = config or {}
        return {**given, CONF: {key: value for key, value in given.get(CONF, {}).items() if key != INVOCATION}}

    def _forked_inside(self, config: RunnableConfig | None) -> RunnableConfig:
        """The same for the newest checkpoint, which is now a fork that stands where the caller wants to go on."""
        merged = merge_configs(self.config, config)
        fork_at_subgraph_checkpoint(self, merged)
        return {**merged, CONF: {k: v for k, v in merged[CONF].items() if not k.startswith("checkpoint_")}}

    def _run(self, input: Any, config: RunnableConfig | None, options: dict[str, Any]) -> Iterator[Any]:
        return super().stream(input, config, **options)

    def _arun(self, input: Any, config: RunnableConfig | None, options: dict[str, Any]) -> AsyncGenerator[Any]:
        return super().astream(input, config, **options)  # type: ignore[return-value]

    def _of(self, invocation: Invocation) -> Self:
        """This graph, with a channel that the invocation can look into."""
        mine = copy(self)
        mine.channels = {**self.channels, ENV: WorldChannel(made=invocation.made)}
        return mine

    def past(self, config: RunnableConfig) -> NodeRerunner | None:
        """What lost states of a thread are made again from, for who looks at it or edits it."""
        return self._past(ensure_config(self.config, config), None, is_async=False)

    @property
    def has_async_nodes(self) -> bool:
        """Whether the code of one of its nodes runs on a loop only; a thread may go on where its past could not."""
        return _is_async(self)

    def _past(self, merged: RunnableConfig, context: Any, *, is_async: bool) -> NodeRerunner | None:
        saver, thread = self._resolve_checkpointer(merged), merged[CONF].get(CONFIG_KEY_THREAD_ID)
        if saver is None or thread is None or CONFIG_KEY_TASK_ID in merged[CONF]:
            return None  # the last: the thread is that of a graph around it
        return NodeRerunner(self, saver, str(thread), merged, context, is_async=is_async)

    def _invocation(
        self, config: RunnableConfig | None, options: dict[str, Any], *, is_async: bool
    ) -> tuple[RunnableConfig | None, Invocation]:
        if _is_looked_for.get():
            raise InvokedWhileLoaded
        merged = ensure_config(self.config, config)  # with that of what calls, as LangGraph will find it
        conf = merged[CONF]
        saver = self._resolve_checkpointer(merged)
        if saver is not None:
            _raise_durability(options, conf)
        thread = conf.get(CONFIG_KEY_THREAD_ID)
        deadline = conf.get(DEADLINE)
        invocation = Invocation(
            None if thread is None else str(thread),
            addressed=bool(conf.get(CONFIG_KEY_CHECKPOINT_ID)),
            deadline_s=None if deadline is None else seconds(deadline),
            saver=saver if isinstance(saver, Saver) else None,
        )
        invocation.past = self._past(merged, options.get("context"), is_async=is_async)
        if config is not None and DEADLINE in config.get(CONF, {}):  # ours: nobody else is to see it
            config = {**config, CONF: {key: value for key, value in config[CONF].items() if key != DEADLINE}}
        if saver is not None and not conf:
            return config, invocation  # LangGraph says what is missing
        return patch_configurable(config, {INVOCATION: invocation}), invocation


def _is_async(graph: Pregel[Any, Any, Any, Any]) -> bool:
    """Whether a node of it, or of a graph that is a node of it, has code for a loop only."""
    for node in graph.nodes.values():
        bound = node.bound.bound if isinstance(node.bound, WorldNode) else node.bound
        if _is_async(bound) if isinstance(bound, Pregel) else inspect.iscoroutinefunction(user_function(bound)):
            return True
    return False


def _looking(graph: _Graph) -> _Graph:
    """The graph as one looks at its state: in the checkpoints of its subgraphs, whose own objects stay as they are,
    tasks have written where their worlds stand."""
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
    """Checkpoints only at the end would leave a killed run's journal without what it belongs to."""
    if options.get("checkpoint_during") is False and options.get("durability") is None:
        options["checkpoint_during"] = True  # the older name: LangGraph warns of it
    elif "exit" in (options.get("durability"), conf.get(CONFIG_KEY_DURABILITY)):
        options["durability"] = "sync"


def _without_langgraph(error: WorkspaceError) -> WorkspaceError:
    """What is wrong is the caller's folder, before any node ran: a hundred lines of frames say nothing of it."""
    vars(error).pop("__notes__", None)
    return error.with_traceback(None)


class WorldGraph(WorldApp, CompiledStateGraph[Any, Any, Any, Any]):
    """A `StateGraph` over worlds."""


class WorldEntrypoint(WorldApp):
    """A function under LangGraph's `@entrypoint` over worlds."""


def instrument(graph: Pregel[Any, Any, Any, Any], session: Session) -> WorldApp:
    """The graph over worlds; the one given stays as it is. Raises `UnsupportedGraph`."""
    kind = WorldGraph if isinstance(graph, CompiledStateGraph) else WorldEntrypoint
    changes = {
        "nodes": instrumented_nodes(graph, session),
        "channels": {**placed(graph.channels), ENV: WorldChannel()},
        "cache_policy": None,  # LangGraph's key does not see the world: the nodes ask the cache themselves
    }
    return copied(graph, kind, {**changes, "session": session})


_Made = TypeVar("_Made", bound="Pregel[Any, Any, Any, Any]")


def copied(graph: Pregel[Any, Any, Any, Any], kind: type[_Made], changes: dict[str, Any]) -> _Made:
    """A graph like this one, of another class. It keeps the attributes that were set after construction, such as
    those by which LangGraph gives back a state as the Pydantic model or dataclass that it is; `Pregel.copy` does not.
    """
    constructors = [vars(base)["__init__"] for base in kind.__mro__ if "__init__" in vars(base)]
    taken = {name for constructor in constructors for name in _keywords(constructor)}
    given = {name: value for name, value in vars(graph).items() if name in taken}
    made = kind(**{**given, **changes})
    vars(made).update({name: value for name, value in vars(graph).items() if name not in taken})
    return made


def _keywords(constructor: Any) -> set[str]:
    if not inspect.isfunction(constructor):  # object's
        return set()
    kinds = inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD
    return {each.name for each in inspect.signature(constructor).parameters.values() if each.kind in kinds}


def instrumented_nodes(graph: Pregel[Any, Any, Any, Any], session: Session) -> dict[str, PregelNode]:
    starts = START not in graph.nodes  # an entrypoint: its one node takes the input
    policy = graph.cache_policy
    return {name: _instrumented(name, node, session, starts, policy) for name, node in graph.nodes.items()}


def _instrumented(
    name: str, node: PregelNode, session: Session, starts: bool, policy: CachePolicy[Any] | None
) -> PregelNode:
    if name == START:
        return _start(node, session)
    give_tools_worlds(node.bound)
    bound = WorldNode(
        name,
        _plain(name, node.bound),
        session,
        instrumented_nodes,
        starts=starts,
        cache_policy=node.cache_policy or policy,
        declared=_declared(node.bound),
    )
    first, rest = _first_write(node)
    made = node.copy({"bound": bound, "writers": [WorldWrite(first), *rest], "cache_policy": None})
    if (places := bound.code.places) and isinstance(made.node, RunnableSeq):
        made.node.steps[1:1] = places
    return made


def _start(node: PregelNode, session: Session) -> PregelNode:
    first, rest = _first_write(node)
    return node.copy({"writers": [StartWrite(first, session), *rest]})


def _first_write(node: PregelNode) -> tuple[ChannelWrite, list[Runnable[Any, Any]]]:
    first, *rest = node.flat_writers or [ChannelWrite([])]  # a node built by hand may write nothing
    if not isinstance(first, ChannelWrite):
        raise LangGraphChanged("first write of a node")
    return first, rest


def _declared(bound: Runnable[Any, Any]) -> Effect | None:
    """The effect that a node under `@step` declares."""
    definition = getattr(getattr(bound, "func", None), "definition", None)
    effect = getattr(definition, "effect", None)
    return effect if isinstance(effect, Effect) else None


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
    if definition.effect in (Effect.IRREVERSIBLE, Effect.READONLY):
        raise UnsupportedGraph(
            f"node {name!r} is a step that is declared {definition.effect.value}, which only workflows honour: leave "
            "the declaration out, and let the node see to its own effects"
        )
    return coerce_to_runnable(step.__wrapped__, name=name, trace=False)  # type: ignore[union-attr]


def env_at(graph: WorldApp, config: RunnableConfig) -> StoredPosition | None:
    """The channel's value at a checkpoint, None before the thread's first node."""
    return saved_at(graph, config)[1].checkpoint["channel_values"].get(ENV)
