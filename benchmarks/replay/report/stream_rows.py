"""The rows of `benchmarks/streams.py`: what readers get by rate, and under the loads of a sweep."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
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


def rate_rows(found: Mapping[tuple[str, float], Measured], rates: Sequence[float]) -> list[Row]:
    """Return each scheduler's QoE and TTFT at the paper's load, and the highest rate with a good QoE."""
    names = list(dict.fromkeys(name for name, _ in found))
    # The rate at which readers wait as long under FCFS as in the paper's bursty hours.
    hard = min(rates, key=lambda rate: abs(found["fcfs", rate].ttft_s - BUSY_TTFT_S))
    at_hard = [one for name in names for one in _hard_rows(name, hard, found)]
    return at_hard + [_highest_row(name, found, rates) for name in names]


def _hard_rows(name: str, rate: float, found: Mapping[tuple[str, float], Measured]) -> list[Row]:
    one, fcfs = found[name, rate], found["fcfs", rate]
    qoe_target = {"andes": PAPER_QOE, "concord": round(found["andes", rate].qoe, 3)}.get(name)
    ttft_target = PAPER_TTFT_S if name in OURS else None
    note = (
        f"{one.good:.0%} at .95 or above; {one.throughput:.0f} tokens/s, {one.preemptions} preemptions, "
        f"{one.pauses} pauses"
    )
    return [
        row(f"average QoE at {rate:g}/s, {name}", round(one.qoe, 3), "", peer="fcfs", peer_value=round(fcfs.qoe, 3),
            note=note, target=qoe_target, at_least=True),
        row(f"TTFT at {rate:g}/s, {name}", round(one.ttft_s, 2), "s", peer="fcfs", peer_value=round(fcfs.ttft_s, 2),
            times_faster=True, note=f"90 %: {one.ttft_p90_s:.1f} s", target=ttft_target),
    ]  # fmt: skip


def _highest_row(name: str, found: Mapping[tuple[str, float], Measured], rates: Sequence[float]) -> Row:
    fcfs = highest(found, "fcfs", rates)
    target = round(PAPER_TIMES * fcfs, 2) if name in OURS else None
    note = "QoE by rate: " + ", ".join(f"{rate:g}: {found[name, rate].qoe:.3f}" for rate in rates)
    return row(f"highest rate with average QoE >= {GOOD}, {name}", round(highest(found, name, rates), 2), "/s",
        peer="fcfs", peer_value=round(fcfs, 2), note=note, target=target, at_least=True)  # fmt: skip


def highest(found: Mapping[tuple[str, float], Measured], name: str, rates: Sequence[float]) -> float:
    """Return the rate at which the QoE falls below GOOD, between two measured rates in a straight line."""
    for low, high in pairwise(rates):
        above, below = found[name, low].qoe, found[name, high].qoe
        if below < GOOD:
            return low * GOOD / above if above < GOOD else low + (high - low) * (above - GOOD) / (above - below)
    return rates[-1]


def sweep_row(
    name: str, load: Load, ones: Sequence[Measured], fcfs: Sequence[Measured], free: Sequence[float]
) -> Row:
    """Return the row of a scheduler under one load: medians over the seeds. `free`: with KV for all."""

    def mid(of: Callable[[Measured], float]) -> float:
        return median([of(one) for one in ones])

    note = (
        f"TTFT {mid(lambda one: one.ttft_s):.1f} s, 50 %: {mid(lambda one: one.ttft_p50_s):.1f} s, "
        f"90 %: {mid(lambda one: one.ttft_p90_s):.1f} s; {mid(lambda one: one.good):.0%} at .95 or above; "
        f"silence {mid(lambda one: one.silence):.0%}; at most {mid(lambda one: one.queue):g} wait for a first token; "
        f"{mid(lambda one: one.preemptions / one.streams):.1f} preemptions a stream; "
        f"with KV for all {median(free):.3f}"
    )
    qoes = [round(one.qoe, 3) for one in ones]
    spread = (min(qoes), max(qoes)) if len(qoes) > 1 else None
    return row(f"average QoE, {load.name}, {load.rate:g}/s: {name}", median(qoes), "", spread=spread,
        peer="fcfs", peer_value=round(median([one.qoe for one in fcfs]), 3), note=note)  # fmt: skip
