"""Measure forks, checkpoints, rollbacks and merges of worlds, next to the usual alternatives.

    python benchmarks/fork.py [--quick] [--json] [--scratch DIR] [--only files|live|store]

Every peer processes the same files in the same run. Rows are medians of 20 or more (`rounds`), with minimum and
maximum. `--quick` takes a minute, with smaller trees and fewer rounds of what takes seconds. With `--json` the last
line is one object. Run it as root and as an ordinary user, because some targets differ. If `load` shows that the
machine was busy, the minimum of a spread says more than the median.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.forks import file_forks, live_forks, store_operations
from benchmarks.rows import Row, options, printed, report
from benchmarks.scratch import scratch

PARTS: dict[str, Callable[[bool, Path | None], list[Row]]] = {
    "files": file_forks.rows,
    "live": live_forks.rows,
    "store": store_operations.rows,
}


def main() -> None:
    parser = options(__doc__, "smaller trees: a minute in all")
    parser.add_argument("--scratch", type=Path, help="a folder on the file system to measure")
    parser.add_argument("--only", choices=tuple(PARTS), action="append", help="only this part; repeatable")
    asked = parser.parse_args()
    rows = []
    before = os.getloadavg()[0]
    with scratch(asked.scratch) as folder:
        for part in asked.only or PARTS:
            for row in PARTS[part](asked.quick, folder):
                print(printed(row), flush=True)
                rows.append(row)
    if asked.json:
        load = [round(one, 1) for one in (before, os.getloadavg()[0])]  # of one minute, before and after
        print(report(rows, load=load))


if __name__ == "__main__":
    main()
