"""Figures of a score, `Pair`: one figure of two contenders side by side, and `Row`: one row of the table of
targets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import nan
from statistics import fmean
from typing import TypedDict

from benchmarks.replay.evaluation import Estimate, ResultTable
from benchmarks.replay.jobs import Job
from benchmarks.replay.score import Score

CLASSES = ("latency", "deadline", "compound")
NEXT_TO_NOTHING = 0.005  # a share: no multiple of less is reported, and no smaller gap counts
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
# Share met of one class; not a number if it has no programs. For compound programs it is `workflow`.
MET: Mapping[str, Figure] = {"latency": latency, "deadline": deadline}


@dataclass(frozen=True, slots=True)
class Pair:
    """One figure of two contenders, over the seeds that both have."""

    ours: float
    theirs: float
    apart: Estimate  # ours less theirs, seed by seed
    by_seed: tuple[float | None, ...]  # ours / theirs; None if theirs is next to nothing

    @classmethod
    def of(cls, table: ResultTable, job: Job, rival: str, figure: Figure) -> Pair:
        same = table.of_seeds(table.paired(job, rival))
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
    """Say how far the seeds differ; "" for one seed. `lacking` says why some have None."""
    if len(by_seed) < 2:
        return ""
    there = [one for one in by_seed if one is not None]
    parts = [f"by seed {min(there):.3f} to {max(there):.3f}"] if len(there) > 1 else []
    if len(there) < len(by_seed):
        parts.append(f"{lacking} on {len(by_seed) - len(there)} of {len(by_seed)} seeds")
    return "; ".join(parts)


def by_class(scores: Iterable[Score]) -> dict[str, float]:
    """Return the share met of each class that has programs, as the mean over the seeds."""
    found: dict[str, list[float]] = {}
    for score in scores:
        for kind, share in score.attained.items():
            found.setdefault(kind, []).append(share)
    return {kind: fmean(found[kind]) for kind in CLASSES if kind in found}


def attainment(table: ResultTable, job: Job) -> str:
    """Say the share met of each class. It is given beside every figure of tokens."""
    met = by_class(table.scores(job))
    return "met of " + ", ".join(f"{kind} {share:.3f}" for kind, share in met.items())


class Row(TypedDict):
    """One row of the table of targets, as in the `--json` of every benchmark.

    `ratio` is that of the two levels, also if `ours` is a gap or a difference; None without a peer.
    """

    name: str
    ours: float | None
    unit: str
    peer: str
    peer_value: float | None
    ratio: float | None
    target: str
    met: bool | None
    note: str


def against(name: str, contender: str, peer: str, pair: Pair, least: float) -> Row:
    """Make the row of a multiple of a peer's level.

    No multiple is given of a peer that has next to nothing. The target is then met by a level above 0 that is at
    least that many times the peer's.
    """
    if pair.ratio is not None:
        return at_least(name, pair.ratio, "x", peer, pair, least, pair.spread)
    note = f"{contender} {pair.ours:.3f}; {peer} has less than half a point, of which no multiple is said"
    met = pair.ours > 0 and pair.ours >= least * pair.theirs
    return judged(name, None, "x", peer, pair.theirs, _wanted(">=", least, "x"), met, note)


def at_least(
    name: str, ours: float | None, unit: str, peer: str, pair: Pair | None, least: float | None, note: str
) -> Row:
    """Make a row with a lower limit. `least` is None if the figure is reported without a target."""
    met = None if ours is None or least is None else ours >= least
    value, ratio = (None, None) if pair is None else (pair.theirs, pair.ratio)
    target = "reported" if least is None else _wanted(">=", least, unit)
    return judged(name, ours, unit, peer, value, target, met, note, ratio)


def at_most(name: str, ours: float, unit: str, peer: str, pair: Pair, most: float, note: str) -> Row:
    return judged(name, ours, unit, peer, pair.theirs, _wanted("<=", most, unit), ours <= most, note, pair.ratio)


def _wanted(sign: str, limit: float, unit: str) -> str:
    return f"{sign} {limit:g}{' x' if unit == 'x' else ''}"


def judged(
    name: str,
    ours: float | None,
    unit: str,
    peer: str,
    value: float | None,
    target: str,
    met: bool | None,
    note: str,
    ratio: float | None = None,
) -> Row:
    return Row(
        name=name, ours=ours, unit=unit, peer=peer, peer_value=value, ratio=ratio, target=target, met=met, note=note
    )  # fmt: skip
