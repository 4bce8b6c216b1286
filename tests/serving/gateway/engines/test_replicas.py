"""Several engines: which replica a call goes to, and what happens when one fails."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette

from ramify.serving.gateway.engines.replicas import EngineTraits, Replica, Replicas
from ramify.serving.gateway.engines.service_time import PromptSizes, ServiceModel, ServiceSample
from ramify.serving.gateway.engines.upstream import Upstream
from ramify.serving.gateway.errors import Aborted, Preempted
from ramify.serving.gateway.http.app import create_gateway
from ramify.serving.policy.cost_model import decode_gpu_s, pace_of, prefill_s
from ramify.serving.policy.types import RequestId, RequestView, StepModel
from ramify.serving.testing import Fault, ScriptedModel
from ramify.serving.types import ChatRequest

MESSAGES = [{"role": "user", "content": "hi"}]
CALL = RequestView(RequestId(1), 0.0, prompt_tokens=100)


def replica(index: int, slots: int = 2, transport: httpx.AsyncBaseTransport | None = None) -> Replica:
    return Replica(index, slots, Upstream(f"http://engine{index}", transport=transport, hang_s=5))


def ms(step_ms: float) -> ServiceSample:
    return ServiceSample(prompt_tokens=50, tokens=101, first_token_s=0.1, decode_s=step_ms * 0.1, beside=1.0)


def client_of(app: Starlette) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://gateway/v1")


def test_faster_replica_is_chosen_until_it_is_full() -> None:
    slow, fast = replica(0), replica(1)
    for _ in range(10):
        slow.answered(ms(40))
        fast.answered(ms(10))
    both = Replicas([slow, fast])
    chosen = []
    for _ in range(5):
        one = both.place(CALL, 0.0, None, frozenset())
        chosen.append(one and one.index)
        if one:
            one.running += 1
    assert chosen == [1, 1, 0, 0, None]
    assert both.capacity(0.0).step.base_ms == pytest.approx(10, rel=0.01)
    assert (both.capacity(0.0).slots, both.capacity(0.0).running) == (4, 4)


def test_four_equal_engines_count_as_one_four_times_as_wide() -> None:
    """What a policy reckons with: the pace of a full batch, and the time of all engines that a call takes."""
    one, four = Replicas([replica(0, 64)]), Replicas([replica(i, 64) for i in range(4)])
    alone, all_four = one.capacity(0.0), four.capacity(0.0)
    assert all_four.slots == 4 * alone.slots
    context = 64 * 1300
    assert pace_of(all_four, 4 * context, 256) == pytest.approx(pace_of(alone, context, 64))
    for capacity, share in ((alone, 1.0), (all_four, 0.25)):
        decode = decode_gpu_s(capacity.step, capacity.slots, 1000, 200)
        assert decode == pytest.approx(share * decode_gpu_s(StepModel(), 64, 1000, 200))
        assert prefill_s(capacity.step, 1000) == pytest.approx(share * prefill_s(StepModel(), 1000))


def test_unequal_engines_count_by_the_slots_of_the_fastest() -> None:
    fast, slow = replica(0, 64), replica(1, 16)
    for _ in range(10):
        fast.answered(ms(10))
        slow.answered(ms(40))
    both = Replicas([fast, slow]).capacity(0.0)
    assert both.slots == 80
    assert both.step.step_ms(80, 0) == pytest.approx(fast.model.step.step_ms(64, 0))


def test_call_goes_to_an_idle_engine_instead_of_waiting_inside_another() -> None:
    """An engine that queues calls itself has a place for every call, and hardly grows slower with its batch."""
    fast, slow = replica(0, 4), replica(1, 4)
    fast.queue = slow.queue = 1000
    for _ in range(10):
        fast.answered(ms(40))
        slow.answered(ms(41))
    both = Replicas([fast, slow])
    for _ in range(12):
        one = both.place(CALL, 0.0, None, frozenset())
        assert one is not None
        one.running += 1
    assert (fast.running, slow.running) == (8, 4)


def test_siblings_share_a_replica_while_it_has_room() -> None:
    both = Replicas([replica(0), replica(1)])
    first = both.place(CALL, 0.0, "group g", frozenset())
    assert first is not None
    first.running += 1
    for _ in range(20):  # the other one is idle, and would be the better choice
        assert both.place(CALL, 0.0, "group g", frozenset()) is first
    assert both.place(CALL, 0.0, "group h", frozenset()) is not first
    first.running += 1
    other = both.place(CALL, 0.0, "group g", frozenset())
    assert other is not None and other is not first


def test_a_call_does_not_wait_inside_the_engine_of_its_prefix_while_another_is_idle() -> None:
    first, second = replica(0, 1), replica(1, 1)
    first.queue = second.queue = 1000
    both = Replicas([first, second])
    both.remember("prefix p", first)
    chosen = []
    for _ in range(4):
        one = both.place(CALL, 0.0, "prefix p", frozenset())
        assert one is not None
        one.running += 1
        chosen.append(one.index)
    assert chosen[:2] == [0, 1]


def test_failing_replica_backs_off_but_serves_if_it_is_the_last() -> None:
    one, two = replica(0), replica(1)
    both = Replicas([one, two])
    one.lost(10.0)
    assert [both.place(CALL, 10.1, None, frozenset()) for _ in range(5)] == [two] * 5
    assert both.wakes_at(10.1) == 10.5 and one.up(10.5)
    one.lost(10.5)
    assert not one.up(11.4) and one.up(11.5)
    two.lost(10.5)
    assert {r.index for r in both.usable(10.6)} == {0, 1}
    one.answered(ms(10))
    assert one.up(10.6) and both.usable(10.6) == [one]
    one.upstream = None
    assert both.usable(10.6) == [two]


def test_gateway_without_engines_is_an_error() -> None:
    with pytest.raises(ValueError, match="needs an engine"):
        Replicas([])


def test_avoided_replica_serves_if_no_other_has_room() -> None:
    one, two = replica(0, 1), replica(1, 1)
    both = Replicas([one, two])
    assert both.place(CALL, 0.0, None, frozenset({0})) is two
    two.running = 1
    assert both.place(CALL, 0.0, None, frozenset({0})) is one


async def test_restarting_replica_is_awaited_if_the_other_failed_the_call() -> None:
    async def yes() -> bool:
        return True

    one, two = replica(0, 1), replica(1, 1)
    one.comes_back, back, one.upstream = yes, one.upstream, None
    both = Replicas([one, two])
    assert both.place(CALL, 0.0, None, frozenset({1})) is None
    assert both.place(CALL, 0.0, None, frozenset()) is two, "for others it is good enough"
    assert both.place(CALL, 0.0, None, frozenset({0, 1})) is two, "where both have failed it"
    one.false_starts = 1
    assert both.place(CALL, 0.0, None, frozenset({1})) is two, "it may never start"
    one.upstream, one.false_starts = back, 0
    assert both.place(CALL, 0.0, None, frozenset({1})) is one


def test_preemption_needs_every_engine_to_resume() -> None:
    can, cannot = replica(0), replica(1)
    can.traits = EngineTraits(can_resume=True)
    assert Replicas([can]).capacity(0.0).can_preempt
    assert not Replicas([can, cannot]).capacity(0.0).can_preempt


@pytest.mark.parametrize("fault", [Fault.REFUSE, Fault.ERROR_500, Fault.CUT, Fault.GARBAGE, Fault.BUSY_429])
@pytest.mark.parametrize("stream", [False, True])
async def test_death_before_the_first_token_loses_nothing(fault: Fault, stream: bool) -> None:
    def sickly() -> ScriptedModel:
        return ScriptedModel(lambda _: "", faults=[fault] * 99)

    well = ScriptedModel(lambda _: "done")
    app = create_gateway([replica(0, 4, sickly()), replica(1, 4, sickly()), replica(2, 1, well)])
    body = {"messages": MESSAGES, "stream": stream, "deadline": 30}
    async with client_of(app) as client:
        answers = await asyncio.gather(*[client.post("/chat/completions", json=body) for _ in range(12)])
        seen = (await client.get("/ramify/requests")).json()["requests"]
        figures = (await client.get("http://gateway/metrics")).text
    assert [a.status_code for a in answers] == [200] * 12
    assert all("done" in a.text and "error" not in a.text for a in answers)
    assert {(r["outcome"], r["met"], r["replica"]) for r in seen} == {("done", True, 2)}
    retries = float(figures.split("\nramify_retries_total ")[1].split("\n")[0])
    assert retries == sum(r["attempts"] - 1 for r in seen) > 0


async def test_if_every_replica_fails_the_last_error_is_returned() -> None:
    models = [ScriptedModel(lambda _: "", faults=[Fault.ERROR_500] * 9) for _ in range(2)]
    app = create_gateway([replica(i, 1, model) for i, model in enumerate(models)])
    async with client_of(app) as client:
        response = await client.post("/chat/completions", json={"messages": MESSAGES})
        health = (await client.get("http://gateway/health")).json()
    assert (response.status_code, [len(m.calls) for m in models]) == (502, [1, 1])
    assert (health["running"], health["waiting"]) == (0, 0)


def one_token_then(end: Callable[[], Any]) -> httpx.MockTransport:
    async def body() -> AsyncIterator[bytes]:
        chunk = {"id": "x", "choices": [{"index": 0, "delta": {"content": "a"}, "finish_reason": None}]}
        yield b"data: " + json.dumps(chunk).encode() + b"\n\n"
        end()

    sse = {"content-type": "text/event-stream"}
    return httpx.MockTransport(lambda _: httpx.Response(200, headers=sse, content=body()))


def dies() -> None:
    raise httpx.ReadError("gone")


@pytest.mark.parametrize("end", [dies, lambda: None], ids=["breaks", "ends too soon"])
async def test_death_after_the_first_token_is_an_error_event(end: Callable[[], Any]) -> None:
    spare = ScriptedModel(lambda _: "another")
    app = create_gateway([replica(0, 1, one_token_then(end)), replica(1, 1, spare)])
    async with client_of(app) as client:
        response = await client.post("/chat/completions", json={"messages": MESSAGES, "stream": True})
        seen = (await client.get("/ramify/requests")).json()["requests"]
    *_, last = response.text.strip().split("\n\n")
    assert json.loads(last.removeprefix("data: "))["error"]["code"] == "upstream_failed"
    assert not spare.calls and "[DONE]" not in response.text
    assert [(r["outcome"], r["attempts"]) for r in seen] == [("failed", 1)]


@pytest.mark.parametrize("last", [b"", b"data: [DONE]\n\n"], ids=["ends too soon", "whole"])
async def test_first_finished_choice_does_not_end_the_stream(last: bytes) -> None:
    async def body() -> AsyncIterator[bytes]:
        for at, end in ((0, None), (1, None), (0, "stop")):
            chunk = {"id": "x", "choices": [{"index": at, "delta": {"content": "a"}, "finish_reason": end}]}
            yield b"data: " + json.dumps(chunk).encode() + b"\n\n"
        yield last

    sse = {"content-type": "text/event-stream"}
    engine = httpx.MockTransport(lambda _: httpx.Response(200, headers=sse, content=body()))
    async with client_of(create_gateway([replica(0, 1, engine)])) as client:
        asked = {"messages": MESSAGES, "stream": True, "n": 2}
        response = await client.post("/chat/completions", json=asked)
        seen = (await client.get("/ramify/requests")).json()["requests"]
    whole = bool(last)
    assert ("[DONE]" in response.text, "upstream_failed" in response.text) == (whole, not whole)
    assert [r["outcome"] for r in seen] == ["done" if whole else "failed"]


async def test_losers_of_a_fork_group_are_cancelled_at_once() -> None:
    inside, ended = asyncio.Semaphore(0), []

    async def script(request: ChatRequest) -> str:
        inside.release()
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(request)
        return "never"

    model = ScriptedModel(script)
    app = create_gateway([replica(0, 2, model)])
    async with client_of(app) as client:
        tags = {"compound_id": "run", "fork_group": "g", "fork_size": 4, "fork_need": 1, "slo_deadline_s": 600}
        body = {"messages": MESSAGES, "vllm_xargs": tags}
        calls = [asyncio.create_task(client.post("/chat/completions", json=body)) for _ in range(4)]
        for _ in range(2):  # two run, two wait
            await inside.acquire()
        nobody = await client.post("/ramify/cancel", json={"fork_group": "other"})
        answer = await client.post("/ramify/cancel", json={"compound_id": "run", "fork_group": "g"})
        assert (nobody.json(), answer.json()) == ({"cancelled": 0}, {"cancelled": 4})
        said = await asyncio.gather(*calls)
        seen = (await client.get("/ramify/requests")).json()["requests"]
        health = (await client.get("http://gateway/health")).json()
        wrong = [await client.post("/ramify/cancel", json=b) for b in ({}, {"fork_group": 3}, {"all": "x"})]
        figures = (await client.get("http://gateway/metrics")).text
    assert 'outcome="aborted"} 4.0' in figures and "ramify_slo_total{" not in figures, (
        "a promise given up is not broken"
    )
    assert {(a.status_code, a.json()["error"]["code"], a.headers["x-should-retry"]) for a in said} == {
        (499, "aborted", "false")
    }
    assert len(ended) == len(model.calls) == 2
    assert {r["outcome"] for r in seen} == {"aborted"}
    assert (health["running"], health["waiting"]) == (0, 0)
    assert [(w.status_code, w.json()["error"]["param"]) for w in wrong] == [
        (400, "fork_group"),
        (400, "fork_group"),
        (400, "all"),
    ]


async def test_cancelling_twice_or_after_a_preemption_still_cancels() -> None:
    """The second interruption meets a call that is on its way out already."""
    inside = asyncio.Semaphore(0)

    async def script(_: ChatRequest) -> str:
        inside.release()
        await asyncio.Event().wait()
        return "never"

    app = create_gateway([replica(0, 2, ScriptedModel(script))])
    async with client_of(app) as client:
        body = {"messages": MESSAGES, "stream": True, "vllm_xargs": {"fork_group": "g"}}
        calls = [asyncio.create_task(client.post("/chat/completions", json=body)) for _ in range(2)]
        for _ in calls:
            await inside.acquire()
        one, other = app.state.gateway.records.open_calls(compound_id=None, fork_group="g")
        for call, first, second in ((one, Aborted(), Aborted()), (other, Preempted(), Aborted())):
            call.interrupt(first)
            call.interrupt(second)
        said = await asyncio.gather(*calls)
    assert [(a.status_code, a.json()["error"]["code"]) for a in said] == [(499, "aborted")] * 2


async def test_answer_has_one_id_even_if_another_replica_began_it() -> None:
    def begins() -> httpx.Response:
        async def body() -> AsyncIterator[bytes]:
            chunk = {"id": "first", "created": 1, "choices": [{"index": 0, "delta": {"role": "assistant"}}]}
            yield b"data: " + json.dumps(chunk).encode() + b"\n\n"
            raise httpx.ReadError("gone")

        return httpx.Response(200, headers={"content-type": "text/event-stream"}, content=body())

    dying = httpx.MockTransport(lambda _: begins())
    app = create_gateway([replica(0, 1, dying), replica(1, 1, ScriptedModel(lambda _: "done"))])
    async with client_of(app) as client:
        response = await client.post("/chat/completions", json={"messages": MESSAGES, "stream": True})
        seen = (await client.get("/ramify/requests")).json()["requests"]
    ids = {json.loads(line[6:])["id"] for line in response.text.splitlines() if line.startswith("data: {")}
    assert ids == {"scripted"} and [r["attempts"] for r in seen] == [2]


@pytest.mark.parametrize("stream", [False, True])
async def test_conversation_continues_on_the_replica_that_keeps_it(stream: bool) -> None:
    """Both engines call their answers by one id here, so that the last one to answer is the conversation's home."""
    models = [ScriptedModel(lambda _: "hm") for _ in range(2)]
    replicas = [replica(i, 4, model) for i, model in enumerate(models)]
    app = create_gateway(replicas)
    async with client_of(app) as client:
        replicas[0].running = 3  # so the idle one is the better choice
        await client.post("/responses", json={"input": "hi", "stream": stream})
        replicas[0].running = 0
        replicas[1].running = 3
        body = {"input": "more", "stream": stream, "previous_response_id": "resp"}
        assert (await client.post("/responses", json=body)).status_code == 200
    assert [len(m.calls) for m in models] == [0, 2]


def test_step_model_is_learnt_from_call_times() -> None:
    truth, learnt = StepModel(8.0, 0.5, 0.0, 0.2), ServiceModel()
    assert learnt.step == StepModel() and not learnt.known
    for i in range(200):
        beside = 1 + i % 16
        step = truth.step_ms(beside, 0) / 1000
        learnt.observe(ServiceSample(300, 51, step + 300 * truth.per_prefill_ms / 1000, 50 * step, beside))
    assert learnt.step.base_ms == pytest.approx(8.0, rel=0.01)
    assert learnt.step.per_seq_ms == pytest.approx(0.5, rel=0.01)
    assert learnt.step.per_prefill_ms == pytest.approx(0.2, rel=0.01)


def test_wait_inside_the_engine_does_not_raise_prompt_cost() -> None:
    learnt = ServiceModel()
    for _ in range(10):
        learnt.observe(ServiceSample(100, 11, 0.010 + 100 * 0.0002, 0.100, 1.0))
    quick = learnt.step.per_prefill_ms
    learnt.observe(ServiceSample(100, 11, 0.010 + 100 * 0.002, 0.100, 1.0))
    slow = learnt.step.per_prefill_ms
    learnt.observe(ServiceSample(100, 11, 0.010, 0.100, 1.0))
    assert quick == pytest.approx(0.2, rel=0.01) and quick < slow < 1.25 * quick
    assert learnt.step.per_prefill_ms < 0.85 * slow, "a quick one says what is possible"


def test_no_part_of_the_model_is_negative() -> None:
    shrinking, proportional = ServiceModel(), ServiceModel()
    for i in range(50):
        shrinking.observe(ServiceSample(1, 11, 0.0, 0.5 / (1 + i % 4), 1.0 + i % 4))
        proportional.observe(ServiceSample(1, 11, 0.0, 0.1 * (1 + i % 4) ** 2, 1.0 + i % 4))
    assert shrinking.step.per_seq_ms == 0 < shrinking.step.base_ms
    assert proportional.step.base_ms == 0 < proportional.step.per_seq_ms


def test_prompt_size_estimate_follows_the_engines_count() -> None:
    sizes = PromptSizes()
    assert sizes.guess(400) == 100
    for _ in range(100):
        sizes.observe(300, 150)
    assert sizes.guess(300) == pytest.approx(150, rel=0.05)
    assert sizes.guess(0) == 1


async def test_earliest_feasible_deadline_uses_the_learnt_model() -> None:
    """An engine of 20 ms a token: after some traffic a deadline for 200 tokens that no engine could meet is refused
    with one that this engine can."""
    now = [0.0]

    async def body(tokens: int) -> AsyncIterator[bytes]:
        for i in range(tokens):
            now[0] += 0.02
            end = "length" if i == tokens - 1 else None
            chunk = {"id": "x", "choices": [{"index": 0, "delta": {"content": "a"}, "finish_reason": end}]}
            yield b"data: " + json.dumps(chunk).encode() + b"\n\n"
        yield b"data: [DONE]\n\n"

    def engine(request: httpx.Request) -> httpx.Response:
        asked = json.loads(request.content)["max_tokens"]
        return httpx.Response(200, headers={"content-type": "text/event-stream"}, content=body(asked))

    app = create_gateway("http://engine", slots=1, transport=httpx.MockTransport(engine), clock=lambda: now[0])
    async with client_of(app) as client:
        ask = {"messages": MESSAGES, "stream": True, "max_tokens": 200}
        for _ in range(10):
            assert (await client.post("/chat/completions", json=ask)).status_code == 200
        learnt = app.state.gateway.replicas.all[0].model.step
        refused = await client.post("/chat/completions", json={**ask, "deadline": 0.001})
        least = refused.json()["error"]["earliest_feasible_s"]
    assert learnt.base_ms + learnt.per_seq_ms == pytest.approx(20, rel=0.01)
    assert refused.status_code == 422
    assert 0.02 <= least <= 200 * 0.02 * 1.5
