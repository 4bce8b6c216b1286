"""The four kinds of call, one that changes its kind, and how metrics and logs show them."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import httpx
import pytest

from ramify.serving.gateway.http.app import create_gateway
from ramify.serving.gateway.records import logs
from ramify.serving.gateway.records.call_records import Records
from ramify.serving.gateway.records.calls import Outcome
from ramify.serving.policy.types import SloClass, StageEstimate, State
from ramify.serving.protocol.tags import SLOTags
from ramify.serving.testing import ScriptedModel

SECRET = "the prompt itself"
MESSAGES = [{"role": "user", "content": SECRET}]
KINDS: dict[str, dict[str, Any]] = {
    "latency": {"target_ttft": 10, "target_tbt": 5},
    "deadline": {"deadline": 30},
    "compound": {"vllm_xargs": {"compound_id": "run", "compound_deadline_s": 60, "compound_last": 1}},
    "best_effort": {},
}


async def test_each_kind_is_counted_and_no_prompt_text_is_logged() -> None:
    said = io.StringIO()
    handler = logs.to_stream(said)
    try:
        app = create_gateway("http://engine", transport=ScriptedModel(lambda _: "the answer itself"))
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://gateway") as client:
            for kind in KINDS.values():
                body = {"messages": MESSAGES, "stream": True, **kind}
                assert (await client.post("/v1/chat/completions", json=body)).status_code == 200
            late = await client.post("/v1/chat/completions", json={"messages": MESSAGES, "deadline": 0})
            assert late.status_code == 422
            response = await client.get("/metrics")
    finally:
        logs.stop(handler)
    assert response.headers["content-type"].startswith("text/plain")
    figures = dict(line.rsplit(" ", 1) for line in response.text.splitlines() if not line.startswith("#"))
    for kind in KINDS:
        assert float(figures[f'ramify_requests_total{{kind="{kind}",outcome="done"}}']) == 1
    attained = {k: float(figures[f'ramify_slo_attainment{{kind="{k}"}}']) for k in KINDS if k != "best_effort"}
    assert attained == {"latency": 1.0, "deadline": 0.5, "compound": 1.0}
    assert 'ramify_slo_attainment{kind="best_effort"}' not in figures
    assert float(figures["ramify_policy_seconds_count"]) == 5
    lines = [json.loads(line) for line in said.getvalue().splitlines()]
    assert [(line["kind"], line["outcome"], line["met"]) for line in lines] == [
        ("latency", "done", True),
        ("deadline", "done", True),
        ("compound", "done", True),
        ("best_effort", "done", None),
        ("deadline", "refused", False),
    ]
    assert all(line["event"] == "request" and line["level"] == "info" for line in lines)
    assert "itself" not in said.getvalue()


def test_log_entry_is_one_line_whatever_it_holds() -> None:
    record = logging.LogRecord("ramify.gateway", logging.ERROR, "", 0, "engine_failed", (), None)
    record.fields = {"problem": "first\nsecond"}
    text = logs.JsonLines().format(record)
    assert "\n" not in text and json.loads(text)["problem"] == "first\nsecond"


class Clock:
    now = 50.0

    def __call__(self) -> float:
        return self.now


def test_thinking_call_is_due_by_a_time_and_then_by_tokens() -> None:
    clock = Clock()
    book = Records(clock, clock)
    call = book.open("/", SLOTags(slo_think_s=10.0, slo_tbt_s=0.5))
    call.enter(clock.now, 0)
    assert (call.view().slo_class, call.view().deadline, call.view().tbt) == (SloClass.DEADLINE, 60.0, None)
    for at in (51.0, 52.0, 58.0):  # a slow thought is nobody's concern
        call.token(at, thought=True)
    assert call.kind is SloClass.DEADLINE
    call.token(59.0)
    view = call.view()
    assert (view.slo_class, view.deadline, view.tbt) == (SloClass.LATENCY, None, 0.5)
    assert view.ttft is not None
    assert view.ttft + 3 * 0.5 == 59.0, "the fourth token of all is the first of its timeline"
    call.token(59.5)
    call.token(60.0)
    clock.now = 60.0
    book.close(call, Outcome.DONE)
    assert call.met() is True
    assert call.ledger(clock.now).thought_s == 8.0


@pytest.mark.parametrize(("answers_at", "then"), [(61.0, 61.2), (59.0, 60.1)], ids=["too long", "then too slow"])
def test_both_promises_of_a_thinking_call_can_be_broken(answers_at: float, then: float) -> None:
    clock = Clock()
    book = Records(clock, clock)
    call = book.open("/", SLOTags(slo_think_s=10.0, slo_tbt_s=0.5))
    call.enter(clock.now, 0)
    call.token(51.0, thought=True)
    call.token(answers_at)
    call.token(then)
    clock.now = then
    book.close(call, Outcome.DONE)
    assert call.met() is False


@pytest.mark.parametrize("field", ["reasoning", "reasoning_content"])
async def test_end_of_thinking_is_seen_in_the_stream(field: str) -> None:
    deltas = [{"role": "assistant"}, {field: "hm"}, {field: "so"}, {"content": "four"}]

    async def body() -> AsyncIterator[bytes]:
        for delta in deltas:
            chunk = {"id": "x", "choices": [{"index": 0, "delta": delta, "finish_reason": None}]}
            yield b"data: " + json.dumps(chunk).encode() + b"\n\n"
        end = {"id": "x", "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
        yield b"data: " + json.dumps(end).encode() + b"\n\ndata: [DONE]\n\n"

    sse = {"content-type": "text/event-stream"}
    engine = httpx.MockTransport(lambda _: httpx.Response(200, headers=sse, content=body()))
    app = create_gateway("http://engine", transport=engine)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://gateway") as client:
        tags = {"slo_think_s": 30, "slo_tbt_s": 5}
        asked = {"messages": MESSAGES, "stream": True, "vllm_xargs": tags}
        text = (await client.post("/v1/chat/completions", json=asked)).text
        seen = (await client.get("/v1/ramify/requests")).json()["requests"]
        figures = (await client.get("/metrics")).text
    assert text.count(f'"{field}"') == 2
    assert seen[0]["met"] is True and seen[0]["thought_s"] >= 0
    assert 'ramify_requests_total{kind="latency",outcome="done"} 1.0' in figures


async def test_engine_gets_the_thinking_limit_as_time_to_first_token() -> None:
    """Else its timeline would begin at the arrival, where every thought is late."""
    model = ScriptedModel(lambda _: "ok")
    app = create_gateway("http://engine", transport=model, forward_xargs=True)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://gateway") as client:
        for tags in ({"slo_think_s": 30, "slo_tbt_s": 5}, {"slo_think_s": 30, "slo_ttft_s": 7}, {"slo_tbt_s": 5}):
            asked = {"messages": MESSAGES, "vllm_xargs": tags}
            assert (await client.post("/v1/chat/completions", json=asked)).status_code == 200
    told: list[Any] = [call.body["vllm_xargs"] for call in model.calls]
    assert [round(tags.get("slo_ttft_s", 0)) for tags in told] == [30, 7, 0]
    assert told[0]["slo_ttft_s"] == told[0]["slo_think_s"]


def test_policy_sees_the_workflow_and_the_fork_group() -> None:
    clock = Clock()
    book = Records(clock, clock)
    tags = SLOTags(
        compound_id="run",
        compound_stage=1,
        compound_stages=3,
        compound_width=4,
        compound_deadline_s=20.0,
        compound_due_s=6.0,
        plan_rest=(2.0, 100.0, 30.0, 1.5),
        fork_group="g",
        fork_size=4,
        fork_need=1,
        goodput_weight=2.0,
    )
    one = book.open("/", tags, max_tokens=9).view()
    clock.now = 51.0
    two = book.open("/", replace(tags, compound_due_s=5.5)).view()  # due together, whoever came first
    assert one.compound is two.compound is not None
    assert one.compound.rest == (StageEstimate(2.0, 100.0, 30.0, 1.5),)
    assert (one.compound.stage, one.compound.stages, one.compound.width, one.compound.deadline) == (1, 3, 4, 70.0)
    assert one.compound.due == 56.0
    later = book.open("/", replace(tags, compound_stage=2, compound_due_s=None)).view()
    assert later.compound is not None and later.compound.due is None
    assert one.group is not None and (one.group.size, one.group.need) == (4, 1)
    assert (one.weight, one.max_tokens, one.state) == (2.0, 9, State.WAITING)


def test_view_is_cached_until_something_changes() -> None:
    clock = Clock()
    book = Records(clock, clock)
    call = book.open("/", SLOTags())
    assert call.view() is call.view()
    waiting = call.view()
    call.enter(51.0, 2)
    assert call.view() is not waiting
    assert (call.view().state, call.view().replica) == (State.RUNNING, 2)
    call.token(52.0)
    call.leave(53.0)
    assert (call.view().state, call.view().generated) == (State.PREEMPTED, 1)
    call.enter(55.0, 0)
    clock.now = 56.0
    ledger = call.ledger(clock.now)
    assert (ledger.queue_s, ledger.prefill_s, ledger.decode_s, ledger.preempted_s) == (1.0, 1.0, 1.0, 3.0)
    assert (ledger.total_s, ledger.preemptions) == (6.0, 1)
