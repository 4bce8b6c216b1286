"""Which node takes which run or command: the fitting node with the largest free share. No I/O.

Nodes that have the run's first state already, or more of its layers, are preferred among equals. A world goes where
its state is, if a slot is free there, and stays where it lives. `slot_queue` says who waits for a slot, and
`job_order` who gets it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from ramify.fleet.types import HostFacts, Needs, Node, NodeId
from ramify.fork_engine.types import SnapshotId
from ramify.serving.matching import Group, JobId

Host = TypeVar("Host")

NO_JOB = JobId("")
"""What asks is a job by itself."""

_PARTS = 10_000
"""Parts of a resource that are counted, as in Ray."""

_MEMORY = ""
"""The name of a node's memory among its resources: none of these has an empty name."""


@dataclass(eq=False, slots=True)
class Member(Generic[Host]):
    """A node that works for the fleet. slots: runs that it takes at the same time. has: states that it was sent.
    layers: that its home had, or that it was sent. used: what these runs need, of its resources and its memory."""

    node: Node
    facts: HostFacts
    host: Host
    slots: int
    taken: int = 0
    has: set[SnapshotId] = field(default_factory=set)
    layers: set[str] = field(default_factory=set)
    used: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.layers |= self.facts.layers

    @property
    def free(self) -> float:
        """The free share of its slots, 0 to 1."""
        return (self.slots - self.taken) / self.slots

    def share_of(self, asked: Asked) -> float:
        """The share of the first state that it has, 0 to 1, as far as is known."""
        if asked.base in self.has:
            return 1.0
        return len(asked.layers & self.layers) / len(asked.layers) if asked.layers else 0.0

    def has_room(self, asked: Asked) -> bool:
        """Whether a node that suits it has a free slot for it, and as much as it needs."""
        if self.taken >= self.slots:
            return False
        there = amounts(self.node.resources, self.facts.memory)
        return all(self.used[name] + amount <= there[name] for name, amount in asked.amounts.items())

    def missing(self, asked: Asked) -> float:
        """Of what it needs, the largest share that others hold."""
        there = amounts(self.node.resources, self.facts.memory)
        return max(1 - (there[name] - self.used[name]) / amount for name, amount in asked.amounts.items())

    def sent(self, asked: Asked) -> None:
        """It takes the run or command, and so gets the state."""
        self.taken += 1
        self.used.update(asked.amounts)
        self.has.add(asked.base)
        self.layers |= asked.layers

    def ended(self, asked: Asked) -> None:
        """The run or command gives back its slot."""
        self.taken -= 1
        self.used.subtract(asked.amounts)


@dataclass(frozen=True, slots=True)
class Asked:
    """What a run, or a command of a world, asks for. base: the state that it begins with. near: the node that has
    this state. stays: whether it waits for that node, while the node is there, though others are free. layers: of the
    state, if they are known. job: what it is part of. kind: what takes about as long. returns: whether the job asks
    again after it, as a branch and a world do."""

    sandbox: str
    needs: Needs
    base: SnapshotId
    near: NodeId | None = None
    stays: bool = False
    layers: frozenset[str] = frozenset()
    job: JobId = NO_JOB
    kind: str = ""
    returns: bool = False

    @property
    def amounts(self) -> Counter[str]:
        """What it holds beside a slot."""
        return amounts(self.needs.resources, self.needs.memory)

    @property
    def group(self) -> Group:
        """Names its requirement: the same nodes suit all that have the same one."""
        resources = sorted((name, float(amount)) for name, amount in self.needs.resources.items())
        there = self.near if self.stays else ""
        return Group(repr((self.sandbox, self.needs.memory, self.needs.criu, resources, there)))


@dataclass(frozen=True, eq=False, slots=True)
class Slot(Generic[Host]):
    """A slot of a node that is held, since that time of the queue's clock."""

    member: Member[Host]
    asked: Asked
    since: float


def amounts(resources: Mapping[str, float], memory: int) -> Counter[str]:
    """The parts of resources, and bytes of memory, by name; without those of which there is nothing. The least amount
    is a part: as nothing, it could be had without end."""
    parts = {name: max(1, round(amount * _PARTS)) for name, amount in resources.items() if amount}
    return +Counter({**parts, _MEMORY: memory})


def unfit(node: Node, facts: HostFacts, asked: Asked) -> str:
    """Why a node cannot take the run, however free it is; "" if it can."""
    why = facts.sandboxes.get(asked.sandbox, "there is no such backend")
    if why:
        return f"no {asked.sandbox} sandboxes: {why}"
    if asked.needs.criu and facts.criu:
        return f"processes cannot be dumped: {facts.criu}"
    if asked.needs.memory > facts.memory:
        return f"it has {facts.memory >> 20} MiB of memory, and the run needs {asked.needs.memory >> 20} MiB"
    for name, amount in asked.needs.resources.items():
        if (there := node.resources.get(name, 0.0)) < amount:
            return f"it has {there:g} {name}, and the run needs {amount:g}"
    return ""


def fitting(members: Iterable[Member[Host]], asked: Asked) -> list[Member[Host]]:
    """The nodes that can take it, however free they are."""
    fit = [one for one in members if not unfit(one.node, one.facts, asked)]
    if asked.stays and (home := [one for one in fit if one.node.id == asked.near]):
        return home
    return fit


def choose(members: Iterable[Member[Host]], asked: Asked) -> Member[Host] | None:
    """The node for a run or a command, or None if it has to wait. Among equals one that others need less: it has
    fewer resources."""
    able = [one for one in fitting(members, asked) if one.has_room(asked)]

    def rank(one: Member[Host]) -> tuple[bool, float, float, int]:
        return one.node.id == asked.near, one.free, one.share_of(asked), -len(one.node.resources)

    return max(able, key=rank, default=None)
