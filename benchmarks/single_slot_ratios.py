"""Compare policies on one slot with the optimum: worst and mean ratio, by the spread of density and slack.

    python benchmarks/single_slot_ratios.py [--quick] [--cases N] [--seed N] [--json]

The data of docs/decisions/050, by brute force, without a model or an engine. Requirement: the default policy's worst
ratio is never below that of `calm-thesis`. With `--json` the last line is one object.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.replay.bounds.one_slot import ONE_SLOT_POLICIES, Ratios, Spread, ratios
from benchmarks.rows import Row, options, report, row

DENSITIES, SLACKS = (1.0, 2.0, 10.0, 100.0), (1.0, 1.5, 2.0, 4.0)


def main() -> None:
    parser = options(__doc__, "200 cases for each spread")
    parser.add_argument("--cases", type=int, help="for each spread (2000; 200 with --quick)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the cases")
    given = parser.parse_args()
    cases = given.cases or (200 if given.quick else 2000)
    rows = []
    print(f"{'density':>8}{'slack':>7}" + "".join(f"{name:>19}" for name in ONE_SLOT_POLICIES))
    for density in DENSITIES:
        for slack in SLACKS:
            found = ratios(Spread(density, slack), cases, given.seed)
            shown = "".join(f"{of.worst:>12.3f}{of.mean:>7.3f}" for of in found.values())
            rows.append(_row(Spread(density, slack), found, cases))
            print(f"{density:>8g}{slack:>7g}{shown}" + ("" if rows[-1]["met"] else "  MISSED"), flush=True)
    print(f"the default's worst is no worse than calm-thesis's in {sum(row['met'] for row in rows)} of {len(rows)}")
    if given.json:
        print(report(rows))


def _row(spread: Spread, found: Mapping[str, Ratios], cases: int) -> Row:
    ours, theirs = found["concord"].worst, found["calm-thesis"].worst
    others = ", ".join(f"{name} {of.worst:.3f} ({of.mean:.3f})" for name, of in found.items())
    return row(
        f"worst share of the optimum, densities within {spread.density:g}, slack up to {spread.slack:g}",
        ours,
        "share",
        target=">= calm-thesis",
        met=ours >= theirs,
        peer="calm-thesis",
        peer_value=theirs,
        note=f"worst (mean) of {cases} cases: {others}",
    )


if __name__ == "__main__":
    main()
