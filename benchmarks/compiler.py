"""Measure the compiler: how long it takes, and what its passes save when a plan runs.

    python benchmarks/compiler.py [--quick] [--json]
        [--only compile|superstep|lookahead|hints|sends|placement|learned|parallel|common|liveness|stages]

Rows are medians of 20 or more, with minimum and maximum; `--quick` repeats less often. Each pass is compared with the
same plan without that pass, in the same run.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.passes import compile_time, latency_savings, pass_savings, prefix_hints, send_waits
from benchmarks.rows import Row, options, printed, report

PARTS: dict[str, Callable[[bool], list[Row]]] = {
    "compile": compile_time.compile_rows,
    "superstep": compile_time.superstep_rows,
    "lookahead": pass_savings.lookahead_rows,
    "hints": prefix_hints.hint_rows,
    "sends": send_waits.send_rows,
    "placement": pass_savings.placement_rows,
    "learned": pass_savings.learned_rows,
    "parallel": latency_savings.parallel_rows,
    "common": latency_savings.common_rows,
    "liveness": pass_savings.liveness_rows,
    "stages": pass_savings.stage_rows,
}


def main() -> None:
    parser = options(__doc__, "fewer rounds")
    parser.add_argument("--only", choices=tuple(PARTS), action="append", help="these rows alone")
    asked = parser.parse_args()
    rows: list[Row] = []
    for part in asked.only or PARTS:
        for row in PARTS[part](asked.quick):
            print(printed(row), flush=True)
            rows.append(row)
    if asked.json:
        print(report(rows))


if __name__ == "__main__":
    main()
