"""Made-up results: a job with any share of requests met."""

from __future__ import annotations

from benchmarks.replay.jobs import Job, Result
from benchmarks.replay.score import Score, Tail


def score(request: float) -> Score:
    tails = {"latency": Tail(0.1, 0.2, 5)}
    return Score(
        100, request, request, request, request, {"latency": 1.0}, 1.0, 10.0, 1000.0, 0.0, tails, tails, tails,
        ((0.0, request, request), (30.0, request, request)), 50, 60.0, 1, 2,
    )  # fmt: skip


def result(job: Job, request: float) -> Result:
    return Result(job, score(request), 1.0, 2.0)
