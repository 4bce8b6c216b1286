"""One queue for each replica: which queues a call stands in, which replica takes it, what if one is gone."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import httpx
import pytest

from ramify.serving.gateway.admission.replica_queues import ReplicaQueues
from ramify.serving.gateway.engines.replicas import Replica, Replicas
from ramify.serving.gateway.errors import Preempted, Refused
from ramify.serving.gateway.http.app import create_gateway
from ramify.serving.policy.calm import Calm
from ramify.serving.policy.edf import EarliestDeadlineFirst
from ramify.serving.policy.types import Finished, Policy, Refusal, RequestId, Verdict, View
from ramify.serving.testing import Fault, ScriptedModel
from tests.serving.gateway.admission.test_admission import Displaces, Scripted, Seeker
from tests.serving.gateway.admission.test_admission import replica as bare
from tests.serving.gateway.engines.test_replicas import MESSAGES, client_of, ms, replica


class Sees:
    """Lets everybody in where there is room, first come first served; keeps whom it saw waiting."""

    def __init__(self, *, refuses: float | None = None) -> None:
        self.queue: list[int] = []
        self.inside: list[int] = []
        self.refuses = refuses  # everybody, with this deadline
        self.done: list[int] = []

    def decide(self, view: View, now: float) -> Verdict:
        self.queue, self.inside = [call.id for call in view.waiting], [call.id for call in view.running]
        ids = tuple(RequestId(i) for i in self.queue)
        if self.refuses is not None:
            return Verdict(drop=tuple(Refusal(i, "not here", self.refuses) for i in ids))
        return Verdict(ids[: view.capacity.free], ids)

    def observe(self, done: Finished) -> None:
        self.done.append(done.view.id)


def queues(policies: Sequence[Policy], *replicas: Replica, k: int | None = None) -> ReplicaQueues:
    return ReplicaQueues(policies, Replicas(replicas), time.monotonic, k=k)


async def turn() -> None:
    """What is to be decided is decided, and who is let in goes in."""
    for _ in range(3):
        await asyncio.sleep(0)


class Room:
    """Calls that wait in a task of their own, and stay inside until they are told to go."""

    def __init__(self, door: ReplicaQueues) -> None:
        self.door = door
        self.replicas = door._replicas.all
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._go: dict[int, asyncio.Event] = {}
        self.at: dict[int, int] = {}  # replicas, by call

    async def ask(self, id_: int, prepare: Callable[[Seeker], object] = lambda _: None) -> Seeker:
        call, go = Seeker(id_), asyncio.Event()
        prepare(call)

        async def stay() -> None:
            async with self.door.slot(call) as where:
                self.at[id_] = where.index
                await go.wait()

        self._tasks[id_], self._go[id_] = asyncio.create_task(stay()), go
        await turn()
        return call

    async def leave(self, id_: int) -> None:
        self._go[id_].set()
        await self._tasks[id_]
        await turn()

    async def refusal(self, id_: int) -> Refusal:
        with pytest.raises(Refused) as caught:
            await self._tasks[id_]
        return caught.value.refusal


async def test_call_stands_in_k_queues_until_it_is_admitted() -> None:
    sees = [Sees() for _ in range(3)]
    room = Room(queues(sees, *(bare(i, 0) for i in range(3)), k=2))
    await room.ask(0)
    standing = [i for i, policy in enumerate(sees) if policy.queue == [0]]
    assert len(standing) == 2 and room.at == {}
    for id_ in range(1, 9):
        await room.ask(id_)
    assert sum(len(policy.queue) for policy in sees) == 18
    takes = standing[1]
    room.replicas[takes].slots = 1
    await room.ask(9)
    assert room.at == {0: takes}
    await room.ask(10)
    assert not any(0 in policy.queue for policy in sees), "its other dummy is gone"
    assert sees[takes].inside == [0] and not any(p.inside for i, p in enumerate(sees) if i != takes)


async def test_replica_that_finishes_soonest_gets_the_call() -> None:
    slow, fast = bare(0, 2), bare(1, 2)
    for _ in range(10):
        slow.answered(ms(40))
        fast.answered(ms(10))
    room = Room(queues([Sees(), Sees()], slow, fast))
    for id_ in range(5):
        await room.ask(id_)
    assert room.at == {0: 1, 1: 1, 2: 0, 3: 0}, "the fifth waits"


async def test_siblings_queue_where_the_first_one_is() -> None:
    def sibling(call: Seeker) -> None:
        call.affinity, call.seen = "group g", replace(call.seen, prompt_tokens=4000)

    sees = [Sees() for _ in range(4)]
    room = Room(queues(sees, *(bare(i, 3) for i in range(4)), k=1))
    for id_ in range(4):
        await room.ask(id_, sibling)
    assert len({room.at[i] for i in range(3)}) == 1
    home = room.at[0]
    assert 3 not in room.at and sees[home].queue == [3], "its one dummy is there, though the others are idle"


@pytest.mark.parametrize("gone", ["fails", "is started again"])
async def test_lost_replica_returns_its_waiting_calls(gone: str) -> None:
    sees = [Sees(), Sees()]
    both = [bare(0), bare(1)]
    door = queues(sees, *both, k=1)
    room = Room(door)
    for id_ in range(2):
        await room.ask(id_)
    for id_ in range(2, 12):
        await room.ask(id_)
    lost = set(sees[0].queue)
    assert lost and lost | set(sees[1].queue) == set(range(2, 12)) and not lost & set(sees[1].queue)
    if gone == "fails":
        both[0].lost(time.monotonic())
    else:
        both[0].upstream = None
    door.decide()
    assert set(sees[1].queue) == set(range(2, 12))
    await room.leave(next(c for c, at in room.at.items() if at == 1))
    assert len([c for c, at in room.at.items() if at == 1]) == 2


async def test_returned_replica_gets_new_dummies() -> None:
    sees = [Sees(), Sees()]
    both = [bare(0), bare(1)]
    both[0].upstream, back = None, both[0].upstream
    door = queues(sees, *both)
    room = Room(door)
    for id_ in range(2):
        await room.ask(id_)
    assert room.at == {0: 1}
    both[0].upstream = back
    door.decide()
    await turn()
    assert room.at == {0: 1, 1: 0}


async def test_call_is_refused_once_every_replica_refused_it() -> None:
    sees: list[Sees] = [Sees(refuses=30.0), Sees(refuses=10.0), Sees(refuses=20.0)]
    door = queues(sees, *(bare(i) for i in range(3)), k=1)
    room = Room(door)
    await room.ask(1)
    refusal = await room.refusal(1)
    assert (refusal.id, refusal.earliest_feasible_s) == (1, 10.0)
    sees[2].refuses = None
    for id_ in range(2, 9):
        await room.ask(id_)
        await room.leave(id_)
    assert {room.at[i] for i in range(2, 9)} == {2}, "who would have it does"
    assert (door.running, door.waiting) == (0, 0)


async def test_absent_replica_is_not_asked_while_another_is_up() -> None:
    """docs/serving.md says so: what the others cannot do in time is refused, whatever it would have said."""

    async def yes() -> bool:
        return True

    away, up = Replica(0, 4, None, comes_back=yes), bare(1)
    sees = [Sees(), Sees(refuses=30.0)]
    door = queues(sees, away, up)
    room = Room(door)
    await room.ask(1)
    assert (await room.refusal(1)).earliest_feasible_s == 30.0
    assert not sees[0].queue
    up.upstream = None
    await room.ask(2)
    assert sees[0].queue == [2] and door.waiting == 1, "with none up it waits"
    away.upstream = bare().upstream
    door.decide()
    await turn()
    assert room.at == {2: 0}


async def test_call_waiting_for_a_restart_is_refused_when_too_late() -> None:
    async def yes() -> bool:
        return True

    away = Replica(0, 1, None, comes_back=yes)
    door = queues([EarliestDeadlineFirst()], away)
    with pytest.raises(Refused, match="its deadline passed"):
        async with door.slot(Seeker(1, 0.02)):
            pytest.fail("there is no engine")


async def test_failed_engine_is_asked_again_only_as_the_last() -> None:
    def avoids(*indexes: int) -> Callable[[Seeker], None]:
        return lambda call: setattr(call, "avoid", frozenset(indexes))

    room = Room(queues([Sees(), Sees()], bare(0, 4), bare(1, 1)))
    await room.ask(1, avoids(0))
    await room.ask(2, avoids(0))
    await room.ask(3, avoids(0, 1))
    assert room.at == {1: 1, 3: 0}, "the second waits for the other"


async def test_policy_interrupts_only_on_its_own_replica() -> None:
    policies = [Scripted(preempt=(0, 1)), Scripted(preempt=(0, 1))]
    both = [bare(0, can_resume=True), bare(1, can_resume=True)]
    door = queues(policies, *both, k=1)
    room = Room(door)
    calls = [await room.ask(0), await room.ask(1)]
    await room.ask(2)
    (victim,) = [call for call in calls if call.why]
    assert [type(why) for why in victim.why] == [Preempted]
    await room.leave(victim.view().id)
    assert room.at[2] == victim.seen.replica


@pytest.mark.parametrize(("free", "leave"), [(0, 1), (1, 0)])
async def test_call_in_k_queues_displaces_at_most_one_other(free: int, leave: int) -> None:
    both = [bare(0, can_resume=True), bare(1, can_resume=True)]
    room = Room(queues([Displaces(), Displaces()], *both))
    calls = [await room.ask(0), await room.ask(1)]
    assert set(room.at) == {0, 1}
    both[1].slots += free
    await room.ask(9)
    for _ in range(3):
        room.door.decide()
    assert sum(len(call.why) for call in calls) == leave
    assert room.at.get(9) == (1 if free else None)


async def test_replica_outcomes_teach_its_own_policy() -> None:
    sees = [Sees(), Sees()]
    door = queues(sees, bare(0), bare(1))
    call = Seeker(7)
    door.observe(Finished(replace(call.seen, replica=1), 0.0, met=True))
    assert (sees[0].done, sees[1].done) == ([], [7])


async def test_no_slot_is_lost_however_calls_end() -> None:
    replicas = [bare(0, 2), bare(1, 1), bare(2, 1)]
    door = queues([EarliestDeadlineFirst() for _ in replicas], *replicas, k=2)
    rng, peak = random.Random(5), 0

    async def ask(id_: int) -> None:
        nonlocal peak
        async with door.slot(Seeker(id_, rng.choice([None, 1e3, -1.0]))):
            peak = max(peak, door.running)
            assert all(one.running <= one.slots for one in replicas)
            for _ in range(rng.randrange(4)):
                await asyncio.sleep(0)
            if rng.random() < 0.1:
                rng.choice(replicas).lost(time.monotonic())
            if rng.random() < 0.1:
                rng.choice(replicas).down_until = 0.0
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
    assert peak == 4
    assert (door.running, door.waiting, *(one.running for one in replicas)) == (0, 0, 0, 0, 0)
    assert {type(e) for e in ended} == {type(None), ValueError, Refused, asyncio.CancelledError}


def test_each_replica_needs_a_policy() -> None:
    with pytest.raises(ValueError, match="2 replicas need one policy each, not 1"):
        queues([Sees()], bare(0), bare(1))


@pytest.mark.parametrize("fault", [Fault.REFUSE, Fault.CUT])
async def test_failing_engines_lose_no_call(fault: Fault) -> None:
    def sickly() -> ScriptedModel:
        return ScriptedModel(lambda _: "", faults=[fault] * 99)

    well = ScriptedModel(lambda _: "done")
    engines = [replica(0, 4, sickly()), replica(1, 4, sickly()), replica(2, 1, well)]
    app = create_gateway(engines, policy=[Calm() for _ in engines])
    async with client_of(app) as client:
        body = {"messages": MESSAGES, "deadline": 30, "waiting_time": 30}
        answers = await asyncio.gather(*[client.post("/chat/completions", json=body) for _ in range(12)])
        seen = (await client.get("/ramify/requests")).json()["requests"]
    assert [a.status_code for a in answers] == [200] * 12
    assert {(r["outcome"], r["met"], r["replica"]) for r in seen} == {("done", True, 2)}


async def test_each_engine_gets_the_calls_of_its_queue() -> None:
    """Four slots, eight calls at once: no call is answered twice, none is forgotten, both engines work."""
    inside, go = asyncio.Semaphore(0), asyncio.Event()

    async def script(_: object) -> str:
        inside.release()
        await go.wait()
        return "done"

    models = [ScriptedModel(script) for _ in range(2)]
    engines = [replica(i, 2, model) for i, model in enumerate(models)]
    app = create_gateway(engines, policy=[Calm() for _ in engines])
    async with client_of(app) as client:
        calls = [asyncio.create_task(client.post("/chat/completions", json={"messages": MESSAGES})) for _ in range(8)]
        for _ in range(4):
            await inside.acquire()
        health = (await client.get("http://gateway/health")).json()
        go.set()
        answers: list[httpx.Response] = await asyncio.gather(*calls)
    assert (health["running"], health["waiting"]) == (4, 4)
    assert [a.status_code for a in answers] == [200] * 8
    assert sum(len(model.calls) for model in models) == 8 and all(model.calls for model in models)
