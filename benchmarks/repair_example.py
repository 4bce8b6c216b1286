"""Measure the repair example: programs repaired, forks, and the cost of a fork next to a copy of the same tree.

    python benchmarks/repair_example.py [--quick] [--json] [--programs DIR]

Runs the repair example with its model and its sandboxes in a fresh home. `--quick` takes three programs. With
`--json` the last line is one object.
"""

from __future__ import annotations

import asyncio
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks import rows  # noqa: E402
from benchmarks.rows import Row, options, show  # noqa: E402
from examples.repair.suite import find_programs  # noqa: E402
from examples.repair.workflow import repair  # noqa: E402
from ramify import Runtime  # noqa: E402
from ramify.compiler.plan import OpKind  # noqa: E402
from ramify.runtime.codec import codec  # noqa: E402
from ramify.serving.engine import models  # noqa: E402

QUICK = ("binary_search", "inventory", "text_wrap")
COPIES = 20


def copy_ms(tree: Path, scratch: Path) -> float:
    """Return the median milliseconds of `cp -a` of the same tree, the peer of a fork."""
    took = []
    for number in range(COPIES):
        target = scratch / f"copy{number}"
        begun = time.perf_counter()
        subprocess.run(["cp", "-a", str(tree), str(target)], check=True)
        took.append((time.perf_counter() - begun) * 1000)
        shutil.rmtree(target)
    return statistics.median(took)


async def measure(programs: Path, names: list[str], home: Path) -> dict[str, Any]:
    async with Runtime(home=home) as runtime:
        begun = time.perf_counter()
        report = await runtime.run(repair, names, workspace=programs)
        wall = time.perf_counter() - begun
        journal, calls, run = await runtime.journal(), await runtime.llm_calls(), await runtime.record()
    forks = [float(row.attrs["fork_ms"]) for row in journal if "fork_ms" in row.attrs and row.branch != "root"]
    results = [codec.decode(call.result_json) for call in calls]
    met = [result.ledger.met for result in results if result.ledger is not None]
    repaired = [row for row in report.rows if row.repaired]
    return {
        "repaired": report.repaired,
        "programs": report.broken,
        "forks": sum(row.forks for row in report.rows),
        "forks_ranked": sum(row.place for row in repaired),
        "forks_prior": sum(row.prior_place for row in repaired),
        "forks_random": round(sum(row.random for row in repaired), 1),
        "forks_oracle": sum(row.oracle for row in repaired),
        "reused": sum(row.reused_from is not None and row.kind is OpKind.RUN for row in journal),
        "wall_s": round(wall, 2),
        "fork_p50_ms": round(statistics.median(forks), 3),
        "fork_p95_ms": round(statistics.quantiles(forks, n=20)[-1], 3),
        "llm_calls": len(calls),
        "deadline_met": bool(met) and all(met) and run.consumed_s <= (run.deadline_s or 0),
    }


def row(name: str, ours: float, unit: str, peer: str, other: float | None, target: str, met: bool) -> Row:
    return rows.row(name, ours, unit, target=target, met=met, peer=peer, peer_value=other, times_faster=True)


def table(seen: dict[str, Any], copied: float) -> list[Row]:
    share = seen["repaired"] / max(1, seen["programs"])
    ranked, prior, chance = seen["forks_ranked"], seen["forks_prior"], seen["forks_random"]
    return [
        row("programs repaired", seen["repaired"], "programs", "all", seen["programs"], ">= 9 of 10", share >= 0.9),
        row("the whole search", seen["wall_s"], "s", "", None, "<= 300", seen["wall_s"] <= 300),
        row("fork of a world, p50 (the peer copies a tree of a few dozen files)", seen["fork_p50_ms"], "ms", "cp -a",
            round(copied, 3), "reported", True),
        row("forks that the ranking needs", ranked, "forks", "random order", chance, "<= peer", ranked <= chance),
        row("the same, the model against the prior alone", ranked, "forks", "prior", prior, "reported", True),
        row("calls that met the deadline", float(seen["deadline_met"]), "all", "", None, "all", seen["deadline_met"]),
    ]  # fmt: skip


def main() -> None:
    parser = options(__doc__, "three programs")
    parser.add_argument("--programs", type=Path, default=ROOT / "examples" / "repair" / "programs")
    asked = parser.parse_args()
    names = find_programs(asked.programs)
    if asked.quick:
        names = [name for name in names if name in QUICK] or names[:3]
    with tempfile.TemporaryDirectory(prefix="ramify-bench-") as scratch:
        home = Path(scratch) / "home"
        home.mkdir()
        models.pull(home)
        seen = asyncio.run(measure(asked.programs, names, home))
        made = table(seen, copy_ms(asked.programs, Path(scratch)))
    show(made, asked.json, **seen)


if __name__ == "__main__":
    main()
