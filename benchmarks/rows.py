"""The rows that every benchmark reports: how they are built, printed, and written as JSON.

A row compares a measured value (`ours`) with a target, and with a peer that did the same work in the same run:
{"name", "ours", "unit", "peer", "peer_value", "ratio", "target", "met"}, and optionally "spread", "note" and others.
`ours` and `met` are None if nothing was measured or there is no target. benchmarks/result_tables.py makes tables of
the JSON.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import median
from typing import Any

from benchmarks.machine import machine
from benchmarks.replay.errors import ReplayError

Row = dict[str, Any]

_VERDICT = {True: "met", False: "MISSED", None: ""}


def options(doc: str | None, quick: str) -> argparse.ArgumentParser:
    """Return a parser with the options of every benchmark. `quick`: what --quick leaves out."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help=quick)
    parser.add_argument("--json", action="store_true", help="the last line is one object")
    return parser


def row(
    name: str,
    ours: float | None,
    unit: str,
    *,
    target: float | str | None = None,
    at_least: bool = False,
    met: bool | None = None,
    peer: str | None = None,
    peer_value: float | None = None,
    times_faster: bool = False,
    spread: Sequence[float] | None = None,
    note: str | None = None,
    **more: Any,
) -> Row:
    """Return a row.

    `target` is an upper limit, with `at_least` a lower one, or words, for which `met` must be given. The ratio is
    ours over the peer's, with `times_faster` the peer's over ours. `ours` is None, or NaN, if it was not measured.
    """
    if ours is not None and math.isnan(ours):
        ours = None
    if met is None and ours is not None and isinstance(target, int | float):
        met = ours >= target if at_least else ours <= target
    return {
        "name": name,
        "ours": ours,
        "unit": unit,
        "peer": peer,
        "peer_value": peer_value,
        "ratio": _ratio(ours, peer_value, times_faster),
        "target": target,
        "met": met,
        **({"spread": [spread[0], spread[1]]} if spread is not None else {}),
        **({"note": note} if note else {}),
        **more,
    }


def _ratio(ours: float | None, peer: float | None, times_faster: bool) -> float | None:
    above, below = (peer, ours) if times_faster else (ours, peer)
    return round(above / below, 3) if above is not None and below else None


def median_row(name: str, values: Sequence[float], unit: str, **more: Any) -> Row:
    """Return a row of the median of these values, with their smallest and largest as its spread."""
    return row(name, median(values), unit, **{"spread": (min(values), max(values)), **more})


def not_measured(name: str, unit: str, why: str, *, target: str | None = None, missed: bool = False) -> Row:
    """Return a row without a value. `missed`: it counts as missed, because an installation lacks something."""
    return row(name, None, unit, target=target, met=False if missed else None, note=f"not measured: {why}")


def printed(row: Mapping[str, Any]) -> str:
    """Return a row as text: its name, and below it the figures and the note."""
    ours = "–" if row["ours"] is None else f"{_figure(row['ours'])} {row['unit']}"
    if row.get("spread"):
        ours += f" [{_figure(row['spread'][0])}–{_figure(row['spread'][1])}]"
    target = "" if row["target"] is None else f"target {_figure(row['target'])}"
    peer = row["peer"] or ""
    if row["peer_value"] is not None:
        peer += f": {_figure(row['peer_value'])}"
    if row.get("ratio") is not None:
        peer += f" (ratio {_figure(row['ratio'])})"
    lines = [row["name"], f"    {ours:<48} {target:<18} {_VERDICT[row['met']]:<7} {peer}".rstrip()]
    lines += [f"    {row['note']}"] if row.get("note") else []
    return "\n".join(lines)


def _figure(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def report(rows: Sequence[Mapping[str, Any]], **more: Any) -> str:
    """Return the JSON object that a benchmark prints last: its rows and the machine."""
    return json.dumps({"rows": list(rows), **more, "machine": machine()})


def show(rows: Iterable[Row], as_json: bool, **more: Any) -> None:
    """Print each row as soon as it is measured, and then, if asked for, all of them as one JSON object."""
    found = []
    for each in rows:
        found.append(each)
        print(printed(each), flush=True)
    if as_json:
        print(report(found, **more))


def run(main: Callable[[], int | None]) -> None:
    """Run a benchmark. An input that cannot be used ends it with status 1 and what is wrong, without a traceback."""
    try:
        status = main()
    except (ReplayError, FileNotFoundError) as error:
        sys.exit(f"error: {error}")
    sys.exit(status)
