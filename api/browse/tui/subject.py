"""What the tabs describe: a node, or its whole run."""

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
    """The tabs in their order, which is also their number."""

    STATE = "State"
    FILES = "Files"
    TIMELINE = "Timeline"
    CALLS = "Calls"
    SHELL = "Shell"
    EFFECTS = "Effects"


@dataclass(frozen=True)
class Subject:
    """What the tabs describe: a node, by itself or with its whole run, and the state to compare it with."""

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
        """Equal for the same subject, even if there is more in it by now."""
        against = None if self.against is None else self.against.id
        return (self.graph.history.run.id, self.node.id, tab, self.whole_run, against)

    @property
    def moments(self) -> tuple[Moment, ...]:
        return self.graph.history.moments if self.whole_run else self.node.moments

    @cached_property
    def state(self) -> State | None:
        """The node's state; None for an open end. Raises `SnapshotNotFound` if it was deleted."""
        one = self.node.checkpoint
        return None if one is None else state_at(self.graph.history, self.snapshots, one, self.database)

    @cached_property
    def change(self) -> StateDiff | None:
        """The differences from the state it is compared with; None for the original workspace, and for an open
        end.
        """
        if self.against is None or self.against.checkpoint is None:
            return None if self.state is None else self.state.change
        if self.node.checkpoint is None:
            return None
        ids = (self.against.checkpoint.snapshot_id, self.node.checkpoint.snapshot_id)
        return StateDiff(self.snapshots, *map(self.snapshots.get, ids))
