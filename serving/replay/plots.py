"""Plots of an evaluation: a PNG file each, and the same as text for a page that needs nothing beside it."""

from __future__ import annotations

import base64
import html
from collections.abc import Callable, Sequence
from math import nan
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ramify.serving.replay.contenders import ALL
from ramify.serving.replay.document import where
from ramify.serving.replay.evaluation import Table
from ramify.serving.replay.jobs import Job
from ramify.serving.replay.rows import FIGURES
from ramify.serving.replay.tables import LATENCIES, course, tail_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

GOODPUTS = ("request", "token", "workflow")
_PLACES = {one.name: place for place, one in enumerate(ALL)}
_DASHES = ("-", "--", ":")
_DPI = 110


def by_circumstance(path: Path, table: Table, jobs: Sequence[Job], varied: str, figures: Sequence[str]) -> str:
    """A line for each contender along a circumstance that is a number; bars are 95 % intervals over the seeds."""

    def draw(axes: Sequence[Axes]) -> None:
        for ax, figure in zip(axes, figures, strict=True):
            for name in dict.fromkeys(job.contender for job in jobs):
                mine = sorted((j for j in jobs if j.contender == name), key=lambda j: float(getattr(j, varied)))
                found = [table.estimate(job, FIGURES[figure]) for job in mine]
                half = [one.half or nan for one in found]
                at = [float(getattr(job, varied)) for job in mine]
                ax.errorbar(at, [one.mean for one in found], half, label=name, marker=".", capsize=2, **_style(name))
            ax.set_xlabel(varied.replace("_", " "))
            ax.set_title(_title(figure))
        _legend(axes[-1])

    return _picture(path, len(figures), draw)


def side_by_side(path: Path, table: Table, jobs: Sequence[Job], figures: Sequence[str]) -> str:
    """A bar for each contender, where circumstances are no numbers: one colour each."""
    names = list(dict.fromkeys(job.contender for job in jobs))[::-1]
    circumstances = list(dict.fromkeys(job.but(contender="", seed=0) for job in jobs))
    thick = 0.8 / len(circumstances)

    def draw(axes: Sequence[Axes]) -> None:
        for ax, figure in zip(axes, figures, strict=True):
            for number, plain in enumerate(circumstances):
                there = [
                    (i, plain.but(contender=n)) for i, n in enumerate(names) if table.has(plain.but(contender=n))
                ]
                found = [table.estimate(job, FIGURES[figure]) for _, job in there]
                ax.barh(
                    [i + 0.4 - thick * (number + 0.5) for i, _ in there],
                    [one.mean for one in found],
                    thick,
                    xerr=[one.half or nan for one in found],
                    label=where(plain),
                    error_kw={"capsize": 1.5, "linewidth": 0.8},
                )
            ax.set_yticks(range(len(names)), names if ax is axes[0] else [""] * len(names))
            ax.set_title(_title(figure))
        _legend(axes[-1])

    return _picture(path, len(figures), draw, height=1.5 + 0.22 * len(names) * max(1.0, 0.6 * len(circumstances)))


def over_time(path: Path, table: Table, jobs: Sequence[Job]) -> str:
    """Programs that were met, and tokens of use, by when they came, of the seeds that all have."""
    table, jobs, _ = table.alike(jobs)

    def draw(axes: Sequence[Axes]) -> None:
        for job in jobs:
            points = course(table.scores(job))
            for ax, at in zip(axes, (1, 2), strict=True):
                ax.plot(
                    [p[0] for p in points],
                    [p[at] for p in points],
                    marker=".",
                    **_style(job.contender),
                    label=job.contender,
                )
        for ax, title in zip(axes, ("programs met", "tokens of use"), strict=True):
            ax.set_xlabel("arrival, s")
            ax.set_title(title)
        _legend(axes[-1])

    return _picture(path, 2, draw)


def request_types(path: Path, table: Table, jobs: Sequence[Job]) -> str:
    """50th percentile as a bar, 95th as the mark behind it; logarithmic, as in the thesis. Of the seeds all have."""
    table, jobs, _ = table.alike(jobs)
    ordered = list(jobs)[::-1]

    def draw(axes: Sequence[Axes]) -> None:
        for ax, (title, (figure, kind)) in zip(axes, LATENCIES.items(), strict=True):
            tails = [tail_of(table.scores(job), figure, kind) for job in ordered]
            there = [(i, tail) for i, tail in enumerate(tails) if tail is not None]
            ax.barh([i for i, _ in there], [tail.p50 for _, tail in there], 0.6, color="#9bbcd8", label="P50")
            ax.plot([tail.p95 for _, tail in there], [i for i, _ in there], "k|", markersize=9, label="P95")
            ax.set_xscale("log")
            ax.set_yticks(
                range(len(ordered)), [j.contender for j in ordered] if ax is axes[0] else [""] * len(ordered)
            )
            ax.set_title(f"{title}, s")
        axes[-1].legend(fontsize=7)

    return _picture(path, len(LATENCIES), draw, height=1.5 + 0.25 * len(ordered))


def _title(figure: str) -> str:
    return "tokens a second" if figure == "throughput" else f"{figure} goodput"


def _style(name: str) -> dict[str, Any]:
    """The same in every plot."""
    from matplotlib import colormaps

    place = _PLACES.get(name, 0)
    width = 2.5 if name.startswith("concord") else 1.1
    return {
        "color": colormaps["tab10"](place % 10),
        "linestyle": _DASHES[place // 10 % len(_DASHES)],
        "linewidth": width,
    }


def _legend(ax: Axes) -> None:
    ax.legend(fontsize=7, loc="upper left", bbox_to_anchor=(1.01, 1.0))


def _picture(path: Path, columns: int, draw: Callable[[Sequence[Axes]], None], height: float = 4.0) -> str:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, columns, figsize=(5 * columns, height), constrained_layout=True, squeeze=False)
    draw(list(axes[0]))
    figure.savefig(path, dpi=_DPI)
    pyplot.close(figure)
    data = base64.b64encode(path.read_bytes()).decode()
    return f'<img alt="{html.escape(path.stem)}" src="data:image/png;base64,{data}">'
