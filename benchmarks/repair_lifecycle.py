"""Test the repair example's whole life: killed at random, resumed, garbage-collected, checked, replayed.

    python benchmarks/repair_lifecycle.py [--quick] [--json] [--sandbox NAME] [--kills N] [--seed N] [--folder DIR]

A run of repair over all programs is killed with SIGKILL at random moments and resumed until it is done. Then a
garbage collection deletes everything that can be computed again, fsck checks what is left, and the workflow is
replayed from its first checkpoint: every step, fork, merge and model call must come from the journal. The model is
scripted, so that the run is the same wherever it is killed. `--quick` takes one program and four kills.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks import rows  # noqa: E402
from benchmarks.rows import Row, options, printed, report  # noqa: E402

HARNESS = ROOT / "tests" / "apps" / "repair_harness.py"
PROGRAMS = ROOT / "examples" / "repair" / "programs"
QUICK = "order_pricing"  # its repair is two edits, merged


def live(folder: Path, sandbox: str, kills: int, seed: int, *, quick: bool) -> dict[str, Any]:
    """Return the report of the test harness. Raises `subprocess.CalledProcessError` if it failed."""
    ignored = shutil.ignore_patterns("__pycache__")
    names = [QUICK] if quick else sorted(path.name for path in PROGRAMS.iterdir() if path.is_dir())
    for name in names:
        shutil.copytree(PROGRAMS / name, folder / "programs" / name, ignore=ignored)
    words = [sys.executable, str(HARNESS), str(folder), sandbox, str(kills), str(seed)]
    shown = subprocess.run(words, stdout=subprocess.PIPE, text=True, cwd=ROOT, check=True,
                           env={**os.environ, "PYTHONPATH": str(ROOT)})  # fmt: skip
    found: dict[str, Any] = json.loads(shown.stdout.splitlines()[-1])
    return found


def table(life: dict[str, Any], kills: int) -> list[Row]:
    twice = sum(count - 1 for count in Counter(life["keys"]).values())
    repaired, broken = sum(life["repaired"]), len(life["repaired"])
    return [
        row("kills that hit the run", life["killed"], "kills", kills, life["killed"] == kills),
        row("programs repaired all the same", repaired, "programs", broken, life["status"] == "done"),
        row("operations done twice", twice, "rows", 0, twice == 0),
        row("states that the collection let go of", life["evicted"], "snapshots", None, True),
        row("problems that fsck finds", len(life["problems"]), "problems", 0, not life["problems"]),
        row("replayed: rows served from the journal", life["heard"], "rows", None, life["heard"] > 0),
        row("replayed: rows done anew", life["not_replayed"], "rows", 0, life["not_replayed"] == 0),
    ]


def row(name: str, ours: int, unit: str, target: int | None, met: bool) -> Row:
    return rows.row(name, ours, unit, target=target, met=met)


def main() -> int:
    parser = options(__doc__, "one program, four kills")
    parser.add_argument("--sandbox", default="namespaces", help="how worlds are made [default: namespaces]")
    parser.add_argument("--kills", type=int, help="how often it is killed [default: 20, with --quick 4]")
    parser.add_argument("--seed", type=int, default=11, help="of the moments of the kills [default: 11]")
    parser.add_argument("--folder", type=Path, help="where to live [default: a temporary folder]")
    asked = parser.parse_args()
    kills = asked.kills or (4 if asked.quick else 20)
    begun = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="ramify-life-", dir=asked.folder) as folder:
        life = live(Path(folder), asked.sandbox, kills, asked.seed, quick=asked.quick)
    made = table(life, kills)
    for one in made:
        print(printed(one))
    for problem in life["problems"]:
        print(problem)
    if asked.json:
        took_s = round(time.perf_counter() - begun, 1)
        print(report(made, seconds=took_s))
    return 0 if all(one["met"] for one in made) else 1


if __name__ == "__main__":
    sys.exit(main())
