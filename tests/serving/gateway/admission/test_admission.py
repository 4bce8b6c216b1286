"""Admission: slots are never exceeded and never lost, and a call can be refused because time has passed."""

from __future__ import annotations

import asyncio
import random
import time
from dataclasses import replace

import pytest

from ramify.serving.gateway.admission.admission import Admission, OneQueue
from ramify.serving.gateway.engines.replicas import EngineTraits, Replica, Replicas
from ramify.serving.gateway.engines.upstream import Upstream
from ramify.serving.gateway.errors import Preempted, Refused
from ramify.serving.policy.edf import EarliestDeadlineFirst
from ramify.serving.policy.types import Finished, Refusal, RequestId, RequestView, SloClass, State, Verdict, View


class Seeker:
    """A call that keeps what happened to it."""

    def __init__(self, id_: int, due_in: float | None = None, *, resumable: bool = True) -> None:
        now = time.monotonic()
        deadline = None if due_in is None else now + due_in
        kind = SloClass.BEST_EFFORT if due_in is None else SloClass.DEADLINE
        self.seen = RequestView(RequestId(id_), now, kind, deadline)
        self.affinity: str | None = None
        self.cached_as: str | None = None
        self.avoid: frozenset[int] = frozenset()
        self.resumable = resumable
        self.why: list[Exception] = []

    def view(self) -> RequestView:
        return self.seen

    def enter(self, now: float, replica: int) -> None:
        self.seen = replace(self.seen, state=State.RUNNING, replica=replica)

    def leave(self, now: float) -> None:
        self.seen = replace(self.seen, state=State.WAITING)

    def interrupt(self, why: Exception) -> None:
        self.why.append(why)


def replica(index: int = 0, slots: int = 1, *, can_resume: bool = False) -> Replica:
    return Replica(index, slots, Upstream(f"http://engine{index}"), EngineTraits(can_resume=can_resume))


def admission(*replicas: Replica) -> Admission:
    return OneQueue(EarliestDeadlineFirst(), Replicas(replicas), time.monotonic)


async def test_no_slot_is_lost_however_calls_end() -> None:
    one, two = replica(0, 2), replica(1, 1)
    door, rng, peak = admission(one, two), random.Random(5), 0

    async def ask(id_: int) -> None:
        nonlocal peak
        async with door.slot(Seeker(id_, rng.choice([None, 1e3, -1.0]))):
            peak = max(peak, door.running)
            assert one.running <= 2 and two.running <= 1
            for _ in range(rng.randrange(4)):
                await asyncio.sleep(0)
            if rng.random() < 0.3:
                raise ValueError("the engine broke")

    tasks = []
    for id_ in range(300):
        tasks.append(asyncio.create_task(ask(id_)))
        if rng.random() < 0.4:
            rng.choice(tasks).cancel()
        if rng.random() < 0.5:
            await asyncio.sleep(0)
    ended = await asyncio.gather(*tasks, return_exceptions=True)
    assert peak == 3
    assert (door.running, door.waiting, one.running, two.running) == (0, 0, 0, 0)
    assert {type(e) for e in ended} == {type(None), ValueError, Refused, asyncio.CancelledError}


async def test_passed_deadline_alone_refuses_a_waiting_call() -> None:
    door = admission(replica())
    async with door.slot(Seeker(1)):
        with pytest.raises(Refused, match="its deadline passed"):
            async with door.slot(Seeker(2, 0.02)):
                pytest.fail("there was no slot")
        assert (door.running, door.waiting) == (1, 0)


async def test_call_cancelled_at_admission_releases_its_slot() -> None:
    door, entered = admission(replica()), []

    async def ask(id_: int) -> None:
        async with door.slot(Seeker(id_)):
            entered.append(id_)

    async with door.slot(Seeker(0)):
        first, second = asyncio.create_task(ask(1)), asyncio.create_task(ask(2))
        await asyncio.sleep(0)
    first.cancel()  # admitted by the exit above, but not yet awake
    await asyncio.gather(first, second, return_exceptions=True)
    assert entered == [2]
    assert door.running == 0


class Scripted:
    """Interrupts what it is told to once somebody waits; lets everybody in where there is room."""

    def __init__(self, *, preempt: tuple[int, ...] = (), drop: tuple[int, ...] = ()) -> None:
        self.views: list[View] = []
        self.preempt, self.drop = preempt, drop

    def decide(self, view: View, now: float) -> Verdict:
        self.views.append(view)
        free = view.capacity.free
        ids = tuple(call.id for call in view.waiting)
        here = {call.id for call in view.running}
        return Verdict(
            ids[:free] or ids[: len(self.preempt)],
            ids,
            preempt=tuple(RequestId(i) for i in self.preempt if i in here and not free),
            drop=tuple(Refusal(RequestId(i), "too late") for i in self.drop if i in here),
        )

    def observe(self, done: Finished) -> None:
        pass


async def test_interruption_happens_once_and_frees_the_slot() -> None:
    policy = Scripted(preempt=(1, 2))
    door = OneQueue(policy, Replicas([replica(slots=2, can_resume=True)]), time.monotonic)
    can, cannot, urgent = Seeker(1), Seeker(2, resumable=False), Seeker(3)
    async with door.slot(can) as _, door.slot(cannot):
        waiting = asyncio.create_task(door.slot(urgent).__aenter__())
        await asyncio.sleep(0)
        door.decide()
        assert [type(why) for why in can.why] == [Preempted]
        assert not cannot.why and not waiting.done()
        assert policy.views[-1].capacity.can_preempt
    assert (await waiting).running == 1


class Displaces:
    """Has somebody who runs leave for whoever waits, where nothing is free."""

    def decide(self, view: View, now: float) -> Verdict:
        ids = tuple(call.id for call in view.waiting)
        free = view.capacity.free
        out = [call.id for call in view.running][: max(0, len(ids) - free)]
        return Verdict(ids[: free + len(out)], ids, preempt=tuple(out))

    def observe(self, done: Finished) -> None: ...


@pytest.mark.parametrize("queues", [False, True])
async def test_one_call_leaves_per_waiting_call_however_many_decisions(queues: bool) -> None:
    from ramify.serving.gateway.admission.replica_queues import ReplicaQueues

    both = Replicas([replica(slots=3, can_resume=True)])
    door: Admission
    door = (
        ReplicaQueues([Displaces()], both, time.monotonic) if queues else OneQueue(Displaces(), both, time.monotonic)
    )
    calls, urgent = [Seeker(i) for i in range(3)], Seeker(9)
    async with door.slot(calls[0]), door.slot(calls[1]), door.slot(calls[2]):
        waiting = asyncio.create_task(door.slot(urgent).__aenter__())
        await asyncio.sleep(0)
        for _ in range(3):
            door.decide()
        assert [len(call.why) for call in calls] == [1, 0, 0]
    await waiting


async def test_running_call_that_is_dropped_gets_the_reason() -> None:
    policy = Scripted(drop=(1,))
    door = OneQueue(policy, Replicas([replica()]), time.monotonic)
    late = Seeker(1)
    async with door.slot(late):
        waiting = asyncio.create_task(door.slot(Seeker(2)).__aenter__())
        await asyncio.sleep(0)
        door.decide()
        assert [str(why) for why in late.why] == ["too late"]
    await waiting


async def test_policy_sees_running_calls_and_engine_speed() -> None:
    policy = Scripted()
    door = OneQueue(policy, Replicas([replica(0, 3), replica(1, 2)]), time.monotonic)
    running = Seeker(1)
    async with door.slot(running), door.slot(Seeker(2)):
        seen = policy.views[-1]
        assert seen.running[0] is running.seen and seen.running[0].state is State.RUNNING
    assert (seen.capacity.slots, seen.capacity.running, len(seen.running)) == (5, 1, 1)
    assert seen.capacity.can_cancel and not (seen.capacity.can_preempt or seen.capacity.can_pause)
