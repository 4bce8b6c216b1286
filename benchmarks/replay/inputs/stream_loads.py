"""Streams and how they arrive: the loads of `benchmarks/streams.py`.

Arrivals come in cyclic bursts, as in the paper of Andes (§6.3, A.7): a share of each cycle has so many times the mean
rate. Or they come as in the trace itself, stretched to the rate. Lengths are those of a trace, or of pairs of texts.
Of Azure's conversations (2023), 1.3 a second is BUSY of what the engine can serve. `capacity` estimates the latter.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import groupby, pairwise
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

from benchmarks.replay.errors import BadTrace, TooMany
from benchmarks.replay.inputs import synthetic_traces, traces
from benchmarks.replay.inputs.traces import Arrival
from benchmarks.replay.types import Call, Program, ProgramId, Setting, Stage
from ramify.serving.pacing import TOKEN_CHARACTERS
from ramify.serving.policy.types import SloClass
from ramify.serving.qoe import SPEAKING_TBT_S, speeds, usual_ttft_s

INTENSITY, BURST, CYCLE_S = 2.0, 0.35, 120.0
LONGEST = 8192  # tokens of a context
MOST = 100_000  # streams
HARD = 1.3  # streams a second; of Azure's, readers wait under FCFS for 7 s, in one of three seeds for 11 s
BUSY = 0.775  # share of the engine's capacity that HARD is for Azure's conversations (2023)


@dataclass(frozen=True, slots=True)
class Load:
    """Streams, and the engine before them."""

    name: str = "as in the paper"
    rate: float = HARD  # streams a second
    intensity: float = INTENSITY  # arrivals in a burst, times the mean
    burst: float = BURST  # share of the time
    own: bool = False  # the trace's own arrivals instead
    busy: bool = False  # the rate is BUSY of what the engine can serve of such calls
    listens: bool = False  # to speech, instead of reading
    prompts: int = 1  # so many times as long
    memory: int = 1  # so many times as large
    tier: bool = False  # the engine has a CPU tier: KV that was given up comes back as a copy

    def setting(self, of: Setting) -> Setting:
        return replace(of, kv_tokens=of.kv_tokens * self.memory)

    def at_rate(self, arrivals: Sequence[Arrival], of: Setting) -> Load:
        """Return this load with its rate for calls of these lengths."""
        rate = float(f"{BUSY * capacity(arrivals, self.setting(of)):.2g}") if self.busy else self.rate
        return replace(self, rate=rate)


SWEEPS = {
    "intensity": tuple(Load(f"bursts of {times:g} x the mean", intensity=times) for times in (1.0, 1.5, 2.0, 2.5)),
    "duration": tuple(Load(f"bursts in {burst:.0%} of the time", burst=burst) for burst in (0.2, 0.35, 0.5)),
    "poisson": tuple(Load("no bursts", rate=rate, intensity=1.0) for rate in (1.1, 1.3, 1.6, 2.0)),
    "arrivals": (Load("the trace's own arrivals", own=True, busy=True),),
    "lengths": (Load("the trace's lengths, in bursts", busy=True),),
    "audio": (Load("listeners", listens=True),),
    # Four times the memory holds as many of them, but to compute a prompt takes four times as long.
    "inputs": tuple(Load("prompts of 4 x the length", rate=rate, prompts=4, memory=4) for rate in (0.5, 0.7)),
    "memory": (Load("4 x the memory", memory=4),),
    "tier": (Load("with a CPU tier", tier=True),),
    # Of `andes` alone: without its refiner, with other horizons, and with the exact knapsack.
    "variants": tuple(Load(f"bursts in {burst:.0%} of the time", burst=burst) for burst in (0.35, 0.5)),
}


def arrivals_of(trace: Path | None, folder: Path, times: int = 1) -> list[Arrival]:
    """Return what arrives: calls that fit, with the times of their trace. `folder`: for a generated trace.

    Raises BadTrace.
    """
    if trace is None:
        fit = _fitting(synthetic_traces.write(folder / "made.jsonl", 2000))
    elif trace.is_file():
        fit = _fitting_once(trace, trace.stat().st_mtime_ns)
    else:
        fit = _fitting(trace)
    return [Arrival(one.at, Call(one.call.prompt * times, one.call.output)) for one in fit]


@lru_cache(maxsize=1)
def _fitting_once(trace: Path, _changed_ns: int) -> tuple[Arrival, ...]:
    """Of a file: each replay needs it, and to read a million calls takes ten seconds."""
    return _fitting(trace)


def _fitting(trace: Path) -> tuple[Arrival, ...]:
    arrivals = _of_pairs(trace) if traces.has_pairs(trace) else synthetic_traces.read_workload(trace).arrivals
    fit = tuple([one for one in arrivals if one.call.prompt + one.call.output < LONGEST and one.call.output > 1])
    if len(fit) < 2:
        raise BadTrace(
            trace,
            f"{len(fit)} of its calls fit into {LONGEST} tokens with an answer of two or more: take another",
        )
    return fit


def _of_pairs(path: Path) -> Sequence[Arrival]:
    """One arrival a second: pairs of texts have lengths, and no times."""
    pairs = traces.response_pairs(path)
    return [
        Arrival(float(at), Call(_tokens(pair["prompt"]), _tokens(pair["response"]))) for at, pair in enumerate(pairs)
    ]


def _tokens(text: str) -> int:
    return max(1, round(len(text) / TOKEN_CHARACTERS))


def capacity(arrivals: Sequence[Arrival], setting: Setting) -> float:
    """Return about how many of these calls a second an engine serves, its memory full and nothing computed twice."""
    calls, step = [one.call for one in arrivals], setting.step
    tokens = sum(call.output for call in calls)
    context = sum(call.output * (call.prompt + call.output / 2) for call in calls) / tokens  # at a decoded token
    at_once = max(1.0, min(setting.slots, setting.kv_tokens / context))
    decode_ms = tokens * step.step_ms(round(at_once), round(at_once * context), 0) / at_once
    prefill_ms = sum(step.per_call_ms + step.per_prefill_ms * call.prompt for call in calls)
    return 1000 * len(calls) / (decode_ms + prefill_ms)


def programs(arrivals: Sequence[Arrival], load: Load, seconds: float, seed: int) -> list[Program]:
    """Return streams, `load.rate` a second in the mean. Deterministic. Raises TooMany."""
    if load.rate * seconds > MOST:
        raise TooMany(load.rate * seconds, MOST, load.rate, seconds)
    chance = Random(f"{seed}/{load.rate}")
    shares, tbts = zip(*speeds(), strict=True)
    begin = chance.randrange(len(arrivals))
    times = _own_times(arrivals, begin, load, seconds) if load.own else _cyclic_times(load, seconds, chance)
    made = list[Program]()
    for at in times:
        call = arrivals[(begin + len(made)) % len(arrivals)].call
        tbt_s = SPEAKING_TBT_S if load.listens else chance.choices(tbts, shares)[0]
        stages = (Stage((call,)),)
        ttft_s = usual_ttft_s(call.prompt)
        made.append(Program(ProgramId(len(made)), at, SloClass.STREAM, stages, ttft_s=ttft_s, tbt_s=tbt_s))
    return made


def beside(agents: Sequence[Program], rate: float, seconds: float, seed: int) -> list[Program]:
    """Return these programs and, without bursts, so many streams of made-up lengths a second, by arrival."""
    with TemporaryDirectory() as folder:
        arrivals = arrivals_of(None, Path(folder))
    both = sorted(
        [*agents, *programs(arrivals, Load(rate=rate, intensity=1.0), seconds, seed)], key=lambda one: one.at
    )
    return [replace(one, id=ProgramId(number)) for number, one in enumerate(both)]


def _cyclic_times(load: Load, seconds: float, chance: Random) -> Iterator[float]:
    at, quiet = 0.0, (1 - load.intensity * load.burst) / (1 - load.burst)
    while True:
        at += chance.expovariate(load.rate * load.intensity)  # thinned outside of bursts
        if at >= seconds:
            return
        if at % CYCLE_S >= load.burst * CYCLE_S and chance.random() > quiet / load.intensity:
            continue
        yield at


def _own_times(arrivals: Sequence[Arrival], begin: int, load: Load, seconds: float) -> Iterator[float]:
    """The times of the arrivals from `begin` on, stretched to the rate. The trace follows itself."""
    times = between_ticks([one.at for one in arrivals])
    whole = times[-1] - times[0]
    round_s = (whole + whole / (len(times) - 1)) or 1.0
    count = max(1, round(load.rate * seconds))
    taken = [times[(begin + i) % len(times)] + round_s * ((begin + i) // len(times)) for i in range(count + 1)]
    span = (taken[-1] - taken[0]) or 1.0
    yield from ((at - taken[0]) * seconds / span for at in taken[:-1])


def between_ticks(times: Sequence[float]) -> list[float]:
    """Spread arrivals with one time evenly until the next time: Mooncake's clock ticks every 3 s, and stretched to a
    lower rate its calls would come in bunches that no user made.
    """
    out = list[float]()
    at_once = [(at, len(list(ones))) for at, ones in groupby(times)]
    for (at, count), (until, _) in pairwise([*at_once, (times[-1], 0)]):
        out += [at + (until - at) * place / count for place in range(count)]
    return out
