"""How near a replay comes to a measured run of vLLM: fitted on its first half, judged on its second.

    python benchmarks/fidelity.py --run FOLDER [--json] [--residuals FILE]

FOLDER holds meta.json and requests.jsonl, gzipped or not (`serving/replay/fidelity.py` has the fields).
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import platform
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from ramify.serving.replay.errors import ReplayError  # noqa: E402
from ramify.serving.replay.pool import child  # noqa: E402


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, required=True, help="a folder with a measured run")
    parser.add_argument("--json", action="store_true", help="the last line is one object")
    parser.add_argument("--residuals", type=Path, help="a CSV of every judged request, measured and replayed")
    asked = parser.parse_args()
    try:
        with child() as one:
            found = one.ask({"fidelity": str(asked.run.resolve())})
    except ReplayError as error:
        print(f"fidelity: {error}", file=sys.stderr)
        return 1
    rows = [_row("mean TPOT", found["tpot"], 0.01), _row("mean TTFT", found["ttft"], 0.04)]
    print(f"{found['run']}: step model fitted on the first {found['fitted_on']} requests: {found['step']}")
    for row in rows:
        print(f"{row['name']:<40} {row['ours']:.4f} {row['unit']}  {row['target']:<10} {row['note']}")
    if asked.residuals:
        with asked.residuals.open("w", newline="", encoding="utf-8") as out:
            writer = csv.writer(out)
            writer.writerow(["ttft_measured", "tpot_measured", "ttft_replayed", "tpot_replayed"])
            writer.writerows(found["residuals"])
    if asked.json:
        machine = {
            "cores": os.cpu_count(),
            "kernel": platform.release(),
            "python": platform.python_version(),
            "load": round(os.getloadavg()[0], 2),
        }
        print(json.dumps({"rows": rows, "machine": machine}))
    return 0


def _row(name: str, error: dict[str, float], most: float) -> dict[str, Any]:
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
        "note": f"{error['replayed'] * 1000:.2f} ms, measured {error['measured'] * 1000:.2f} ms; "
        f"mean absolute error of a request {error['mean_absolute'] * 1000:.2f} ms",
    }


if __name__ == "__main__":
    sys.exit(main())
