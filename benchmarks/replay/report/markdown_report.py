"""`update`: writes the tables of an evaluation into a Markdown page.

The part between the two marks is replaced. It has what was computed, the rows with targets and which were missed,
goodput and attainment of every contender, and, at the loads of the targets, how near each form is to its oracle,
the course over time and the latencies. The text around it is written by hand.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path

from benchmarks.replay.errors import ReplayError
from benchmarks.replay.evaluation import TARGET_LOADS, ResultTable
from benchmarks.replay.inputs import step_times
from benchmarks.replay.jobs import Job, Result
from benchmarks.replay.report.comparisons import FIGURES, Row
from benchmarks.replay.report.tables import Lines, goodput, latencies, near_oracle, over_time

_PACE = 5.0  # a replay should be this many times faster than real time
BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"


def update(path: Path, results: Sequence[Result], rows: Sequence[Row], picture: str | None = None) -> None:
    """Replace the part between the marks. `picture` is the name of a plot beside the file.

    Raises ReplayError, and writes nothing, if the file lacks the marks.
    """
    before, after = around(path)
    path.write_text(before + BEGIN + "\n" + measured(results, rows, picture) + END + after, encoding="utf-8")


def around(path: Path) -> tuple[str, str]:
    """Return the text before and after the measured part. Raises ReplayError if the file lacks the marks."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ReplayError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from error
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ReplayError(f"{path}: has no {BEGIN} … {END}: put the two lines where the measured part belongs")
    return before, after


def measured(results: Sequence[Result], rows: Sequence[Row], picture: str | None = None) -> str:
    table = ResultTable(results)
    parts = [
        "## What was computed",
        *(f"\n{line}" for line in computed(results)),
        *_computed(results),
        "## Figures",
        *_figures(rows),
        "## What did not hold",
        *_missed(rows),
        "## Goodput and attainment",
        *([f"\n![Goodput against load, loose limits]({picture})"] if picture else []),
        *_goodput(table),
        *_deeper(table),
    ]
    return "\n".join(["", *parts, ""])


def computed(results: Sequence[Result]) -> Iterator[str]:
    """Say how much was replayed, what all replays share, and what FCFS attains at each load."""
    cpu, simulated = sum(one.cpu_s for one in results), sum(one.score.simulated_s for one in results)
    if not cpu:
        yield "Nothing."
        return
    yield (
        f"{len(results)} replays: {simulated / 3600:.2f} hours of serving in {cpu / 3600:.2f} hours of processor "
        f"time, {simulated / cpu:.1f} × as fast, on a machine that was also used otherwise. {_slow(results)}"
    )
    for seconds, file in sorted({(one.job.seconds, one.job.steps) for one in results}):
        setting, source = Job("", "", seconds=seconds, steps=file).setting, step_times.load(Path(file))
        begin, end = setting.window
        yield (
            f"Programs arrive for {seconds:g} s, and those between {begin:g} and {end:g} s are counted; "
            f"{setting.slots} slots, {setting.kv_tokens:,} tokens of KV; steps of {source.model} on {source.device} "
            f"({source.source})."
        )
    table = ResultTable(results)
    attained = [
        f"{table.estimate(job, FIGURES['request']).mean:.3f} at {where(job)}"
        for circumstances, jobs in _alike(table)
        for job in jobs
        if job.contender == "fcfs" and _usual(circumstances)
    ]
    if attained:
        yield f"First come, first served attains {', '.join(attained)}."


def _slow(results: Sequence[Result]) -> str:
    """Say which replays were slower than they should be."""
    paces = {one.job: one.score.simulated_s / one.cpu_s for one in results if one.cpu_s}
    slow = sorted((job for job, pace in paces.items() if pace < _PACE), key=paces.__getitem__)
    if not slow:
        return f"None was less than {_PACE:g} × as fast."
    kinds = dict.fromkeys(job.contender for job in slow)
    least = slow[0]
    return (
        f"{len(slow)} were less than {_PACE:g} × as fast, the least {paces[least]:.1f} × ({least.contender}, "
        f"{where(least)}): {', '.join(kinds)}."
    )


def _computed(results: Sequence[Result]) -> Iterator[str]:
    yield "\n| trace | limits, load | seconds | seeds | contenders |"
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


def _goodput(table: ResultTable) -> Iterator[str]:
    """Yield a table for each set of circumstances: all three goodputs, and the attainment of every class."""
    for circumstances, jobs in _alike(table):
        yield f"\n### {where(circumstances)}, {circumstances.seconds:g} s\n"
        yield from goodput(table, jobs).markdown()
    yield ""


def _deeper(table: ResultTable) -> Iterator[str]:
    """Yield a table for each further question, at the loads of the targets, with one replica and equal shares."""
    main = [
        (circumstances, jobs)
        for circumstances, jobs in _alike(table)
        if circumstances.load in TARGET_LOADS and _usual(circumstances)
    ]
    for title, make in (
        ("## Near-oracle: each form beside itself with true lengths, stages and tool times", near_oracle),
        ("## Over time: programs met and tokens of use, by when they came", over_time),
        ("## By type of request: of those that came so far", latencies),
    ):
        found = [(circumstances, made) for circumstances, jobs in main if (made := _lines(make(table, jobs)))]
        if found:
            yield title
        for circumstances, lines in found:
            name = title.partition(":")[0].removeprefix("## ")
            yield f"\n### {name}, {where(circumstances)}, {circumstances.seconds:g} s\n"
            yield from lines
        yield ""


def _lines(made: Lines) -> list[str]:
    return list(made.markdown()) if made.lines else []


def _alike(table: ResultTable) -> list[tuple[Job, list[Job]]]:
    """Return the circumstances that were replayed, each with its contenders."""
    groups: dict[Job, list[Job]] = {}
    for job in dict.fromkeys(job.but(seed=0) for job in table.jobs()):
        groups.setdefault(plain(job), []).append(job)
    return sorted(groups.items(), key=lambda group: (group[0].seconds, where(group[0])))


def _usual(job: Job) -> bool:
    return job == job.but(slo_scale=1.0, mix=(1.0, 1.0, 1.0), replicas=1, arrivals="trace")


def plain(job: Job) -> Job:
    """Return the circumstances of a job: equal for every contender and seed."""
    return job.but(contender="", seed=0)


def where(job: Job) -> str:
    """Say the circumstances of a replay, except for what is as usual."""
    parts = [job.slo, f"load {job.load:g}"]
    parts += [f"limits × {job.slo_scale:g}"] if job.slo_scale != 1 else []
    parts += [f"{job.replicas} replicas"] if job.replicas != 1 else []
    parts += ["mix " + ":".join(f"{share:g}" for share in job.mix)] if len(set(job.mix)) > 1 else []
    parts += [job.arrivals] if job.arrivals != "trace" else []
    return ", ".join(parts)
