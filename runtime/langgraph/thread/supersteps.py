"""Supersteps: their tasks, where they stand, and the merge of the tasks' worlds; and forks of a task's world.

Each task's state is merged in turn, three-way, with the snapshot from which all of them were forked as the base.

The graphs and tasks that a node's code runs get forks of the node's world, made when one of these asks for a world.
Such a fork has the node's world as it was at the call. As long as the node has not asked for its own world, that is
the state where its superstep began, and nothing has to be done at the call. Before the node's world changes, its
present state is noted for each fork that is not made yet.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ramify.fork_engine.errors import MergeConflict
from ramify.fork_engine.store import SnapshotStore
from ramify.fork_engine.types import Snapshot
from ramify.runtime.langgraph.errors import NodesConflict
from ramify.runtime.langgraph.thread.positions import StoredPosition
from ramify.runtime.records import BranchPath, CheckpointId
from ramify.runtime.worlds.world_pool import Branch

REPLAY = "|replay "
"""In the key of a task that LangGraph ran again under its old id; what follows it is unique to that invocation."""


class Task(NamedTuple):
    """One execution of a node, as LangGraph names it. A tuple, as every node makes one: it is made in a third of the
    time of a data class."""

    node: str
    key: str  # journal key: thread, namespace and task id, perhaps followed by `REPLAY`
    superstep: str  # thread, namespace and parent checkpoint
    number: int  # among the tasks of its superstep, from 0
    width: int  # number of tasks of the superstep
    attempt: int = 1
    durable: bool = False  # the thread's checkpoints outlive the invocation
    inner: bool = False  # run by a node's own code: the plan has only the node


@dataclass(frozen=True, slots=True)
class Position:
    """Where a thread's world stands, after all joins."""

    branch: BranchPath
    at: str
    snapshot: Snapshot
    checkpoint: CheckpointId
    unsealed: bool = False


@dataclass(frozen=True, slots=True)
class Superstep:
    """What the tasks of one superstep share. `place` names its fork; None for a superstep of one task."""

    line: Branch
    start: Position
    place: str | None = None
    env: StoredPosition | None = None  # the stored position that led to it
    children: dict[int, Branch] = field(default_factory=dict)

    def branch(self, number: int) -> Branch:
        if self.place is None:
            return self.line
        if number not in self.children:
            path = BranchPath(f"{self.line.path}/{self.place}.{number}")
            self.children[number] = Branch(path, self.start.snapshot, self.start.checkpoint)
        return self.children[number]


def merged(store: SnapshotStore, base: Snapshot, children: Sequence[tuple[str, Snapshot]]) -> list[Snapshot | None]:
    """Return the state of the world after each (node, snapshot) was merged in order; None for one that changed
    nothing.

    Raises `NodesConflict` with two nodes that do not merge, the same two whichever finished first.
    """
    here, steps = base, list[Snapshot | None]()
    for number, (node, child) in enumerate(children):
        if child.id == base.id:
            steps.append(None)
            continue
        try:
            here = store.merge(base, here, child, flush=False)
        except MergeConflict as conflict:
            raise _named(store, base, children[:number], node, child, conflict) from conflict
        steps.append(here)
    return steps


def _named(
    store: SnapshotStore,
    base: Snapshot,
    earlier: Sequence[tuple[str, Snapshot]],
    node: str,
    child: Snapshot,
    conflict: MergeConflict,
) -> NodesConflict:
    for other, snapshot in earlier:
        try:
            store.merge(base, snapshot, child)
        except MergeConflict as between:
            return NodesConflict((other, node), between.conflicts)
    return NodesConflict((earlier[-1][0], node), conflict.conflicts)


@dataclass(frozen=True, slots=True)
class NestedFork:
    """A fork that was made: its branch, the state in which it begins, and the name of the fork."""

    branch: Branch
    state: Snapshot
    place: str


@dataclass(eq=False, slots=True)
class DeferredFork:
    """A fork that one graph or task may take. `make` records it, once."""

    make: Callable[[Snapshot | None], Awaitable[NestedFork]]
    state: Snapshot | None = None  # the state at the call, if the node's world may have changed since
    made: NestedFork | None = None
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def take(self) -> NestedFork:
        async with self._lock:
            if self.made is None:
                self.made = await self.make(self.state)
            return self.made


@dataclass(frozen=True, slots=True)
class DeferredPosition:
    """The position of an attempt on a deferred fork. It is unknown until the attempt asks for a world."""

    callers_place: Callable[[], tuple[BranchPath, str]]
    """Returns the branch and the snapshot id where the node is now whose code it runs in."""
    known: Callable[[], Awaitable[StoredPosition | Superstep]]
