"""Measure the serving layer: the policy, the analyzer, the gateway, and vLLM with our scheduler next to its own.

    python benchmarks/serving.py [--quick] [--json] [--data DIR] [--only policy|vllm|analyzer|gateway …]

The rows come from the modules in `serving_costs/`, which also run alone. A row whose engine is not installed says so
and counts as missed. A row that `--quick` leaves out (those of vLLM take a quarter of an hour) says so and counts as
neither. Lengths and patterns are learned from real traces if `--data` or RAMIFY_TRACES names a folder of them (see
`serving_costs/length_bounds.py`). With `--json` the last line is one object.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks._machine import machine  # noqa: E402

PARTS = ("policy", "vllm", "analyzer", "gateway")
Row = dict[str, Any]


def rows_of(part: str, *, quick: bool) -> Iterator[Row]:
    """Yield one part's rows as they are measured, or one row that says why the part cannot be measured here."""
    try:
        yield from importlib.import_module(f"benchmarks._serving_{part}").rows(quick=quick)
    except ModuleNotFoundError as error:
        why = f"not measured: {error.name} is not installed"
        yield {
            "name": part, "ours": None, "unit": "", "peer": "", "peer_value": None, "ratio": None,
            "target": "measured", "met": False, "note": why,
        }  # fmt: skip


def shown(row: Row) -> str:
    ours = "-" if row["ours"] is None else f"{row['ours']:g}"
    peer = f"{row['peer']} {row['peer_value']:g}" if row.get("peer_value") is not None else ""
    verdict = {True: "met", False: "MISSED", None: "-"}[row["met"]]
    line = f"{row['name']:<78} {ours:>10} {row['unit']:<9} {row['target']:<14} {verdict:<7} {peer}"
    note = row.get("note")
    return f"{line.rstrip()}\n    {note}" if note else line.rstrip()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer repeats")
    parser.add_argument("--data", type=Path, help="a folder of traces")
    parser.add_argument("--json", action="store_true", help="the last line is one object")
    parser.add_argument("--only", choices=PARTS, action="append", help="only this part; repeatable")
    asked = parser.parse_args()
    if asked.data is not None:
        os.environ["RAMIFY_TRACES"] = str(asked.data)
    rows: list[Row] = []
    try:
        for part in asked.only or PARTS:
            for row in rows_of(part, quick=asked.quick):
                rows.append(row)
                print(shown(row), flush=True)
    except KeyboardInterrupt:
        print("stopped: these are the rows so far", file=sys.stderr)
    if asked.json:
        print(json.dumps({"rows": rows, "machine": machine()}))


if __name__ == "__main__":
    main()
