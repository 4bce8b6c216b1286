"""The issue's table, row by row, read off the results."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

from ramify.serving.replay.baselines import BASELINES
from ramify.serving.replay.bounds.lp import request_bound, token_bound
from ramify.serving.replay.evaluation import TARGET_LOADS, Estimate, Table
from ramify.serving.replay.jobs import Job
from ramify.serving.replay.score import Score
from ramify.serving.replay.trace import Trace, read
from ramify.serving.replay.workload import programs


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


@dataclass(frozen=True, slots=True)
class Share:
    """Of the LP bound, means over the seeds."""

    request: float
    token: float


class Bounds:
    """LP bounds of the jobs' programs, worked out when first asked for."""

    def __init__(self, seeds: int) -> None:
        self._seeds = seeds
        self._known: dict[Job, Share] = {}
        self._traces: dict[str, Trace] = {}

    def of(self, job: Job) -> Share:
        plain = job.but(contender="", seed=0)
        if plain not in self._known:
            if job.trace not in self._traces:
                self._traces[job.trace] = read(Path(job.trace))
            both = []
            for seed in range(self._seeds):
                made = programs(self._traces[job.trace], job.but(seed=seed).workload, job.setting)
                both.append((request_bound(made, job.setting).share, token_bound(made, job.setting).share))
            self._known[plain] = Share(
                sum(request for request, _ in both) / len(both), sum(token for _, token in both) / len(both)
            )
        return self._known[plain]


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
    rows += _thesis(table, base)
    return rows


def request(score: Score) -> float:
    return score.request


def token(score: Score) -> float:
    return score.token


def _compared(table: Table, job: Job, bounds: Bounds) -> Iterator[Row]:
    where = f"load {job.load:g}, {job.slo}"
    ours = table.estimate(job, request)
    bound = bounds.of(job).request
    best, best_value = table.best_baseline(job, request)
    if best:
        gap = bound - best_value
        closed = (ours.mean - best_value) / gap if gap > 0.005 else None
        note = f"concord {ours}, {best} {best_value:.3f}, LP bound {bound:.3f}"
        if closed is None:
            note += "; the best baseline is at the bound within half a point: no gap to close"
        name = f"{where}: share of the gap to the LP bound closed"
        yield _row(name, closed, "", best, best_value, ">= 0.8", 0.8, note)
    for rival, least, name in (
        ("program-srpt", -0.0, "not behind program-level SRPT"),
        ("fcfs", None, "against FCFS"),
        ("plas", 1.2, "against PLAS"),
        ("ltr", 1.12, "against LTR"),
    ):
        if not table.has(job.but(contender=rival)):
            continue
        theirs = table.estimate(job.but(contender=rival), request).mean
        apart = table.difference(job, rival, request)
        if rival == "program-srpt":
            met = apart.mean + apart.half >= 0
            yield _judged(f"{where}: {name}", apart.mean, "share", rival, theirs, ">= 0", met, f"{apart}, paired")
            continue
        least = (2.2 if job.load < 1.2 else 5.0) if rival == "fcfs" else least
        if rival == "ltr" and job.load > 1.2:
            continue
        ratio = ours.mean / theirs if theirs else float("inf")
        yield _row(f"{where}: requests {name}", ratio, "x", rival, theirs, f">= {least:g} x", least, "")
    yield from _forms(table, job, where)


def _forms(table: Table, job: Job, where: str) -> Iterator[Row]:
    """Against other forms of Concord."""
    if table.has(job.but(contender="concord-oracle")):
        apart = table.difference(job.but(contender="concord-oracle"), "concord", request)
        most = 0.01 if job.slo == "loose" else 0.02
        yield _judged(
            f"{where}: oracle less predicted lengths", apart.mean, "share", "concord-oracle",
            table.estimate(job.but(contender="concord-oracle"), request).mean, f"<= {most:g}", apart.mean <= most,
            str(apart),
        )  # fmt: skip
    hidden = "concord, stages hidden"
    if table.has(job.but(contender=hidden)):
        apart = table.difference(job, hidden, request)
        theirs = table.estimate(job.but(contender=hidden), request).mean
        yield _row(f"{where}: the plan's worth", apart.mean, "share", hidden, theirs, ">= 0.04", 0.04, str(apart))
    if job.load < 1.2:
        latency = table.estimate(job, lambda score: score.attained.get("latency", 1.0))
        yield _row(f"{where}: latency-sensitive attainment", latency.mean, "share", "", None, ">= 0.95", 0.95, "")


def _bounded(table: Table, base: Job, bounds: Bounds) -> Iterator[Row]:
    for load in sorted({job.load for job in table.jobs() if job == base.but(contender=job.contender, load=job.load)}):
        job = base.but(contender="concord", load=load)
        if not table.has(job):
            continue
        bound = bounds.of(job)
        for figure, most, least, name in (
            (request, bound.request, 0.97, "request"),
            (token, bound.token, 0.90, "token"),
        ):
            value = table.estimate(job, figure).mean
            yield _row(
                f"load {load:g}, loose: share of the LP bound, {name} goodput", value / most if most else 1.0, "",
                "LP bound", most, f">= {least:g}", least, "",
            )  # fmt: skip
        if table.has(job.but(contender="fcfs")):
            speed = table.estimate(job, lambda score: score.throughput).mean
            stock = table.estimate(job.but(contender="fcfs"), lambda score: score.throughput).mean
            yield _row(
                f"load {load:g}, loose: throughput against FCFS",
                speed / stock,
                "x",
                "fcfs",
                stock,
                ">= 0.98",
                0.98,
                "",
            )


def _below_capacity(table: Table, base: Job) -> Iterator[Row]:
    for load in sorted({job.load for job in table.jobs() if job.load < 1.0}):
        job = base.but(contender="concord", load=load)
        best, value = table.best_baseline(job, request, BASELINES)
        if table.has(job) and best:
            behind = table.estimate(job, request).mean - value
            yield _row(f"load {load:g}: behind no baseline", behind, "share", best, value, ">= -0.005", -0.005, "")


def _saved(table: Table, base: Job) -> Iterator[Row]:
    """At the goodput that FCFS has at a load: the share of engines that Concord needs less, for more load on each."""
    fcfs = base.but(contender="fcfs")
    for load in table.loads(fcfs):
        level = table.estimate(fcfs.but(load=load), request).mean
        name = f"load {load:g}: engines saved at the goodput of FCFS"
        at = table.load_at(base.but(contender="concord"), level, request)
        if at is None:
            continue
        highest = max(table.loads(base.but(contender="concord")))
        least = "at least, " if at >= highest else ""
        yield _row(
            name, 1 - load / at if at > load else 0.0, "share", "fcfs", level, "reported", None,
            f"{least}concord has {level:.3f} at load {at:.2f}; thesis: .285 to .832",
        )  # fmt: skip


def _thesis(table: Table, base: Job) -> Iterator[Row]:
    """`calm-thesis` against what the thesis held it against, in its setting: its own limits, goodput of requests
    and of tokens, the latter by the form for it where that was replayed. Whatever comes out."""
    for load in TARGET_LOADS:
        for name, figure, form in (("request", request, "calm-thesis"), ("token", token, "calm-thesis, tokens")):
            job = base.but(contender=form, load=load)
            if not table.has(job):
                continue
            ours = table.estimate(job, figure).mean
            latency = table.estimate(job, lambda score: score.attained.get("latency", 1.0)).mean
            for rival in ("fcfs", "plas", "ltr"):
                if table.has(job.but(contender=rival)):
                    theirs = table.estimate(job.but(contender=rival), figure).mean
                    yield _row(
                        f"load {load:g}: calm-thesis against {rival}, {name} goodput",
                        ours / theirs if theirs else None, "x", rival, theirs, "reported", None,
                        f"{form} {ours:.3f}; of its latency-sensitive requests {latency:.3f} are met",
                    )  # fmt: skip


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
    return _judged(name, ours, unit, peer, value, target, met, note)


def _judged(
    name: str, ours: float | None, unit: str, peer: str, value: float | None, target: str, met: bool | None, note: str
) -> Row:
    ratio = ours / value if ours is not None and value else None
    return Row(
        name=name, ours=ours, unit=unit, peer=peer, peer_value=value, ratio=ratio, target=target, met=met, note=note
    )  # fmt: skip


Figure = Callable[[Score], float]
FIGURES: Mapping[str, Figure] = {
    "request": request,
    "token": token,
    "workflow": lambda score: score.workflow,
    "throughput": lambda score: score.throughput,
}
__all__ = ["FIGURES", "Bounds", "Estimate", "Row", "rows_of"]
