"""The rows of `benchmarks/streams.py`: what readers get by rate, and under the loads of a sweep."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from operator import attrgetter
from statistics import median

from benchmarks.replay.inputs.stream_loads import Load
from benchmarks.replay.stream_runs import Measured
from benchmarks.rows import Row, row

GOOD = 0.9
BUSY_TTFT_S = 11.2  # mean TTFT of FCFS in the paper's ten hours of BurstGPT
PAPER_QOE, PAPER_TTFT_S, PAPER_TIMES = (
    0.99,
    2.4,
    1.74,
)  # what Andes reports there; its highest rate, times that of FCFS
OURS = ("andes", "concord")  # those with targets

_QOE, _TTFT_S = attrgetter("qoe"), attrgetter("ttft_s")
ByRate = Mapping[tuple[str, float], Sequence[Measured]]  # by scheduler and rate, one of each seed


def rate_rows(found: ByRate, rates: Sequence[float]) -> list[Row]:
    """Return each scheduler's QoE and TTFT at the paper's load, and the highest rate with a good QoE: medians over
    the seeds.
    """
    names = list(dict.fromkeys(name for name, _ in found))
    # The rate at which readers wait as long under FCFS as in the paper's bursty hours.
    hard = min(rates, key=lambda rate: abs(_mid(found["fcfs", rate], _TTFT_S) - BUSY_TTFT_S))
    at_hard = [one for name in names for one in _hard_rows(name, hard, found)]
    return at_hard + [_highest_row(name, found, rates) for name in names]


def _mid(ones: Sequence[Measured], of: Callable[[Measured], float]) -> float:
    return median([of(one) for one in ones])


def _spread(values: Sequence[float], digits: int) -> tuple[float, float] | None:
    """Return the least and the greatest of several values."""
    return (round(min(values), digits), round(max(values), digits)) if len(values) > 1 else None


def _hard_rows(name: str, rate: float, found: ByRate) -> list[Row]:
    ones, fcfs = found[name, rate], found["fcfs", rate]
    qoe_target = {"andes": PAPER_QOE, "concord": round(_mid(found["andes", rate], _QOE), 3)}.get(name)
    ttft_target = PAPER_TTFT_S if name in OURS else None
    note = (
        f"{_mid(ones, lambda one: one.good):.0%} at .95 or above; "
        f"{_mid(ones, lambda one: one.throughput):.0f} tokens/s, "
        f"{_mid(ones, lambda one: one.preemptions):.0f} preemptions, "
        f"{_mid(ones, lambda one: one.pauses):.0f} pauses; seeds: {len(ones)}"
    )
    return [
        row(f"average QoE at {rate:g}/s, {name}", round(_mid(ones, _QOE), 3), "", peer="fcfs",
            peer_value=round(_mid(fcfs, _QOE), 3), spread=_spread([*map(_QOE, ones)], 3), note=note,
            target=qoe_target, at_least=True),
        row(f"TTFT at {rate:g}/s, {name}", round(_mid(ones, _TTFT_S), 2), "s", peer="fcfs",
            peer_value=round(_mid(fcfs, _TTFT_S), 2), times_faster=True, spread=_spread([*map(_TTFT_S, ones)], 2),
            note=f"90 %: {_mid(ones, lambda one: one.ttft_p90_s):.1f} s", target=ttft_target),
    ]  # fmt: skip


def _highest_row(name: str, found: ByRate, rates: Sequence[float]) -> Row:
    fcfs, mine = median(highest(found, "fcfs", rates)), highest(found, name, rates)
    target = round(PAPER_TIMES * fcfs, 2) if name in OURS else None
    by_rate = [f"{rate:g}: {_mid(found[name, rate], _QOE):.3f}" for rate in rates]
    return row(f"highest rate with average QoE >= {GOOD}, {name}", round(median(mine), 2), "/s", peer="fcfs",
        peer_value=round(fcfs, 2), spread=_spread(mine, 2), note=f"QoE by rate: {', '.join(by_rate)}", target=target,
        at_least=True)  # fmt: skip


def highest(found: ByRate, name: str, rates: Sequence[float]) -> list[float]:
    """Return for each seed the rate at which the QoE falls below GOOD, in a straight line between measured rates."""
    return [
        _highest([found[name, rate][seed].qoe for rate in rates], rates) for seed in range(len(found[name, rates[0]]))
    ]


def _highest(qoes: Sequence[float], rates: Sequence[float]) -> float:
    for (low, above), (high, below) in pairwise(zip(rates, qoes, strict=True)):
        if below < GOOD:
            return low * GOOD / above if above < GOOD else low + (high - low) * (above - GOOD) / (above - below)
    return rates[-1]


def sweep_row(
    name: str, load: Load, ones: Sequence[Measured], fcfs: Sequence[Measured], free: Sequence[float]
) -> Row:
    """Return the row of a scheduler under one load: medians over the seeds. `free`: with KV for all."""

    def mid(of: Callable[[Measured], float]) -> float:
        return _mid(ones, of)

    note = (
        f"TTFT {mid(lambda one: one.ttft_s):.1f} s, 50 %: {mid(lambda one: one.ttft_p50_s):.1f} s, "
        f"90 %: {mid(lambda one: one.ttft_p90_s):.1f} s; {mid(lambda one: one.good):.0%} at .95 or above; "
        f"silence {mid(lambda one: one.silence):.0%}; at most {mid(lambda one: one.queue):g} wait for a first token; "
        f"{mid(lambda one: one.preemptions / one.streams):.1f} preemptions a stream; "
        f"with KV for all {median(free):.3f}"
    )
    qoes = [round(one.qoe, 3) for one in ones]
    return row(f"average QoE, {load.name}, {load.rate:g}/s: {name}", median(qoes), "", spread=_spread(qoes, 3),
        peer="fcfs", peer_value=round(_mid(fcfs, _QOE), 3), note=note)  # fmt: skip
