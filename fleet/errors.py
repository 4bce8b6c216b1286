"""The errors of a fleet. A run that ends with one is kept: `ramify resume RUN`, or `Fleet.resume`, continues it.

FleetError (a RunError)
├── RayMissing          Ray is not installed
├── ClusterUnreachable  no cluster at that address, or its head is gone, or it has another Ray or Python
├── FleetClosed         the fleet was closed, or never opened
├── NotShared           the database or the bucket is not shared between the nodes
├── NodeUnfit           a node cannot work for this fleet; `.node`, `.reason`
├── NoFitNode           no node can take the run; `.reasons`, by node
├── NodesDied           a run's or a world's nodes died one after the other; `.stranded_run` or `.state`, `.nodes`
└── FailedOnNode        an error that cannot be made here; `.node`, `.kind`
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ramify.runtime.errors import RunError


class FleetError(RunError):
    """The base class of the fleet's errors."""


class RayMissing(FleetError):
    """Ray is not installed."""


class ClusterUnreachable(FleetError):
    """There is no Ray cluster at the address, or its head is gone, or it has another version of Ray or Python."""


class FleetClosed(FleetError):
    """The fleet was closed, or never opened."""


class NotShared(FleetError):
    """The runtime has no bucket, or its database belongs to one machine."""


class NodeUnfit(FleetError):
    """A node cannot work for this fleet. `node`: its name. `reason`: why, and what to do."""

    def __init__(self, node: str, reason: str) -> None:
        self.node, self.reason = node, reason
        super().__init__(f"node {node}: {reason}")


class NoFitNode(FleetError):
    """No node can take the run. `reasons`: why not, by the name of the node."""

    def __init__(self, message: str, *, reasons: Mapping[str, str]) -> None:
        self.reasons = dict(reasons)
        super().__init__("\n".join([message, *(f"  node {node}: {why}" for node, why in self.reasons.items())]))


class NodesDied(FleetError):
    """Several nodes died, one after the other, while they worked on a run or on a command of a world, which may be
    the cause. `stranded_run`: the run; "" for a world. `state`: the world's last snapshot; "" for a run. `nodes`:
    their names."""

    def __init__(self, message: str, *, nodes: Sequence[str], stranded_run: str = "", state: str = "") -> None:
        self.stranded_run, self.state, self.nodes = stranded_run, state, tuple(nodes)
        super().__init__(message)


class FailedOnNode(FleetError):
    """A node raised an error that cannot be made in this process, as one whose class does not exist here. `kind`: the
    name of the class."""

    def __init__(self, message: str, *, node: str, kind: str) -> None:
        self.node, self.kind = node, kind
        super().__init__(message)
