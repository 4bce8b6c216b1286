"""What streams could get of an engine that has KV for everybody and changes from one to the other at no cost.

It computes one token at a time, and knows all lengths and readers. A token costs its share of a step whose memory is
full, the cheapest there is, and the first one also its prompt. So the engine has the processor time of the real one,
but neither its batches nor its limit of memory. What a scheduler loses against this is the price of memory, of
prompts that are computed again, and of not knowing what comes.

The token that its reader wants first is next. Some streams stand aside: those with the most work from the beginning,
and each whose reader has waited for longer than some patience. They are served while all others are ahead, the one
with the least work left first. Of several shares and patiences the best counts. This is a schedule, not a proof:
another one may be better still.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from math import inf
from statistics import fmean

from benchmarks.replay.types import Program, Setting
from ramify.serving.policy.types import StepModel
from ramify.serving.qoe import Reading

_PATIENCES_S = (1.0, 4.0, inf)
_LARGEST = (0.0, 0.05, 0.1, 0.2, 0.3, 0.45, 0.6)  # shares of the streams that stand aside from the beginning
_AHEAD_S = 1.0  # if every other reader has so much to read, one that stood aside is served


@dataclass(slots=True)
class _Stream:
    at: float
    prompt: int
    output: int
    reading: Reading

    def left_s(self, step: StepModel, memory: int) -> float:
        """Return the seconds of work that are left."""
        made, full_ms = self.reading.tokens, step.base_ms + step.per_kctx_ms * memory / 1000
        tokens = self.output - made
        share = (self.prompt + (made + self.output) / 2) / memory
        prefill_ms = 0.0 if made else step.per_call_ms + step.per_prefill_ms * self.prompt
        return (tokens * (share * full_ms + step.per_seq_ms) + prefill_ms) / 1000

    def token_s(self, step: StepModel, memory: int) -> float:
        """Return the seconds that the next token takes."""
        made = self.reading.tokens
        share = (self.prompt + made) / memory
        full_ms = step.base_ms + step.per_kctx_ms * memory / 1000
        prefill_ms = 0.0 if made else step.per_call_ms + step.per_prefill_ms * self.prompt
        return (share * full_ms + step.per_seq_ms + prefill_ms) / 1000


def best_qoe(streams: Sequence[Program], setting: Setting) -> float:
    """Return the mean QoE of the best of these schedules. Each stream is one call, with a reader."""
    ways = product(_PATIENCES_S, _LARGEST)
    return max(fmean(qoes(streams, setting, patience_s, largest)) for patience_s, largest in ways)


def qoes(streams: Sequence[Program], setting: Setting, patience_s: float, largest: float) -> list[float]:
    """Return the QoE of each stream, by arrival. The `largest` share of them stands aside from the beginning."""
    assert setting.kv_tokens is not None
    step, memory = setting.step, setting.kv_tokens
    coming = [_stream(one) for one in sorted(streams, key=lambda one: one.at)]
    by_work = sorted(range(len(coming)), key=lambda place: -coming[place].left_s(step, memory))
    large = set(by_work[: round(largest * len(coming))])
    ready: list[tuple[float, int]] = []  # when its reader wants its next token; its place
    aside: list[tuple[float, int]] = []  # seconds of work left; its place
    now, come = 0.0, 0
    while ready or aside or come < len(coming):
        if not ready and not aside:
            now = max(now, coming[come].at)
        while come < len(coming) and coming[come].at <= now:
            if come in large:
                heapq.heappush(aside, (coming[come].left_s(step, memory), come))
            else:
                heapq.heappush(ready, (coming[come].reading.dry_at, come))
            come += 1
        while ready and now - ready[0][0] > patience_s:
            place = heapq.heappop(ready)[1]
            heapq.heappush(aside, (coming[place].left_s(step, memory), place))
        stands_aside = bool(aside) and (not ready or ready[0][0] > now + _AHEAD_S)
        place = heapq.heappop(aside if stands_aside else ready)[1]
        stream = coming[place]
        now += stream.token_s(step, memory)
        stream.reading = stream.reading.delivered(now)
        if stream.reading.tokens == stream.output:
            continue
        if stands_aside:
            heapq.heappush(aside, (stream.left_s(step, memory), place))
        else:
            heapq.heappush(ready, (stream.reading.dry_at, place))
    return [stream.reading.qoe() for stream in coming]


def _stream(program: Program) -> _Stream:
    assert program.ttft_s is not None
    assert program.tbt_s is not None
    call = program.stages[0].calls[0]
    return _Stream(program.at, call.prompt, call.output, Reading(program.at + program.ttft_s, program.tbt_s))
