"""Step times measured from outside, against an engine whose steps are known."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence

import httpx
import pytest

from benchmarks.replay.errors import BadProbe, TooShort
from benchmarks.replay.fidelity.step_probe import HttpEndpoint, Plan, Stream, decoding, prefills, profile
from ramify.serving.policy.types import StepModel


class Engine:
    """Continuous batching with chunked prefill on a virtual clock, with step times of a model. `wire_s` is the
    network time, which no model contains."""

    def __init__(self, model: StepModel, slots: int = 64, wire_s: float = 0.004) -> None:
        self._model, self._slots, self._wire_s, self._now = model, slots, wire_s, 0.0

    async def batch(self, prompts: Sequence[int], tokens: int) -> list[Stream]:
        sent, to_prefill = self._now, list(prompts)
        times: list[list[float]] = [[] for _ in prompts]
        while any(len(one) < tokens for one in times):
            live = [i for i, one in enumerate(times) if len(one) < tokens][: self._slots]
            room, computed, took_part = 2048, 0, []
            for i in live:
                part = min(to_prefill[i], room)
                if to_prefill[i] and not part:
                    continue
                to_prefill[i] -= part
                room, computed = room - part, computed + part
                took_part.append(i)
            context = sum(prompts[i] + len(times[i]) for i in took_part if times[i])
            self._now += self._model.step_ms(len(took_part), context, computed) / 1000
            for i in took_part:
                if not to_prefill[i]:
                    times[i].append(self._now + self._wire_s)
        return [Stream(prompt, sent - self._wire_s, tuple(at)) for prompt, at in zip(prompts, times, strict=True)]


@pytest.mark.parametrize(
    "model",
    [StepModel(), StepModel(9.0, 0.02, 0.05, 0.04), StepModel(60.0, 0.3, 0.9, 0.5)],
    ids=["H200", "a smaller GPU", "a CPU"],
)
def test_the_engines_own_steps_are_found(model: StepModel) -> None:
    measured = asyncio.run(profile(Engine(model), Plan()))
    for held in ((1, 100, 0), (32, 32 * 1500, 0), (8, 4000, 1000)):
        assert measured.step.step_ms(*held) == pytest.approx(model.step_ms(*held), rel=0.03)
    assert measured.step.per_prefill_ms == pytest.approx(model.per_prefill_ms, rel=0.03)
    assert measured.error < 0.03


def test_network_time_does_not_count_as_prefill() -> None:
    slow, near = (asyncio.run(profile(Engine(StepModel(), wire_s=s), Plan())) for s in (0.5, 0.0))
    assert slow.step.per_prefill_ms == pytest.approx(near.step.per_prefill_ms)
    assert (slow.way_s, near.way_s) == pytest.approx((1.0, 0.0), abs=0.001), "there and back"


def test_a_probe_is_repeated_with_longer_answers_if_they_do_not_overlap() -> None:
    model = StepModel(60.0, 0.3, 0.9, 0.5)
    measured = asyncio.run(profile(Engine(model), Plan(batches=(1, 16), prompts=(512, 1536), tokens=8)))
    assert measured.step.step_ms(16, 16 * 1500, 0) == pytest.approx(model.step_ms(16, 16 * 1500, 0), rel=0.03)


def test_answers_that_never_overlap_raise() -> None:
    with pytest.raises(TooShort, match="has the engine as many slots"):
        asyncio.run(profile(Engine(StepModel(), slots=1), Plan(batches=(4,), prompts=(64, 512), tokens=8)))


def test_only_steps_in_which_all_decode_count() -> None:
    span = decoding(
        [Stream(10, 0.0, (1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0)), Stream(20, 0.0, (2.0, 3.0, 4.0, 5.0, 6.0))]
    )
    assert (span.seconds, span.steps, span.sequences, span.prefill) == (4.0, 4.0, 8.0, 0.0)
    # Before the four steps two tokens of the first and one of the second were there.
    assert span.kcontext == pytest.approx(sum((10 + 2 + i) + (20 + 1 + i) for i in range(4)) / 1000)


@pytest.mark.parametrize(
    ("streams", "why"),
    [
        ([Stream(4, 0.0, (1.0, 2.0, 3.0)), Stream(4, 0.0, (3.0, 4.0))], "together for 0 steps"),
        ([Stream(4, 0.0, ())], "without a token"),
    ],
)
def test_answers_that_cannot_be_timed_raise(streams: list[Stream], why: str) -> None:
    with pytest.raises(BadProbe, match=why):
        decoding(streams)


def test_free_prompts_and_empty_plans_are_refused() -> None:
    with pytest.raises(BadProbe, match="took no longer"):
        prefills([(64, 0.2), (512, 0.1)])
    with pytest.raises(BadProbe, match="two prompt lengths"):
        Plan(prompts=(64,))
    with pytest.raises(BadProbe, match="8 or more"):
        Plan(tokens=2)


def client(answer: httpx.Response | None = None, asked: list[dict[str, object]] | None = None) -> httpx.AsyncClient:
    async def stream(count: int) -> AsyncIterator[bytes]:
        for _ in range(count):
            yield b'data: {"choices": [{"text": ""}]}\n\n'
        yield b'data: {"choices": [], "usage": {}}\n\ndata: [DONE]\n\n'

    def handle(request: httpx.Request) -> httpx.Response:
        if request.url.path.endswith("/models"):
            return httpx.Response(200, json={"data": [{"id": "a-model"}]})
        body = json.loads(request.content)
        if asked is not None:
            asked.append(body)
        return answer or httpx.Response(200, content=stream(body["max_tokens"]))

    return httpx.AsyncClient(base_url="http://engine/v1/", transport=httpx.MockTransport(handle))


async def test_over_http_each_event_is_a_token_and_prompts_differ() -> None:
    asked: list[dict[str, object]] = []
    async with client(asked=asked) as http:
        endpoint = await HttpEndpoint.find(http)
        streams = await endpoint.batch([5, 5], 3)
    assert endpoint.model == "a-model"
    assert [len(stream.times) for stream in streams] == [3, 3]
    prompts = [tuple(body["prompt"]) for body in asked]  # type: ignore[arg-type]
    assert [len(prompt) for prompt in prompts] == [5, 5] and prompts[0] != prompts[1]
    assert all(body["ignore_eos"] and body["min_tokens"] == body["max_tokens"] == 3 for body in asked)


async def test_a_server_that_refuses_is_quoted() -> None:
    async with client(httpx.Response(400, text="no such model")) as http:
        with pytest.raises(BadProbe, match="answered 400: no such model"):
            await HttpEndpoint(http, "x").batch([5], 3)
    async with client(httpx.Response(200, content=b"data: nonsense\n\n")) as http:
        with pytest.raises(BadProbe, match="no completion: data: nonsense"):
            await HttpEndpoint(http, "x").batch([5], 3)
    begun = b'data: {"choices": [{"text": ""}]}\n\ndata: {"error": {"message": "EngineCore died"}}\n\n'
    async with client(httpx.Response(200, content=begun)) as http:
        with pytest.raises(BadProbe, match=r"aborted an answer.*EngineCore died"):
            await HttpEndpoint(http, "x").batch([5], 3)
