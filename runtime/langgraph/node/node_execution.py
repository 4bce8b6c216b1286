"""LangGraph's `CachePolicy` over worlds: a hit needs the same input *and* the same files, and brings the files along.

LangGraph's own key is of a node's input alone: a hit would skip what the node does to files, and a changed file would
not be a miss. So LangGraph is not told of the policy; its cache is asked here, with the world's content in the key.
"""

from __future__ import annotations

import asyncio
import hashlib
from dataclasses import dataclass
from typing import Any

from langgraph._internal._constants import CACHE_NS_WRITES
from langgraph.cache.base import BaseCache, FullKey
from langgraph.types import CachePolicy

from ramify.fork_engine.errors import SnapshotNotFound
from ramify.runtime.langgraph.thread.attempt import Attempt


@dataclass(frozen=True, slots=True)
class Cached:
    """One attempt's place in the cache."""

    cache: BaseCache[Any]
    policy: CachePolicy[Any]
    key: FullKey

    async def hit(self, attempt: Attempt) -> tuple[Any] | None:
        """The node's result, its files brought into the attempt's world; None where it has to run."""
        found = await asyncio.to_thread(self.cache.get, [self.key])
        if self.key not in found:
            return None
        value, snapshot = found[self.key]
        try:
            await attempt.take_back(attempt.start.id, snapshot)
        except SnapshotNotFound:  # collected since, or of another home
            return None
        return (value,)

    async def keep(self, value: Any, snapshot: str) -> None:
        """Raises what the cache's serialiser raises, as LangGraph does."""
        await asyncio.to_thread(self.cache.set, {self.key: ([value, snapshot], self.policy.ttl)})


def cached(
    cache: BaseCache[Any] | None, policy: CachePolicy[Any] | None, attempt: Attempt, node: str, input: Any
) -> Cached | None:
    """None where there is no cache, or the world's content is not known: processes live in it."""
    world = attempt.start.content_key if attempt.has_world else "-"
    if cache is None or policy is None or not world or attempt.starts_unsealed:
        return None
    key = policy.key_func(input)
    packed = key if isinstance(key, bytes) else key.encode()
    digest = hashlib.sha256(b"\0".join([world.encode(), attempt.code.encode(), packed])).hexdigest()
    return Cached(cache, policy, ((CACHE_NS_WRITES, "__dynamic__", node), digest))  # where `clear_cache` looks
