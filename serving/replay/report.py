"""Plots of an evaluation, as PNG files and in one page that needs nothing beside it."""

from __future__ import annotations

import base64
import html
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ramify.serving.replay.document import where
from ramify.serving.replay.evaluation import Section, Table
from ramify.serving.replay.jobs import Job, Result
from ramify.serving.replay.rows import FIGURES, Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 70rem; margin: 2rem auto; padding: 0 1rem; color: #222 }
table { border-collapse: collapse; margin: 1rem 0 } td, th { padding: .2rem .6rem; border-bottom: 1px solid #ddd }
td { text-align: right } td:first-child, th:first-child { text-align: left } img { max-width: 100% }
.missed { color: #b00 } .met { color: #070 }
"""
_KINDS = ("latency", "deadline", "compound")


def write_page(folder: Path, results: Sequence[Result], rows: Sequence[Row], sections: Iterable[Section]) -> Path:
    """`folder`/index.html, and a PNG beside it for each plot in it."""
    table = Table(results)
    parts = ["<h1>Goodput in replay</h1>", _rows(rows)]
    for section in sections:
        jobs = [job for job in section.jobs if table.has(job.but(seed=0)) and job.seed == 0]
        if not jobs:
            continue
        parts.append(f"<h2>{html.escape(section.name)}</h2>")
        varied = _varied(jobs)
        if varied is not None:
            parts.append(_plot(folder, section.name, table, jobs, varied))
        parts.append(_figures(table, jobs))
        parts.append(_latencies(table, jobs))
    if over_time := [job for job in table.jobs() if job.load == 1.1 and job.seed == 0 and job.slo_scale == 1.0]:
        parts.append("<h2>over time, load 1.1</h2>" + _over_time(folder, table, over_time))
    page = folder / "index.html"
    body = "\n".join(parts)
    page.write_text(f"<!doctype html><meta charset=utf-8><style>{_STYLE}</style>\n{body}\n", encoding="utf-8")
    return page


def _varied(jobs: Sequence[Job]) -> str | None:
    """The circumstance that differs between a section's jobs and can stand on an axis."""
    for name in ("load", "slo_scale", "replicas"):
        if len({getattr(job, name) for job in jobs}) > 1:
            return name
    return None


def _plot(folder: Path, name: str, table: Table, jobs: Sequence[Job], varied: str) -> str:
    def draw(axes: Sequence[Axes]) -> None:
        for ax, figure in zip(axes, ("request", "token", "workflow"), strict=True):
            for contender in dict.fromkeys(job.contender for job in jobs):
                mine = sorted((j for j in jobs if j.contender == contender), key=lambda j: float(getattr(j, varied)))
                estimates = [table.estimate(job, FIGURES[figure]) for job in mine]
                ours = contender.startswith("concord")
                ax.errorbar(
                    [float(getattr(job, varied)) for job in mine],
                    [one.mean for one in estimates],
                    [one.half for one in estimates],
                    label=contender,
                    linewidth=2.5 if ours else 1.0,
                    capsize=2,
                )
            ax.set_xlabel(varied)
            ax.set_title(f"{figure} goodput")
        axes[-1].legend(fontsize=7)

    return _picture(folder / f"{name}.png", 3, draw)


def _over_time(folder: Path, table: Table, jobs: Sequence[Job]) -> str:
    def draw(axes: Sequence[Axes]) -> None:
        for job in jobs:
            score = table.scores(job)[0]
            for ax, at in zip(axes, (1, 2), strict=True):
                ax.plot([p[0] for p in score.over_time], [p[at] for p in score.over_time], label=job.contender)
        for ax, title in zip(axes, ("programs met", "tokens of use"), strict=True):
            ax.set_xlabel("arrival, s")
            ax.set_title(title)
        axes[-1].legend(fontsize=6)

    return _picture(folder / "over-time.png", 2, draw)


def _picture(path: Path, columns: int, draw: object) -> str:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, columns, figsize=(5 * columns, 4), constrained_layout=True)
    assert callable(draw)
    draw(list(axes))
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
    data = base64.b64encode(path.read_bytes()).decode()
    return f'<img alt="{html.escape(path.stem)}" src="data:image/png;base64,{data}">'


def _figures(table: Table, jobs: Sequence[Job]) -> str:
    head = ["", "where", "requests", "tokens", "workflows", *_KINDS, "tokens/s", "refused", "preempted"]
    lines = []
    for job in jobs:
        scores = table.scores(job)
        attained = [sum(s.attained.get(kind, 0.0) for s in scores) / len(scores) for kind in _KINDS]
        lines.append(
            [
                job.contender,
                where(job),
                *(str(table.estimate(job, FIGURES[name])) for name in ("request", "token", "workflow")),
                *(f"{value:.3f}" for value in attained),
                f"{table.estimate(job, FIGURES['throughput']).mean:.0f}",
                f"{sum(s.refused for s in scores) / len(scores):.3f}",
                f"{sum(s.preemptions for s in scores) / len(scores):.0f}",
            ]
        )
    return _table(head, lines)


def _latencies(table: Table, jobs: Sequence[Job]) -> str:
    """Of the first seed: 50th and 95th percentile, in seconds, by class."""
    head = ["P50 / P95, s", "where", *(f"{what} {kind}" for what in ("TTFT", "TBT", "E2E") for kind in _KINDS)]
    lines = []
    for job in jobs:
        score = table.scores(job)[0]
        cells = [
            f"{tails[kind].p50:.2f} / {tails[kind].p95:.2f}" if kind in tails else ""
            for tails in (score.ttft, score.tbt, score.e2e)
            for kind in _KINDS
        ]
        lines.append([job.contender, where(job), *cells])
    return _table(head, lines)


def _rows(rows: Sequence[Row]) -> str:
    lines = []
    for row in rows:
        verdict = {True: "met", False: "missed", None: "–"}[row["met"]]
        ours = "–" if row["ours"] is None else f"{row['ours']:.3f} {row['unit']}"
        peer = "" if row["peer_value"] is None else f"{row['peer']} {row['peer_value']:.3f}"
        lines.append([row["name"], ours, row["target"], verdict, peer, row["note"]])
    return _table(["row", "measured", "target", "", "against", ""], lines)


def _table(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    top = "".join(f"<th>{html.escape(cell)}</th>" for cell in head)
    body = "".join(
        "<tr>" + "".join(f'<td class="{html.escape(cell)}">{html.escape(cell)}</td>' for cell in line) + "</tr>"
        if any(cell in ("met", "missed") for cell in line)
        else "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in line) + "</tr>"
        for line in lines
    )
    return f"<table><tr>{top}</tr>{body}</table>"
