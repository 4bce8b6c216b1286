"""`write_page`: an evaluation as one HTML page that needs no other file: the rows of targets, then a part for each
question.

The results in one part differ only by what its axis says: loose and tight limits, for instance, never share a plot.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from benchmarks.replay.evaluation import TARGET_LOADS, ResultTable, Section
from benchmarks.replay.jobs import Job, Result
from benchmarks.replay.report import plots
from benchmarks.replay.report.comparisons import Row
from benchmarks.replay.report.markdown_report import computed, plain, where
from benchmarks.replay.report.tables import Lines, goodput, latencies, near_oracle, over_time

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 80rem; margin: 2rem auto; padding: 0 1rem; color: #222 }
table { border-collapse: collapse; margin: 1rem 0; font-size: 13px }
td, th { padding: .2rem .6rem; border-bottom: 1px solid #ddd }
td { text-align: right } td:first-child, th:first-child { text-align: left } img { max-width: 100% }
.missed { color: #b00 } .met { color: #070 }
"""
TITLES = {
    "load": "Goodput against load",
    "tight": "Goodput against load, tight limits",
    "reach": "What a clairvoyant reaches, and what the plan is worth",
    "refusing": "Baselines that refuse, though their papers do not",
    "ablation": "Ablation",
    "slo-scale": "Scale of the limits",
    "mix": "Mixes",
    "replicas": "Replicas",
    "poisson": "Arrivals by chance",
    "saved": "Engines saved",
}
_AXES = ("load", "slo_scale", "replicas")
_BESIDE = {  # contenders shown in a part beside those that were replayed for it
    "reach": ("concord", "concord-oracle", "program-srpt"),
    "refusing": ("concord", "ltr", "plas", "fcfs", "fcfs-drop", "least-laxity", "edf-plan"),
    "ablation": ("concord", "concord-oracle", "calm-thesis", "ltr", "fcfs"),
}


def write_page(folder: Path, results: Sequence[Result], rows: Sequence[Row], sections: Iterable[Section]) -> Path:
    """Write `folder`/index.html, and a PNG beside it for each of its plots."""
    table = ResultTable(results)
    parts = ["<h1>Goodput in replay</h1>", *_setting(results), _rows(rows)]
    shown: set[Job] = set()
    for section in sections:
        jobs = _jobs(table, section)
        if not shown.issuperset(jobs):  # if the run was stopped, a section may have only results of another one
            shown.update(jobs)
            parts.append(_heading(TITLES.get(section.name, section.name)))
            parts += _section(folder, section.name, table, jobs)
            if section.name in ("load", "tight"):
                parts += _deeper(folder, section.name, table, jobs)
    page = folder / "index.html"
    body = "\n".join(parts)
    page.write_text(
        f"<!doctype html><meta charset=utf-8><title>Goodput in replay</title><style>{_STYLE}</style>\n{body}\n",
        encoding="utf-8",
    )
    return page


def _jobs(table: ResultTable, section: Section) -> list[Job]:
    """Return one job for each contender and circumstance with results, of any seed."""
    own = dict.fromkeys(job.but(seed=0) for job in section.jobs if table.has(job))
    circumstances = dict.fromkeys(job.but(contender="") for job in own)
    beside = [
        job.but(contender=name)
        for job in circumstances
        for name in _BESIDE.get(section.name, ())
        if table.has(job.but(contender=name))
    ]
    return list(dict.fromkeys([*beside, *own]))


def _setting(results: Sequence[Result]) -> Iterator[str]:
    for line in computed(results):
        yield f"<p>{html.escape(line)}</p>"


def _section(folder: Path, name: str, table: ResultTable, jobs: Sequence[Job]) -> Iterator[str]:
    varied = next((axis for axis in _AXES if len({getattr(job, axis) for job in jobs}) > 1), None)
    numbers = varied is not None and name in ("load", "tight", "slo-scale", "replicas", "saved")
    if numbers and varied is not None:
        yield plots.by_circumstance(folder / f"{name}.png", table, jobs, varied, plots.GOODPUTS)
    else:
        yield plots.side_by_side(folder / f"{name}.png", table, jobs, plots.GOODPUTS)
    for group in _alike(jobs):
        yield f"<h3>{html.escape(where(group[0]))}</h3>" + goodput(table, group).html()


def _deeper(folder: Path, name: str, table: ResultTable, jobs: Sequence[Job]) -> Iterator[str]:
    """Yield more of the main comparison: throughput, near-oracle, over time, and by type of request."""
    mark = "" if name == "load" else f"-{name}"
    also = "" if name == "load" else f", {name} limits"
    yield _heading(f"Throughput{also}")
    path = folder / f"throughput{mark}.png"
    if len({job.load for job in jobs}) > 1:
        yield plots.by_circumstance(path, table, jobs, "load", ("throughput",))
    else:
        yield plots.side_by_side(path, table, jobs, ("throughput",))
    for title, picture, make in (
        ("Near-oracle", f"near-oracle{mark}", near_oracle),
        ("Over time", f"over-time{mark}", over_time),
        ("By type of request", f"request-types{mark}", latencies),
    ):
        yield _heading(f"{title}{also}")
        for group in _alike(jobs):
            if group[0].load not in TARGET_LOADS and title != "Near-oracle":
                continue
            lines = make(table, group)
            if not lines.lines:
                continue
            at = f"{picture}-{group[0].load:g}"
            yield f"<h3>{html.escape(where(group[0]))}</h3>"
            if make is over_time:
                yield plots.over_time(folder / f"{at}.png", table, group)
            elif make is latencies:
                yield plots.request_types(folder / f"{at}.png", table, group)
            else:
                pairs = [
                    job for job in group for one in lines.lines if job.contender.removesuffix("-oracle") == one[0]
                ]
                yield plots.side_by_side(folder / f"{at}.png", table, pairs, plots.GOODPUTS)
            yield lines.html()


def _alike(jobs: Sequence[Job]) -> list[list[Job]]:
    """Group the jobs by circumstances."""
    groups: dict[Job, list[Job]] = {}
    for job in jobs:
        groups.setdefault(plain(job), []).append(job)
    return list(groups.values())


def _rows(rows: Sequence[Row]) -> str:
    lines = []
    for row in rows:
        verdict = {True: "met", False: "missed", None: "–"}[row["met"]]
        ours = "–" if row["ours"] is None else f"{row['ours']:.3f} {row['unit']}"
        peer = "" if row["peer_value"] is None else f"{row['peer']} {row['peer_value']:.3f}"
        lines.append((row["name"], ours, row["target"], verdict, peer, row["note"]))
    return Lines(("row", "measured", "target", "", "against", ""), tuple(lines)).html()


def _heading(text: str) -> str:
    return f"<h2>{html.escape(text)}</h2>"
