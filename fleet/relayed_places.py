"""Places for the steps of a run's branches, where the run itself is on a node. The program with the fleet chooses.

The node queues requests, and the program fetches them (`take`), as it fetches events. The first request is for a
slot. The step then runs in that slot on another node, or here if the slot is this node's. The run's own slot counts,
because the run waits while its branches work.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

from ramify.fleet.carried_errors import CarriedError, carried, rebuilt
from ramify.fleet.step_calls import Told
from ramify.fork_engine.types import SnapshotId
from ramify.runtime.execution.placed_steps import Asking, Place, StepAnswer, StepOrder
from ramify.runtime.records import BranchPath
from ramify.runtime.user_code.call_slo import CallSLO
from ramify.serving.types import ChatRequest, ChatResult


@dataclass(frozen=True, slots=True)
class WantSlot:
    slot: int
    branch: BranchPath
    state: SnapshotId | None


@dataclass(frozen=True, slots=True)
class PerformThere:
    slot: int
    order: StepOrder


@dataclass(frozen=True, slots=True)
class FreeSlot:
    """Also ends the step that is performed in it."""

    slot: int


@dataclass(frozen=True, slots=True)
class StepIsKept:
    step: str
    why: str


@dataclass(frozen=True, slots=True)
class BranchesEnded:
    branches: tuple[BranchPath, ...]


Errand = WantSlot | PerformThere | FreeSlot | StepIsKept | BranchesEnded


@dataclass(frozen=True, slots=True)
class SlotReply:
    """What became of a `WantSlot` or a `PerformThere`. node: of the slot; "" is the node that asked. answer: None if
    the node died; `failed` has its error. error: what the program raised."""

    node: str = ""
    answer: StepAnswer | None = None
    failed: CarriedError | None = None
    error: CarriedError | None = None


class RelayedPlaces:
    """The places for one run (`Places`). slots: of the fleet. known: is told states that others have uploaded. On one
    event loop."""

    def __init__(self, slots: int, known: Callable[[SnapshotId], None]) -> None:
        self.slots, self.known = slots, known
        self._errands: list[Errand] = []
        self._changed = asyncio.Event()
        self._ended = False
        self._replies: dict[int, asyncio.Future[SlotReply]] = {}
        self._asking: dict[int, Asking] = {}  # by the slot in which the step runs
        self._asked: dict[tuple[int, int], asyncio.Future[list[ChatResult]]] = {}
        self._slots = 0
        self._stay: set[str] = set()
        self._busy: set[BranchPath] = set()  # branches with processes on other nodes

    async def take(self) -> tuple[Errand, ...] | None:
        """Wait for what the run wants. None: it has ended."""
        await self._changed.wait()
        errands, self._errands = self._errands, []
        if not errands and self._ended:
            return None
        if not self._ended:
            self._changed.clear()
        return tuple(errands)

    def reply(self, slot: int, reply: SlotReply) -> None:
        if (waiting := self._replies.get(slot)) is not None and not waiting.done():
            waiting.set_result(reply)

    async def make_calls(self, slot: int, number: int, requests: Sequence[ChatRequest], said: CallSLO) -> Told:
        """Make model calls of a step. number: counts them in their step."""
        if (ask := self._asking.get(slot)) is None:
            return carried(asyncio.CancelledError())  # nobody waits for them
        making = self._asked[slot, number] = asyncio.ensure_future(ask(requests, said))
        try:
            return await making
        except asyncio.CancelledError as error:
            return carried(error)
        except Exception as error:  # noqa: BLE001  # it is raised in the step
            return carried(error)
        finally:
            self._asked.pop((slot, number), None)

    def cancel_calls(self, slot: int, number: int) -> None:
        if (making := self._asked.get((slot, number))) is not None:
            making.cancel()

    @asynccontextmanager
    async def place(self, branch: BranchPath, state: SnapshotId | None) -> AsyncIterator[Place | None]:
        slot, self._slots = self._slots, self._slots + 1
        try:
            node = (await self.sent(WantSlot(slot, branch, state))).node
            yield _RelayedPlace(self, slot, node) if node else None
        finally:
            self._asking.pop(slot, None)
            self._replies.pop(slot, None)
            for making in [one for (of, _), one in self._asked.items() if of == slot]:
                making.cancel()
            self._put(FreeSlot(slot))

    async def sent(self, errand: WantSlot | PerformThere) -> SlotReply:
        """Return the reply. Raises what the program raised."""
        waiting: asyncio.Future[SlotReply] = asyncio.get_running_loop().create_future()
        self._replies[errand.slot] = waiting
        self._put(errand)
        reply = await waiting
        if reply.error is not None:
            raise rebuilt(reply.error, "that has the fleet")
        return reply

    def answers(self, slot: int, ask: Asking) -> None:
        """Make the model calls of the step in that slot so."""
        self._asking[slot] = ask

    def stays(self, step: str, why: str) -> None:
        if step not in self._stay:
            self._stay.add(step)
            self._put(StepIsKept(step, why))

    def stayed(self, step: str) -> bool:
        return step in self._stay

    def keeps_processes(self, branch: BranchPath) -> bool:
        return branch in self._busy

    def answered(self, order: StepOrder, answer: StepAnswer) -> None:
        if answer.sealed is not None:
            self.known(answer.sealed.id)
        if order.in_branch:
            (self._busy.add if answer.busy else self._busy.discard)(order.branch)

    def released(self, branches: Sequence[BranchPath]) -> None:
        self._busy.difference_update(branches)
        self._put(BranchesEnded(tuple(branches)))

    async def close(self) -> None:
        self._ended = True
        self._changed.set()

    def _put(self, errand: Errand) -> None:
        self._errands.append(errand)
        self._changed.set()


class _RelayedPlace:
    def __init__(self, places: RelayedPlaces, slot: int, name: str) -> None:
        self._places, self._slot, self._name = places, slot, name

    @property
    def name(self) -> str:
        return self._name

    async def perform(self, order: StepOrder, ask: Asking) -> StepAnswer | None:
        self._places.answers(self._slot, ask)
        reply = await self._places.sent(PerformThere(self._slot, order))
        if reply.answer is None:
            return None
        self._places.answered(order, reply.answer)
        if reply.failed is None:
            return reply.answer
        return replace(reply.answer, error=rebuilt(reply.failed, self._name))
