"""The measured part of docs/evaluation.md, written by the command that measured it.

What lies between the two marks is replaced, from results alone: what was computed, the issue's rows with what was
missed and by how much, and goodput and attainment of every contender. The words around it are a person's.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path

from ramify.serving.replay.errors import ReplayError
from ramify.serving.replay.evaluation import Table
from ramify.serving.replay.jobs import Job, Result
from ramify.serving.replay.rows import FIGURES, Row

BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"
_KINDS = ("latency", "deadline", "compound")


def update(path: Path, results: Sequence[Result], rows: Sequence[Row]) -> None:
    """Raises ReplayError where the file lacks the marks: nothing is written then."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ReplayError(f"{path}: cannot be read: {error.strerror}") from error
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ReplayError(f"{path}: has no {BEGIN} … {END}: put the two lines where the measured part belongs")
    path.write_text(before + BEGIN + "\n" + measured(results, rows) + END + after, encoding="utf-8")


def measured(results: Sequence[Result], rows: Sequence[Row]) -> str:
    table = Table(results)
    parts = [
        "## What was computed",
        *_computed(results),
        "## Figures",
        *_figures(rows),
        "## What did not hold",
        *_missed(rows),
        "## Goodput and attainment",
        *_goodput(table),
    ]
    return "\n".join(["", *parts, ""])


def _computed(results: Sequence[Result]) -> Iterator[str]:
    cpu, simulated = sum(one.cpu_s for one in results), sum(one.score.simulated_s for one in results)
    yield (
        f"\n{len(results)} replays: {simulated / 3600:.2f} hours of serving in {cpu / 3600:.2f} hours of processor "
        f"time, {simulated / cpu:.1f} × as fast, on a machine that did other things too.\n"
        if cpu
        else "\nNothing.\n"
    )
    yield "| trace | limits, load | seconds | seeds | contenders |"
    yield "|---|---|---|---|---|"

    def circumstances(result: Result) -> tuple[str, str, str, str]:
        job = result.job
        return Path(job.trace).name, where(job), f"{job.seconds:g}", ""

    ordered = sorted(results, key=circumstances)
    for (trace, at, seconds, _), ones in groupby(ordered, key=circumstances):
        jobs = [one.job for one in ones]
        names = list(dict.fromkeys(job.contender for job in jobs))
        by_seeds: dict[tuple[int, ...], list[str]] = {}
        for name in names:
            seeds = tuple(sorted(job.seed for job in jobs if job.contender == name))
            by_seeds.setdefault(seeds, []).append(name)
        for seeds, same in by_seeds.items():
            yield f"| {trace} | {at} | {seconds} | {', '.join(map(str, seeds))} | {'; '.join(same)} |"
    yield ""


def _figures(rows: Sequence[Row]) -> Iterator[str]:
    if not rows:
        yield "\nNone: the results name no row of the table.\n"
        return
    yield "\n| row | measured | target | | against | |"
    yield "|---|---|---|---|---|---|"
    for row in rows:
        verdict = {True: "met", False: "**missed**", None: "–"}[row["met"]]
        peer = "" if row["peer_value"] is None else f"{row['peer']} {row['peer_value']:.3f}"
        yield f"| {row['name']} | {_value(row)} | {row['target']} | {verdict} | {peer} | {row['note']} |"
    yield ""


def _missed(rows: Sequence[Row]) -> Iterator[str]:
    missed = [row for row in rows if row["met"] is False]
    if not missed:
        yield "\nNo row of the table was missed in what was computed.\n"
        return
    yield ""
    for row in missed:
        note = f" ({row['note']})" if row["note"] else ""
        yield f"- {row['name']}: {_value(row)}, wanted {row['target']}{note}."
    yield ""


def _value(row: Row) -> str:
    if row["ours"] is None:
        return "–"
    unit = {"x": " ×", "": ""}.get(row["unit"], f" ({row['unit']})" if row["unit"] != "share" else "")
    return f"{row['ours']:.3f}{unit}"


def _goodput(table: Table) -> Iterator[str]:
    """A table for each set of circumstances: goodput of requests and tokens, and every class's attainment."""
    circumstances = dict.fromkeys(job.but(contender="", seed=0) for job in table.jobs())
    for plain in sorted(circumstances, key=lambda job: (job.seconds, where(job))):
        names = list(dict.fromkeys(job.contender for job in table.jobs() if job.but(contender="", seed=0) == plain))
        yield f"\n### {where(plain)}, {plain.seconds:g} s\n"
        yield "| | requests | tokens | " + " | ".join(_KINDS) + " | tokens a second | refused |"
        yield "|---|---|---|---|---|---|---|---|"
        lines = [(name, plain.but(contender=name)) for name in names]
        lines.sort(key=lambda line: -table.estimate(line[1], FIGURES["request"]).mean)
        for name, job in lines:
            yield _line(name, [*_cells(table, job)])
    yield ""


def _cells(table: Table, job: Job) -> Iterator[str]:
    scores = table.scores(job)
    for figure in ("request", "token"):
        one = table.estimate(job, FIGURES[figure])
        yield str(one) if len(scores) > 1 else f"{one.mean:.3f}"
    for kind in _KINDS:
        present = [score.attained[kind] for score in scores if kind in score.attained]
        yield f"{sum(present) / len(present):.3f}" if present else ""
    yield f"{table.estimate(job, FIGURES['throughput']).mean:.0f}"
    yield f"{sum(score.refused for score in scores) / len(scores):.3f}"


def _line(name: str, cells: Iterable[str]) -> str:
    return f"| {name} | {' | '.join(cells)} |"


def where(job: Job) -> str:
    """The circumstances of a replay, but for what is as usual."""
    parts = [job.slo, f"load {job.load:g}"]
    parts += [f"limits × {job.slo_scale:g}"] if job.slo_scale != 1 else []
    parts += [f"{job.replicas} replicas"] if job.replicas != 1 else []
    parts += ["mix " + ":".join(f"{share:g}" for share in job.mix)] if len(set(job.mix)) > 1 else []
    parts += [job.arrivals] if job.arrivals != "trace" else []
    return ", ".join(parts)
