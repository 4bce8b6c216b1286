"""Learning an engine's speed; no estimate keeps out the calls that would correct it."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ramify.serving.gateway.dialects import Times, details_of
from ramify.serving.gateway.engines.replicas import Replica
from ramify.serving.gateway.engines.service_time import ServiceModel, ServiceSample, arrived_at_once
from ramify.serving.policy.types import RequestId
from tests.samples import sample
from tests.serving.gateway.virtual_time import Came, Engine, Served
from tests.virtual_loop import run

PROMPTS, TOKENS = (3, 20, 200, 1500), (1, 8, 24, 60)


async def mixed(served: Served, calls: int, *, streamed: float = 0.0, seed: int = 1, at_once: int = 3) -> None:
    """Traffic without deadlines: calls of all sizes, up to so many beside each other."""
    chance = random.Random(seed)
    while calls > 0:
        together = min(calls, chance.randint(1, at_once))
        sizes = [(chance.choice(PROMPTS), chance.choice(TOKENS)) for _ in range(together)]
        await asyncio.gather(*(served.ask(p, n, stream=chance.random() < streamed) for p, n in sizes))
        calls -= together


def said(served: Served, prompt: int, tokens: int, beside: int = 1) -> float:
    """The estimate of such a call."""
    step = served.model.step
    return (step.per_call_ms + prompt * step.per_prefill_ms + tokens * step.step_ms(beside, 0)) / 1000


@pytest.mark.parametrize("queue", [0, 1024])
def test_after_a_burst_short_deadlines_are_met_on_the_idle_engine(queue: int) -> None:
    async def work() -> list[Came]:
        served = Served(Engine(), queue=queue)
        first = await asyncio.gather(*(served.ask(deadline=4.0) for _ in range(8)))
        burst = await asyncio.gather(*(served.ask() for _ in range(20)))
        assert all(one.met for one in first)
        await asyncio.sleep(1.0)
        just_enough = 1.01 * max(one.took_s for one in burst)
        return await asyncio.gather(*(served.ask(deadline=just_enough) for _ in range(20)))

    came = run(work)
    assert [one.status for one in came] == [200] * 20
    assert all(one.met for one in came)


def test_pace_depends_on_calls_worked_on_at_once() -> None:
    async def work() -> None:
        served = Served(Engine(), queue=1024)
        for _ in range(3):
            await asyncio.gather(*(served.ask(stream=True) for _ in range(30)))
        capacity = served.gateway.replicas.capacity(0.0)
        assert (capacity.slots, capacity.queue, capacity.free) == (8, 1024, 1032)
        step = capacity.step
        assert step.step_ms(capacity.slots, 0) == pytest.approx(60, rel=0.15)
        start_ms = step.per_call_ms + 20 * step.per_prefill_ms
        assert start_ms == pytest.approx(70, rel=0.3), "the wait in the engine's own queue is no part of it"

    run(work)


@pytest.mark.parametrize("streamed", [0.0, 0.1, 1.0])
@pytest.mark.parametrize("kind", [{}, {"tells": True}, {"buffers": True}], ids=["plain", "tells", "buffers"])
def test_estimates_converge_however_answers_arrive(streamed: float, kind: dict[str, Any]) -> None:
    async def work() -> None:
        engine = Engine(**kind)
        served = Served(engine)
        await mixed(served, 150, streamed=streamed)
        for prompt, tokens in ((3, 8), (20, 24), (1500, 8), (200, 60), (1500, 60)):
            assert said(served, prompt, tokens) == pytest.approx(engine.takes(prompt, tokens), rel=0.25)
        assert said(served, 1500, 1) == pytest.approx(engine.takes(1500, 1), rel=0.3), "and the prompt by itself"

    run(work)


@pytest.mark.parametrize("slower", [4.0, 0.25], ids=["slower", "faster"])
@pytest.mark.parametrize("streamed", [0.0, 1.0])
def test_estimates_follow_an_engine_whose_speed_changes(slower: float, streamed: float) -> None:
    async def work() -> None:
        engine = Engine()
        served = Served(engine)
        await mixed(served, 80, streamed=streamed)
        engine.slower = slower
        await mixed(served, 80, streamed=streamed, seed=2)
        for prompt, tokens in ((20, 24), (1500, 24)):
            assert said(served, prompt, tokens) == pytest.approx(engine.takes(prompt, tokens), rel=0.3)

    run(work)


@pytest.mark.parametrize(
    "spoils",
    [{"n": 4}, {"echo": True}, {"best_of": 3}, {"stream": True, "n": 3}],
    ids=["n", "echo", "best_of", "streamed n"],
)
def test_answers_that_hide_their_speed_are_not_learnt_from(spoils: dict[str, Any]) -> None:
    async def work() -> None:
        engine = Engine()
        served = Served(engine)
        await mixed(served, 40)
        before = served.model.step
        for _ in range(20):
            await served.ask(**spoils)
        assert served.model.step == before

    run(work)


def test_cached_prompt_neither_lowers_prompt_cost_nor_is_refused_as_new() -> None:
    async def work() -> None:
        engine = Engine(cache=True)
        served = Served(engine)
        for i in range(20):
            await served.ask(prompt=300 + 60 * i, word=f"w{i}")
        for _ in range(40):
            await served.ask(prompt=1500, tokens=8, word="same")
        assert said(served, 1500, 8) == pytest.approx(engine.takes(1500, 8), rel=0.3)
        again = await served.ask(prompt=1500, tokens=8, word="same", deadline=3 * engine.takes(1, 8))
        assert again.met

    run(work)


@pytest.mark.parametrize("prompt", [20, 1500])
@pytest.mark.parametrize("tells", [False, True])
def test_idle_engine_with_a_cache_admits_a_repeated_call(prompt: int, tells: bool) -> None:
    """Also where its own account of its time tells what a prompt costs that it has not read."""

    async def work() -> None:
        served = Served(Engine(prompt=0.02, base=0.005, cache=True, tells=tells))
        for i in range(12):
            await served.ask(prompt=100 + 60 * i, tokens=5, word=f"w{i}")
        await served.ask(prompt, tokens=5)
        for _ in range(3):
            once = await served.ask(prompt, tokens=5)
            again = await served.ask(prompt, tokens=5, deadline=3 * once.took_s)
            assert again.status == 200 and again.met, again.error

    run(work)


def test_infeasible_calls_are_refused_without_streams_too() -> None:
    """1,500 words need 1.8 s by themselves."""

    async def work() -> None:
        served = Served(Engine())
        await mixed(served, 60)
        came = await served.ask(1500, 24, deadline=0.056)
        assert (came.status, came.error["code"]) == (422, "deadline_infeasible")
        assert came.error["earliest_feasible_s"] == pytest.approx(3.0, rel=0.3), "in a full batch"

    run(work)


@pytest.mark.parametrize("queue", [0, 1024])
@settings(deadline=None, max_examples=sample(8, 60), suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_after_any_history_an_idle_engine_admits_a_call_with_three_times_its_need(
    queue: int, data: st.DataObject
) -> None:
    engine = {
        "start": data.draw(st.sampled_from([0.0, 0.05, 0.5])),
        "prompt": data.draw(st.sampled_from([0.0, 0.0001, 0.001, 0.01])),
        "base": data.draw(st.sampled_from([0.002, 0.02, 0.1])),
        "each": data.draw(st.sampled_from([0.0, 0.001, 0.02])),
        "slots": data.draw(st.sampled_from([1, 4, 8])),
        "tells": data.draw(st.booleans()),
        "buffers": data.draw(st.booleans()),
        "cache": data.draw(st.booleans()),
    }
    size = st.tuples(st.sampled_from(PROMPTS), st.sampled_from(TOKENS))
    call = st.tuples(size, st.booleans(), st.sampled_from([None, None, 0.1, 1.0, 5.0, 60.0]))
    history = data.draw(st.lists(st.lists(call, min_size=1, max_size=12), max_size=12))
    prompt, tokens = data.draw(size)

    async def work() -> None:
        made = Engine(**engine)
        served = Served(made, queue=queue)
        for together in history:
            asked = [served.ask(p, n, deadline, word=f"w{p}", stream=stream) for (p, n), stream, deadline in together]
            await asyncio.gather(*asked)
        came = await served.ask(prompt, tokens, deadline=3 * made.takes(prompt, tokens))
        assert (came.status, came.met) == (200, True), came.error

    run(work)


@settings(deadline=None, max_examples=sample(8, 60), suppress_health_check=list(HealthCheck))
@given(st.floats(0.02, 50.0), st.sampled_from(PROMPTS), st.sampled_from(TOKENS), st.booleans())
def test_idle_engine_admits_a_repeated_call_with_three_times_its_time(
    slower: float, prompt: int, tokens: int, stream: bool
) -> None:
    async def work() -> None:
        engine = Engine()
        served = Served(engine, queue=1024)
        await mixed(served, 30, at_once=12)
        engine.slower = slower  # whatever was learnt before
        once = await served.ask(prompt, tokens, stream=stream)
        again = await served.ask(prompt, tokens, deadline=3 * once.took_s)
        assert again.status == 200 and again.met

    run(work)


@pytest.mark.parametrize("policy_each", [False, True])
@pytest.mark.parametrize("slower", [60.0, 200.0])
def test_pessimistic_estimate_is_corrected_by_test_calls(slower: float, policy_each: bool) -> None:
    """Nothing but calls with short deadlines comes once the engine has its speed again: refusals alone would never
    tell that it has."""

    async def work() -> None:
        engine = Engine(slower=slower)
        served = Served(engine, queue=1024, policy_each=policy_each)
        await mixed(served, 40)
        engine.slower = 1.0
        came = []
        for _ in range(40):
            came.append(await served.ask(20, 24, deadline=3 * engine.takes(20, 24)))
            await asyncio.sleep(5.0)
        statuses = [one.status for one in came]
        first = statuses.index(200)
        assert first > 0, "it was believed at first"
        assert statuses[-20:] == [200] * 20
        assert said(served, 20, 24) < 3 * engine.takes(20, 24)

    run(work)


def test_silent_thinking_does_not_raise_prompt_cost() -> None:
    async def work() -> None:
        engine = Engine(silent=40)
        served = Served(engine)
        await mixed(served, 60)
        for _ in range(40):
            await served.ask(20, 60, stream=True)
        assert said(served, 1500, 1) == pytest.approx(engine.takes(1500, 1), rel=0.3)
        assert said(served, 20, 60) == pytest.approx(engine.takes(20, 60), rel=0.3)

    run(work)


def test_abandoned_stream_teaches_nothing_and_frees_its_slot() -> None:
    async def work() -> None:
        engine = Engine()
        served = Served(engine)
        await mixed(served, 40)
        before = served.model.step
        for _ in range(10):
            asked = asyncio.ensure_future(served.ask(20, 60, stream=True))
            await asyncio.sleep(0.5)
            asked.cancel()
            await asyncio.gather(asked, return_exceptions=True)
        await asyncio.sleep(5.0)
        assert served.model.step == before
        assert served.gateway.replicas.all[0].running == 0 and not served.gateway.replicas.all[0]._stays

    run(work)


def test_hopeless_calls_are_rarely_tried() -> None:
    async def work() -> list[Came]:
        served = Served(Engine())
        await mixed(served, 40)
        came = []
        for _ in range(600):
            came.append(await served.ask(1500, 24, deadline=0.05))
            await asyncio.sleep(1.0)
        return came

    came = run(work)
    assert 1 <= sum(one.status == 200 for one in came) <= 10


@pytest.mark.parametrize("queue", [0, 1024])
def test_refusal_comes_early_with_one_number(queue: int) -> None:
    """Thirty calls at once, of which half can be met: those that cannot hear it while they can still go elsewhere."""

    async def work() -> list[Came]:
        served = Served(Engine(), queue=queue)
        await mixed(served, 40)
        await asyncio.gather(*(served.ask() for _ in range(12)))
        return await asyncio.gather(*(served.ask(deadline=3.2) for _ in range(30)))

    came = run(work)
    refused = [one for one in came if one.status == 422]
    assert sum(one.met is True for one in came) >= 12
    assert refused and max(one.took_s for one in refused) < 0.25 * 3.2
    for one in refused:
        least = one.error["earliest_feasible_s"]
        assert f"needs at least {least:.3f} s" in one.error["message"] and least > 0.75 * 3.2


LOADS = [(1.25, 0.99, 0), (2.5, 1.0, 1024), (4.0, 1.1, 0), (1.25, 0.99, 1024), (2.5, 1.0, 0), (4.0, 1.1, 1024)]


@pytest.mark.parametrize(("rate", "share", "queue"), LOADS[: sample(3, 6)])
def test_meets_at_least_as_many_deadlines_as_first_come_first_served(queue: int, rate: float, share: float) -> None:
    """From a load at which nearly all are met to one at which not half of them can be."""
    ours = theirs = 0
    for seed in range(4):
        chance = random.Random(seed)
        calls = [
            (chance.expovariate(rate), chance.choice((3, 20, 200)), chance.choice((8, 24, 60)), chance.uniform(1, 8))
            for _ in range(60)
        ]

        async def trace(direct: bool, calls: list[tuple[float, int, int, float]] = calls) -> int:
            served = Served(Engine(slots=4), slots=1000 if direct else None, queue=0 if direct else queue)
            asked = []
            for gap, prompt, tokens, due in calls:
                await asyncio.sleep(gap)
                limit = None if direct else due
                asked.append((asyncio.ensure_future(served.ask(prompt, tokens, limit)), due))
            return sum([(await one).status == 200 and one.result().took_s <= due for one, due in asked])

        ours, theirs = ours + run(lambda: trace(False)), theirs + run(lambda: trace(True))
    assert ours >= share * theirs > 60


def test_fixed_cost_of_a_first_token_is_not_scaled_by_prompt_length() -> None:
    learnt = ServiceModel()
    for i in range(60):
        prompt = (10, 40, 100)[i % 3]
        learnt.observe(ServiceSample(prompt, 21, 0.5 + 0.001 * prompt + 0.02, 0.4, 1.0))
    step = learnt.step
    assert step.per_call_ms == pytest.approx(500, rel=0.05)
    assert step.per_prefill_ms == pytest.approx(1.0, rel=0.3)


def test_call_that_waited_in_the_engine_teaches_no_prompt_cost() -> None:
    assert (
        ServiceSample(None, 24, 3.0, 1.0, 8.0, 4.0).spans() == ServiceSample(None, 24, None, 1.0, 8.0).spans() != []
    )
    assert ServiceSample(None, 24, None, None, 8.0, 4.0).spans() == []


def test_calls_beside_are_those_worked_on() -> None:
    one = Replica(0, 2, None, queue=10)
    for id_ in range(4):
        one.enter(RequestId(id_), 0.0)
    assert [one.waited(RequestId(id_)) for id_ in range(4)] == [False, False, True, True]
    assert one.beside(RequestId(3), 4.0) == pytest.approx(2.0), "the engine worked on two"
    for id_ in range(3):
        one.leave(RequestId(id_), 4.0)
    assert one.beside(RequestId(3), 12.0) == pytest.approx(4 / 3), "and for 8 s on one"
    one.leave(RequestId(3), 12.0)
    assert (one.running, one.free, one._stays) == (0, 12, {})


@pytest.mark.parametrize(
    ("first_s", "decode_s", "tokens", "pieces", "whole"),
    [
        (1.0, 2.0, 60, 60, False),
        (2.9, 0.01, 60, 60, True),
        (2.0, 1.0, 60, 20, True),
        (2.0, 0.5, 20, 17, False),
        (9.9, 0.02, 2, 2, False),
    ],
    ids=["stream", "all at once", "thoughts in silence", "a few a chunk", "a short answer"],
)
def test_stream_without_token_times_counts_as_a_whole(
    first_s: float, decode_s: float, tokens: int, pieces: int, whole: bool
) -> None:
    assert arrived_at_once(first_s, decode_s, tokens, pieces) is whole


def test_engines_own_timings_are_used_if_plausible() -> None:
    times = {"prompt_n": 12, "prompt_ms": 30.5, "predicted_n": 8, "predicted_ms": 200}
    assert details_of({"timings": times}).times == Times(12, 0.0305, 8, 0.2)
    assert details_of({"usage": {"prompt_tokens_details": {"cached_tokens": 7}}}).cached == 7
    assert details_of({"usage": {"input_tokens_details": {"cached_tokens": 9}}}).cached == 9
    nonsense: list[Any] = [
        {},
        [],
        {**times, "prompt_ms": "30"},
        {**times, "prompt_ms": float("nan")},
        {**times, "predicted_ms": -1},
        {**times, "predicted_n": True},
        {**times, "prompt_ms": float("inf")},
    ]
    assert all(details_of({"timings": said, "usage": None}).times is None for said in nonsense)


def test_spans_in_which_no_token_was_read_or_made_are_left_out() -> None:
    """An engine whose cache held the whole prompt reports no prompt token, and an answer of one token no step."""
    model = ServiceModel()
    nothing = ServiceSample(0, 1, None, 0.001, 1.0, total_s=0.2, prompt_s=0.1)
    for _ in range(10):
        model.observe(nothing)
    assert (nothing.spans(), model.known) == ([], False)
    for _ in range(10):
        model.observe(ServiceSample(20, 10, 0.3, 0.9, 1.0, total_s=1.2))
        model.observe(nothing)
    assert model.expected_s(20, 10, 1.0) == pytest.approx(1.2, rel=0.2)
