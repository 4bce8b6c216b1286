"""Plots of an evaluation. Each is written as a PNG file, and returned as an HTML image with the data in it."""

from __future__ import annotations

import base64
import html
from collections.abc import Callable, Mapping, Sequence
from math import ceil, nan
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.replay.evaluation import Estimate, ResultTable
from benchmarks.replay.jobs import Job
from benchmarks.replay.report.comparisons import FIGURES, MET, Figure
from benchmarks.replay.report.markdown_report import where
from benchmarks.replay.report.tables import DEFAULT, DRAWN, LATENCIES, course, tail_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_FIGURES: Mapping[str, Figure] = {**FIGURES, **MET}
GOODPUTS = ("request", "token", "workflow", "latency", "deadline")
_DPI = 110
_ABREAST = 3  # plots in a row
# Contenders with a colour of their own, in the order of the legend. The others are grey, and are in the table below.
_TOLD_APART: Mapping[str, tuple[str, str]] = {
    "concord": ("#c1121f", "-"),
    "concord-oracle": ("#c1121f", ":"),
    "concord, nothing refused": ("#f08a8f", "-"),
    "concord-tokens": ("#f08a8f", "--"),
    "clairvoyant": ("#111111", ":"),
    "calm-thesis": ("#f4a300", "-"),
    "program-srpt": ("#1d5fa8", "--"),
    "program-srpt-paced": ("#1d5fa8", "-"),
    "edf-plan": ("#2a8c3c", "-"),
    "srpt-oracle-gpu": ("#17a2a8", "-"),
    "plas": ("#7b3fa0", "-"),
    "ltr": ("#8c5a3c", "-"),
    "fcfs": ("#111111", "-"),
}
_TITLES = {
    "throughput": "tokens a second",
    "workflow": "workflow goodput (compound, met)",
    "latency": "latency-sensitive, met",
    "deadline": "deadline, met",
}
_GREY, _OTHERS = "#c9c9c9", "others: see the table"


def by_circumstance(path: Path, table: ResultTable, jobs: Sequence[Job], varied: str, figures: Sequence[str]) -> str:
    """Draw a line for each contender along a numeric circumstance. Bars are 95 % intervals over the seeds."""

    def draw(axes: Sequence[Axes]) -> None:
        for ax, figure in zip(axes, figures, strict=True):
            for name in dict.fromkeys(job.contender for job in jobs):
                mine = sorted((j for j in jobs if j.contender == name), key=lambda j: float(getattr(j, varied)))
                found = [table.estimate(job, _FIGURES[figure]) for job in mine]
                at = [float(getattr(job, varied)) for job in mine]
                ax.plot(at, [one.mean for one in found], marker=".", **_style(name))
                if name in _TOLD_APART:
                    means, bars, colour = [one.mean for one in found], _bars(found, figure), _TOLD_APART[name][0]
                    ax.errorbar(at, means, bars, fmt="none", capsize=2, elinewidth=0.8, ecolor=colour)
            ax.set_xlabel(varied.replace("_", " "))
            ax.set_title(_title(figure))
            if figure in GOODPUTS:
                ax.set_ylim(-0.02, 1.02)
        _legend(axes[-1], [job.contender for job in jobs])

    return _picture(path, len(figures), draw)


def side_by_side(path: Path, table: ResultTable, jobs: Sequence[Job], figures: Sequence[str]) -> str:
    """Draw a bar for each contender, for circumstances that are no numbers, with a colour for each."""
    names = list(dict.fromkeys(job.contender for job in jobs))[::-1]
    circumstances = list(dict.fromkeys(job.but(contender="", seed=0) for job in jobs))
    thick = 0.8 / len(circumstances)

    def draw(axes: Sequence[Axes]) -> None:
        for ax, figure in zip(axes, figures, strict=True):
            for number, plain in enumerate(circumstances):
                there = [
                    (i, plain.but(contender=n)) for i, n in enumerate(names) if table.has(plain.but(contender=n))
                ]
                found = [table.estimate(job, _FIGURES[figure]) for _, job in there]
                ax.barh(
                    [i + 0.4 - thick * (number + 0.5) for i, _ in there],
                    [one.mean for one in found],
                    thick,
                    xerr=_bars(found, figure),
                    label=where(plain),
                    error_kw={"capsize": 1.5, "linewidth": 0.8},
                )
            first = axes.index(ax) % _ABREAST == 0
            ax.set_yticks(range(len(names)), names if first else [""] * len(names))
            ax.set_title(_title(figure))
            if figure in GOODPUTS:
                ax.set_xlim(0.0, 1.0)
        axes[-1].legend(fontsize=7, loc="upper left", bbox_to_anchor=(1.01, 1.0))

    return _picture(path, len(figures), draw, height=1.5 + 0.22 * len(names) * max(1.0, 0.6 * len(circumstances)))


def over_time(path: Path, table: ResultTable, jobs: Sequence[Job]) -> str:
    """Draw programs met and tokens in time by arrival, over the seeds that all have."""
    table, jobs, _ = table.alike(jobs)

    def draw(axes: Sequence[Axes]) -> None:
        for job in jobs:
            points = course(table.scores(job))
            for ax, at in zip(axes, (1, 2), strict=True):
                ax.plot([p[0] for p in points], [p[at] for p in points], marker=".", **_style(job.contender))
        for ax, title in zip(axes, ("programs met", "tokens of use"), strict=True):
            ax.set_xlabel("arrival, s")
            ax.set_title(title)
            ax.set_ylim(-0.02, 1.02)
        _legend(axes[-1], [job.contender for job in jobs])

    return _picture(path, 2, draw)


def request_types(path: Path, table: ResultTable, jobs: Sequence[Job]) -> str:
    """Draw the 50th percentile as a bar and the 95th as a mark, on a log scale, over the seeds that all have."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    table, jobs, _ = table.alike(jobs)
    ordered = list(jobs)[::-1]

    def draw(axes: Sequence[Axes]) -> None:
        for ax, title in zip(axes, DRAWN, strict=True):
            figure, kind = LATENCIES[title]
            tails = [tail_of(table.scores(job), figure, kind) for job in ordered]
            there = [(i, tail) for i, tail in enumerate(tails) if tail is not None]
            ax.barh([i for i, _ in there], [tail.p50 for _, tail in there], 0.6, color="#9bbcd8", label="P50")
            ax.plot([tail.p95 for _, tail in there], [i for i, _ in there], "k|", markersize=9, label="P95")
            ax.set_xscale("log")
            ax.xaxis.set_major_locator(LogLocator(subs=(1.0, 3.0)))
            ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
            ax.xaxis.set_minor_formatter(NullFormatter())
            ax.set_yticks(
                range(len(ordered)), [j.contender for j in ordered] if ax is axes[0] else [""] * len(ordered)
            )
            ax.set_title(f"{title}, s")
        axes[-1].legend(fontsize=7)

    return _picture(path, len(DRAWN), draw, height=1.5 + 0.25 * len(ordered), abreast=len(DRAWN))


def _title(figure: str) -> str:
    return _TITLES.get(figure, f"{figure} goodput")


def _bars(found: Sequence[Estimate], figure: str) -> list[list[float]]:
    """Return the intervals below and above; those of a share stay within 0 and 1."""
    halves = [one.half or nan for one in found]
    if figure not in GOODPUTS:
        return [halves, halves]
    pairs = list(zip(halves, found, strict=True))
    return [[min(half, one.mean) for half, one in pairs], [min(half, 1.0 - one.mean) for half, one in pairs]]


def _style(name: str) -> dict[str, Any]:
    """Return the style of a contender, which is the same in every plot."""
    colour, dashes = _TOLD_APART.get(name, (_GREY, "-"))
    width = 2.5 if name.startswith("concord") else 1.5 if name in _TOLD_APART else 0.8
    above = 4 if name == DEFAULT else 3 if name in _TOLD_APART else 1
    return {"color": colour, "linestyle": dashes, "linewidth": width, "zorder": above}


def _legend(ax: Axes, names: Sequence[str]) -> None:
    """Draw the legend by colour and dashes, with one line for all grey contenders."""
    from matplotlib.lines import Line2D

    told = [name for name in _TOLD_APART if name in names]
    handles = [Line2D([], [], label=name, **_style(name)) for name in told]
    if others := set(names) - set(told):
        handles.append(Line2D([], [], label=f"{len(others)} {_OTHERS}", **_style("")))
    ax.legend(handles=handles, fontsize=8, loc="upper left", bbox_to_anchor=(1.01, 1.0))


def _picture(
    path: Path, count: int, draw: Callable[[Sequence[Axes]], None], height: float = 5.0, abreast: int = _ABREAST
) -> str:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    columns, rows = min(count, abreast), ceil(count / abreast)
    size = (5 * columns, height * rows)
    figure, axes = pyplot.subplots(rows, columns, figsize=size, constrained_layout=True, squeeze=False)
    used, rest = list(axes.flat)[:count], list(axes.flat)[count:]
    draw(used)
    for ax in rest:
        ax.axis("off")
    if rest and (legend := used[-1].get_legend()):
        legend.set_in_layout(False)  # it is where nothing is drawn, so it needs no extra room
    for ax in used:
        ax.grid(alpha=0.25)
        ax.set_axisbelow(True)
    figure.savefig(path, dpi=_DPI)
    pyplot.close(figure)
    data = base64.b64encode(path.read_bytes()).decode()
    return f'<img alt="{html.escape(path.stem)}" src="data:image/png;base64,{data}">'
