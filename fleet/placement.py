"""Which node takes which run or command: in the order of arrival, the fitting node with the largest free share. No
I/O.

Nodes that have the run's first state already, or more of its layers, are preferred among equals. A world goes where
its state is, if a slot is free there, and stays where it lives.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from ramify.fleet.types import HostFacts, Needs, Node, NodeId
from ramify.fork_engine.types import SnapshotId

Host = TypeVar("Host")


@dataclass(eq=False, slots=True)
class Member(Generic[Host]):
    """A node that works for the fleet. slots: runs that it takes at the same time. has: states that it was sent.
    layers: that its home had, or that it was sent."""

    node: Node
    facts: HostFacts
    host: Host
    slots: int
    taken: int = 0
    has: set[SnapshotId] = field(default_factory=set)
    layers: set[str] = field(default_factory=set)

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

    def sent(self, asked: Asked) -> None:
        """It takes the run or command, and so gets the state."""
        self.taken += 1
        self.has.add(asked.base)
        self.layers |= asked.layers


@dataclass(frozen=True, slots=True)
class Asked:
    """What a run, or a command of a world, asks for. base: the state that it begins with. near: the node that has
    this state. stays: whether it waits for that node, while the node is there, though others are free. layers: of the
    state, if they are known."""

    sandbox: str
    needs: Needs
    base: SnapshotId
    near: NodeId | None = None
    stays: bool = False
    layers: frozenset[str] = frozenset()


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


def choose(members: Iterable[Member[Host]], asked: Asked) -> Member[Host] | None:
    """The node for a run or a command, or None if it has to wait."""
    fit = [one for one in members if not unfit(one.node, one.facts, asked)]
    if asked.stays and (home := [one for one in fit if one.node.id == asked.near]):
        fit = home
    able = [one for one in fit if one.taken < one.slots]
    return max(able, key=lambda one: (one.node.id == asked.near, one.free, one.share_of(asked)), default=None)


class Queue(Generic[Host]):
    """The runs that wait for a node. On one event loop."""

    def __init__(self) -> None:
        self.members: list[Member[Host]] = []
        self._waiting: list[tuple[Asked, asyncio.Future[Member[Host]]]] = []

    def reasons(self, asked: Asked) -> dict[str, str]:
        """Why no node can ever take the run, by node; empty if one can, or if there is no node."""
        found = {one.node.name: unfit(one.node, one.facts, asked) for one in self.members}
        return found if all(found.values()) else {}

    def can_ever_place(self, asked: Asked) -> bool:
        return any(not unfit(one.node, one.facts, asked) for one in self.members)

    def ask(self, asked: Asked) -> asyncio.Future[Member[Host]]:
        """A future for a node, whose slot is taken then. Cancel it to leave the queue; otherwise `release` the
        node."""
        future: asyncio.Future[Member[Host]] = asyncio.get_running_loop().create_future()
        self._waiting.append((asked, future))
        self.dispatch()
        return future

    def release(self, member: Member[Host]) -> None:
        member.taken -= 1
        self.dispatch()

    def add(self, member: Member[Host]) -> None:
        self.members.append(member)
        self.dispatch()

    def remove(self, member: Member[Host]) -> None:
        if member in self.members:
            self.members.remove(member)
            self.dispatch()  # who waited for this node goes elsewhere

    def dispatch(self) -> None:
        """Give nodes to those who wait, in their order; who fits nowhere now does not hold up the others."""
        left: list[tuple[Asked, asyncio.Future[Member[Host]]]] = []
        waiting: Sequence[tuple[Asked, asyncio.Future[Member[Host]]]] = self._waiting
        for position, (asked, future) in enumerate(waiting):
            if all(one.taken >= one.slots for one in self.members):
                left += waiting[position:]
                break
            if future.done():
                continue
            member = choose(self.members, asked)
            if member is None:
                left.append((asked, future))
                continue
            member.sent(asked)
            future.set_result(member)
        self._waiting = left
