"""What a fleet, its nodes and its users tell each other. Values of this module travel between processes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from numbers import Real
from typing import NewType

from ramify.fork_engine.types import SnapshotId
from ramify.runtime.durations import shown
from ramify.runtime.records import BranchPath, RunId

MOST_AMOUNT = 2.0**60
"""More than any node has of a resource or of memory. Counts of larger amounts could overflow."""

NodeId = NewType("NodeId", str)
"""Ray's id of a node. A machine that comes back is another node."""


@dataclass(frozen=True, slots=True)
class Node:
    """A node as Ray lists it. resources: Ray's totals, such as {"CPU": 8.0, "GPU": 1.0}."""

    id: NodeId
    hostname: str
    resources: Mapping[str, float]

    @property
    def name(self) -> str:
        """For people: several nodes may be on one machine."""
        return f"{self.hostname} ({self.id[:8]})"

    @property
    def cpus(self) -> int:
        return int(self.resources.get("CPU", 0))


@dataclass(frozen=True, slots=True)
class HostFacts:
    """What the process that works for the fleet on a node says of itself and its machine.

    version: of Ramify. host, pid: as in the leases that it takes. boot: identifies the running kernel. memory: of the
    machine, or what its container may use, in bytes. sandboxes: why a backend cannot be used there, by its name; ""
    if it can. criu: why processes cannot be dumped whole there; "" if they can. images: the names of those in its
    home. layers: the ids of those in its home. clock: its Unix time when it said this.
    """

    version: str
    python: str
    host: str
    pid: int
    boot: str
    home: str
    memory: int
    sandboxes: Mapping[str, str]
    criu: str
    images: tuple[str, ...] = ()
    layers: frozenset[str] = field(default=frozenset(), repr=False)
    clock: float | None = None


@dataclass(frozen=True, slots=True)
class FileIdentity:
    """A file of a running kernel."""

    boot: str
    device: int
    inode: int


@dataclass(frozen=True, slots=True)
class Shared:
    """What all nodes of a fleet share. database: its address, with its password. file: which file it is, if it is
    one. bucket: its address. store: the id in its marker. check_reuse, reuse_answers: as of the fleet's `Runtime`."""

    database: str = field(repr=False)
    file: FileIdentity | None
    bucket: str
    store: str
    check_reuse: float
    reuse_answers: bool


@dataclass(frozen=True, slots=True)
class Needs:
    """What a run needs of its node, beside its sandbox backend.

    memory: in bytes, a whole number. resources: Ray's, by name, such as {"GPU": 1}, or {"GPU": 0.5} to share one.
    They are counted in parts of 0.0001, as in Ray. criu: whether processes can be dumped whole. What the runs and
    commands of a fleet hold at the same time is no more than their node has. Ray and other programs do not count it.

    Raises ValueError for an amount that is no number from 0 to `MOST_AMOUNT`, and for a name that is no text.
    """

    memory: int = 0
    resources: Mapping[str, float] = field(default_factory=dict)
    criu: bool = False

    def __post_init__(self) -> None:
        memory = _amount("memory", self.memory)
        if memory != int(memory):
            raise ValueError(f"memory={memory}: a whole number of bytes")
        object.__setattr__(self, "memory", int(self.memory))
        amounts = {_name(name): _amount(name, amount) for name, amount in self.resources.items()}
        object.__setattr__(self, "resources", amounts)  # a copy: what is held must be what is given back


def _amount(name: str, amount: object) -> float:
    is_number = isinstance(amount, Real) and not isinstance(amount, bool)
    if not is_number or not 0 <= amount <= MOST_AMOUNT:  # type: ignore[operator]
        raise ValueError(f"{name}={shown(amount)}: an amount is a number from 0 to {MOST_AMOUNT:g}")
    return float(amount)  # type: ignore[arg-type]


def _name(name: object) -> str:
    if not isinstance(name, str) or not name:
        raise ValueError(f"{shown(name)} is not the name of a resource")
    return name


@dataclass(frozen=True, slots=True)
class NodeJoined:
    node: str
    slots: int

    def __str__(self) -> str:
        return f"node {self.node} joined, for {self.slots} runs at the same time"


@dataclass(frozen=True, slots=True)
class NodeRefused:
    """The fleet does not use a node of the cluster."""

    node: str
    reason: str

    def __str__(self) -> str:
        return f"node {self.node} is not used: {self.reason}"


@dataclass(frozen=True, slots=True)
class NodeLost:
    """A node died, or its process for this fleet did. Its work goes on elsewhere."""

    node: str
    reason: str

    def __str__(self) -> str:
        return f"node {self.node} is lost: {self.reason}"


@dataclass(frozen=True, slots=True)
class Placed:
    """A run goes on on a node. earlier: nodes that died while they worked on it."""

    run: RunId
    node: str
    earlier: tuple[str, ...] = ()

    def __str__(self) -> str:
        after = f", after {', '.join(self.earlier)} died" if self.earlier else ""
        return f"run {self.run} goes on on node {self.node}{after}"


@dataclass(frozen=True, slots=True)
class NotUploaded:
    """A run is done, and the bucket does not have its last state yet. The node tries again when the fleet closes."""

    run: RunId
    node: str
    reason: str

    def __str__(self) -> str:
        return f"run {self.run} is done, and node {self.node} has not uploaded its last state: {self.reason}"


@dataclass(frozen=True, slots=True)
class WorldMoved:
    """A world goes on on another node, from its last state. earlier: nodes that died during its command."""

    state: SnapshotId
    node: str
    earlier: tuple[str, ...]

    def __str__(self) -> str:
        died = ", ".join(self.earlier)
        return f"a world goes on on node {self.node} from snapshot {self.state[:12]}, after {died} died"


@dataclass(frozen=True, slots=True)
class StepMoved:
    """A step of a branch begins again on another node. earlier: nodes that died while they ran it."""

    run: RunId
    branch: BranchPath
    step: str
    node: str
    earlier: tuple[str, ...]

    def __str__(self) -> str:
        died = ", ".join(self.earlier)
        return f"step {self.step!r} on branch {self.branch} begins again on node {self.node}, after {died} died"


@dataclass(frozen=True, slots=True)
class StepStays:
    """A step of branches runs where its run is."""

    run: RunId
    step: str
    reason: str

    def __str__(self) -> str:
        return f"step {self.step!r} of run {self.run} stays on this machine: {self.reason}"


FleetEvent = NodeJoined | NodeRefused | NodeLost | Placed | NotUploaded | WorldMoved | StepMoved | StepStays
