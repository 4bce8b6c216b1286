"""What the job index keeps between decisions equals what it would compute from scratch."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.replay.baselines.ordered import Ordered
from benchmarks.replay.baselines.plas import Plas, PlasOptions
from ramify.serving.policy.calm import Calm, CalmOptions
from ramify.serving.policy.concord.job_index import JobIndex
from ramify.serving.policy.cost_model import Goodput
from ramify.serving.policy.types import (
    Capacity,
    CompoundView,
    Finished,
    GroupView,
    RequestId,
    RequestView,
    SloClass,
    StageEstimate,
    State,
    StepModel,
    Verdict,
    View,
)
from tests.samples import sample
from tests.serving.policy.views import NOW, view

_MADE_WITH = (0.5, 0.1, 120.0, 0.25)


class Host:
    """Calls arrive, end, change state and kind, and reuse ids of calls that left. The engine changes its pace and its
    slots, and dies with all its calls."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._calls: dict[int, RequestView] = {}
        self._step, self._slots, self._next = StepModel(base_ms=24.0), 8, 0
        self._calm = chance.choice([20, 300])  # the less changes, the more is changed in place and not made anew

    def shows(self, now: float) -> View:
        chance = self._chance
        for id_, call in list(self._calls.items()):
            if (moved := self._moved(id_, call, now)) is None:
                del self._calls[id_]
            else:
                self._calls[id_] = moved
        for _ in range(40 if not self._next else chance.choice([0, 1, 2])):
            id_ = chance.randrange(self._next + 1)
            if id_ not in self._calls:
                self._calls[id_] = self._call(id_, now, chance.choice(list(State)))
            self._next = max(self._next, id_ + 1)
        if chance.random() < 0.02:
            self._calls.clear()
        if chance.random() < 0.1:
            self._step, self._slots = self._step.scaled(chance.choice([0.5, 1.05, 2.0])), chance.choice([2, 8, 32])
        calls = list(self._calls.values())
        if chance.random() < 0.2:
            chance.shuffle(calls)
        waiting, running, paused = (
            [call for call in calls if call.state in states]
            for states in ((State.WAITING, State.PREEMPTED), (State.RUNNING,), (State.PAUSED,))
        )
        return View(Capacity(self._slots, len(running), None, self._step), waiting, running, paused)

    def _moved(self, id_: int, call: RequestView, now: float) -> RequestView | None:
        chance = self._chance
        match chance.choices(["stays", "ends", "moves", "is another", "equal"], [self._calm, 2, 8, 8, 5])[0]:
            case "ends":
                return None
            case "moves":
                generated = call.generated + chance.choice([0, 1, 50])
                return replace(call, state=chance.choice(list(State)), generated=generated)
            case "is another":
                return replace(self._call(id_, now, call.state), arrived=call.arrived)
            case "equal":
                return replace(call)
        return call

    def _call(self, id_: int, now: float, state: State) -> RequestView:
        chance = self._chance
        compound = CompoundView(
            f"run{chance.randrange(3)}",
            chance.randrange(2),
            last=chance.random() < 0.3,
            deadline=now + chance.uniform(1, 30),
        )
        return view(
            id_,
            chance.choice(list(SloClass)),
            chance.choice([20.0, 600.0]),
            arrived=now - chance.random(),
            deadline=chance.choice([None, now + chance.uniform(-1, 40)]),
            ttft=chance.choice([None, now + chance.uniform(0, 4)]),
            tbt=chance.choice([None, chance.random()]),
            admit_by=chance.choice([None, now + 5]),
            prompt_tokens=chance.randrange(1, 2000),
            weight=chance.choice([1.0, 3.0]),
            state=state,
            compound=chance.choice([None, compound, replace(compound, rest=(StageEstimate(2, 300, 150, 0.3),))]),
            group=chance.choice([None, GroupView(f"fork{chance.randrange(3)}", 2, 1)]),
        )


def said(book: JobIndex, calls: View) -> dict[str, object]:
    """What a decision reads from the index, except what siblings share, which may be slightly out of date."""
    running = book.running
    return {
        "jobs": {j.id: (j.view, j.binding, j.start_by, j.late_at, j.work_s) for j in book.jobs_of(calls.waiting)},
        "running": {job.id: (job.view, job.due, job.work_s, job.slot_s) for job in running.jobs()},
        "holds": [running.holds(slo_class) for slo_class in SloClass],
        "asked": (running.tightest(), running.by_due(), running.by_end(), book.context),
        "lax": book.by_laxity(),
        "due": book.by_deadline(),
        "promised": (book.promised().ids, book.promised().late_at),
        "waits": (set(book.by_density()), book.worth(), book.heaviest(), book.next_late()),
    }


@given(st.randoms(use_true_random=False))
@settings(max_examples=sample(8, 25), deadline=None)
def test_the_index_equals_one_built_from_scratch(chance: random.Random) -> None:
    host, kept = Host(chance), JobIndex(*_MADE_WITH)
    for decision in range(25):
        shown = host.shows(NOW + decision)
        kept.follow(shown, 0.02)
        anew = JobIndex(*_MADE_WITH)
        anew.follow(shown, 0.02)
        assert said(kept, shown) == said(anew, shown)


class ForgetfulCalm(Calm):
    def decide(self, view: View, now: float) -> Verdict:
        self._known.clear()
        return super().decide(view, now)


class ForgetfulPlas(Plas):
    def decide(self, view: View, now: float) -> Verdict:
        self._order = Ordered(self._level, displace=0.0 if self.options.preempts else None)
        return super().decide(view, now)


@pytest.mark.parametrize(
    ("kind", "forgetful", "options"),
    [
        (Calm, ForgetfulCalm, CalmOptions(goodput=Goodput.REQUEST)),
        (Calm, ForgetfulCalm, CalmOptions(fairness=0.5, waiting_s=None)),
        (Plas, ForgetfulPlas, PlasOptions(first_s=0.05)),
        (Plas, ForgetfulPlas, PlasOptions(first_s=0.05, critical_path=True, preempts=False)),
        (Plas, ForgetfulPlas, PlasOptions(first_s=0.05, beta=2.0)),
    ],
)
@given(st.integers(0, 1 << 32))
@settings(max_examples=sample(8, 20), deadline=None)
def test_policies_decide_as_without_their_caches(kind: Any, forgetful: Any, options: Any, seed: int) -> None:
    chance, now = random.Random(seed), NOW
    host, kept, anew = Host(chance), kind(options), forgetful(options)
    there: dict[RequestId, RequestView] = {}
    bare: dict[int, tuple[RequestView, RequestView]] = {}  # the first is kept, so that its id is no other's
    for _ in range(25):
        now += chance.choice([0.0, 1.0, 1.0, 1.0, 700.0])  # so long a program is not remembered
        shown = host.shows(now)
        for call in shown.waiting:  # the lengths of some are known to nobody, and what they are taken for is learnt
            bare.setdefault(id(call), (call, replace(call, sketch=None) if call.id % 3 == 0 else call))
        shown = replace(shown, waiting=[bare[id(call)][1] for call in shown.waiting])
        assert kept.decide(shown, now) == anew.decide(shown, now)
        before, there = there, {call.id: call for call in (*shown.waiting, *shown.running, *shown.paused)}
        for id_ in before.keys() - there.keys():
            done = Finished(replace(before[id_], generated=before[id_].generated + 30), now, met=True)
            for policy in [kept, anew] * 4:  # so often that lengths are learnt from them
                policy.observe(done)


def test_a_dead_replica_leaves_no_jobs_behind() -> None:
    book, id_ = JobIndex(*_MADE_WITH), RequestId(1)
    room = Capacity(8, 1, None, StepModel())
    book.follow(View(room, [], [view(1, state=State.RUNNING, tbt=0.1)]))
    book.follow(View(replace(room, running=0), [view(1)]))
    assert (book.context, book.running.tightest(), book.by_laxity()) == (0, None, [id_])
    book.follow(View(replace(room, running=0), []))
    assert (book.worth(), list(book.running.jobs()), book.by_laxity()) == (0, [], [])
