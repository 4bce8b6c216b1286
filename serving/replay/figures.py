"""The figures that are read off a score, and one figure of two contenders held side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import nan
from statistics import fmean

from ramify.serving.replay.evaluation import Estimate, Table
from ramify.serving.replay.jobs import Job
from ramify.serving.replay.score import Score

CLASSES = ("latency", "deadline", "compound")
NEXT_TO_NOTHING = 0.005  # of a share: no multiple of so little is said, and no gap of so little is closed
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
    return score.attained.get("latency", nan)


def deadline(score: Score) -> float:
    return score.attained.get("deadline", nan)


FIGURES: Mapping[str, Figure] = {
    "request": request,
    "whole": whole,
    "token": token,
    "workflow": lambda score: score.workflow,
    "throughput": throughput,
}
# Met of one class, not a number where nobody is of it; of compound programs it is `workflow`.
MET: Mapping[str, Figure] = {"latency": latency, "deadline": deadline}


@dataclass(frozen=True, slots=True)
class Pair:
    """One figure of two contenders over the seeds that both have."""

    ours: float
    theirs: float
    apart: Estimate  # ours less theirs, seed by seed
    by_seed: tuple[float | None, ...]  # ours / theirs; None where the other has next to nothing

    @classmethod
    def of(cls, table: Table, job: Job, rival: str, figure: Figure) -> Pair:
        same = table.of(table.paired(job, rival))
        mine, other = ([figure(one) for one in same.scores(job.but(contender=n))] for n in (job.contender, rival))
        by_seed = (_multiple(a, b) for a, b in zip(mine, other, strict=True))
        return cls(fmean(mine), fmean(other), table.difference(job, rival, figure), tuple(by_seed))

    @property
    def ratio(self) -> float | None:
        return _multiple(self.ours, self.theirs)

    @property
    def spread(self) -> str:
        return spread(self.by_seed)


def _multiple(ours: float, theirs: float) -> float | None:
    return ours / theirs if theirs >= NEXT_TO_NOTHING else None


def spread(by_seed: Sequence[float | None], lacking: str = "the other has less than half a point") -> str:
    """How far apart the seeds are, in words; "" of one seed. `lacking`: why there is None of some."""
    if len(by_seed) < 2:
        return ""
    there = [one for one in by_seed if one is not None]
    parts = [f"by seed {min(there):.3f} to {max(there):.3f}"] if len(there) > 1 else []
    if len(there) < len(by_seed):
        parts.append(f"{lacking} on {len(by_seed) - len(there)} of {len(by_seed)} seeds")
    return "; ".join(parts)


def by_class(scores: Iterable[Score]) -> dict[str, float]:
    """Met of each class that there is somebody of, the seeds' mean."""
    found: dict[str, list[float]] = {}
    for score in scores:
        for kind, share in score.attained.items():
            found.setdefault(kind, []).append(share)
    return {kind: fmean(found[kind]) for kind in CLASSES if kind in found}


def attainment(table: Table, job: Job) -> str:
    """Of each class, in words: no figure of tokens stands without it."""
    met = by_class(table.scores(job))
    return "met of " + ", ".join(f"{kind} {share:.3f}" for kind, share in met.items())
