"""Measure a decision of `andes`: a row for benchmarks/streams.py.

Alone: `python -m benchmarks.serving_costs.andes_cost`.
"""

from __future__ import annotations

import gc
import random
import statistics
import time
from dataclasses import replace

from benchmarks.rows import Row, printed, row
from ramify.serving.policy.registry import make_policy
from ramify.serving.policy.types import Capacity, RequestId, RequestView, SloClass, State, View
from ramify.serving.qoe import Reading, speeds

RUNNING, WAITING, LIMIT_MS = 256, 1000, 2.0
_TOKENS_A_VIEW = 4


def cost_row(*, quick: bool = False) -> Row:
    """Return the median CPU time of a decision in a full engine, with arrivals and new tokens between any two."""
    repeats = 40 if quick else 200
    chance, now = random.Random(7), 100.0
    runs = [_stream(chance, i, now, chance.randrange(1, 400)) for i in range(RUNNING)]
    waits = [_stream(chance, 10_000 + i, now, 0) for i in range(WAITING)]
    capacity = Capacity(RUNNING, RUNNING, kv_free=4000, can_preempt=True, can_pause=True)
    policy, times = make_policy("andes"), []
    policy.decide(View(capacity, waits, runs), now)
    for i in range(repeats):
        now += 0.01
        for j in range(RUNNING // _TOKENS_A_VIEW):
            k = (i * RUNNING // _TOKENS_A_VIEW + j) % RUNNING
            before = runs[k]
            assert before.reading is not None
            more, reading = before.generated + _TOKENS_A_VIEW, before.reading.delivered(now, _TOKENS_A_VIEW)
            runs[k] = replace(before, generated=more, computed=before.prompt_tokens + more, reading=reading)
        waits = [*waits[1:], _stream(chance, 10**6 + i, now, 0)]
        view = View(capacity, waits, runs)
        gc.collect()
        began = time.thread_time()
        policy.decide(view, now)
        times.append((time.thread_time() - began) * 1000)
    low, middle, high = statistics.quantiles(times, n=4)
    note = f"quartiles {low:.3f} to {high:.3f} over {repeats}; CPU time of the thread"
    return row(f"andes, {RUNNING} running and {WAITING} waiting", round(middle, 3), "ms", target=LIMIT_MS, note=note)


def _stream(chance: random.Random, id_: int, now: float, generated: int) -> RequestView:
    tbt_s, prompt = chance.choice(speeds())[1], chance.randrange(20, 2000)
    arrived = now - generated * tbt_s - 2 * chance.random()
    reading = Reading(arrived + 1.0, tbt_s).delivered(arrived + 0.5, generated, chance.uniform(0.5, 1.2) * tbt_s)
    return RequestView(
        RequestId(id_),
        arrived,
        SloClass.STREAM,
        prompt_tokens=prompt,
        computed=prompt + generated if generated else 0,
        generated=generated,
        state=State.RUNNING if generated else State.WAITING,
        reading=reading,
    )


if __name__ == "__main__":
    print(printed(cost_row()))
