"""Policies on one slot beside the optimum: worst and mean ratio, by the spread of density and slack.

    python benchmarks/worst.py [--quick] [--cases N]

What docs/decisions/135 shows. Brute force, no model, no engine.
"""

from __future__ import annotations

import argparse

from ramify.serving.replay.bounds.worst import POLICIES, Spread, ratios

DENSITIES, SLACKS = (1.0, 2.0, 10.0, 100.0), (1.0, 1.5, 2.0, 4.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="200 cases for each spread")
    parser.add_argument("--cases", type=int, default=2000, help="for each spread")
    given = parser.parse_args()
    print(f"{'density':>8}{'slack':>7}" + "".join(f"{name:>19}" for name in POLICIES))
    for density in DENSITIES:
        for slack in SLACKS:
            found = ratios(Spread(density, slack), 200 if given.quick else given.cases)
            shown = "".join(f"{of.worst:>12.3f}{of.mean:>7.3f}" for of in found.values())
            print(f"{density:>8g}{slack:>7g}{shown}", flush=True)


if __name__ == "__main__":
    main()
