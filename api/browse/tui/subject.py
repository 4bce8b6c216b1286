"""The tabs, and which lines each has for a node."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from ramify.inspect.state import State, StateDiff, state_at

if TYPE_CHECKING:
    from ramify.browse.tui.branch_graph import Graph, Node
    from ramify.fork_engine.store import SnapshotStore
    from ramify.inspect.history import Moment


class Tab(StrEnum):
    """In the order in which they stand, and are numbered."""

    STATE = "State"
    FILES = "Files"
    TIMELINE = "Timeline"
    CALLS = "Calls"
    SHELL = "Shell"
    EFFECTS = "Effects"


@dataclass(frozen=True)
class Subject:
    """What the tabs tell about: a node, by itself or with all of its run, and the state it is compared with."""

    graph: Graph
    node: Node
    snapshots: SnapshotStore
    database: str | Path
    status: str  # of the run
    now: float
    width: int
    whole_run: bool = False
    against: Node | None = None  # compare with this one; None: with the node's own parent

    def key(self, tab: Tab) -> tuple[object, ...]:
        """Equal where the same is told, perhaps with more in it."""
        against = None if self.against is None else self.against.id
        return (self.graph.history.run.id, self.node.id, tab, self.whole_run, against)

    @property
    def moments(self) -> tuple[Moment, ...]:
        return self.graph.history.moments if self.whole_run else self.node.moments

    @cached_property
    def state(self) -> State | None:
        """None of an open end. Raises `SnapshotNotFound` where it is not kept any more."""
        one = self.node.checkpoint
        return None if one is None else state_at(self.graph.history, self.snapshots, one, self.database)

    @cached_property
    def change(self) -> StateDiff | None:
        """What differs from what it is compared with; None of the workspace as it was, and of an open end."""
        if self.against is None or self.against.checkpoint is None:
            return None if self.state is None else self.state.change
        if self.node.checkpoint is None:
            return None
        ids = (self.against.checkpoint.snapshot_id, self.node.checkpoint.snapshot_id)
        return StateDiff(self.snapshots, *map(self.snapshots.get, ids))
