"""Forks of a node's world for the graphs and tasks that its code runs, made when one of these asks for a world.

The fork has the node's world as it was at the call. As long as the node has not asked for its own world, that is the
state where its superstep began, and nothing has to be done at the call. Before the node's world changes, all open
loans are given its present state.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from ramify.fork_engine.types import Snapshot
from ramify.runtime.langgraph.thread.positions import StoredPosition
from ramify.runtime.langgraph.thread.supersteps import Superstep
from ramify.runtime.records import BranchPath
from ramify.runtime.worlds.world_pool import Branch


@dataclass(frozen=True, slots=True)
class Lent:
    """A fork that was made: its branch, the state in which it begins, and the name of the fork."""

    branch: Branch
    state: Snapshot
    place: str


@dataclass(eq=False, slots=True)
class Loan:
    """What one graph or task may take. `make` records the fork, once."""

    make: Callable[[Snapshot | None], Awaitable[Lent]]
    state: Snapshot | None = None  # the state at the call, if the lender's world may have changed since
    lent: Lent | None = None
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def taken(self) -> Lent:
        async with self._lock:
            if self.lent is None:
                self.lent = await self.make(self.state)
            return self.lent


@dataclass(frozen=True, slots=True)
class Later:
    """The position of an attempt that acts on a loan. It is unknown until the attempt asks for a world."""

    lenders_place: Callable[[], tuple[BranchPath, str]]
    """Returns the branch and the snapshot id where the lending node is now."""
    known: Callable[[], Awaitable[StoredPosition | Superstep]]
