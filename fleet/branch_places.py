"""Which nodes of a fleet run the steps of a run's branches.

A step goes where its branch's state is, if a slot is free there, else to
the freest node. So a fork with no more branches than the run's node has free slots stays there.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Any

from ramify.fleet.carried_errors import carried, rebuilt
from ramify.fleet.errors import ClusterUnreachable, FleetError, NodesDied
from ramify.fleet.nodes import MOST_DEATHS, FleetNodes
from ramify.fleet.placement import NO_JOB, Asked, Member, Slot
from ramify.fleet.ray_host import HostDied, RayHost
from ramify.fleet.step_calls import ModelAsk, Told
from ramify.fleet.step_host import StepReply
from ramify.fleet.types import Needs, NodeId, StepMoved, StepStays
from ramify.fleet.world_host import uploaded
from ramify.fork_engine.types import SnapshotId
from ramify.runtime.execution.placed_steps import Asking, Place, StepAnswer, StepOrder
from ramify.runtime.records import BranchPath, RunId
from ramify.runtime.worlds.recovery import missing
from ramify.serving.matching import JobId
from ramify.session import Runtime

_STOP_S = 30.0
_NO_STATE = SnapshotId("")


class BranchPlaces:
    """The places for one run (`Places`). On one event loop.

    sandbox: the name of its backend. here: the node that works on the run, if that is one of the fleet. lends: the
    run has a slot of that node, which a step may use, because the run waits for its branches. needs: of the run, and
    so of its steps. job: that the run is part of; by default the run.
    """

    def __init__(
        self,
        nodes: FleetNodes,
        runtime: Runtime,
        run: RunId,
        sandbox: str,
        *,
        here: NodeId | None,
        lends: bool = False,
        needs: Needs = Needs(),  # noqa: B008
        job: JobId = NO_JOB,
    ) -> None:
        self.nodes, self.runtime, self.run, self.sandbox, self._here = nodes, runtime, run, sandbox, here
        self._own = asyncio.Semaphore(1) if lends else None
        self._needs, self._job = needs, job or JobId(run)
        self.refusal = f"no node can take a branch of run {run}. `ramify resume {run}` continues it:"
        self.died: dict[str, list[str]] = {}  # nodes, by the key of the step that they worked on
        self._where: dict[BranchPath, NodeId] = {}
        self._bound: set[BranchPath] = set()  # branches with processes on a node
        self._used: dict[NodeId, Member[RayHost]] = {}
        self._stay: set[str] = set()
        self._there: set[SnapshotId] = set()  # states that the bucket has
        self._telling: set[asyncio.Task[None]] = set()

    @property
    def slots(self) -> int:
        return sum(one.slots for one in self.nodes.queue.members)

    @asynccontextmanager
    async def place(self, branch: BranchPath, state: SnapshotId | None) -> AsyncIterator[Place | None]:
        asked = Asked(
            self.sandbox,
            self._needs,
            state or _NO_STATE,
            self._near(branch),
            stays=branch in self._bound,
            job=self._job,
            returns=True,
        )
        queue = self.nodes.queue
        if queue.members and not queue.can_ever_place(asked):
            yield None  # a sandbox backend of the program's own, for example
            return
        slot = await self._slot(asked)
        member = None if slot is None else slot.member
        try:
            home = self._here if member is None else member.node.id
            if home is not None:
                self._where[branch] = home
            yield None if member is None or home == self._here else _NodePlace(self, member)
        finally:
            if slot is not None:
                queue.release(slot)
            elif self._own is not None:
                self._own.release()

    async def _slot(self, asked: Asked) -> Slot[RayHost] | None:
        """Wait for a slot, and take it. None: the run's own."""
        own, elsewhere = self._own, asked.stays and asked.near != self._here
        if own is None or elsewhere:
            return await self.nodes.place(asked, self.refusal)
        if asked.near == self._here and not own.locked():
            await own.acquire()
            return None
        lending = asyncio.ensure_future(own.acquire())
        placing = asyncio.ensure_future(self.nodes.place(asked, self.refusal))
        taken: asyncio.Future[Any] | None = None
        try:
            await asyncio.wait({lending, placing}, return_when=asyncio.FIRST_COMPLETED)
            taken = lending if lending.done() else placing
            return None if taken is lending else placing.result()
        finally:
            for one in (lending, placing):
                if one is not taken:
                    one.cancel()
            await asyncio.gather(lending, placing, return_exceptions=True)
            if taken is not lending and not lending.cancelled():
                own.release()
            if taken is not placing and not placing.cancelled() and placing.exception() is None:
                self.nodes.queue.release(placing.result())

    def stays(self, step: str, why: str) -> None:
        if step not in self._stay:
            self._stay.add(step)
            self.nodes.emit(StepStays(self.run, step, why))

    def stayed(self, step: str) -> bool:
        return step in self._stay

    def keeps_processes(self, branch: BranchPath) -> bool:
        return branch in self._bound

    def released(self, branches: Sequence[BranchPath]) -> None:
        below = tuple(f"{one}/" for one in branches)
        over = [one for one in self._where if f"{one}/".startswith(below)]
        homes = {self._where.pop(one) for one in over}
        self._bound.difference_update(over)
        for member in [one for id, one in self._used.items() if id in homes]:
            task = asyncio.create_task(self._end(member, list(branches)))
            self._telling.add(task)
            task.add_done_callback(self._telling.discard)

    async def close(self) -> None:
        ending = [self._end(member, None) for member in self._used.values()]
        await asyncio.gather(*self._telling, *ending)

    async def brought(self, state: SnapshotId | None) -> None:
        """Return once the bucket has a state, if this machine has it. Raises `ForkEngineError`."""
        if state is None or state in self._there:
            return
        assert self.runtime.bucket is not None
        if await asyncio.to_thread(missing, self.runtime.snapshots, state) is None:
            await uploaded(self.runtime.bucket, state)
        self._there.add(state)

    def goes_to(self, member: Member[RayHost]) -> None:
        self._used[member.node.id] = member

    def answered(self, order: StepOrder, answer: StepAnswer) -> None:
        """Note what a step on a node led to."""
        if answer.sealed is not None:
            assert self.runtime.bucket is not None
            self._there.add(answer.sealed.id)
            self.runtime.bucket.known(answer.sealed.id)
        if order.in_branch:
            (self._bound.add if answer.busy else self._bound.discard)(order.branch)

    async def lost(self, member: Member[RayHost], order: StepOrder, why: str) -> None:
        """A node died while it ran a step. Raises `NodesDied` if too many did."""
        died = self.died.setdefault(order.key, [])
        died.append(member.node.name)
        self._used.pop(member.node.id, None)
        await self.nodes.forget(member, why)
        if len(died) >= MOST_DEATHS:
            raise NodesDied(
                f"{len(died)} nodes died, one after the other, while they ran step {order.step!r} of run {self.run} "
                f"({', '.join(died)}). It may be the cause, for example by its memory. `ramify resume {self.run}` "
                "continues the run",
                stranded_run=self.run,
                nodes=died,
            )

    def _near(self, branch: BranchPath) -> NodeId | None:
        """The node that has a branch's state: where it ran last, or the branch above it."""
        above = str(branch)
        while above:
            if (node := self._where.get(BranchPath(above))) is not None:
                return node
            above = above.rpartition("/")[0]
        return self._here

    async def _end(self, member: Member[RayHost], branches: Sequence[BranchPath] | None) -> None:
        if self.nodes.lives(member):
            with suppress(HostDied, FleetError, TimeoutError):
                await asyncio.wait_for(member.host.end_steps(self.run, branches), _STOP_S)


class _NodePlace:
    """A slot of a node, for one step."""

    def __init__(self, places: BranchPlaces, member: Member[RayHost]) -> None:
        self._places, self._member = places, member
        self._asked: dict[int, asyncio.Task[None]] = {}  # model calls, by their number

    @property
    def name(self) -> str:
        return self._member.node.name

    async def perform(self, order: StepOrder, ask: Asking) -> StepAnswer | None:
        places, host = self._places, self._member.host
        await places.brought(order.state)
        places.goes_to(self._member)
        if earlier := places.died.get(order.key):
            places.nodes.emit(StepMoved(places.run, order.branch, order.step, self.name, tuple(earlier)))
        try:
            reply = await self._said(host.begin_step(order, places.sandbox))
            while reply.answer is None:
                for one in reply.asks:
                    self._ask(order.id, one, ask)
                reply = await self._said(host.next_of_step(order.id))
        except HostDied as error:
            await asyncio.gather(*self._asked.values(), return_exceptions=True)  # the next node gets their answers
            await places.lost(self._member, order, str(error))
            return None
        except BaseException as error:
            await self._end_asked()
            if not isinstance(error, ClusterUnreachable):
                with suppress(HostDied, FleetError, TimeoutError):
                    await asyncio.wait_for(asyncio.shield(host.stop_step(order.id)), _STOP_S)
            raise
        await self._end_asked()
        answer = reply.answer
        if reply.error is not None:
            answer = replace(answer, error=rebuilt(reply.error, self.name))
        if isinstance(answer.error, asyncio.CancelledError):
            places.nodes.check_open(places.refusal)  # a fleet that closes ends its steps
        places.answered(order, answer)
        return answer

    async def _said(self, working: Coroutine[Any, Any, StepReply]) -> StepReply:
        return await self._places.nodes.answer(asyncio.ensure_future(working), self._places.refusal)

    def _ask(self, id: str, asked: ModelAsk, ask: Asking) -> None:
        if not asked.requests:
            if (task := self._asked.get(asked.number)) is not None:
                task.cancel()
            return
        answering = ask(asked.requests, asked.said)  # takes the keys of the calls, in their order

        async def answered() -> None:
            told: Told
            try:
                told = await answering
            except Exception as error:  # noqa: BLE001  # it is raised in the step
                told = carried(error)
            with suppress(HostDied):
                await self._member.host.tell_step(id, asked.number, told)

        self._asked[asked.number] = asyncio.create_task(answered())

    async def _end_asked(self) -> None:
        for task in self._asked.values():
            task.cancel()
        await asyncio.gather(*self._asked.values(), return_exceptions=True)
