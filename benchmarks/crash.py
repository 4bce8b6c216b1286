"""Kill runs at named crash points, on SQLite and PostgreSQL, and compare the resumed runs with runs that were not
killed.

    python benchmarks/crash.py [--points N] [--quick] [--json] [--seed N] [--log FILE]

There are points after every commit, rename, flush, send and mount of the runtime and the fork engine. With --json the
last line is one object: `lost` and `duplicated` count effects at the receivers; `in_doubt` counts effects whose
outcome was reported as unknown and then found out from the receiver; `killed_twice` counts runs that were killed
again after they were resumed, which is tried for every other run. Without a PostgreSQL server, PostgreSQL is left out
with a message.

With --log, a stopped benchmark continues from that file (its times are of the last part then). The log is valid only
for the code, seed and databases with which it was started; otherwise the exit status is 2. --points may grow.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests" / "crash"), str(ROOT / "tests"), str(ROOT)]
import harness  # noqa: E402
import postgres  # noqa: E402

from benchmarks.machine import machine  # noqa: E402
from benchmarks.rows import row  # noqa: E402

QUICK, USUAL, TARGET = 60, 1_000, 10_000


Also = Callable[[Path, harness.Wholes], dict[str, Any]]
"""More to do in the same warm process; its result is added to the report."""


def main(arguments: Sequence[str] | None = None, also: Also | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--points", type=int, help=f"how many kills (default {USUAL}, with --quick {QUICK})")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--workers",
        type=int,
        default=2 * (os.cpu_count() or 1),
        help="concurrent trials, each of which waits half of the time",
    )
    parser.add_argument(
        "--log",
        type=Path,
        help="file of one line per trial; continue with the trials that it lacks, "
        "by the same code, --seed and --databases",
    )
    parser.add_argument("--databases", default="sqlite,postgresql")
    parser.add_argument("--folder", type=Path, help="where to put homes (default: /dev/shm if possible)")
    given = parser.parse_args(arguments)
    try:
        report = measure(given, given.points or (QUICK if given.quick else USUAL), also)
    except harness.OtherLog as other:
        print(f"crash.py: {other}", file=sys.stderr)
        return 2
    print(json.dumps(report) if given.json else _told(report))
    return 1 if report["failures"] else 0


def measure(given: argparse.Namespace, points: int, also: Also | None = None) -> dict[str, Any]:
    memory = Path("/dev/shm")  # a killed process leaves what the kernel has, so no disk is needed
    scratch = given.folder or (memory if os.access(memory, os.W_OK) else None)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ramify-crash-", dir=scratch)))
        databases: dict[str, str | None] = {}
        for name in given.databases.split(","):
            if name == "sqlite":
                databases[name] = None
            elif why := postgres.why_not():
                print(f"PostgreSQL is skipped: {why}", file=sys.stderr)
            else:
                databases[name] = postgres.new_database(stack.enter_context(postgres.server(scratch)))
        known = harness.wholes(databases, folder)
        more = also(folder, known) if also else {}
        begun = time.monotonic()
        log = given.log or folder / "trials"
        harness.begin_log(log, known, given.seed)
        how = {"points": points, "seed": given.seed, "workers": given.workers, "log": log}
        done = harness.until_killed(known, databases, folder, **how)
        return _report(done, known, time.monotonic() - begun) | more


def _report(done: list[harness.Trial], known: Any, took_s: float) -> dict[str, Any]:
    killed = [trial for trial in done if trial.killed_at]
    names = Counter(trial.killed_at for trial in killed)
    hit = {(trial.scenario, trial.database, trial.killed_at) for trial in killed}
    spared = [
        f"{name}, {where[0]}, {where[1]}"
        for where, whole in known.items()
        for name in sorted(set(whole.passed))
        if (*where, name) not in hit
    ]
    lost, duplicated = sum(t.lost for t in done), sum(t.duplicated for t in done)
    failures = [
        f"{t.scenario} on {t.database}, killed {f'at {t.point} {t.nth}' if t.killed_at else 'nowhere'}: "
        + "; ".join(t.wrong)
        for t in done
        if t.wrong
    ]
    rows = [
        row("kills at crash points", len(killed), "kills", target=TARGET, met=len(killed) >= TARGET),
        row("effects lost", lost, "effects", target=0, met=not lost),
        row("effects duplicated", duplicated, "effects", target=0, met=not duplicated),
        row("runs that differ from an unkilled one", len(failures), "runs", target=0, met=not failures),
    ]
    return {
        "rows": rows,
        "points": len(killed),
        "killed_twice": sum(trial.killed_again for trial in done),
        "lost": lost,
        "duplicated": duplicated,
        "in_doubt": sum(t.in_doubt for t in done),
        "failures": failures,
        "killed_at": dict(names.most_common()),
        "never_killed_at": spared,
        "distinct_points": {f"{scenario}, {database}": len(t.passed) for (scenario, database), t in known.items()},
        "seconds": round(took_s, 1),
        "cpu_seconds": round(os.times().children_user + os.times().children_system, 1),
        "machine": machine(),
    }


def _told(report: dict[str, Any]) -> str:
    lines = [f"{row['name']}: {row['ours']} (target {row['target']})" for row in report["rows"]]
    lines.append(f"doubts reported: {report['in_doubt']}; {report['seconds']} s")
    return "\n".join(lines + report["failures"])


if __name__ == "__main__":
    sys.exit(main())
