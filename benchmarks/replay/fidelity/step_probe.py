"""`profile`: measures a step-time model of a live engine from outside, by timing its answers.

There are two kinds of probe, both over an OpenAI-compatible streaming endpoint. *Decoding*: several requests at
once. After all have their first token and until the first of them ends, every step holds the same sequences, and a
context that grows by one token each. The times between tokens are the times of steps. *Prefill*: one request with
one token of answer. The difference in time of two prompt lengths is the prefill of the difference, since the
network and the fixed part of a step are in both. Every prompt has other tokens, so no prefix is cached. The engine
should do nothing else meanwhile.

Both give spans, which are sums of steps, for `step_times.fit`.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from statistics import fmean, median
from typing import Protocol

import httpx

from benchmarks.replay.errors import BadProbe, TooShort
from benchmarks.replay.inputs.step_times import Span, fit
from ramify.serving.policy.types import StepModel

_FIRST_ID, _LAST_ID = 1000, 30_000  # token ids of prompts: in the vocabulary of every model served today

_FITS = 5  # rounds of the fit, which draws weakly towards what it starts from


@dataclass(frozen=True, slots=True)
class Stream:
    """One answer: when it was requested and when each token came, in seconds on one clock."""

    prompt: int
    sent: float
    times: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    batches: tuple[int, ...] = (1, 4, 16, 32)
    prompts: tuple[int, ...] = (64, 512, 1536)
    tokens: int = 64  # of each answer when decoding is measured
    repeats: int = 5  # of each prefill probe; the median counts

    def __post_init__(self) -> None:
        if min((*self.batches, *self.prompts, self.repeats), default=0) < 1 or len(set(self.prompts)) < 2:
            raise BadProbe("give batch sizes and at least two prompt lengths, all above 0")
        if self.tokens < 8:
            raise BadProbe(f"{self.tokens} tokens of answer are too few to time a step by: ask for 8 or more")


@dataclass(frozen=True, slots=True)
class Profile:
    step: StepModel
    spans: tuple[Span, ...]
    error: float  # mean absolute relative error of the spans under the model
    way_s: float  # time of a first token beyond the step that makes it: to the engine and back


class Endpoint(Protocol):
    async def batch(self, prompts: Sequence[int], tokens: int) -> list[Stream]:
        """Send requests of these prompt lengths at once, each answered with `tokens` tokens."""


async def profile(endpoint: Endpoint, plan: Plan, told: Callable[[str], None] = lambda line: None) -> Profile:
    """Measure a step-time model. Raises BadProbe if the answers cannot be timed, BadSteps if no model fits them.

    A probe may be repeated with up to eight times the plan's tokens: the engine's context must have room for them.
    """
    await endpoint.batch([min(plan.prompts)], plan.tokens)  # the first request compiles and warms up
    spans = []
    for prompt in sorted(set(plan.prompts)):
        for size in sorted(set(plan.batches)):
            span = await _decoding(endpoint, prompt, size, plan.tokens)
            told(f"{size} × {prompt} tokens: {span.seconds / span.steps * 1000:.2f} ms a step")
            spans.append(span)
    firsts = []
    for prompt in sorted(set(plan.prompts)):
        took = [await _first_s(endpoint, prompt) for _ in range(plan.repeats)]
        told(f"prefill of {prompt} tokens: {median(took) * 1000:.2f} ms to the first token")
        firsts.append((prompt, median(took)))
    spans += prefills(firsts)
    step = StepModel()
    for _ in range(_FITS):
        step = fit(spans, step)
    error = fmean(abs(_seconds(step, span) / span.seconds - 1) for span in spans)
    way_s = median(took - step.step_ms(1, prompt, prompt) / 1000 for prompt, took in firsts)
    return Profile(step, tuple(spans), error, max(0.0, way_s))


async def _decoding(endpoint: Endpoint, prompt: int, size: int, tokens: int) -> Span:
    """Measure decoding, and repeat with longer answers if some ended before all had started.

    An engine that is slow with prompts, or a busy machine, gives first tokens one by one.
    """
    for longer in (1, 2, 4):
        try:
            return decoding(await endpoint.batch([prompt] * size, tokens * longer))
        except TooShort:
            continue
    return decoding(await endpoint.batch([prompt] * size, tokens * 8))


async def _first_s(endpoint: Endpoint, prompt: int) -> float:
    (stream,) = await endpoint.batch([prompt], 1)
    if not stream.times:
        raise BadProbe(f"a prompt of {prompt} tokens got no token")
    return stream.times[0] - stream.sent


def decoding(streams: Sequence[Stream]) -> Span:
    """Return the span in which all streams decoded: from the last first token to the first last token.

    Raises BadProbe if an answer has no token, TooShort if the steps are too few.
    """
    if not all(stream.times for stream in streams):
        raise BadProbe("an answer came without a token: it cannot be timed")
    begin, end = max(stream.times[0] for stream in streams), min(stream.times[-1] for stream in streams)
    best = max(streams, key=lambda stream: sum(begin <= at <= end for at in stream.times))
    within = [at for at in best.times if begin <= at <= end]
    steps = len(within) - 1
    if steps < 4:
        raise TooShort(
            f"{len(streams)} requests decoded together for {max(0, steps)} steps: too few to time; ask for longer "
            "answers or smaller batches (has the engine as many slots?)"
        )
    context = 0.0
    for stream in streams:  # each step reads the prompt and the tokens generated before it
        done = sum(at <= within[0] for at in stream.times)
        context += steps * (stream.prompt + done + (steps - 1) / 2)
    return Span(within[-1] - within[0], steps, steps * len(streams), context / 1000, 0.0)


def prefills(firsts: Sequence[tuple[int, float]]) -> list[Span]:
    """Return the prefill spans of prompt lengths, ascending, with their times to first token: each less the
    shortest.
    """
    (least, least_s), *more = firsts
    spans = [Span(took - least_s, 0.0, 0.0, 0.0, prompt - least) for prompt, took in more if took > least_s]
    if not spans:
        raise BadProbe("longer prompts took no longer to their first token: ask for longer ones")
    return spans


def _seconds(step: StepModel, span: Span) -> float:
    fixed = step.base_ms * span.steps + step.per_seq_ms * span.sequences
    return (fixed + step.per_kctx_ms * span.kcontext + step.per_prefill_ms * span.prefill) / 1000


class HttpEndpoint:
    """An OpenAI-compatible `/v1/completions` that takes prompts as token ids, as vLLM does."""

    def __init__(self, client: httpx.AsyncClient, model: str, seed: int = 0) -> None:
        self._client, self._model, self._chance = client, model, Random(seed)

    @classmethod
    async def find(cls, client: httpx.AsyncClient, model: str | None = None) -> HttpEndpoint:
        """Return an endpoint for `model`, or for the first model that the server lists. Raises BadProbe."""
        if model is not None:
            return cls(client, model)
        try:
            answer = await client.get("models")
            answer.raise_for_status()
            return cls(client, str(answer.json()["data"][0]["id"]))
        except (httpx.HTTPError, ValueError, LookupError, TypeError) as error:
            raise BadProbe(f"{client.base_url} does not list its models: {error!r}; name one with --model") from error

    @property
    def model(self) -> str:
        return self._model

    async def batch(self, prompts: Sequence[int], tokens: int) -> list[Stream]:
        return list(await asyncio.gather(*[self._one(prompt, tokens) for prompt in prompts]))

    async def _one(self, prompt: int, tokens: int) -> Stream:
        body = {
            "model": self._model,
            "prompt": [self._chance.randrange(_FIRST_ID, _LAST_ID) for _ in range(prompt)],
            "max_tokens": tokens,
            "min_tokens": tokens,
            "ignore_eos": True,
            "temperature": 0.0,
            "stream": True,
        }
        times: list[float] = []
        sent = time.perf_counter()
        try:
            async with self._client.stream("POST", "completions", json=body) as answer:
                if answer.status_code != 200:
                    text = (await answer.aread()).decode(errors="replace")[:300]
                    raise BadProbe(f"{answer.url} answered {answer.status_code}: {text}")
                async for line in answer.aiter_lines():
                    if _is_token(line):
                        times.append(time.perf_counter())
        except httpx.HTTPError as error:
            raise BadProbe(f"{self._client.base_url}: {error!r}") from error
        return Stream(prompt, sent, tuple(times))


def _is_token(line: str) -> bool:
    """Is the line an event with a choice? vLLM sends one for each token, also for a token without text."""
    if not line.startswith("data:") or line[5:].strip() == "[DONE]":
        return False
    try:
        event = json.loads(line[5:])
        choices, failed = event.get("choices"), "error" in event
    except (ValueError, AttributeError) as error:
        raise BadProbe(f"the stream has a line that is no completion: {line[:200]}") from error
    if failed:
        raise BadProbe(f"the engine aborted an answer: {line[:300]}")
    return bool(choices)
