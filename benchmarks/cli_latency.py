"""Measure how long the command line takes in a home with many checkpoints.

    python benchmarks/cli_latency.py [--quick] [--json]

The home is generated: one run of 10,000 checkpoints on 100 branches, and 20 small runs. Each command runs as a
process of its own with a pipe as its output, as a shell would start it, and the whole process is timed. `start` is
`ramify --version`. The peer of each row is an interpreter that does nothing: no Python program starts faster.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import story as told  # noqa: E402

from benchmarks.rows import Row, median_row, options, show  # noqa: E402
from ramify import paths  # noqa: E402
from ramify.compiler.plan import OpKind  # noqa: E402
from ramify.fork_engine.store import SnapshotStore  # noqa: E402
from ramify.fork_engine.types import SnapshotId  # noqa: E402
from ramify.runtime.records import ROOT as TRUNK  # noqa: E402
from ramify.runtime.records import BranchPath, RunId  # noqa: E402
from ramify.runtime.store import RunStore  # noqa: E402

CHECKPOINTS, BRANCHES, OTHERS = 10_000, 100, 20
TARGETS_S = {"start": 0.3, "ls": 0.3, "log -n 20": 0.4, "show @": 0.4, "diff @~1": 0.4}
COMMANDS: dict[str, tuple[str, ...]] = {
    "start": ("--version",),
    "ls": ("ls",),
    "log -n 20": ("log", "@", "-n", "20"),
    "show @": ("show", "@:root"),
    "diff @~1": ("diff", "@~1", "@"),
}


def make_home(home: Path) -> None:
    """Make the rows that a run with many branches would leave: each forked from the trunk, with as many steps."""
    story = told.story()
    empty = home / "empty"
    empty.mkdir(parents=True)
    snapshot = SnapshotStore(paths.snapshots(home)).import_tree(empty).snapshot.id
    asyncio.run(_record(home, story, snapshot))


async def _record(home: Path, story: told.Story, snapshot: SnapshotId) -> None:
    async with RunStore(paths.database(home), clock=lambda: told.STARTED) as store:
        for number in range(OTHERS + 1):
            run = replace(story.run, id=RunId(f"{number:012x}"), base_snapshot=snapshot)
            ops, states = _rows(run.id, snapshot, CHECKPOINTS if number == OTHERS else 10)
            await store.create_run(run)
            await store.commit(run.id, ops=ops, checkpoints=states)


def _rows(run: RunId, snapshot: SnapshotId, many: int) -> tuple[list[Any], list[Any]]:
    ops, states, last = [], [told.seal(0, TRUNK, snapshot, (), "workspace")], {TRUNK: 0}
    for seq in range(1, many):
        child = seq % BRANCHES
        branch = BranchPath(TRUNK if child == 0 or many < BRANCHES else f"{TRUNK}/fork.1.0.{child}")
        ops.append(told.op(seq, OpKind.RUN, branch, step="edit", summary="a step", snapshot_out=snapshot))
        states.append(told.seal(seq, branch, snapshot, (last.get(branch, 0),), "edit"))
        last[branch] = seq
    ids = {one.id: f"{run[-4:]}{one.seq:020d}" for one in states}
    renamed = [replace(one, id=ids[one.id], run_id=run, parents=tuple(ids[p] for p in one.parents)) for one in states]
    return [replace(op, run_id=run) for op in ops], renamed


def timed(command: list[str], times: int, home: Path) -> list[float]:
    taken = []
    environment = {**os.environ, "RAMIFY_HOME": str(home), "PYTHONDONTWRITEBYTECODE": ""}
    for _ in range(times + 1):
        begun = time.perf_counter()
        subprocess.run(command, check=True, stdout=subprocess.PIPE, env=environment)
        taken.append(time.perf_counter() - begun)
    return taken[1:]  # the first one reads everything from disk


def row(name: str, ours: list[float], floor: float) -> Row:
    return median_row(
        f"ramify {name}, {CHECKPOINTS} checkpoints",
        [round(value, 3) for value in ours],
        "s",
        target=TARGETS_S[name],
        peer="python -c pass",
        peer_value=round(floor, 3),
    )


def main() -> None:
    asked = options(__doc__, "5 times each, not 20").parse_args()
    times = 5 if asked.quick else 20
    with tempfile.TemporaryDirectory(prefix="ramify-cli-") as folder:
        home = Path(folder) / "home"
        make_home(home)
        floor = statistics.median(timed([sys.executable, "-c", "pass"], times, home))
        ramify = [sys.executable, "-m", "ramify.cli.main"]
        rows = [row(name, timed([*ramify, *words], times, home), floor) for name, words in COMMANDS.items()]
    show(rows, asked.json)


if __name__ == "__main__":
    main()
