"""The figures that are read off a score, and one figure of two contenders held side by side."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from ramify.serving.replay.evaluation import Estimate, Table
from ramify.serving.replay.jobs import Job
from ramify.serving.replay.score import Score

CLASSES = ("latency", "deadline", "compound")
Figure = Callable[[Score], float]


def request(score: Score) -> float:
    return score.request


def whole(score: Score) -> float:
    return score.whole


def token(score: Score) -> float:
    return score.token


def throughput(score: Score) -> float:
    return score.throughput


def latency(score: Score) -> float:
    return score.attained.get("latency", 1.0)


def deadline(score: Score) -> float:
    return score.attained.get("deadline", 1.0)


FIGURES: Mapping[str, Figure] = {
    "request": request,
    "whole": whole,
    "token": token,
    "workflow": lambda score: score.workflow,
    "throughput": throughput,
    "latency": latency,
    "deadline": deadline,  # of compound programs it is `workflow`
}


@dataclass(frozen=True, slots=True)
class Pair:
    """One figure of two contenders over the seeds that both have."""

    ours: float
    theirs: float
    apart: Estimate  # ours less theirs, seed by seed
    by_seed: tuple[float | None, ...]  # ours / theirs; None where the other has nothing

    @classmethod
    def of(cls, table: Table, job: Job, rival: str, figure: Figure) -> Pair:
        same = table.of(table.paired(job, rival))
        mine, other = ([figure(one) for one in same.scores(job.but(contender=n))] for n in (job.contender, rival))
        by_seed = (a / b if b else None for a, b in zip(mine, other, strict=True))
        return cls(fmean(mine), fmean(other), table.difference(job, rival, figure), tuple(by_seed))

    @property
    def ratio(self) -> float | None:
        return self.ours / self.theirs if self.theirs else None

    @property
    def spread(self) -> str:
        return spread(self.by_seed)


def spread(by_seed: Sequence[float | None]) -> str:
    """How far apart the seeds are, in words; "" of one seed. A multiple of nothing is not among them, and is told."""
    there = [one for one in by_seed if one is not None]
    if len(by_seed) < 2 or not there:
        return ""
    lacking = f"; the other has nothing on {len(by_seed) - len(there)}" if len(there) < len(by_seed) else ""
    return f"by seed {min(there):.3f} to {max(there):.3f}{lacking}"


def attainment(table: Table, job: Job) -> str:
    """Of each class, in words: no figure of tokens stands without it."""
    scores = table.scores(job)
    shares = {kind: [one.attained[kind] for one in scores if kind in one.attained] for kind in CLASSES}
    return "met of " + ", ".join(f"{kind} {fmean(of):.3f}" for kind, of in shares.items() if of)
