"""Tables of results as text, for the HTML page and the Markdown report. Figures are means over the seeds."""

from __future__ import annotations

import html
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from benchmarks.replay.evaluation import Estimate, ResultTable
from benchmarks.replay.jobs import Job
from benchmarks.replay.report.comparisons import CLASSES, FIGURES, by_class
from benchmarks.replay.score import Score, Tail

DEFAULT = "concord"  # the contender that the others are compared with
# Title of a latency: its field in a score, and the class. TTFT and TBT are of single calls, E2E of programs.
LATENCIES: Mapping[str, tuple[str, str]] = {
    f"{figure.upper()}, {name}": (figure, kind)
    for figure in ("ttft", "tbt", "e2e")
    for kind, name in (("latency", "latency-sensitive"), ("deadline", "deadline"), ("compound", "compound"))
}
# The latencies of the thesis's figure 6.6.
DRAWN = ("TTFT, latency-sensitive", "TBT, latency-sensitive", "E2E, deadline", "E2E, compound")
ATTAINED = " / ".join(CLASSES)


@dataclass(frozen=True, slots=True)
class Lines:
    head: tuple[str, ...]
    lines: tuple[tuple[str, ...], ...]

    def markdown(self) -> Iterator[str]:
        yield f"| {' | '.join(self.head)} |"
        yield "|" + "---|" * len(self.head)
        for line in self.lines:
            yield f"| {' | '.join(line)} |"

    def html(self) -> str:
        """Return an HTML table. A cell that is a verdict has it as its class."""
        top = "".join(f"<th>{html.escape(cell)}</th>" for cell in self.head)
        body = "".join(f"<tr>{''.join(map(_cell, line))}</tr>" for line in self.lines)
        return f"<table><tr>{top}</tr>{body}</table>"


def _cell(text: str) -> str:
    kind = f' class="{text}"' if text in ("met", "missed") else ""
    return f"<td{kind}>{html.escape(text)}</td>"


def goodput(table: ResultTable, jobs: Sequence[Job]) -> Lines:
    """Return goodput of requests, tokens and workflows, attainment by class, and throughput, the best first.

    Means are over each contender's own seeds. The lead of the default is over the seeds that both have.
    """
    ahead = f"{DEFAULT} is ahead by"
    counts = ("tokens a second", "refused", "preempted", "seeds")
    head = ("", "requests", ahead, "tokens", "workflows", *CLASSES, *counts)
    best_first = sorted(jobs, key=lambda job: -table.estimate(job, FIGURES["request"]).mean)
    return Lines(head, tuple(_goodput(table, job) for job in best_first))


def _goodput(table: ResultTable, job: Job) -> tuple[str, ...]:
    scores = table.scores(job)
    attained = by_class(scores)
    workflows = shown(table.estimate(job, FIGURES["workflow"]), scores) if "compound" in attained else ""
    return (
        job.contender,
        shown(table.estimate(job, FIGURES["request"]), scores),
        _ahead(table, job),
        shown(table.estimate(job, FIGURES["token"]), scores),
        workflows,
        *(f"{attained[kind]:.3f}" if kind in attained else "" for kind in CLASSES),
        f"{table.estimate(job, FIGURES['throughput']).mean:.0f}",
        f"{fmean(score.refused for score in scores):.3f}",
        f"{fmean(score.preemptions for score in scores):.0f}",
        str(len(scores)),
    )


def _ahead(table: ResultTable, job: Job) -> str:
    ours = job.but(contender=DEFAULT)
    both = [] if job == ours else table.paired(ours, job.contender)
    if not both:
        return ""
    by = table.difference(ours, job.contender, FIGURES["request"])
    return f"{by.mean:+.3f} ± {by.half:.3f}" if len(both) > 1 else f"{by.mean:+.3f}"


def latencies(table: ResultTable, jobs: Sequence[Job]) -> Lines:
    """Return the 50th and 95th percentile of latencies in seconds, by class, over the seeds that all contenders have.

    Only requests that got so far count. TBT is the mean of a call, so its percentiles do not show a single stall.
    """
    table, jobs, seeds = table.alike(jobs)
    lines = []
    for job in jobs:
        cells = []
        for figure, kind in LATENCIES.values():
            tail = tail_of(table.scores(job), figure, kind)
            digits = 3 if figure == "tbt" else 2
            cells.append("" if tail is None else f"{tail.p50:.{digits}f} / {tail.p95:.{digits}f}")
        lines.append((job.contender, *cells))
    return Lines((f"P50 / P95, s; {_of(seeds)}", *LATENCIES), tuple(lines))


def tail_of(scores: Iterable[Score], figure: str, kind: str) -> Tail | None:
    """Return the means over the seeds of one latency's percentiles; None if no request of the class got so far."""
    by_seed: list[Mapping[str, Tail]] = [getattr(score, figure) for score in scores]
    tails = [tails[kind] for tails in by_seed if kind in tails and tails[kind].count]
    if not tails:
        return None
    return Tail(fmean(t.p50 for t in tails), fmean(t.p95 for t in tails), sum(t.count for t in tails))


def near_oracle(table: ResultTable, jobs: Sequence[Job]) -> Lines:
    """Return each form beside its oracle, with true lengths, later stages and tool times, over the seeds that both
    have.
    """
    lines = []
    for job in jobs:
        oracle = f"{job.contender}-oracle"
        if seeds := table.paired(job, oracle):
            both = table.of_seeds(seeds)
            cells = []
            for name in ("request", "token"):
                figure = FIGURES[name]
                ours, theirs = both.estimate(job, figure), both.estimate(job.but(contender=oracle), figure)
                share = f"{ours.mean / theirs.mean:.3f}" if theirs.mean else ""
                cells += [f"{ours.mean:.3f}", f"{theirs.mean:.3f}", share]
            cells += [_classes(both.scores(job)), _classes(both.scores(job.but(contender=oracle)))]
            lines.append((job.contender, *cells, str(len(seeds))))
    figures = [cell for name in ("requests", "tokens") for cell in (name, "its oracle's", "share")]
    names = (*figures, ATTAINED, "its oracle's", "seeds")
    return Lines(("", *names), tuple(lines))


def over_time(table: ResultTable, jobs: Sequence[Job], parts: int = 6) -> Lines:
    """Return the shares of programs met and of tokens in time by part of the window, over the seeds that all have."""
    table, jobs, seeds = table.alike(jobs)
    starts = sorted({at for job in jobs for at, _, _ in course(table.scores(job))})
    chunks = [starts[i * len(starts) // parts : (i + 1) * len(starts) // parts] for i in range(parts)]
    chunks = [chunk for chunk in chunks if chunk]
    lines = []
    for job in jobs:
        points = {at: (met, tokens) for at, met, tokens in course(table.scores(job))}
        cells = []
        for chunk in chunks:
            there = [points[at] for at in chunk if at in points]
            cells.append(f"{fmean(m for m, _ in there):.2f} / {fmean(t for _, t in there):.2f}" if there else "")
        lines.append((job.contender, *cells, _classes(table.scores(job))))
    parts_of = (f"from {chunk[0]:g} s" for chunk in chunks)
    return Lines((f"programs / tokens; {_of(seeds)}", *parts_of, f"whole window: {ATTAINED}"), tuple(lines))


def _classes(scores: Sequence[Score]) -> str:
    """Return the share met of each class, which is given beside every figure of tokens."""
    attained = by_class(scores)
    return " / ".join(f"{attained[kind]:.2f}" if kind in attained else "–" for kind in CLASSES)


def _of(seeds: Sequence[int]) -> str:
    return f"{'seed' if len(seeds) == 1 else 'seeds'} {', '.join(map(str, seeds))}"


def course(scores: Iterable[Score]) -> list[tuple[float, float, float]]:
    """Return `Score.over_time` as means over the seeds."""
    found: dict[float, list[tuple[float, float]]] = {}
    for score in scores:
        for at, met, tokens in score.over_time:
            found.setdefault(at, []).append((met, tokens))
    return [(at, fmean(m for m, _ in of), fmean(t for _, t in of)) for at, of in sorted(found.items())]


def shown(one: Estimate, of: Sequence[object]) -> str:
    """Return the estimate as text, with its interval if there are several seeds."""
    return str(one) if len(of) > 1 else f"{one.mean:.3f}"
