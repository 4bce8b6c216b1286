"""Measure pools of replicas: how fast a replica starts, and what controllers make of bursts (docs/how-to/scale.md).

    python benchmarks/scaling.py [--quick] [--json] [--trace PATH …] [--weights FILE]
        [--only replicas|simulation]

The start times are measured with the embedded engine's weights: FILE, or those in Ramify's home. Without weights, the
simulations use times measured before (benchmarks/data/replica-starts.json), and the rows of the starts say so.

The simulations are of five-stage agent pipelines on 24 replicas in all: Gamma arrivals of CV .1 to 8, and the
arrivals and lengths of each `--trace`. Their seeds are not those with which the controllers were chosen. With
`--json` the last line is one object.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.pool_scaling.contenders import ALL, BLIND, ORACLE, OURS, QUART, RULES, WHOLE, Contender  # noqa: E402
from benchmarks.pool_scaling.real_bursts import burst  # noqa: E402
from benchmarks.pool_scaling.replica_starts import Starts, measured  # noqa: E402
from benchmarks.pool_scaling.simulation import Outcome, Simulation  # noqa: E402
from benchmarks.pool_scaling.workloads import workload  # noqa: E402
from benchmarks.replay.inputs.traces import Trace, read  # noqa: E402
from benchmarks.rows import Row, median_row, not_measured, options, printed, report, row  # noqa: E402
from ramify.paths import home  # noqa: E402
from ramify.serving.engine import models  # noqa: E402
from ramify.serving.errors import ServingError  # noqa: E402

STORED = ROOT / "benchmarks" / "data" / "replica-starts.json"
REPLICAS, LOAD = 24, 0.3
FIRST_SEED = 1000  # 100 to 105 served to choose the rule
PEERS = (WHOLE, *RULES)


def starts_of(weights: Path | None, rounds: int) -> tuple[Starts, str | None]:
    """Measured start times; or stored ones, and why."""
    try:
        file = weights or models.named(home(), models.DEFAULT)
        assert isinstance(file, Path)
        return asyncio.run(measured(file, rounds)), None
    except ServingError as error:
        stored = json.loads(STORED.read_text("utf-8"))
        return Starts(tuple(stored["cold_s"]), tuple(stored["warm_s"]), stored["shared"], stored["own"]), str(error)


def start_rows(starts: Starts, why: str | None) -> Iterator[Row]:
    name = "a local replica's first token, warm"
    if why is not None:
        yield not_measured(name, "ms", why)
        return
    ratio = starts.cold / starts.warm
    yield median_row(
        name,
        [1000 * s for s in starts.warm_s],
        "ms",
        target=300.0,
        peer="cold",
        peer_value=1000 * starts.cold,
        times_faster=True,
        note=f"a warm replica shares {starts.shared >> 20} MiB and has {starts.own >> 20} MiB of its own",
    )
    yield row("scale-up, warm against cold", ratio, "×", target=10.0, at_least=True)


def burst_rows(weights: Path | None) -> Iterator[Row]:
    """Four calls at once before a real gateway."""
    name = "4 calls at once, --replicas 1:2: mean first token"
    try:
        one, two = (asyncio.run(burst(home(), str(weights or models.DEFAULT), most)) for most in (1, 2))
    except ServingError as error:
        yield not_measured(name, "s", str(error))
        return
    yield row(
        name,
        two.first_s,
        "s",
        peer="one replica",
        peer_value=one.first_s,
        times_faster=True,
        note=f"all answers after {two.last_s:.1f} s, with one replica {one.last_s:.1f} s",
    )
    yield row("an idle gateway with --replicas, share of a core", two.idle, "share", target=0.01)


def outcome(
    contender: Contender,
    start_s: float,
    seeds: Sequence[int],
    seconds: float,
    cv: float = 1.0,
    trace: Trace | None = None,
) -> Outcome:
    """Means over the workflows of all seeds; the greatest control loop and use."""
    runs = [
        Simulation(
            workload(seed, seconds, REPLICAS, LOAD, cv=cv, trace=trace),
            contender.make(REPLICAS),
            REPLICAS,
            start_s,
            foresight=contender.foresight,
            oracle=contender.oracle,
        ).run()
        for seed in seeds
    ]
    total = sum(run.workflows for run in runs)

    def mean(name: str) -> float:
        return sum(float(getattr(run, name)) * run.workflows for run in runs) / total

    most = max(run.most_used for run in runs)
    assert most <= REPLICAS, f"{contender.name} used {most} replicas of {REPLICAS}"
    return Outcome(mean("latency_s"), mean("goodput"), mean("late_s"), max(run.control for run in runs), total, most)


def rows_of(where: str, found: dict[str, dict[bool, Outcome]], targets: bool) -> Iterator[Row]:
    """The rows of one load. `found`: by contender, with cold starts and with warm ones (True)."""
    ours = found[OURS.name][True]
    best = min(PEERS, key=lambda peer: found[peer.name][False].latency_s)
    good = max(PEERS, key=lambda peer: found[peer.name][False].goodput)
    same = min(PEERS, key=lambda peer: found[peer.name][True].latency_s).name
    yield row(
        f"{where}: average latency",
        ours.latency_s,
        "s",
        target=0.84 * found[best.name][False].latency_s if targets else None,
        peer=f"{best.name}, cold starts (the best peer)",
        peer_value=found[best.name][False].latency_s,
        note=f"with warm starts too, the best peer ({same}) takes {found[same][True].latency_s:.1f} s; "
        f"the oracle {found[ORACLE.name][True].latency_s:.1f} s",
    )
    yield row(
        f"{where}: goodput at 1.5 × SLO",
        ours.goodput,
        "share",
        target=2 * found[good.name][False].goodput if targets else None,
        at_least=True,
        peer=f"{good.name}, cold starts (the best peer)",
        peer_value=found[good.name][False].goodput,
        note="; ".join(
            f"{peer.name} {found[peer.name][False].goodput:.2f} cold, {found[peer.name][True].goodput:.2f} warm"
            for peer in (*PEERS, QUART, ORACLE)
        ),
    )
    for warm in (False, True):
        mine, theirs, blind = (found[one.name][warm].late_s for one in (OURS, QUART, BLIND))
        yield row(
            f"{where}: time late with plans, {'warm' if warm else 'cold'} starts for both",
            mine,
            "s",
            target=0.8 * theirs if targets else None,
            peer=QUART.name,
            peer_value=theirs,
            note=f"the same rule without plans {blind:.2f} s, the oracle {found[ORACLE.name][warm].late_s:.2f} s",
        )


def simulation_rows(starts: Starts, quick: bool, traces: Sequence[Path]) -> Iterator[Row]:
    """All loads, with the measured start times."""
    seeds = range(FIRST_SEED, FIRST_SEED + (3 if quick else 6))
    seconds, control = 300.0 if quick else 600.0, 0.0
    loads: list[tuple[str, float, Trace | None]] = [
        (f"CV {cv:g}", cv, None) for cv in ((4.0, 8.0) if quick else (0.1, 1.0, 2.0, 4.0, 8.0))
    ]
    for where, cv, trace in [*loads, *((path.name, 1.0, read(path)) for path in traces)]:
        found = {
            one.name: {
                warm: outcome(one, starts.warm if warm else starts.cold, seeds, seconds, cv, trace)
                for warm in (False, True)
            }
            for one in ALL
        }
        control = max(control, *(found[OURS.name][warm].control for warm in (False, True)))
        yield from rows_of(where, found, targets=cv >= 4)
    yield row("control loop, share of a core", control, "share", target=0.01)


def main() -> None:
    parser = options(__doc__, "CV 4 and 8 only, fewer seeds, shorter runs")
    parser.add_argument("--trace", type=Path, action="append", default=[], help="a trace of arrivals; repeatable")
    parser.add_argument("--only", choices=("replicas", "simulation"), help="only real replicas, or only simulations")
    parser.add_argument("--weights", type=Path, help="the embedded engine's weights")
    parser.add_argument("--store", action="store_true", help=f"write the start times to {STORED.name}")
    asked = parser.parse_args()
    traces = [*asked.trace, *([Path(os.environ["RAMIFY_TRACE"])] if "RAMIFY_TRACE" in os.environ else [])]
    rows: list[Row] = []

    def add(one: Row) -> None:
        rows.append(one)
        print(printed(one), flush=True)

    starts, why = starts_of(asked.weights, 3 if asked.quick else 7)
    if asked.store and why is None:
        STORED.write_text(json.dumps(asdict(starts), indent=2) + "\n", encoding="utf-8")
    if asked.only != "simulation":
        for one in (*start_rows(starts, why), *burst_rows(asked.weights)):
            add(one)
    if asked.only != "replicas":
        for one in simulation_rows(starts, asked.quick, traces):
            add(one)
    if asked.json:
        print(report(rows))


if __name__ == "__main__":
    main()
