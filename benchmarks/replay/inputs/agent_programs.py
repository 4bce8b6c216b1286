"""Programs of agents that wait for tools: pieces of real sessions, or made-up ones of the same shape."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from statistics import fmean

from benchmarks.replay.errors import TooMany
from benchmarks.replay.inputs.traces import Session, Turn, read
from benchmarks.replay.inputs.workload import gpu_seconds
from benchmarks.replay.types import Call, Program, ProgramId, Stage
from ramify.serving.policy.types import SloClass, StepModel

STEP = StepModel()  # an 8-billion-parameter Llama on an H200
PERSON_S = 60.0  # a longer gap is a person's: the program ends before it
TURNS = 20  # of a program, at most
FEWEST = 4
ABREAST = 8  # calls in a batch, for the cost of a program
LONGEST = 200_000  # tokens of a context
MOST = 20_000  # programs; 900 s of kv-cache-tester's sessions have a few hundred


def sessions(trace: Path | None, seed: int) -> list[Session]:
    """Return the sessions of a trace, or made-up ones with its medians: contexts that grow, and tools that take 3 to
    60 seconds.
    """
    if trace is not None:
        return list(read(trace).sessions)
    chance = Random(f"sessions/{seed}")
    return [_made_up(chance) for _ in range(40)]


def _made_up(chance: Random) -> Session:
    blocks, turns, size = list(range(int(chance.uniform(400, 1800)))), list[Turn](), 64
    for number in range(chance.randint(6, 24)):
        blocks += range(len(blocks), len(blocks) + max(1, int(chance.lognormvariate(2.5, 1.2))))
        gap_s = min(59.0, chance.lognormvariate(2.2, 0.7)) if number else 0.0
        output = max(20, int(chance.lognormvariate(5.4, 0.8)))
        call = Call(len(blocks) * size, output, tuple(blocks), size)
        turns.append(Turn((call,), gap_s))
    return Session(tuple(turns))


def programs(found: Sequence[Session], load: float, seconds: float, seed: int) -> list[Program]:
    """Return programs that arrive at random times. Deterministic. Raises TooMany."""
    chance = Random(f"{seed}")
    pieces = [piece for session in found for piece in pieces_of(session)]
    cost = fmean(sum(gpu_seconds(piece, STEP, ABREAST)) for piece in pieces)
    rate, at, made = load / cost, 0.0, list[Program]()
    if rate * seconds > MOST:
        raise TooMany(rate * seconds, MOST, load, seconds)
    while True:
        at += chance.expovariate(rate)
        if at >= seconds:
            return made
        number = len(made)
        stages = tuple(_own(stage, number) for stage in chance.choice(pieces))
        made.append(Program(ProgramId(number), at, SloClass.COMPOUND, stages, deadline_s=1e6))


def pieces_of(session: Session) -> list[tuple[Stage, ...]]:
    out, piece = list[tuple[Stage, ...]](), list[Turn]()
    for turn in (*session.turns, None):
        if turn is None or (piece and (turn.gap_s > PERSON_S or len(piece) == TURNS)):
            if len(piece) >= FEWEST:
                out.append(tuple(Stage(t.calls, t.gap_s if n else 0.0) for n, t in enumerate(piece)))
            piece = []
        if turn is not None and all(call.prompt + call.output < LONGEST for call in turn.calls):
            piece.append(turn)
    return out


def _own(stage: Stage, number: int) -> Stage:
    """Two programs share no block."""
    calls = tuple(
        replace(call, blocks=tuple(number * 10**9 + block for block in call.blocks)) for call in stage.calls
    )
    return replace(stage, calls=calls)


def least_prefill(made: Sequence[Program]) -> int:
    """Return the prompt tokens to compute if each program finds all blocks that it ever had."""
    total = 0
    for program in made:
        known = set[int]()
        total += sum(call.uncached(known) for call in program.calls)
    return total
