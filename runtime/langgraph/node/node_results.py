"""Results of nodes: as the journal keeps them, and in the node's cache.

LangGraph's cache key is made of the input of a node or `@task` alone. A hit would skip its changes to files, and a
changed file would not be a miss. So LangGraph is not given the `CachePolicy`. The cache is asked here, with the
content of the world in the key, and a hit also brings the files back.
"""

from __future__ import annotations

import asyncio
import hashlib
from dataclasses import dataclass, replace
from typing import Any, Protocol

from langgraph.cache.base import BaseCache, FullKey
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.func import entrypoint
from langgraph.types import CachePolicy, Command
from pydantic import BaseModel

from ramify.fork_engine.errors import SnapshotNotFound
from ramify.runtime.langgraph.checkpointer.serializers import FINAL
from ramify.runtime.langgraph.compat import CACHE_NS_WRITES, get_cached_annotated_keys, get_update_as_tuples
from ramify.runtime.langgraph.node.task_calls import Call
from ramify.runtime.langgraph.thread.attempt import Attempt
from ramify.runtime.langgraph.thread.standing_attempt import StandingAttempt


class CachedNode(Protocol):
    """What the cache needs of the node."""

    name: str
    cached_as: str | None
    cache_policy: CachePolicy[Any] | None
    call: Call | None


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
    cache: BaseCache[Any] | None, attempt: Attempt, standing: StandingAttempt, node: CachedNode, input: Any
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


def leaves(value: Any) -> bool:
    """Tell whether a node's result hands over to the parent graph. LangGraph raises `ParentCommand` for it after the
    node."""
    each = value if isinstance(value, list | tuple) else [value]
    return any(isinstance(one, Command) and one.graph is not None for one in each)
