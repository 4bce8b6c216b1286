"""Runs, steps and commands that wait for a slot of a node. On one event loop.

If a slot is free for what asks, it gets one at once (`placement.choose`). If more wait than slots are free, a rule
decides what gets the next slot of which node (`job_order`). What fits no free node holds up nothing else, unless it
has waited for `PATIENT_S` for resources that others use in parts: then these wait behind it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Generic

from ramify.fleet.job_order import PATIENT_S, JobOrder, Waiting
from ramify.fleet.placement import Asked, Host, Member, Slot, choose, fitting, unfit
from ramify.serving.matching import Group

MOST_LEFT = 100
"""Nodes that went and are remembered."""


class SlotQueue(Generic[Host]):
    """order: decides what gets a slot; None: what asked first. now: a clock, in seconds."""

    def __init__(self, order: JobOrder | None = None, now: Callable[[], float] = time.monotonic) -> None:
        self.members: list[Member[Host]] = []
        self.order = order
        self._now = now
        self._waiting: list[tuple[Waiting, asyncio.Future[Slot[Host]]]] = []
        self._late: Waiting | None = None  # room is kept for it
        self._left: list[tuple[float, Member[Host]]] = []  # nodes that went, and when

    def reasons(self, asked: Asked) -> dict[str, str]:
        """Why no node can ever take the run, by node; empty if one can, or if there is no node."""
        found = {one.node.name: unfit(one.node, one.facts, asked) for one in self.members}
        return found if all(found.values()) else {}

    def can_ever_place(self, asked: Asked) -> bool:
        return any(not unfit(one.node, one.facts, asked) for one in self.members)

    def lately_could_place(self, asked: Asked, within_s: float) -> bool:
        """Whether a node that could take the run went less than `within_s` ago. Earlier ones are forgotten."""
        since = self._now() - within_s
        self._left = [(at, one) for at, one in self._left if at > since]
        return any(not unfit(one.node, one.facts, asked) for _, one in self._left)

    def ask(self, asked: Asked) -> asyncio.Future[Slot[Host]]:
        """A future for a slot. Cancel it to leave the queue; otherwise `release` the slot."""
        future: asyncio.Future[Slot[Host]] = asyncio.get_running_loop().create_future()
        waiting = Waiting(asked, asked.group, self._now())
        self._waiting.append((waiting, future))
        future.add_done_callback(self._gone)
        if self.order is not None:
            self.order.asked(waiting)
            self.order.forget((one for one, _ in self._waiting), waiting.since)
        self.dispatch()
        return future

    def release(self, slot: Slot[Host]) -> None:
        slot.member.ended(slot.asked)
        if self.order is not None:
            self.order.ended(slot, self._now())
        self.dispatch()

    def add(self, member: Member[Host]) -> None:
        self.members.append(member)
        self.dispatch()

    def remove(self, member: Member[Host]) -> None:
        if member in self.members:
            self.members.remove(member)
            self._left = [*self._left[1 - MOST_LEFT :], (self._now(), member)]
            self.dispatch()  # what waited for this node goes elsewhere

    def dispatch(self) -> None:
        """Give the free slots to what waits for such ones."""
        if all(one.taken >= one.slots for one in self.members):
            return
        self._waiting = [(one, future) for one, future in self._waiting if not future.done()]
        while (found := self._next()) is not None:
            position, member = found
            waiting, future = self._waiting.pop(position)
            member.sent(waiting.asked)
            slot = Slot(member, waiting.asked, self._now())
            if self.order is not None:
                self.order.began(slot, waiting)
            future.set_result(slot)

    def _next(self) -> tuple[int, Member[Host]] | None:
        """What gets a slot next, by its position, and of which node."""
        free = [one for one in self.members if one.taken < one.slots]
        if not free or not self._waiting:
            return None
        waiting = [one for one, _ in self._waiting]
        asks = {one.group: one.asked for one in waiting}
        fits = {group: fitting(self.members, asked) for group, asked in asks.items()}
        room = {group: [one for one in nodes if one.has_room(asks[group])] for group, nodes in fits.items()}
        self._hold_back(waiting, fits, room)
        first = next((at for at, one in enumerate(waiting) if room[one.group]), None)
        if first is None:
            return None
        if self.order is not None and any(room[one.group] for one in waiting[first + 1 :]):
            suits = [one for one in free if any(one in nodes for nodes in room.values())]
            freest = max(suits, key=lambda one: one.free)
            ready = {group for group, nodes in room.items() if freest in nodes}
            first = self.order.first(waiting, freest, fits, self.members, self._now(), ready)
        member = choose(room[waiting[first].group], waiting[first].asked)
        assert member is not None, "a free node suits it"
        return first, member

    def _hold_back(
        self,
        waiting: Sequence[Waiting],
        fits: Mapping[Group, Sequence[Member[Host]]],
        room: dict[Group, list[Member[Host]]],
    ) -> None:
        """Keep room on one node for what asked first of all that has lost its patience and is overtaken by what needs
        less of the same resource: that would hold it up for ever."""
        asks = {group: asked.amounts.keys() for group, asked in {w.group: w.asked for w in waiting}.items()}

        def is_overtaken(group: Group) -> bool:
            others = [other for other in asks if asks[other] & asks[group]]
            return not room[group] and any(one in fits[group] for other in others for one in room[other])

        if not any(one is self._late for one in waiting):
            overtaken, before = {group for group in asks if is_overtaken(group)}, self._now() - PATIENT_S
            self._late = next((one for one in waiting if one.group in overtaken and one.since <= before), None)
        if (late := self._late) is None or not fits[late.group]:
            return
        kept = room[late.group] or [min(fits[late.group], key=lambda one: one.missing(late.asked))]
        for group in asks:
            if group != late.group and asks[group] & asks[late.group]:
                room[group] = [one for one in room[group] if one not in kept]

    def _gone(self, future: asyncio.Future[Slot[Host]]) -> None:
        """What waited was cancelled, or has its slot."""
        if future.cancelled():
            self._waiting = [each for each in self._waiting if each[1] is not future]
            self.dispatch()  # room may have been kept for it
