"""The issue's table, row by row, read off the results. Two contenders are compared over the seeds that both have."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import fmean
from typing import TypedDict

from ramify.serving.replay.baselines import BASELINES, PUBLISHED
from ramify.serving.replay.bounds.shares import Bounds
from ramify.serving.replay.contenders import CLAIRVOYANT, PATIENT
from ramify.serving.replay.evaluation import TARGET_LOADS, Table
from ramify.serving.replay.jobs import Job
from ramify.serving.replay.score import Score
from ramify.serving.replay.types import Contender

_CLASSES = ("latency", "deadline", "compound")
# Forms of one baseline: the best that ran counts.
_PLAS, _LTR = ("plas", "plas-preempting", "atlas"), ("ltr", "ltr-preempting")
_PROGRAMS = ("program-srpt", "program-srpt-preempting", "program-srpt-paced")
_STRONGEST = "edf-plan"  # of those that are not ours: without it no gap is said
_TARGETS_S = 600.0  # the runs that the targets are for: in a short one an overload has not come far
# Concord by what it takes for goodput: programs, tokens, calls.
OBJECTIVES = {
    "concord": "",
    "concord-tokens": ", by the form for tokens",
    "concord, calls": ", by the form for calls",
}


class Row(TypedDict):
    """As every benchmark's `--json` has it."""

    name: str
    ours: float | None
    unit: str
    peer: str
    peer_value: float | None
    ratio: float | None
    target: str
    met: bool | None
    note: str


def rows_of(table: Table, base: Job, bounds: Bounds) -> list[Row]:
    """A row for each line of the table that these results have something to say about."""
    rows: list[Row] = []
    for slo in ("loose", "tight"):
        for load in TARGET_LOADS:
            job = base.but(contender="concord", load=load, slo=slo)
            if table.has(job):
                rows += _compared(table, job, bounds)
    rows += _bounded(table, base, bounds)
    rows += _below_capacity(table, base)
    rows += _saved(table, base)
    if base.seconds < _TARGETS_S:
        short = f"the target is for {_TARGETS_S:g} s, this is of {base.seconds:g}"
        for row in rows:
            if row["met"] is not None:
                row["note"] = "; ".join(filter(None, (row["note"], short)))
    return rows


def request(score: Score) -> float:
    return score.request


def whole(score: Score) -> float:
    return score.whole


def token(score: Score) -> float:
    return score.token


def throughput(score: Score) -> float:
    return score.throughput


def _latency(score: Score) -> float:
    return score.attained.get("latency", 1.0)


def _compared(table: Table, job: Job, bounds: Bounds) -> Iterator[Row]:
    where = f"load {job.load:g}, {job.slo}"
    yield from _closed(table, job, bounds, where)
    if rival := table.best_baseline(job, request, _named(_PROGRAMS)):
        theirs = table.of(table.paired(job, rival)).estimate(job.but(contender=rival), request).mean
        apart = table.difference(job, rival, request)
        name = f"{where}: not behind program-level SRPT"
        yield _row(name, apart.mean, "share", rival, theirs, ">= 0", 0.0, f"{apart}, paired")
    heavy = job.load > 1.2
    for rivals, least, name in (
        (("fcfs",), 5.0 if heavy else 2.2, "FCFS"),
        (_PLAS, 1.2, "PLAS"),
        (_LTR, 1.12, "LTR"),
    ):
        rival = table.best_baseline(job, request, _named(rivals))
        if rival and not (heavy and name == "LTR"):
            same = table.of(table.paired(job, rival))
            ours, theirs = (same.estimate(job.but(contender=one), request).mean for one in (job.contender, rival))
            yield _against(f"{where}: requests against {name}", ours, rival, theirs, least)
    yield from _forms(table, job, where)


def _named(names: Sequence[str]) -> list[Contender]:
    return [one for one in BASELINES if one.name in names]


def _closed(table: Table, job: Job, bounds: Bounds, where: str) -> Iterator[Row]:
    """Of the gap from the best baseline to the bound: in the window, and over the whole run, where those around the
    window cannot be left out in its favour. Nothing where the strongest baseline did not run: from a weaker one the
    gap is wide, and closed easily."""
    if not table.paired(job, _STRONGEST):
        return
    for figure, name in ((request, ""), (whole, ", whole run")):
        best = table.best_baseline(job, figure)
        if not best:
            return
        both = table.paired(job, best)
        mean = table.of(both).estimate(job, figure)
        ours, theirs = mean.mean, table.of(both).estimate(job.but(contender=best), figure).mean
        share = bounds.of(job, both)
        bound = share.whole if figure is whole else share.request
        ran = [table.paired(job, one.name) for one in PUBLISHED]
        everywhere = sum(seeds == table.seeds(job) for seeds in ran)
        note = (
            f"concord {mean}, {best} {theirs:.3f}, LP bound {bound:.3f}; "
            f"the best of {sum(map(bool, ran))} of {len(PUBLISHED)} ({everywhere} on all of concord's seeds)"
        )
        closed = (ours - theirs) / (bound - theirs) if bound - theirs > 0.005 else None
        if closed is None:
            note += "; the best baseline is at the bound within half a point: no gap to close"
        row = f"{where}: share of the gap to the LP bound closed{name}"
        yield _row(row, closed, "", best, theirs, ">= 0.8", 0.8, note)
    if not (three := table.paired(job, best, CLAIRVOYANT.name)):
        return
    same = table.of(three)
    ours, theirs, reached = (
        same.estimate(job.but(contender=name), whole).mean for name in (job.contender, best, CLAIRVOYANT.name)
    )
    yield _row(
        f"{where}: share of the gap to what a clairvoyant reached closed, whole run",
        (ours - theirs) / (reached - theirs) if reached > theirs + 0.005 else None, "", best, theirs, "reported",
        None,
        f"concord {ours:.3f}, {best} {theirs:.3f}, clairvoyant {reached:.3f}",
    )  # fmt: skip


def _forms(table: Table, job: Job, where: str) -> Iterator[Row]:
    """Against other forms of Concord."""
    oracle, hidden = "concord-oracle", "concord, stages hidden"
    if both := table.paired(job, oracle):
        apart = table.difference(job.but(contender=oracle), "concord", request)
        most = 0.01 if job.slo == "loose" else 0.02
        theirs = table.of(both).estimate(job.but(contender=oracle), request).mean
        yield judged(
            f"{where}: oracle less predicted lengths", apart.mean, "share", oracle, theirs, f"<= {most:g}",
            apart.mean <= most, str(apart),
        )  # fmt: skip
    if both := table.paired(job, hidden):
        apart = table.difference(job, hidden, request)
        theirs = table.of(both).estimate(job.but(contender=hidden), request).mean
        yield _row(f"{where}: the plan's worth", apart.mean, "share", hidden, theirs, ">= 0.04", 0.04, str(apart))
    for contender, objective in OBJECTIVES.items():
        form = job.but(contender=contender)
        if job.load < 1.2 and table.has(form):
            name, latency = f"{where}: latency-sensitive attainment{objective}", table.estimate(form, _latency).mean
            yield _row(name, latency, "share", "", None, ">= 0.95", 0.95, "")


def _bounded(table: Table, base: Job, bounds: Bounds) -> Iterator[Row]:
    for load in sorted({job.load for job in table.jobs() if job == base.but(contender=job.contender, load=job.load)}):
        job = base.but(contender="concord", load=load)
        if not table.has(job):
            continue
        bound = bounds.of(job, table.seeds(job))
        for figure, most, least, name in (
            (request, bound.request, 0.97, "request goodput"),
            (whole, bound.whole, 0.97, "request goodput, whole run"),
            (token, bound.token, 0.90, "token goodput"),
        ):
            value = table.estimate(job, figure).mean
            note = attainment(table, job) if figure is token else ""
            yield _row(
                f"load {load:g}, loose: share of the LP bound, {name}", value / most if most else 1.0, "",
                "LP bound", most, f">= {least:g}", least, note,
            )  # fmt: skip
        form = job.but(contender="concord-tokens")
        if seeds := table.seeds(form):
            most, value = bounds.of(form, seeds).token, table.estimate(form, token).mean
            yield _row(
                f"load {load:g}, loose: share of the LP bound, token goodput, by the form for it",
                value / most if most else 1.0, "", "LP bound", most, ">= 0.9", 0.9, attainment(table, form),
            )  # fmt: skip
        yield from _throughput(table, job)


def _throughput(table: Table, job: Job) -> Iterator[Row]:
    """Of the default, and of the same where what is late is served last instead of refused."""
    for contender, form in (("concord", ""), (PATIENT.name, ", by the form that refuses nothing")):
        one = job.but(contender=contender)
        if not (both := table.paired(one, "fcfs")):
            continue
        same = table.of(both)
        ours, stock = (same.estimate(one.but(contender=name), throughput).mean for name in (contender, "fcfs"))
        row = _against(f"load {job.load:g}, loose: throughput against FCFS{form}", ours, "fcfs", stock, 0.98)
        refused = fmean(score.refused for score in same.scores(one))
        note = f"{refused:.3f} of the programs were refused, whose tokens FCFS generates"
        if form:
            note = f"requests met less those of the default: {table.difference(one, 'concord', request)}"
        row["note"] = row["note"] or note
        yield row


def _below_capacity(table: Table, base: Job) -> Iterator[Row]:
    for load in sorted({job.load for job in table.jobs() if job.load < 1.0}):
        job = base.but(contender="concord", load=load)
        if best := table.best_baseline(job, request, BASELINES):
            behind = table.difference(job, best, request)
            value = table.of(table.paired(job, best)).estimate(job.but(contender=best), request).mean
            name = f"load {load:g}: behind no baseline"
            ran = sum(1 for one in BASELINES if table.paired(job, one.name))
            note = f"{behind}, the least of {ran} of {len(BASELINES)} baselines"
            yield _row(name, behind.mean, "share", best, value, ">= -0.005", -0.005, note)


def _saved(table: Table, base: Job) -> Iterator[Row]:
    """At the goodput that FCFS has at a load: the share of engines that Concord needs less, for more load on each."""
    fcfs, ours = base.but(contender="fcfs"), base.but(contender="concord")
    for load in table.loads(fcfs):
        level = table.estimate(fcfs.but(load=load), request).mean
        name = f"load {load:g}: engines saved at the goodput of FCFS"
        at = table.of(table.seeds(fcfs.but(load=load))).load_at(ours, level, request)
        if at is None:
            continue
        highest = max(table.loads(ours))
        note = f"concord has no more than that from load {at:.2f} on"
        if at >= highest:
            least = "at least: " if at > load else ""
            note = f"{least}concord has more at load {highest:g}, and did not run at a higher one"
        yield _row(
            name, 1 - load / at if at > load else None, "share", "fcfs", level, "reported", None,
            f"{note}; thesis: .285 to .832",
        )  # fmt: skip


def attainment(table: Table, job: Job) -> str:
    """Of each class, in words: no figure of tokens stands without it."""
    scores = table.scores(job)
    shares = {kind: [one.attained[kind] for one in scores if kind in one.attained] for kind in _CLASSES}
    return "met of " + ", ".join(f"{kind} {fmean(of):.3f}" for kind, of in shares.items() if of)


def _against(name: str, ours: float, peer: str, theirs: float, least: float) -> Row:
    """How many times as much as a peer. Of a peer that has nothing there is no multiple: any at all is above it."""
    if theirs:
        return _row(name, ours / theirs, "x", peer, theirs, f">= {least:g} x", least, "")
    note = f"concord {ours:.3f}; {peer} has none, so that no multiple of it can be said"
    return judged(name, None, "x", peer, theirs, f">= {least:g} x", ours > 0, note)


def _row(
    name: str,
    ours: float | None,
    unit: str,
    peer: str,
    value: float | None,
    target: str,
    least: float | None,
    note: str,
) -> Row:
    met = None if ours is None or least is None else ours >= least
    return judged(name, ours, unit, peer, value, target, met, note)


def judged(
    name: str, ours: float | None, unit: str, peer: str, value: float | None, target: str, met: bool | None, note: str
) -> Row:
    ratio = ours / value if ours is not None and value else None
    return Row(
        name=name, ours=ours, unit=unit, peer=peer, peer_value=value, ratio=ratio, target=target, met=met, note=note
    )  # fmt: skip


Figure = Callable[[Score], float]
FIGURES: Mapping[str, Figure] = {
    "request": request,
    "whole": whole,
    "token": token,
    "workflow": lambda score: score.workflow,
    "throughput": throughput,
}
