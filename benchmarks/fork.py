"""Measure forks, checkpoints, rollbacks and merges of worlds, next to the usual alternatives.

    python benchmarks/fork.py [--quick] [--json] [--scratch DIR] [--only files|live|store]

Every peer processes the same files in the same run. Rows are medians of 20 or more (`rounds`), with minimum and
maximum. `--quick` takes a minute, with smaller trees and fewer rounds of what takes seconds. With `--json` the last
line is one object. Run it as root and as an ordinary user, because some targets differ. If `load` shows that the
machine was busy, the minimum of a spread says more than the median.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import _fork_files
import _fork_live
import _fork_store
from _machine import machine

from ramify.sandboxes.host.scratch import remove_tree

PARTS: dict[str, Callable[[bool, Path | None], list[dict[str, object]]]] = {
    "files": _fork_files.rows,
    "live": _fork_live.rows,
    "store": _fork_store.rows,
}


def line(row: dict[str, object]) -> str:
    met = {True: "met", False: "MISSED", None: ""}[row["met"] if isinstance(row["met"], bool) else None]
    low, high = row["spread"] if isinstance(row.get("spread"), list) else ("", "")
    first = f" (+ {row['first_run']} to its first command)" if "first_run" in row else ""
    peer = f"{row['peer']}: {row['peer_value']}" if row["peer_value"] is not None else str(row["peer"])
    if row["peer_value"] is not None and isinstance(row.get("rounds"), list):
        peer += f" (median of {row['rounds'][1]})"
    target = "" if row["target"] is None else f"<= {row['target']}"
    ours = f"{row['ours']} {row['unit']} [{low}–{high}]{first}"
    floor = f"\n    the floor here: {row['floor']}" if row["met"] is False and "floor" in row else ""
    return f"{row['name']}\n    {ours:<64} {target:<10} {met:<7} {peer}{floor}"


@contextmanager
def scratch(within: Path | None) -> Iterator[Path]:
    """Yield a folder that is removed at the end, even if Ctrl-C or SIGTERM interrupts a partial removal."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    folder = Path(tempfile.mkdtemp(prefix="ramify-bench-", dir=within))
    try:
        yield folder
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        remove_tree(folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="smaller trees: a minute in all")
    parser.add_argument("--json", action="store_true", help="the last line is one object")
    parser.add_argument("--scratch", type=Path, help="a folder on the file system to measure")
    parser.add_argument("--only", choices=tuple(PARTS), action="append", help="these rows alone")
    asked = parser.parse_args()
    rows = []
    before = os.getloadavg()[0]
    with scratch(asked.scratch) as folder:
        for part in asked.only or PARTS:
            for row in PARTS[part](asked.quick, folder):
                print(line(row), flush=True)
                rows.append(row)
    if asked.json:
        load = [round(one, 1) for one in (before, os.getloadavg()[0])]  # of one minute, before and after
        print(json.dumps({"rows": rows, "machine": {**machine(), "load": load}}))


if __name__ == "__main__":
    main()
