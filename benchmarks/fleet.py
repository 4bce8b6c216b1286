"""Measure the fleet: snapshots that travel through a bucket, rules that match jobs to devices, and workers on one
PostgreSQL (docs/how-to/fleet.md).

    python benchmarks/fleet.py [--quick] [--json] [--only PART …] [--postgres URL] [--kills NUMBER]
        [--seed SEED] [--tally FILE]

`travel` pushes a snapshot of 100 MB to a folder and pulls it into another home; the peer is the plain transfer of the
same object in the same run. `matching` simulates the set-up of Venn's evaluation
(benchmarks/fleet_matching/workloads.py says what is from the paper and what is not); values are mean completion times
of random matching over those of a rule, per seed. The seeds are not those with which the exponent of ours was chosen
(100 to 102). `throughput` has 1, 2 and 4 worker processes run workflows at once, beside DBOS in the same run
(fleet_throughput.py). `memory` has one worker process do as many runs as it gets in an hour (fleet_memory.py). Both
need PostgreSQL, which they start themselves unless `--postgres` names a server. `search` (with branches of a run) and
`ray` start a Ray cluster of raylets on this machine and use its nodes (fleet_search.py, fleet_branches.py,
fleet_ray.py). So do `matching-live`, which gives the fleet runs and searches that need different nodes, once for each
rule (fleet_matching/live.py), and `kills`, which kills nodes, their processes, the head, the database and the object
store at random moments (fleet_kills.py). `--quick` takes a minute: few and small rows, without `memory`, `kills` and
`matching-live`; `--only kills --quick` kills one process and one node. Chunks in the background add up to one figure:

    for seed in 1 2 3; do python benchmarks/fleet.py --only kills --kills 50 --seed $seed --tally FILE; done
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
import tempfile
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import mean, median
from typing import Self

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
sys.path.insert(1, str(ROOT / "tests"))

import postgres  # noqa: E402

from benchmarks import fleet_kills, fleet_memory, fleet_ray, fleet_throughput  # noqa: E402
from benchmarks.fleet_matching.simulation import Device, Job, Outcome, simulate  # noqa: E402
from benchmarks.fleet_matching.slots import slot_rows  # noqa: E402
from benchmarks.fleet_matching.workloads import GROUPS, LOAD, STRATA, Workload, devices, jobs, rates_for  # noqa: E402
from benchmarks.rows import Row, median_row, not_measured, options, row, show  # noqa: E402
from ramify import World  # noqa: E402
from ramify.fork_engine.errors import RemoteUnusable  # noqa: E402
from ramify.fork_engine.remote.pull import pull  # noqa: E402
from ramify.fork_engine.remote.push import push  # noqa: E402
from ramify.fork_engine.remote.remote_store import RemoteStore  # noqa: E402
from ramify.fork_engine.store import SnapshotStore  # noqa: E402
from ramify.paths import remote, snapshots  # noqa: E402
from ramify.sandboxes.errors import SandboxError  # noqa: E402
from ramify.serving.matching import (  # noqa: E402
    Fifo,
    JobId,
    Matching,
    RandomOrder,
    Rates,
    ScarcityPriced,
    Srsf,
    Venn,
)
from ramify.worlds.home import WorldHome  # noqa: E402

PARTS = ("travel", "matching", "throughput", "memory", "search", "kills", "ray", "matching-live")
ON_RAY = ("search", "kills", "ray", "matching-live")
QUICK_PARTS = tuple(one for one in PARTS if one not in ("memory", "kills", "matching-live"))
MEBIBYTE = 1 << 20
SIZE, QUICK_SIZE = 100 * MEBIBYTE, 20 * MEBIBYTE
PUBLISHED = {
    Workload.EVEN: (1.38, 1.69, 1.87),
    Workload.SMALL: (1.48, 1.68, 1.78),
    Workload.LARGE: (1.64, 1.57, 1.72),
    Workload.LOW: (1.55, 1.66, 1.88),
    Workload.HIGH: (1.42, 1.41, 1.63),
}
"""Table 4.1: FIFO, SRSF and Venn over random matching."""


async def travel_rows(folder: Path, rounds: int, size: int) -> list[Row]:
    here, bucket = folder / "here", folder / "bucket"
    workspace = folder / "workspace"
    workspace.mkdir()
    for number in range(10):
        (workspace / f"part{number}").write_bytes(os.urandom(size // 10))
    store = SnapshotStore(snapshots(here))
    state = store.import_tree(workspace).snapshot
    uploads, transfers, firsts, seconds = [], [], [], []
    for number in range(rounds):
        with RemoteStore(store, remote(here) / str(number), bucket / str(number), create=True) as opened:
            begun = time.perf_counter()
            push(opened, [state.id])
            uploads.append(time.perf_counter() - begun)
            (at,) = opened.places.values()
            begun = time.perf_counter()
            with (folder / "transferred").open("wb") as file:
                for piece in opened.bucket.stream(at.object, at.offset, at.length):
                    file.write(piece)
                file.flush()
                os.fsync(file.fileno())
            transfers.append(time.perf_counter() - begun)
        there = folder / f"there{number}"
        async with WorldHome(there) as home:
            await home.backend()  # the node runs already
            for times in (firsts, seconds):
                begun = time.perf_counter()
                with RemoteStore(home.store, remote(there), bucket / str(number)) as opened:
                    got = pull(opened, [state.id]).snapshots[0]
                async with World.create(snapshot=got, home=home) as world:
                    await world.exec(["true"])
                    times.append(time.perf_counter() - begun)
    transfer = median(transfers)
    ours = median_row(
        f"first command over a snapshot of {size // MEBIBYTE} MiB that the machine lacks",
        firsts,
        "s",
        target=round(1.3 * transfer, 3),
        peer="the transfer, to a file on disk",
        peer_value=transfer,
        note="the target is 1.3 times the peer; the bucket is a folder on the same disk",
    )
    again = median_row("the same again, in a second world", [each * 1000 for each in seconds], "ms", target=50)
    return [ours, again, median_row(f"upload of {size // MEBIBYTE} MiB, in the background of runs", uploads, "s")]


def rules(seed: int) -> dict[str, Matching]:
    return {
        "random": RandomOrder(random.Random(seed)),
        "FIFO": Fifo(),
        "SRSF": Srsf(),
        "Venn": Venn(),
        "Venn, told the rounds": Venn(whole_jobs=True),
        "ours": ScarcityPriced(),
    }


def matching_rows(workloads: Sequence[Workload], seeds: Sequence[int]) -> Iterator[Row]:
    for workload in workloads:
        gains: dict[str, list[float]] = {}
        for seed in seeds:
            made = jobs(workload, seed)
            rates = rates_for(made)
            took = {
                name: simulate(made, devices(rates, seed), rates, rule).mean_s for name, rule in rules(seed).items()
            }
            for name, seconds in took.items():
                gains.setdefault(name, []).append(took["random"] / seconds)
        fifo, srsf, venn = PUBLISHED[workload]
        others = f"FIFO {mean(gains['FIFO']):.2f} ({fifo}), SRSF {mean(gains['SRSF']):.2f} ({srsf})"
        said = {"spread": None, "at_least": True, "note": f"{others}; published in brackets; {len(seeds)} seeds"}
        yield _gain(f"Venn as published, {workload}", gains["Venn"], venn, said)
        yield _gain(
            f"ours (scarcity price), {workload}", gains["ours"], venn, said, mean(gains["Venn, told the rounds"])
        )


def _gain(name: str, gains: Sequence[float], target: float, said: Row, venn: float | None = None) -> Row:
    more = {**said, "spread": (min(gains), max(gains))}
    if venn is not None:
        more |= {"peer": "Venn, told the rounds left as ours is", "peer_value": round(venn, 3)}
    return row(name, round(mean(gains), 3), "x over random", target=target, **more)


def fairness_rows(seeds: Sequence[int]) -> Iterator[Row]:
    """Jobs that are done within their fair share, M · (time alone), M being the mean number of jobs beside them."""
    contenders: dict[str, Matching] = {
        "Venn": Venn(),
        "Venn, epsilon 2": Venn(2.0),
        "ours": ScarcityPriced(),
        "ours, patience 2": ScarcityPriced(2.0),
    }
    for name, rule in contenders.items():
        shares, gains = [], []
        for seed in seeds:
            made = jobs(Workload.EVEN, seed)
            rates = rates_for(made)
            done = simulate(made, devices(rates, seed), rates, rule)
            chance = simulate(made, devices(rates, seed), rates, RandomOrder(random.Random(seed)))
            shares.append(_within_fair_share(made, rates, done))
            gains.append(chance.mean_s / done.mean_s)
        yield row(
            f"jobs within their fair share, {name}",
            round(100 * mean(shares), 1),
            "%",
            note=f"mean completion {mean(gains):.2f} x over random; published for epsilon 2: 69 %",
        )


def _within_fair_share(made: Sequence[Job], rates: Rates, done: Outcome) -> float:
    lives = {one.id: (one.arrives, one.arrives + done.completion_s[one.id]) for one in made}

    def beside(job: Job) -> float:
        begin, end = lives[job.id]
        return sum(max(0.0, min(end, b) - max(begin, a)) for a, b in lives.values()) / (end - begin)

    def alone(job: Job) -> float:
        rate = sum(rate for atom, rate in rates.items() if job.group in atom)
        return job.rounds * (job.demand / rate + job.task_s)

    return mean(done.completion_s[one.id] <= beside(one) * alone(one) for one in made)


def tier_row(seeds: Sequence[int], load: float = 0.05) -> Row:
    """Venn with and without tiers where devices abound."""
    gains = []
    for seed in seeds:
        made = jobs(Workload.LOW, seed)
        rates = rates_for(made, load)
        plain, tiered = (simulate(made, devices(rates, seed), rates, Venn(), tiers=v, seed=seed) for v in (1, 3))
        gains.append(plain.mean_s / tiered.mean_s)
    return row(
        f"three tiers of devices, low workload, load {load}",
        round(mean(gains), 3),
        "x over Venn without",
        spread=(min(gains), max(gains)),
        note=f"the other rows have a load of {LOAD}",
    )


def bound_rows(cases: int) -> Iterator[Row]:
    """Single rounds of four jobs over the least mean delay of the integer program, which knows all devices ahead."""
    from benchmarks.fleet_matching.integer_program import least_mean_delay  # needs SciPy, the others do not

    over: dict[str, list[float]] = {}
    for seed in range(cases):
        source = random.Random(f"small {seed}")
        made = [
            Job(JobId(f"job {n}"), 0.0, source.choice(GROUPS), source.randint(1, 3), 1, 0.0, 1.0) for n in range(4)
        ]
        atoms = source.choices(list(STRATA), list(STRATA.values()), k=40)
        atoms += [frozenset(GROUPS)] * 12  # so that they suffice
        ready = [Device(float(at), atom, 1.0) for at, atom in enumerate(atoms, 1)]
        best = least_mean_delay([(one.at, one.atom) for one in ready], [(one.group, one.demand) for one in made])
        for name, rule in rules(seed).items():
            over.setdefault(name, []).append(simulate(made, ready, STRATA, rule).mean_s / best)
    others = ", ".join(f"{name} {mean(values):.3f}" for name, values in over.items())
    for name in ("Venn", "ours"):
        yield row(
            f"{name} over the integer program, single rounds of 4 jobs", round(mean(over[name]), 3), "x", note=others
        )


class Databases:
    """Empty databases of a PostgreSQL server, which is started for the first one unless one was given. A context
    manager."""

    def __init__(self, given: str | None) -> None:
        self._server, self._stack = given, ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def why_not(self) -> str:
        return "" if self._server else postgres.why_not()

    def new(self) -> str:
        if self._server is None:
            self._server = self._stack.enter_context(postgres.server(durable=True))
        return postgres.new_database(self._server)


def throughput_rows(quick: bool, databases: Databases) -> list[Row]:
    if why := databases.why_not():
        return [not_measured("workflows/s on PostgreSQL", "workflows/s", why)]
    return list(fleet_throughput.rows(quick, databases.new))


def memory_rows(quick: bool, databases: Databases) -> list[Row]:
    if why := databases.why_not():
        return [not_measured("memory of a worker", "MB", why)]
    return list(fleet_memory.rows(quick, databases.new))


def ray_rows(quick: bool, databases: Databases, parts: Collection[str]) -> list[Row]:
    if databases.why_not():
        with tempfile.TemporaryDirectory(prefix="ramify-bench-", ignore_cleanup_errors=True) as folder:
            return asyncio.run(fleet_ray.rows(quick, f"sqlite:///{folder}/shared.db", "SQLite", parts))
    return asyncio.run(fleet_ray.rows(quick, databases.new(), "PostgreSQL", parts))


def main() -> None:
    parser = options(__doc__, "few and small rows, in about a minute")
    parser.add_argument("--only", choices=PARTS, action="append", help="only this part; repeatable")
    parser.add_argument("--postgres", metavar="URL", help="a server for new databases [default: a temporary one]")
    parser.add_argument("--kills", type=int, default=300, help="[default: 300]")
    parser.add_argument("--seed", type=int, default=29, help="of the moments of the kills [default: 29]")
    parser.add_argument("--tally", type=Path, metavar="FILE", help="add to what earlier calls found in their kills")
    asked = parser.parse_args()
    before = os.getloadavg()[0]
    seeds = range(1 if asked.quick else 5)
    rows: list[Row] = []
    parts = tuple(asked.only) if asked.only else QUICK_PARTS if asked.quick else PARTS
    if "travel" in parts:
        with tempfile.TemporaryDirectory(prefix="ramify-bench-", ignore_cleanup_errors=True) as folder:
            try:
                how = (1, QUICK_SIZE) if asked.quick else (5, SIZE)
                rows += asyncio.run(travel_rows(Path(folder), *how))
            except (RemoteUnusable, SandboxError) as error:
                rows.append(not_measured("first command over a snapshot that the machine lacks", "s", str(error)))
    if "matching" in parts:
        rows += matching_rows((Workload.LOW,) if asked.quick else tuple(Workload), seeds)
        if not asked.quick:
            rows += [*bound_rows(20), *fairness_rows(seeds), tier_row(seeds), *asyncio.run(slot_rows(range(10)))]
    with Databases(asked.postgres) as databases:
        if "throughput" in parts:
            rows += throughput_rows(asked.quick, databases)
        if "memory" in parts:
            rows += memory_rows(asked.quick, databases)
        on_ray = [
            one
            for one in ("search", "kills", "ray", "matching-live")
            if one in parts and (asked.quick or one != "kills")
        ]
        if on_ray:
            rows += ray_rows(asked.quick, databases, on_ray)
    if "kills" in parts and not asked.quick:
        rows += fleet_kills.rows_of_a_cluster(asked.kills, asked.seed, asked.tally)
    show(rows, asked.json, load=[round(one, 1) for one in (before, os.getloadavg()[0])])


if __name__ == "__main__":
    main()
