"""What became of a call, a stream and a program of a replay."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from benchmarks.replay.types import CallOutcome, Program
from ramify.serving.policy.types import SloClass
from ramify.serving.qoe import Reading

GOOD_QOE = 0.95  # from here on a stream counts as met, as in the paper of Andes


@dataclass(slots=True)
class CallInFlight:
    """A call in the engine."""

    program: Program
    stage: int
    place: int  # its index in its program's calls
    name: str
    replica: int
    arrived: float


@dataclass(slots=True)
class ProgramRun:
    """The state of a program that has arrived."""

    outcomes: dict[int, CallOutcome] = field(default_factory=dict)
    open: set[str] = field(default_factory=set)
    lost: bool = False
    ended: float | None = None


def call_outcome(flight: CallInFlight, times: list[float], ended: float | None, refused: str | None) -> CallOutcome:
    """Return what became of a call whose tokens came at these times."""
    program = flight.program
    call = program.calls[flight.place]
    in_time = 0
    if program.kind is SloClass.LATENCY:
        begin, tbt = program.at + (program.ttft_s or 0.0), program.tbt_s or 0.0
        in_time = sum([at <= begin + n * tbt for n, at in enumerate(times)])
    elif ended is not None and ended <= program.due:
        in_time = len(times)
    gaps = [b - a for a, b in pairwise(times)]
    stream = ended is not None and program.kind is SloClass.STREAM
    return CallOutcome(
        flight.stage,
        flight.arrived,
        call.prompt,
        call.output,
        times[0] if times else None,
        ended,
        refused,
        len(times),
        in_time,
        max(gaps, default=0.0),
        qoe_of(program, times) if stream else None,
        silence(program, times) if stream else None,
    )


def qoe_of(program: Program, times: Sequence[float]) -> float:
    """Return the QoE of a stream whose tokens came at these times."""
    assert program.ttft_s is not None and program.tbt_s is not None
    reading = Reading(program.at + program.ttft_s, program.tbt_s)
    for at in times:
        reading = reading.delivered(at)
    return reading.qoe()


def silence(program: Program, times: Sequence[float]) -> float:
    """Return the share of a stream's time, from its arrival until all is read, in which there was nothing to read
    (Andes, figure 2.12). Its reader begins with the first token.
    """
    assert program.tbt_s is not None
    reading = Reading(program.at, program.tbt_s)
    for at in times:
        reading = reading.delivered(at)
    whole = reading.dry_at - program.at
    return 1 - len(times) * program.tbt_s / whole if whole > 0 else 0.0


def met(program: Program, ended: float | None, calls: Sequence[CallOutcome]) -> bool:
    """Did the program get what it asked for? `ended`: when its last call did; None: some did not."""
    if ended is None:
        return False
    if program.kind is SloClass.STREAM:
        return all(call.qoe is not None and call.qoe >= GOOD_QOE for call in calls)
    if program.kind is SloClass.LATENCY:
        return all(call.in_time == call.output for call in calls)
    return ended <= program.due
