"""`rows_of`: the table of targets, row by row. Two contenders are compared over the seeds that both have."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from math import isnan
from statistics import fmean

from benchmarks.replay.baselines import BASELINES, PUBLISHED
from benchmarks.replay.baselines.contenders import AS_MEASURED, CLAIRVOYANT, HIDDEN, PATIENT, REFUSING
from benchmarks.replay.bounds.shares import Bounds, Share
from benchmarks.replay.evaluation import LOADS, TARGET_LOADS, ResultTable
from benchmarks.replay.jobs import Job
from benchmarks.replay.report.comparisons import (
    NEXT_TO_NOTHING,
    Figure,
    Pair,
    Row,
    against,
    at_least,
    at_most,
    attainment,
    judged,
    latency,
    request,
    spread,
    throughput,
    token,
    whole,
)
from benchmarks.replay.types import Contender


def request_bound(share: Share) -> float:
    return share.request


def whole_bound(share: Share) -> float:
    return share.whole


def token_bound(share: Share) -> float:
    return share.token


def bounds_needed(jobs: Iterable[Job], base: Job) -> list[Job]:
    """Return the jobs whose circumstances have a row with a bound."""
    usual = [base.but(contender="concord", load=load, slo=slo) for load in LOADS for slo in ("loose", "tight")]
    return [job for job in jobs if job.but(seed=base.seed) in usual]


def bounded(table: ResultTable, base: Job, bounds: Bounds) -> Iterator[Row]:
    """Report shares of the LP bound, and throughput, at every load with these limits."""
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
    table: ResultTable,
    job: Job,
    bounds: Bounds,
    part: Callable[[Share], float],
    figure: Figure,
    least: float,
    name: str,
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


def _throughput(table: ResultTable, job: Job, where: str) -> Iterator[Row]:
    """Compare the throughput of the default, and of the form that serves late requests last, with FCFS."""
    for contender, form in (("concord", ""), (PATIENT.name, ", by the form that refuses nothing")):
        one = job.but(contender=contender)
        if not (both := table.paired(one, "fcfs")):
            continue
        pair = Pair.of(table, one, "fcfs", throughput)
        row = against(f"{where}: throughput against FCFS{form}", contender, "fcfs", pair, 0.98)
        refused = fmean(score.refused for score in table.of_seeds(both).scores(one))
        note = f"{refused:.3f} of the programs were refused, whose tokens FCFS generates"
        if form:
            note = ""
            if table.paired(one, "concord"):
                note = f"requests met less those of the default: {table.difference(one, 'concord', request)}"
        row["note"] = "; ".join(filter(None, (note, row["note"])))
        yield row


def below_capacity(table: ResultTable, base: Job) -> Iterator[Row]:
    for load in sorted({job.load for job in table.jobs() if job.load < 1.0}):
        job = base.but(contender="concord", load=load)
        if best := table.best_baseline(job, request, BASELINES):
            pair = Pair.of(table, job, best, request)
            name = f"load {load:g}: behind no baseline"
            ran = sum(1 for one in BASELINES if table.paired(job, one.name))
            note = f"{pair.apart}, the least of {ran} of {len(BASELINES)} baselines"
            yield at_least(name, pair.apart.mean, "share", best, pair, -0.005, note)


def saved(table: ResultTable, base: Job) -> Iterator[Row]:
    """Report the share of engines that Concord saves at the goodput of FCFS, by taking more load on each."""
    fcfs, ours = base.but(contender="fcfs"), base.but(contender="concord")
    for load in table.loads(fcfs):
        level, seeds = table.estimate(fcfs.but(load=load), request).mean, table.seeds(fcfs.but(load=load))
        name = f"load {load:g}: engines saved at the goodput of FCFS"
        same = table.of_seeds(seeds)
        # A load with a missing seed would be easier or harder than the level.
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


# Forms of one baseline: the best one that ran counts.
_PLAS, _LTR = ("plas", "plas-preempting", "atlas"), ("ltr", "ltr-preempting")
_PROGRAMS = ("program-srpt", "program-srpt-preempting", "program-srpt-paced")
# Forms that refuse: reported beside the targets, which are for the published forms.
_REFUSING = {
    "FCFS that drops what has waited": ("fcfs-drop", "fcfs-drop, 1 s", "fcfs-drop, 0.5 s", "fcfs-drop, 0.25 s"),
    "PLAS that refuses what is late": ("plas, refusing", "plas-plan, refusing"),
    "LTR that refuses what is late": (
        "ltr, refusing", "ltr-preempting, refusing", "ltr-plan, refusing", "ltr-plan-preempting, refusing",
    ),
}  # fmt: skip
_PROGRAMS_TOLD = "program-srpt-oracle"  # it knows more than the default, so it is reported without a target
_NOT_OURS = (*PUBLISHED, *REFUSING)
_STRONGEST = "edf-plan"  # the strongest published one: without it no gap is reported
_TARGETS_S = 600.0  # length of the runs that the targets are for: in a short one the overload is small
# Concord by what it counts as goodput: programs, tokens, calls.
OBJECTIVES = {
    "concord": "",
    "concord-tokens": ", by the form for tokens",
    "concord, calls": ", by the form for calls",
}


def rows_of(table: ResultTable, base: Job, bounds: Bounds) -> list[Row]:
    """Return a row for each target that these results say something about."""
    rows: list[Row] = []
    for slo in ("loose", "tight"):
        for load in TARGET_LOADS:
            job = base.but(contender="concord", load=load, slo=slo)
            if table.has(job):
                rows += _compared(table, job, bounds)
    for slo in ("loose", "tight"):
        rows += bounded(table, base.but(slo=slo), bounds)
    rows += below_capacity(table, base)
    rows += saved(table, base)
    if base.seconds < _TARGETS_S:
        short = f"the target is for {_TARGETS_S:g} s, this is of {base.seconds:g}"
        for row in rows:
            if row["met"] is not None:
                row["note"] = "; ".join(filter(None, (row["note"], short)))
    return rows


def _compared(table: ResultTable, job: Job, bounds: Bounds) -> Iterator[Row]:
    where = f"load {job.load:g}, {job.slo}"
    yield from _closed(table, job, bounds, where)
    yield from _beside_program_srpt(table, job, where)
    heavy = job.load > 1.2
    for rivals, least, name in (
        (("fcfs",), 5.0 if heavy else 2.2, "FCFS"),
        (_PLAS, 1.2, "PLAS"),
        (_LTR, 1.12, "LTR"),
    ):
        rival = table.best_baseline(job, request, _named(rivals))
        if rival and not (heavy and name == "LTR"):
            pair = Pair.of(table, job, rival, request)
            yield against(f"{where}: requests against {name}", job.contender, rival, pair, least)
    for name, forms in _REFUSING.items():
        if rival := table.best_baseline(job, request, _named(forms)):
            pair = Pair.of(table, job, rival, request)
            yield at_least(f"{where}: requests against {name}", pair.ratio, "x", rival, pair, None, pair.spread)
    yield from _forms(table, job, where)


def _beside_program_srpt(table: ResultTable, job: Job, where: str) -> Iterator[Row]:
    """Compare with program-level SRPT: its best form that knows what the default knows, and the form with true
    lengths.
    """
    if rival := table.best_baseline(job, request, _named(_PROGRAMS)):
        pair = Pair.of(table, job, rival, request)
        name = f"{where}: not behind program-level SRPT"
        yield at_least(name, pair.apart.mean, "share", rival, pair, 0.0, f"{pair.apart}, paired")
    for name, ours in (
        ("ahead of program-level SRPT that is told true lengths", "concord"),
        ("oracle ahead of program-level SRPT, both told true lengths", "concord-oracle"),
    ):
        one = job.but(contender=ours)
        if table.paired(one, _PROGRAMS_TOLD):
            pair = Pair.of(table, one, _PROGRAMS_TOLD, request)
            note = f"{pair.apart}, paired"
            yield at_least(f"{where}: {name}", pair.apart.mean, "share", _PROGRAMS_TOLD, pair, None, note)


def _named(names: Sequence[str]) -> list[Contender]:
    return [one for one in (*BASELINES, *REFUSING) if one.name in names]


def _closed(table: ResultTable, job: Job, bounds: Bounds, where: str) -> Iterator[Row]:
    """Report which share of the gap from the best baseline to the bound is closed, in the window and over the whole
    run.

    Over the whole run no program outside the window can be left out in its favour. Nothing is reported if the
    strongest baseline did not run: from a weaker one the gap is wide and easily closed.
    """
    if not table.paired(job, _STRONGEST):
        return
    for figure, name in ((request, ""), (whole, ", whole run")):
        best = table.best_baseline(job, figure, _NOT_OURS)
        if not best:
            return
        both, pair = table.paired(job, best), Pair.of(table, job, best, figure)
        of_figure = whole_bound if figure is whole else request_bound
        bound = of_figure(bounds.of(job, both))
        ran = [table.paired(job, one.name) for one in _NOT_OURS]
        everywhere = sum(seeds == table.seeds(job) for seeds in ran)
        note = (
            f"concord {table.of_seeds(both).estimate(job, figure)}, {best} {pair.theirs:.3f}, LP bound {bound:.3f}; "
            f"the best of {sum(map(bool, ran))} of {len(_NOT_OURS)} ({everywhere} on all of concord's seeds)"
        )
        closed = _closed_share(pair.ours, pair.theirs, bound)
        if closed is None:
            note += "; the best baseline is at the bound within half a point: no gap to close"
        by_seed = [
            _closed_share(one.ours, one.theirs, of_figure(bounds.of(job, [seed])))
            for seed in both
            for one in (Pair.of(table.of_seeds([seed]), job, best, figure),)
        ]
        note = "; ".join(filter(None, (note, spread(by_seed, "no gap"))))
        row = f"{where}: share of the gap to the LP bound closed{name}"
        yield at_least(row, closed, "", best, pair, 0.8, note)
    if not (three := table.paired(job, best, CLAIRVOYANT.name)):
        return
    same = table.of_seeds(three)
    pair, reached = Pair.of(same, job, best, whole), same.estimate(job.but(contender=CLAIRVOYANT.name), whole).mean
    yield at_least(
        f"{where}: share of the gap to what a clairvoyant reached closed, whole run",
        _closed_share(pair.ours, pair.theirs, reached), "", best, pair, None,
        f"concord {pair.ours:.3f}, {best} {pair.theirs:.3f}, clairvoyant {reached:.3f}",
    )  # fmt: skip


def _closed_share(ours: float, theirs: float, bound: float) -> float | None:
    """Return the share, or None if the gap is less than half a point."""
    return (ours - theirs) / (bound - theirs) if bound - theirs > NEXT_TO_NOTHING else None


def _forms(table: ResultTable, job: Job, where: str) -> Iterator[Row]:
    """Compare with other forms of Concord."""
    most = 0.01 if job.slo == "loose" else 0.02
    for form, oracle, figure, name in (
        ("concord", "concord-oracle", request, "predicted lengths"),
        (AS_MEASURED, "concord-oracle", request, "lengths as well told as measured"),
        ("concord-tokens", "concord-tokens-oracle", token, "predicted lengths, token goodput, by the form for it"),
    ):
        one = job.but(contender=oracle)
        if both := table.paired(one, form):
            pair = Pair.of(table, job.but(contender=form), oracle, figure)
            apart = table.difference(one, form, figure)
            classes = (attainment(table.of_seeds(both), job.but(contender=form)),) if figure is token else ()
            note = "; ".join((str(apart), *classes))
            yield at_most(f"{where}: oracle less {name}", apart.mean, "share", oracle, pair, most, note)
    if table.paired(job, HIDDEN.name):
        pair = Pair.of(table, job, HIDDEN.name, request)
        name = f"{where}: the plan's worth"
        yield at_least(name, pair.apart.mean, "share", HIDDEN.name, pair, 0.04, str(pair.apart))
    for contender, objective in OBJECTIVES.items():
        one = job.but(contender=contender)
        met = table.estimate(one, latency).mean
        if job.load < 1.2 and not isnan(met):
            name = f"{where}: latency-sensitive attainment{objective}"
            yield at_least(name, met, "share", "", None, 0.95, "")
