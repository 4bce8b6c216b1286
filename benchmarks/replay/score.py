"""`score`: goodput of requests, tokens and workflows, attainment by class, and latencies of a replay.

Programs that arrive in the window count; `whole` counts all programs of the run. A program that was refused, or
that was not finished when the replay ended after every deadline, is not met.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from benchmarks.replay.simulation.simulation import Replayed
from benchmarks.replay.types import Outcome, Setting
from ramify.serving.policy.types import SloClass

KINDS = (SloClass.LATENCY, SloClass.DEADLINE, SloClass.COMPOUND)
_SLICE_S = 30.0


@dataclass(frozen=True, slots=True)
class Tail:
    p50: float
    p95: float
    count: int


@dataclass(frozen=True, slots=True)
class Score:
    programs: int  # counted
    request: float  # share of programs that were met
    whole: float  # the same for all programs of the run, also those outside the window
    token: float  # share of the tokens asked for that were in time
    workflow: float  # share of compound programs that were met; 0 where there are none
    attained: dict[str, float]  # share met, by class
    requests_s: float  # programs met for each second of the window
    tokens_s: float  # tokens in time for each second of the window
    throughput: float  # tokens generated for each second while programs arrived, in time or not
    refused: float  # share of programs that were refused
    ttft: dict[str, Tail]  # seconds, by class, of calls that got a first token
    tbt: dict[str, Tail]  # seconds, mean of a call that ended
    e2e: dict[str, Tail]  # seconds, of programs that ended
    over_time: tuple[
        tuple[float, float, float], ...
    ]  # begin of a slice, share of programs met, share of tokens in time
    steps: int
    simulated_s: float
    preemptions: int
    pauses: int


def score(replayed: Replayed, setting: Setting) -> Score:
    begin, end = setting.window
    counted = [one for one in replayed.outcomes if begin <= one.program.at < end]
    by_kind = {kind: [one for one in counted if one.program.kind is kind] for kind in KINDS}
    return Score(
        programs=len(counted),
        request=_share(counted),
        whole=_share(replayed.outcomes),
        token=_tokens(counted),
        workflow=_share(by_kind[SloClass.COMPOUND]),
        attained={kind.value: _share(ones) for kind, ones in by_kind.items() if ones},
        requests_s=sum(one.met for one in counted) / (end - begin),
        tokens_s=sum(one.tokens_met for one in counted) / (end - begin),
        throughput=replayed.generated / setting.seconds,
        refused=sum(any(call.refused for call in one.calls) for one in counted) / max(1, len(counted)),
        ttft={k.value: _tail(_ttfts(ones)) for k, ones in by_kind.items() if ones},
        tbt={k.value: _tail(_tbts(ones)) for k, ones in by_kind.items() if ones},
        e2e={k.value: _tail(_e2es(ones)) for k, ones in by_kind.items() if ones},
        over_time=tuple(_over_time(counted, begin, end)),
        steps=replayed.steps,
        simulated_s=replayed.simulated_s,
        preemptions=replayed.preemptions,
        pauses=replayed.pauses,
    )


def asked(outcome: Outcome) -> int:
    """Return the tokens that token goodput counts if the program is met."""
    calls = outcome.program.calls
    if outcome.program.kind is SloClass.LATENCY:
        return sum(call.output for call in calls)
    return sum(call.prompt + call.output for call in calls)


def _share(ones: Sequence[Outcome]) -> float:
    return sum(one.met for one in ones) / len(ones) if ones else 0.0


def _tokens(ones: Sequence[Outcome]) -> float:
    whole = sum(asked(one) for one in ones)
    return sum(one.tokens_met for one in ones) / whole if whole else 0.0


def _ttfts(ones: Iterable[Outcome]) -> list[float]:
    return [call.first - call.arrived for one in ones for call in one.calls if call.first is not None]


def _tbts(ones: Iterable[Outcome]) -> list[float]:
    return [
        (call.ended - call.first) / (call.generated - 1)
        for one in ones
        for call in one.calls
        if call.ended is not None and call.first is not None and call.generated > 1
    ]


def _e2es(ones: Iterable[Outcome]) -> list[float]:
    return [one.ended - one.program.at for one in ones if one.ended is not None]


def _tail(values: list[float]) -> Tail:
    if not values:
        return Tail(0.0, 0.0, 0)
    values.sort()
    return Tail(values[len(values) // 2], values[min(len(values) - 1, int(0.95 * len(values)))], len(values))


def _over_time(counted: Sequence[Outcome], begin: float, end: float) -> Iterable[tuple[float, float, float]]:
    at = begin
    while at < end:
        ones = [one for one in counted if at <= one.program.at < at + _SLICE_S]
        if ones:
            yield at, _share(ones), _tokens(ones)
        at += _SLICE_S
