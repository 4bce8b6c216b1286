"""Forks of a node's world, for the graphs and tasks that its code runs: made when one of these asks for a world.

What is lent is the node's world as it was at the call. While the node has not asked for that world itself, this is
where its superstep began, and nothing need be done at the call; a loan is `fixed` before the node's world changes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ramify.fork_engine.types import Snapshot
from ramify.runtime.worlds.world_pool import Branch

if TYPE_CHECKING:
    from ramify.runtime.langgraph.thread.attempt import Attempt
    from ramify.runtime.langgraph.thread.graph_run import Superstep
    from ramify.runtime.langgraph.thread.positions import StoredPosition


@dataclass(frozen=True, slots=True)
class Lent:
    """A branch, the state that it begins in, and the place of its fork."""

    branch: Branch
    state: Snapshot
    place: str


@dataclass(eq=False, slots=True)
class Loan:
    """What one graph or task is lent. `make` records the fork, once."""

    make: Callable[[Snapshot | None], Awaitable[Lent]]
    state: Snapshot | None = None  # as it was at the call, where the lender's world may have changed since
    lent: Lent | None = None
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def taken(self) -> Lent:
        async with self._lock:
            if self.lent is None:
                self.lent = await self.make(self.state)
            return self.lent


@dataclass(frozen=True, slots=True)
class Later:
    """The place of an attempt that acts on a loan: not known before it asks for a world."""

    lender: Attempt
    known: Callable[[], Awaitable[StoredPosition | Superstep]]
