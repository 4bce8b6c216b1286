"""The evaluation (after chapter 6 of the thesis): `sections` lists its replays, `ResultTable` reads their results.

All contenders of a comparison see the same programs: a seed fixes arrivals, lengths, structure and what is told of
them. So differences are taken seed by seed, and an interval is of the difference and not of the two levels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import isnan, sqrt
from statistics import fmean, stdev

from benchmarks.replay.baselines import BASELINES, PUBLISHED
from benchmarks.replay.baselines.contenders import ABLATED, CLAIRVOYANT, HIDDEN, OURS, POWER_OF_K, REFUSING
from benchmarks.replay.inputs.workload import SLOS
from benchmarks.replay.jobs import Job, Result
from benchmarks.replay.score import Score
from benchmarks.replay.types import Contender

LOADS = (1.1, 1.3, 0.9, 1.0, 0.7, 1.6)  # the loads of the targets come first: a run may be stopped
TARGET_LOADS = (1.1, 1.3)
FURTHER = (2.4, 3.6)  # where Concord still has more than FCFS: for the engines saved
SLO_SCALES = (0.8, 1.0, 1.25, 1.5)
REPLICAS = (1, 2, 3, 4)
# Latency, deadline, compound. The third mix is that of figure 6.10 of the thesis. The last is its table 2.1: how
# many users of six applications want a stream or a whole answer; compound ones are a third, as elsewhere.
MIXES = (
    (1.0, 1.0, 1.0),
    (0.0, 1.0, 1.0),
    (1.0, 2.0, 0.0),
    (1.0, 0.0, 0.0),
    (0.0, 0.0, 1.0),
    (3.0, 1.0, 1.0),
    (0.88, 1.12, 1.0),
)
# Two-sided 95 % of Student's t, by degrees of freedom.
_T95 = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26)
BOUND_S = 1 / 40  # processor time of a bound for each second of a replay (1 / 60 at load 1.1, 1 / 25 at 1.6)
STEPS_A_SECOND, STEP_MS = 110.0, 0.5  # steps of a replay with the shipped model; processor time of one, .15 to .8


@dataclass(frozen=True, slots=True)
class Section:
    name: str
    jobs: tuple[Job, ...]


@dataclass(frozen=True, slots=True)
class Estimate:
    mean: float
    half: float  # half of the 95 % interval; 0 with one seed, where it is not known
    seeds: int

    def __str__(self) -> str:
        return f"{self.mean:.3f} ± {self.half:.3f}" if self.seeds > 1 else f"{self.mean:.3f} (one seed)"


def names() -> list[str]:
    """Return the names of the contenders of the main comparison."""
    return [one.name for one in (*BASELINES, *OURS)]


def sections(base: Job, seeds: Sequence[int]) -> list[Section]:
    """Return the whole evaluation. `base` gives the trace, the step model and the length of a run."""
    few = ["fcfs", "plas", "ltr", "program-srpt", "calm-thesis", "concord", "concord-oracle"]
    few += ["edf-plan", "program-srpt-paced"]  # the strongest published one, and the nearest to Concord
    ablated = [one.name for one in ABLATED]
    targets = [{"load": load, "slo": slo} for slo in SLOS for load in TARGET_LOADS]

    def of(contenders: Iterable[str], *variants: Mapping[str, object]) -> tuple[Job, ...]:
        return tuple(
            base.but(contender=name, seed=seed, **variant)
            for variant in variants
            for seed in seeds
            for name in contenders
        )

    return [
        Section("load", of(names(), *({"load": load} for load in LOADS))),
        Section("tight", of(names(), *({"load": load, "slo": "tight"} for load in TARGET_LOADS))),
        Section("reach", of([CLAIRVOYANT.name, HIDDEN.name], *targets)),
        Section("refusing", of([one.name for one in REFUSING], *targets)),
        Section("ablation", of(ablated, *({"load": load} for load in TARGET_LOADS), {"load": 1.1, "slo": "tight"})),
        Section("slo-scale", of(few, *({"slo_scale": scale} for scale in SLO_SCALES))),
        Section("mix", of(few, *({"mix": mix} for mix in MIXES))),
        Section(
            "replicas",
            (
                *of(few, *({"replicas": n} for n in REPLICAS)),
                *of([one.name for one in POWER_OF_K], *({"replicas": n} for n in REPLICAS[1:])),
            ),
        ),
        Section("poisson", of(few, {"arrivals": "poisson"})),
        Section(
            "saved",
            (
                *of(["fcfs", "concord"], *({"load": load} for load in LOADS)),
                *of(["concord"], *({"load": load} for load in FURTHER)),
            ),
        ),
    ]


def quick(base: Job, seeds: Sequence[int] = (0, 1)) -> list[Section]:
    """Return the short evaluation: load 1.1, every policy."""
    jobs = tuple(base.but(contender=name, seed=seed, load=1.1) for seed in seeds for name in (*names(), HIDDEN.name))
    return [Section("load", jobs)]


def expected_s(jobs: Iterable[Job], workers: int) -> float:
    """Return the expected seconds of the jobs on an idle machine."""
    work = sum(job.seconds * job.replicas * STEPS_A_SECOND * STEP_MS / 1000 for job in jobs)
    return work / workers


class ResultTable:
    """Results by contender and circumstances, paired by seed."""

    def __init__(self, results: Iterable[Result]) -> None:
        self._results = tuple(results)
        self._scores = {result.job: result.score for result in self._results}
        self._seeds: dict[Job, list[int]] = {}  # by the job with seed 0
        for job in sorted(self._scores, key=lambda job: job.seed):
            self._seeds.setdefault(job.but(seed=0), []).append(job.seed)
        self._parts: dict[frozenset[int], ResultTable] = {}  # cache of `of_seeds`

    def jobs(self) -> list[Job]:
        return list(self._scores)

    def has(self, job: Job) -> bool:
        return bool(self.seeds(job))

    def scores(self, job: Job) -> list[Score]:
        """Return the scores of all seeds of `job`, in the order of the seeds."""
        return [self._scores[job.but(seed=seed)] for seed in self.seeds(job)]

    def estimate(self, job: Job, figure: Callable[[Score], float]) -> Estimate:
        return _estimate([figure(score) for score in self.scores(job)])

    def difference(self, job: Job, other: str, figure: Callable[[Score], float]) -> Estimate:
        """Return the figure of `job`'s contender less that of `other`, seed by seed."""
        rival, both = job.but(contender=other), self.paired(job, other)
        return _estimate(
            [figure(self._scores[job.but(seed=s)]) - figure(self._scores[rival.but(seed=s)]) for s in both]
        )

    def best_baseline(
        self, job: Job, figure: Callable[[Score], float], among: Sequence[Contender] = PUBLISHED
    ) -> str:
        """Return the contender that `job`'s is least ahead of; "" if none ran.

        A contender with fewer seeds is compared with the best of the others over the seeds that both have. By
        default `among` has the published schedulers and per-call SRPT with true lengths. Program-level SRPT, which
        uses Concord's job index, has a row of its own.
        """
        best = ""
        ran = [one.name for one in among if self.paired(job, one.name)]
        for name in sorted(ran, key=lambda name: -len(self.paired(job, name))):
            both = self.of_seeds(self.paired(job, name, best) if best else self.paired(job, name))
            if not best or both.difference(job, name, figure).mean < both.difference(job, best, figure).mean:
                best = name
        return best

    def paired(self, job: Job, *others: str) -> list[int]:
        """Return the seeds that `job`'s contender and all of `others` have."""
        sets = [set(self.seeds(job.but(contender=name))) for name in (job.contender, *others)]
        return sorted(set.intersection(*sets))

    def alike(self, jobs: Sequence[Job]) -> tuple[ResultTable, list[Job], list[int]]:
        """Return what can be shown side by side: the results of the seeds that all `jobs` have, those jobs, and the
        seeds.

        If they share no seed: the seed that most of them have, and the jobs that have it.
        """
        seeds = [set(self.seeds(job)) for job in jobs]
        shared = set.intersection(*seeds) if seeds else set[int]()
        if not shared and (every := sorted(set[int]().union(*seeds))):
            shared = {max(every, key=lambda seed: sum(seed in own for own in seeds))}
        return (
            self.of_seeds(shared),
            [job for job, own in zip(jobs, seeds, strict=True) if own >= shared],
            sorted(shared),
        )

    def of_seeds(self, seeds: Iterable[int]) -> ResultTable:
        """Return the results of these seeds alone, so that the means of two contenders can be compared."""
        wanted = frozenset(seeds)
        if wanted not in self._parts:
            self._parts[wanted] = ResultTable([result for result in self._results if result.job.seed in wanted])
        return self._parts[wanted]

    def loads(self, job: Job) -> list[float]:
        """Return the loads at which `job`'s contender ran in its circumstances."""
        return sorted({one.load for one in self._scores if one.but(load=job.load, seed=job.seed) == job})

    def load_at(
        self, job: Job, level: float, figure: Callable[[Score], float], loads: Sequence[float] | None = None
    ) -> float | None:
        """Return the highest load at which the contender still has `level`, by linear interpolation between `loads`.

        None if it has less at the lowest load. At the highest load it may have more: then this is a lower bound.
        """
        at_these = self.loads(job) if loads is None else loads
        points = [(load, self.estimate(job.but(load=load), figure).mean) for load in at_these]
        best: float | None = None
        for at, (load, value) in enumerate(points):
            if value >= level:
                best = load
                if at + 1 < len(points) and points[at + 1][1] < level:
                    after, lower = points[at + 1]
                    best = load + (after - load) * (value - level) / (value - lower)
        return best

    def seeds(self, job: Job) -> list[int]:
        """Return the seeds that `job`'s contender has."""
        return list(self._seeds.get(job.but(seed=0), ()))


def _estimate(figures: Sequence[float]) -> Estimate:
    """Estimate over the seeds that have the figure: for a class without programs it is not a number."""
    values = [one for one in figures if not isnan(one)]
    if not values:
        return Estimate(float("nan"), float("nan"), 0)
    if len(values) == 1:
        return Estimate(values[0], 0.0, 1)
    t = _T95[min(len(values) - 2, len(_T95) - 1)]
    return Estimate(fmean(values), t * stdev(values) / sqrt(len(values)), len(values))
