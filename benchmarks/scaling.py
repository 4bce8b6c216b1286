"""Measure pools of replicas and of worlds: how fast one starts, and what controllers make of bursts
(docs/how-to/scale.md).

    python benchmarks/scaling.py [--quick] [--json] [--trace PATH …] [--weights FILE]
        [--second FILE] [--only replicas|simulation|worlds|vllm …]

The start times are measured with the embedded engine's weights: FILE, or those in Ramify's home. Without weights, the
simulations use times measured before (benchmarks/data/replica-starts.json), and the rows of the starts say so.

The simulations are of five-stage agent pipelines on 24 replicas in all: Gamma arrivals of CV .1 to 8, and the
arrivals and lengths of each `--trace`. Their seeds are not those with which the controllers were chosen. `--only
vllm` needs a vLLM, as `ramify serve --engine vllm` does. With `--json` the last line is one object.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.pool_scaling.contenders import (  # noqa: E402
    ALL,
    BLIND,
    ORACLE,
    OURS,
    PACKED,
    QUART,
    RULES,
    WHOLE,
    Contender,
)
from benchmarks.pool_scaling.real_bursts import burst, vllm_burst  # noqa: E402
from benchmarks.pool_scaling.replica_starts import Starts, measured  # noqa: E402
from benchmarks.pool_scaling.simulation import Outcome, Servers, Simulation  # noqa: E402
from benchmarks.pool_scaling.two_models import BUDGET, contenders, pipelines  # noqa: E402
from benchmarks.pool_scaling.warm_worlds import AT_ONCE, first_commands  # noqa: E402
from benchmarks.pool_scaling.workloads import workload  # noqa: E402
from benchmarks.replay.inputs.traces import Trace, read  # noqa: E402
from benchmarks.rows import Row, median_row, not_measured, options, printed, report, row, run  # noqa: E402
from ramify.paths import home  # noqa: E402
from ramify.sandboxes.errors import SandboxError  # noqa: E402
from ramify.sandboxes.host.scratch import remove_tree  # noqa: E402
from ramify.serving.engine import models  # noqa: E402
from ramify.serving.errors import ServingError  # noqa: E402

PARTS = ("replicas", "worlds", "simulation")
STORED = ROOT / "benchmarks" / "data" / "replica-starts.json"
REPLICAS, LOAD = 24, 0.3
SERVERS = (12, 8, 4)  # places of each, where the replicas are not all on one
PUBLISHED_COLD_S, PUBLISHED_WARM_S = 45.0, 0.8  # QUART's weights from disk, and from the server's memory
FIRST_SEED = 1000  # 100 to 105 served to choose the rule
PEERS = (WHOLE, *RULES)


def starts_of(weights: Path | None, rounds: int) -> tuple[Starts, str | None]:
    """Measured start times; or stored ones, and why."""
    try:
        file = weights or models.named(home(), models.DEFAULT)
        assert isinstance(file, Path)
        return asyncio.run(measured(file, rounds)), None
    except ServingError as error:
        return stored(str(error))


def stored(why: str) -> tuple[Starts, str]:
    """Start times measured before, and why none are measured now."""
    said = json.loads(STORED.read_text("utf-8"))
    return Starts(tuple(said["cold_s"]), tuple(said["warm_s"]), said["shared"], said["own"]), why


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


def pipeline_rows(weights: Path | None, second: Path | None) -> Iterator[Row]:
    """Two pools of real replicas, between which one of the replicas moves."""
    name = f"2 real models in two stages, {BUDGET} replicas in all: mean time of a workflow"
    try:
        first = weights or models.named(home(), models.DEFAULT)
        assert isinstance(first, Path)
        files = {"plan": first, "draft": second or first}
        found = {who: asyncio.run(pipelines(files, controller)) for who, controller in contenders().items()}
    except ServingError as error:
        yield not_measured(name, "s", str(error))
        return
    ours = found.pop("plans")
    best = min(found, key=lambda who: found[who].workflow_s)
    others = "; ".join(f"{who} {one.workflow_s:.1f} s, a burst {one.burst_s:.1f} s" for who, one in found.items())
    models_are = "the same file twice" if second is None else f"{files['plan'].name} and {files['draft'].name}"
    yield row(
        name,
        ours.workflow_s,
        "s",
        peer=f"a fixed number, {best}",
        peer_value=found[best].workflow_s,
        times_faster=True,
        note=f"{models_are}; {ours.moves} moves, a burst {ours.burst_s:.1f} s; {others}",
    )


def world_rows(rounds: int) -> Iterator[Row]:
    """The first command of worlds that waited (`WarmWorlds`)."""
    one, many = (
        "first command of a world that waited in a pool",
        f"{AT_ONCE} worlds at once, expected: last first command",
    )
    folder = Path(tempfile.mkdtemp(prefix="ramify-bench-"))
    try:
        found = asyncio.run(first_commands(folder, rounds))
    except SandboxError as error:
        yield from (not_measured(name, "ms", str(error)) for name in (one, many))
        return
    finally:
        remove_tree(folder)
    for name, ours, theirs in ((one, found.warm, found.new), (many, found.all_warm, found.all_new)):
        yield median_row(
            name,
            [1000 * s for s in ours],
            "ms",
            peer="new",
            peer_value=1000 * median(theirs),
            times_faster=True,
            note=f"the lowest: {1000 * min(ours):.0f} ms, new {1000 * min(theirs):.0f} ms",
        )


def vllm_rows(weights: Path | None) -> Iterator[Row]:
    """Why `--replicas` refuses vLLM: a second engine on the same processor makes nothing faster."""
    name = "16 calls at once, two vLLM engines of 8 slots on the same cores: last answer"
    try:
        two, one = (asyncio.run(vllm_burst(home(), str(weights or models.DEFAULT), count)) for count in (2, 1))
    except ServingError as error:
        yield not_measured(name, "s", str(error))
        return
    yield row(name, two, "s", peer="one engine of 16 slots", peer_value=one, times_faster=True)


def outcome(
    contender: Contender,
    start_s: float,
    seeds: Sequence[int],
    seconds: float,
    cv: float = 1.0,
    trace: Trace | None = None,
    servers: Servers | None = None,
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
            servers=servers,
        ).run()
        for seed in seeds
    ]
    total = sum(run.workflows for run in runs)

    def mean(name: str) -> float:
        return sum(float(getattr(run, name)) * run.workflows for run in runs) / total

    most = max(run.most_used for run in runs)
    assert most <= REPLICAS, f"{contender.name} used {most} replicas of {REPLICAS}"
    return Outcome(
        mean("latency_s"),
        mean("goodput"),
        mean("late_s"),
        max(run.control for run in runs),
        total,
        most,
        sum(run.starts for run in runs),
        sum(run.cold for run in runs),
    )


def placement_rows(seeds: Sequence[int], seconds: float) -> Iterator[Row]:
    """QUART on several servers, with the paper's start times: ours are too short for the server to matter."""
    servers = Servers(SERVERS, PUBLISHED_WARM_S)
    spread, packed = (outcome(one, PUBLISHED_COLD_S, seeds, seconds, 4.0, servers=servers) for one in (QUART, PACKED))
    yield row(
        f"QUART on {len(SERVERS)} servers, its published start times, CV 4: average latency, key stages spread",
        spread.latency_s,
        "s",
        peer="packed",
        peer_value=packed.latency_s,
        times_faster=True,
        note=f"{spread.cold / spread.starts:.0%} of {spread.starts} starts load the weights from disk, "
        f"packed {packed.cold / packed.starts:.0%} of {packed.starts}",
    )


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


def simulation_rows(starts: Starts, quick: bool, traces: Sequence[Trace]) -> Iterator[Row]:
    """All loads, with the measured start times."""
    seeds = range(FIRST_SEED, FIRST_SEED + (3 if quick else 6))
    seconds, control = 300.0 if quick else 600.0, 0.0
    loads: list[tuple[str, float, Trace | None]] = [
        (f"CV {cv:g}", cv, None) for cv in ((4.0, 8.0) if quick else (0.1, 1.0, 2.0, 4.0, 8.0))
    ]
    for where, cv, trace in [*loads, *((trace.name, 1.0, trace) for trace in traces)]:
        found = {
            one.name: {
                warm: outcome(one, starts.warm if warm else starts.cold, seeds, seconds, cv, trace)
                for warm in (False, True)
            }
            for one in ALL
        }
        control = max(control, *(found[OURS.name][warm].control for warm in (False, True)))
        yield from rows_of(where, found, targets=cv >= 4)
    yield from placement_rows(seeds, seconds)
    yield row("control loop, share of a core", control, "share", target=0.01)


def main() -> None:
    parser = options(__doc__, "CV 4 and 8 only, fewer seeds, shorter runs, no second model")
    parser.add_argument("--trace", type=Path, action="append", default=[], help="a trace of arrivals; repeatable")
    parser.add_argument(
        "--only", choices=(*PARTS, "vllm"), action="append", help="only this part; repeatable. vllm runs no other way"
    )
    parser.add_argument("--weights", type=Path, help="the embedded engine's weights")
    parser.add_argument("--second", type=Path, help="weights of a second model; without, the first one serves twice")
    parser.add_argument("--store", action="store_true", help=f"write the start times to {STORED.name}")
    asked = parser.parse_args()
    parts = set(asked.only or PARTS)
    # Read first, since measuring takes minutes, and one that cannot be read ends everything.
    given = [*asked.trace, *([Path(os.environ["RAMIFY_TRACE"])] if "RAMIFY_TRACE" in os.environ else [])]
    traces = [read(path) for path in given]
    rows: list[Row] = []

    def add(one: Row) -> None:
        rows.append(one)
        print(printed(one), flush=True)

    starts, why = (
        starts_of(asked.weights, 3 if asked.quick else 7)
        if {"replicas", "simulation"} & parts
        else stored("not asked for")
    )
    if asked.store and why is None:
        STORED.write_text(json.dumps(asdict(starts), indent=2) + "\n", encoding="utf-8")
    if "vllm" in parts:
        for one in vllm_rows(asked.weights):
            add(one)
    if "replicas" in parts:
        for one in chain(start_rows(starts, why), burst_rows(asked.weights)):
            add(one)
    if "replicas" in parts and not asked.quick:
        for one in pipeline_rows(asked.weights, asked.second):
            add(one)
    if "worlds" in parts:
        for one in world_rows(3 if asked.quick else 20):
            add(one)
    if "simulation" in parts:
        for one in simulation_rows(starts, asked.quick, traces):
            add(one)
    if asked.json:
        print(report(rows))


if __name__ == "__main__":
    run(main)
