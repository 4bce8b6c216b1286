"""What can go wrong when a LangGraph graph runs over worlds.

RunError
└── GraphError
    ├── UnsupportedGraph   something of LangGraph's that would lose files here, refused before it can
    ├── WorldLost          the files of a node that the plan does not seal went with the process that held them
    ├── SessionClosed      the app was closed
    └── LangGraphChanged   this LangGraph has not the inner shape that Ramify was written against
MergeConflict
└── NodesConflict          two nodes of one superstep changed the same thing; names both
"""

from __future__ import annotations

from collections.abc import Sequence

from ramify.fork_engine.errors import MergeConflict
from ramify.fork_engine.types import Conflict
from ramify.runtime.errors import RunError


class GraphError(RunError):
    """Anything that is particular to graphs over worlds."""


class UnsupportedGraph(GraphError):
    """A part of LangGraph that does not go together with worlds yet."""


class WorldLost(GraphError):
    """Files that no snapshot held are gone."""

    def __init__(self, branch: str) -> None:
        super().__init__(
            f"the plan has no SEAL where branch {branch} stands at that checkpoint: its files were only in a live "
            "world, which is gone. Go on from the checkpoint before the node"
        )


class SessionClosed(GraphError):
    """The app was closed."""


class LangGraphChanged(GraphError):
    """Not the LangGraph that Ramify knows."""

    def __init__(self, missing: str) -> None:
        super().__init__(
            f"this version of langgraph gives a node no {missing}, so worlds cannot follow its checkpoints. "
            "Install langgraph>=1.2,<1.3"
        )


class NodesConflict(MergeConflict):
    """Nodes that ran side by side changed the same thing. `nodes` are the two, in the order of their tasks."""

    def __init__(self, nodes: tuple[str, str], conflicts: Sequence[Conflict]) -> None:
        self.nodes = nodes
        super().__init__(tuple(conflicts))
        self.args = (
            f"nodes {nodes[0]!r} and {nodes[1]!r} ran in one superstep and do not merge: {self.args[0]}. "
            "Let one write elsewhere or run after the other, and go on from the checkpoint before them",
        )
