"""Serves the requests of a run that is on a node: finds slots for the steps of its branches, and sends the steps
there. It works in the program that has the fleet."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from ramify.fleet.branch_places import BranchPlaces
from ramify.fleet.carried_errors import CarriedError, carried, rebuilt
from ramify.fleet.ray_host import HostDied, RayHost
from ramify.fleet.relayed_places import (
    BranchesEnded,
    Errand,
    FreeSlot,
    PerformThere,
    SlotReply,
    StepIsKept,
    WantSlot,
)
from ramify.runtime.execution.placed_steps import StepOrder
from ramify.runtime.user_code.call_slo import CallSLO
from ramify.serving.types import ChatRequest, ChatResult

_NOT_BEGUN_S = 0.05


class BranchErrands:
    """host: of the node with the run. places: of the run."""

    def __init__(self, places: BranchPlaces, host: RayHost) -> None:
        self._places, self._host, self._run = places, host, places.run
        self._slots: dict[int, tuple[asyncio.Task[None], asyncio.Queue[StepOrder]]] = {}

    async def serve(self, working: asyncio.Future[Any]) -> None:
        """Do what the run wants, until it ends or its node dies. working: what the node does with the run."""
        heard = False
        try:
            with suppress(HostDied):
                while True:
                    errands = await self._host.errands(self._run)
                    heard = heard or errands is not None
                    for errand in errands or ():
                        self._do(errand)
                    if errands is None and (heard or working.done()):
                        break
                    if errands is None:  # the node has not begun
                        await asyncio.sleep(_NOT_BEGUN_S)
        finally:
            left = [task for task, _ in self._slots.values()]
            for task in left:
                task.cancel()
            await asyncio.gather(*left, return_exceptions=True)
            await self._places.close()

    def _do(self, errand: Errand) -> None:
        match errand:
            case WantSlot(slot):
                orders = asyncio.Queue[StepOrder]()
                self._slots[slot] = asyncio.create_task(self._hold(errand, orders)), orders
            case PerformThere(slot, order):
                if slot in self._slots:
                    self._slots[slot][1].put_nowait(order)
            case FreeSlot(slot):
                if slot in self._slots:
                    self._slots[slot][0].cancel()
            case StepIsKept(step, why):
                self._places.stays(step, why)
            case BranchesEnded(branches):
                self._places.released(branches)

    async def _hold(self, want: WantSlot, orders: asyncio.Queue[StepOrder]) -> None:
        """Hold a slot until the task is cancelled, and perform there what is sent to it."""
        try:
            async with self._places.place(want.branch, want.state) as place:
                await self._reply(want.slot, SlotReply("" if place is None else place.name))
                while True:
                    order = await orders.get()
                    assert place is not None, "steps in the run's own node are not sent"
                    answer = await place.perform(order, _Asks(self, want.slot))
                    raised = None if answer is None else answer.error
                    if answer is not None and raised is not None:
                        reply = SlotReply(place.name, replace(answer, error=None), carried(raised))
                    else:
                        reply = SlotReply(place.name, answer)
                    await self._reply(want.slot, reply)
        except Exception as error:  # noqa: BLE001  # it is raised where the run is
            await self._reply(want.slot, SlotReply(error=carried(error)))
        finally:
            del self._slots[want.slot]

    async def _reply(self, slot: int, reply: SlotReply) -> None:
        with suppress(HostDied):
            await self._host.reply_errand(self._run, slot, reply)

    async def made(self, slot: int, number: int, requests: Sequence[ChatRequest], said: CallSLO) -> list[ChatResult]:
        """The answers to model calls, which the node with the run makes."""
        try:
            told = await self._host.make_calls(self._run, slot, number, tuple(requests), said)
        except asyncio.CancelledError:
            with suppress(HostDied):
                await self._host.cancel_calls(self._run, slot, number)
            raise
        if isinstance(told, CarriedError):
            raise rebuilt(told, "that works on the run")
        return told


class _Asks:
    """Makes the model calls of the step in a slot (`Asking`). They begin in the order in which they were asked."""

    def __init__(self, errands: BranchErrands, slot: int) -> None:
        self._errands, self._slot, self._count = errands, slot, 0

    def __call__(self, requests: Sequence[ChatRequest], said: CallSLO) -> Awaitable[list[ChatResult]]:
        number, self._count = self._count, self._count + 1
        return asyncio.create_task(self._errands.made(self._slot, number, requests, said))
