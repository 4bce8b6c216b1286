"""Runs, steps and commands that wait for a slot of a node. On one event loop.

If a slot is free for what asks, it gets one at once (`placement.choose`). If more wait than slots are free, a rule
decides what gets the next slot of which node (`job_order`). What fits no free node holds up nothing else.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Generic

from ramify.fleet.job_order import JobOrder, Waiting
from ramify.fleet.placement import Asked, Host, Member, Slot, choose, fitting, unfit


class SlotQueue(Generic[Host]):
    """order: decides what gets a slot; None: what asked first. now: a clock, in seconds."""

    def __init__(self, order: JobOrder | None = None, now: Callable[[], float] = time.monotonic) -> None:
        self.members: list[Member[Host]] = []
        self.order = order
        self._now = now
        self._waiting: list[tuple[Waiting, asyncio.Future[Slot[Host]]]] = []

    def reasons(self, asked: Asked) -> dict[str, str]:
        """Why no node can ever take the run, by node; empty if one can, or if there is no node."""
        found = {one.node.name: unfit(one.node, one.facts, asked) for one in self.members}
        return found if all(found.values()) else {}

    def can_ever_place(self, asked: Asked) -> bool:
        return any(not unfit(one.node, one.facts, asked) for one in self.members)

    def ask(self, asked: Asked) -> asyncio.Future[Slot[Host]]:
        """A future for a slot. Cancel it to leave the queue; otherwise `release` the slot."""
        future: asyncio.Future[Slot[Host]] = asyncio.get_running_loop().create_future()
        waiting = Waiting(asked, asked.group, self._now())
        self._waiting.append((waiting, future))
        if self.order is not None:
            self.order.asked(waiting)
            self.order.forget((one for one, _ in self._waiting), waiting.since)
        self.dispatch()
        return future

    def release(self, slot: Slot[Host]) -> None:
        slot.member.taken -= 1
        if self.order is not None:
            self.order.ended(slot, self._now())
        self.dispatch()

    def add(self, member: Member[Host]) -> None:
        self.members.append(member)
        self.dispatch()

    def remove(self, member: Member[Host]) -> None:
        if member in self.members:
            self.members.remove(member)
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
        fits = {group: fitting(self.members, asked) for group, asked in {w.group: w.asked for w in waiting}.items()}
        able = {group for group, nodes in fits.items() if any(one in free for one in nodes)}
        first = next((at for at, one in enumerate(waiting) if one.group in able), None)
        if first is None:
            return None
        if self.order is not None and any(one.group in able for one in waiting[first + 1 :]):
            suits = [one for one in free if any(one in fits[group] for group in able)]
            freest = max(suits, key=lambda one: one.free)
            first = self.order.first(waiting, freest, fits, self.members, self._now())
        member = choose(free, waiting[first].asked)
        assert member is not None, "a free node suits it"
        return first, member
