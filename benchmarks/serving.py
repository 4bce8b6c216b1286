"""Measure the serving layer: the policy, the analyzer, the gateway, and vLLM with our scheduler next to its own.

    python benchmarks/serving.py [--quick] [--json] [--data DIR] [--only policy|vllm|analyzer|gateway …]

The rows come from the modules in `serving_costs/`, which also run alone. A row whose engine is not installed says so
and counts as missed. A row that `--quick` leaves out (those of vLLM take a quarter of an hour) says so and counts as
neither. Lengths and patterns are learned from real traces if `--data` or RAMIFY_TRACES names a folder of them (see
`serving_costs/length_bounds.py`). With `--json` the last line is one object.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.rows import Row, not_measured, options, printed, report, run  # noqa: E402
from benchmarks.serving_costs.gateway_cost import Broken  # noqa: E402

PARTS = {
    "policy": "policy_cost",
    "vllm": "vllm_scheduling",
    "analyzer": "length_bounds",
    "gateway": "gateway_cost",
}
"""The modules in serving_costs/."""


def rows_of(part: str, *, quick: bool) -> Iterator[Row]:
    """Yield one part's rows as they are measured, or one row that says why the part cannot be measured here."""
    try:
        yield from importlib.import_module(f"benchmarks.serving_costs.{PARTS[part]}").rows(quick=quick)
    except ModuleNotFoundError as error:
        yield not_measured(part, "", f"{error.name} is not installed", target="measured", missed=True)
    except Broken as error:
        yield not_measured(part, "", str(error), target="measured", missed=True)


def main() -> None:
    parser = options(__doc__, "fewer repeats, and no vLLM")
    parser.add_argument("--data", type=Path, help="a folder of traces")
    parser.add_argument("--only", choices=tuple(PARTS), action="append", help="only this part; repeatable")
    asked = parser.parse_args()
    if asked.data is not None:
        os.environ["RAMIFY_TRACES"] = str(asked.data)
    rows: list[Row] = []
    try:
        for part in asked.only or PARTS:
            for row in rows_of(part, quick=asked.quick):
                rows.append(row)
                print(printed(row), flush=True)
    except KeyboardInterrupt:
        print("stopped: these are the rows so far", file=sys.stderr)
    if asked.json:
        print(report(rows))


if __name__ == "__main__":
    run(main)
