"""Rows of every load: shares of the LP bound, throughput, who is ahead below capacity, and engines saved."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from statistics import fmean

from ramify.serving.replay.baselines import BASELINES
from ramify.serving.replay.bounds.shares import Bounds, Share
from ramify.serving.replay.contenders import PATIENT
from ramify.serving.replay.evaluation import LOADS, Table
from ramify.serving.replay.figures import Figure, Pair, attainment, request, spread, throughput, token, whole
from ramify.serving.replay.jobs import Job
from ramify.serving.replay.row import Row, against, at_least, judged


def request_bound(share: Share) -> float:
    return share.request


def whole_bound(share: Share) -> float:
    return share.whole


def token_bound(share: Share) -> float:
    return share.token


def bounds_needed(jobs: Iterable[Job], base: Job) -> list[Job]:
    """Of `jobs`, those whose circumstances have a row that a bound is in."""
    usual = [base.but(contender="concord", load=load, slo=slo) for load in LOADS for slo in ("loose", "tight")]
    return [job for job in jobs if job.but(seed=base.seed) in usual]


def bounded(table: Table, base: Job, bounds: Bounds) -> Iterator[Row]:
    """At every load with these limits: shares of the LP bound, and throughput."""
    for load in sorted(LOADS):
        job = base.but(contender="concord", load=load)
        if not table.has(job):
            continue
        where = f"load {load:g}, {job.slo}"
        share = f"{where}: share of the LP bound"
        yield _of_bound(table, job, bounds, request_bound, request, 0.97, f"{share}, request goodput")
        yield _of_bound(table, job, bounds, whole_bound, whole, 0.97, f"{share}, request goodput, whole run")
        yield _of_bound(table, job, bounds, token_bound, token, 0.9, f"{share}, token goodput")
        form = job.but(contender="concord-tokens")
        if table.has(form):
            name = f"{share}, token goodput, by the form for it"
            yield _of_bound(table, form, bounds, token_bound, token, 0.9, name)
        yield from _throughput(table, job, where)


def _of_bound(
    table: Table, job: Job, bounds: Bounds, part: Callable[[Share], float], figure: Figure, least: float, name: str
) -> Row:
    most, value = part(bounds.of(job, table.seeds(job))), table.estimate(job, figure).mean
    by_seed = [
        figure(score) / bound if (bound := part(bounds.of(job, [seed]))) else 1.0
        for seed, score in zip(table.seeds(job), table.scores(job), strict=True)
    ]
    parts = [attainment(table, job) if figure is token else "", spread(by_seed)]
    share = value / most if most else 1.0
    return judged(
        name, share, "", "LP bound", most, f">= {least:g}", share >= least, "; ".join(filter(None, parts)), share
    )  # fmt: skip


def _throughput(table: Table, job: Job, where: str) -> Iterator[Row]:
    """Of the default, and of the same where what is late is served last instead of refused."""
    for contender, form in (("concord", ""), (PATIENT.name, ", by the form that refuses nothing")):
        one = job.but(contender=contender)
        if not (both := table.paired(one, "fcfs")):
            continue
        pair = Pair.of(table, one, "fcfs", throughput)
        row = against(f"{where}: throughput against FCFS{form}", contender, "fcfs", pair, 0.98)
        refused = fmean(score.refused for score in table.of(both).scores(one))
        note = f"{refused:.3f} of the programs were refused, whose tokens FCFS generates"
        if form:
            note = ""
            if table.paired(one, "concord"):
                note = f"requests met less those of the default: {table.difference(one, 'concord', request)}"
        row["note"] = "; ".join(filter(None, (note, row["note"])))
        yield row


def below_capacity(table: Table, base: Job) -> Iterator[Row]:
    for load in sorted({job.load for job in table.jobs() if job.load < 1.0}):
        job = base.but(contender="concord", load=load)
        if best := table.best_baseline(job, request, BASELINES):
            pair = Pair.of(table, job, best, request)
            name = f"load {load:g}: behind no baseline"
            ran = sum(1 for one in BASELINES if table.paired(job, one.name))
            note = f"{pair.apart}, the least of {ran} of {len(BASELINES)} baselines"
            yield at_least(name, pair.apart.mean, "share", best, pair, -0.005, note)


def saved(table: Table, base: Job) -> Iterator[Row]:
    """At the goodput that FCFS has at a load: the share of engines that Concord needs less, for more load on each."""
    fcfs, ours = base.but(contender="fcfs"), base.but(contender="concord")
    for load in table.loads(fcfs):
        level, seeds = table.estimate(fcfs.but(load=load), request).mean, table.seeds(fcfs.but(load=load))
        name = f"load {load:g}: engines saved at the goodput of FCFS"
        same = table.of(seeds)
        # A load of which a seed is missing would stand for easier or harder ones than the level does.
        loads = [at for at in same.loads(ours) if same.seeds(ours.but(load=at)) == seeds]
        at = same.load_at(ours, level, request, loads) if loads else None
        if at is None:
            continue
        highest = max(loads)
        note = f"concord has no more than that from load {at:.2f} on"
        if at >= highest:
            least = "at least: " if at > load else ""
            note = (
                f"{least}concord has more at load {highest:g}, and did not run on all of these seeds at a higher one"
            )
        saved, note = 1 - load / at if at > load else None, f"{note}; thesis: .285 to .832"
        yield judged(name, saved, "share", "fcfs", level, "reported", None, note)
