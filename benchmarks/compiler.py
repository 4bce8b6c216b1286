"""Measure the compiler: how long it takes, and what its passes save when a plan runs.

    python benchmarks/compiler.py [--quick] [--json]
        [--only compile|superstep|lookahead|hints|sends|placement|learned|parallel|common|liveness|stages]

Rows are medians of 20 or more, with minimum and maximum; `--quick` repeats less often. Each pass is compared with the
same plan without that pass, in the same run.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent))

import _compiler_hints
import _compiler_passes
import _compiler_sends
import _compiler_shared
import _compiler_time
from _compiler_rows import Row
from _machine import machine

PARTS: dict[str, Callable[[bool], list[Row]]] = {
    "compile": _compiler_time.compile_rows,
    "superstep": _compiler_time.superstep_rows,
    "lookahead": _compiler_passes.lookahead_rows,
    "hints": _compiler_hints.hint_rows,
    "sends": _compiler_sends.send_rows,
    "placement": _compiler_passes.placement_rows,
    "learned": _compiler_passes.learned_rows,
    "parallel": _compiler_shared.parallel_rows,
    "common": _compiler_shared.common_rows,
    "liveness": _compiler_passes.liveness_rows,
    "stages": _compiler_passes.stage_rows,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="each thing less often")
    parser.add_argument("--json", action="store_true", help="the last line is one object")
    parser.add_argument("--only", choices=tuple(PARTS), action="append", help="these rows alone")
    asked = parser.parse_args()
    rows: list[Row] = []
    for part in asked.only or PARTS:
        for row in PARTS[part](asked.quick):
            print(row.line(), flush=True)
            rows.append(row)
    if asked.json:
        print(json.dumps({"rows": [row.as_object() for row in rows], "machine": machine()}))


if __name__ == "__main__":
    main()
