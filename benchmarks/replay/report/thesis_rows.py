"""`thesis_rows_of`: the thesis's own comparisons (chapter 6) in its setting: its limits, its algorithm and its
rivals.

Each result is shown beside the thesis's figure. None of these rows has a target, since its engines, models and data
are not available. Its algorithm runs as written, which in replay is also its best form under overload
(docs/decisions/051).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks.replay.baselines.contenders import POWER_OF_K
from benchmarks.replay.evaluation import MIXES, REPLICAS, SLO_SCALES, TARGET_LOADS, ResultTable
from benchmarks.replay.jobs import Job
from benchmarks.replay.report.comparisons import FIGURES, Pair, Row, attainment, judged
from benchmarks.replay.report.markdown_report import where

_REQUEST, _TOKEN = "calm-thesis", "calm-thesis, tokens"  # by what goodput counts
_RIVALS = ("fcfs", "plas", "ltr", "edf")


@dataclass(frozen=True, slots=True)
class _Said:
    """What the thesis reports, and in which figure."""

    text: str
    figure: str


# (rival, goodput): figures 6.1 and 6.2; 6.11 compares with EDF.
_SAID = {
    ("ltr", "request"): _Said("2.3 to 4.5 x", "6.2"),
    ("ltr", "token"): _Said("1.3 to 1.7 x", "6.1"),
    ("plas", "token"): _Said("5.3 to 6.1 x", "6.1"),
}
_REPLICATED = _Said("1.34 to 2.42 x", "6.8")
_SCALED = _Said("2.3 to 2.8 x", "6.9")
_MIXED = {(1.0, 2.0, 0.0): _Said("1.8 x", "6.10"), (1.0, 0.0, 0.0): _Said("1.72 x of Sarathi-Serve", "6.10")}
_ORACLE = _Said("within 3 to 9 %", "6.3")
_THROUGHPUT = _Said("96 to 98 % of Sarathi-Serve", "6.4")


def thesis_rows_of(table: ResultTable, base: Job) -> Iterator[Row]:
    """Yield a row for each of the thesis's comparisons that has results."""
    for load in TARGET_LOADS:
        for goodput, form in (("request", _REQUEST), ("token", _TOKEN)):
            job = base.but(contender=form, load=load)
            for rival in _RIVALS:
                yield from _ratio(table, job, rival, goodput, f"load {load:g}", _SAID.get((rival, goodput)))
        yield from _near_oracle(table, base.but(contender=_REQUEST, load=load))
        yield from _throughput(table, base.but(contender=_REQUEST, load=load))
    for count in REPLICAS[1:]:
        yield from _best(table, base.but(contender=_REQUEST, replicas=count), f"{count} replicas", _REPLICATED)
        for routed in POWER_OF_K:
            yield from _placed(table, base.but(contender=routed.name, replicas=count))
    for scale in SLO_SCALES:
        if scale != 1.0:
            job = base.but(contender=_REQUEST, slo_scale=scale)
            yield from _best(table, job, f"limits x {scale:g}", _SCALED)
    for mix in MIXES[1:]:
        job = base.but(contender=_REQUEST, mix=mix)
        yield from _ratio(table, job, "fcfs", "request", where(job), _MIXED.get(mix))


def _ratio(table: ResultTable, job: Job, rival: str, goodput: str, at: str, said: _Said | None) -> Iterator[Row]:
    if both := table.paired(job, rival):
        pair = Pair.of(table, job, rival, FIGURES[goodput])
        note = f"{job.contender} {pair.ours:.3f}, {attainment(table.of_seeds(both), job)}"
        yield _reported(f"{at}: calm-thesis against {rival}, {goodput} goodput", pair, rival, note, said)


def _placed(table: ResultTable, job: Job) -> Iterator[Row]:
    """Compare power of K with one queue before all engines, for the same policy."""
    rival = job.contender.partition(",")[0]
    if table.paired(job, rival):
        pair = Pair.of(table, job, rival, FIGURES["request"])
        name = f"{job.replicas} engines: {job.contender}, against one queue, request goodput"
        yield _reported(name, pair, "one queue", f"{job.contender} {pair.ours:.3f}", None)


def _best(table: ResultTable, job: Job, at: str, said: _Said) -> Iterator[Row]:
    """Compare with the best of the thesis's rivals."""
    paired = {name: table.difference(job, name, FIGURES["request"]) for name in _RIVALS if table.paired(job, name)}
    if paired:
        yield from _ratio(table, job, min(paired, key=lambda name: paired[name].mean), "request", at, said)


def _near_oracle(table: ResultTable, job: Job) -> Iterator[Row]:
    oracle = f"{job.contender}-oracle"
    if table.paired(job, oracle):
        pair = Pair.of(table, job, oracle, FIGURES["request"])
        name = f"load {job.load:g}: calm-thesis against its oracle, request goodput"
        yield _reported(name, pair, oracle, f"{job.contender} {pair.ours:.3f}", _ORACLE)


def _throughput(table: ResultTable, job: Job) -> Iterator[Row]:
    if table.paired(job, "fcfs"):
        pair = Pair.of(table, job, "fcfs", FIGURES["throughput"])
        name = f"load {job.load:g}: calm-thesis against fcfs, throughput"
        yield _reported(name, pair, "fcfs", f"{pair.ours:.0f} tokens a second", _THROUGHPUT)


def _reported(name: str, pair: Pair, peer: str, note: str, said: _Said | None) -> Row:
    """Make the row of a multiple of the peer's level; there is none if the peer has nothing."""
    parts = (note, pair.spread, f"thesis: {said.text} (figure {said.figure})" if said else "")
    also = "; ".join(filter(None, parts))
    return judged(name, pair.ratio, "x", peer, pair.theirs, "reported", None, also, pair.ratio)
