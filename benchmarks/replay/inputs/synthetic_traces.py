"""Traces where none is at hand: the thesis's tables 6.1 and 2.1, arriving by chance.

Single calls have the lengths of table 6.1's single requests, log-normal through medians and 95th percentiles.
Compound ones come as sessions of the same table's compound requests: a piece of a session, as `workload` takes them,
has the table's tokens in all. How many of those who ask want a stream and how many a whole answer (table 2.1) is the
last of `evaluation.MIXES`.

`write` makes single calls alone, in the Mooncake shape, so that what reads traces reads it; `write_workload` both.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from math import inf, log
from pathlib import Path
from random import Random

from benchmarks.replay.errors import BadTrace
from benchmarks.replay.inputs import traces
from benchmarks.replay.inputs.traces import MISSHAPEN, Arrival, Session, Trace, Turn, text
from benchmarks.replay.types import Call

_Z95 = 1.645
_LONGEST = 16_384
_STAGES, _WIDTHS = 3.4, (1, 1, 2, 3)  # mean stages of a piece of a session; calls beside each other, of a session
_STAGES_SPREAD = 0.33  # of the logarithm of a piece's number of stages
_SESSIONS, _TURNS = 200, 60
_CALL_SPREAD = 0.3  # of the calls of a session, as logarithms: what a plan does not know
_GAP_S, _GAP_SPREAD = 0.7, 0.6
_MARK = "generated"


@dataclass(frozen=True, slots=True)
class _Lengths:
    median: float
    p95: float

    @property
    def spread(self) -> float:
        return log(self.p95 / self.median) / _Z95


@dataclass(frozen=True, slots=True)
class Application:
    """A row of table 6.1: prompt and answer of a single request, and of all of a compound one's calls together."""

    prompt: _Lengths
    answer: _Lengths
    all_prompts: _Lengths
    all_answers: _Lengths


CHATBOT = Application(_Lengths(27, 391), _Lengths(225, 1024), _Lengths(1097, 2767), _Lengths(4417, 6452))
RESEARCH = Application(_Lengths(403, 7573), _Lengths(410, 1544), _Lengths(10807, 29282), _Lengths(3148, 7525))
APPLICATIONS = (CHATBOT, RESEARCH)


def write(path: Path, count: int = 12_000, seconds: float = 3600.0, seed: int = 0) -> Path:
    """Single calls. The same seed writes the same bytes."""
    lines = [
        json.dumps({"timestamp": at, "input_length": prompt, "output_length": answer})
        for at, prompt, answer in _singles(Random(seed), count, seconds)
    ]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def write_workload(path: Path, count: int = 12_000, seconds: float = 3600.0, seed: int = 0) -> Path:
    """Single calls and sessions, for `read_workload`. The same seed writes the same bytes."""
    made = {
        _MARK: "tables 6.1 and 2.1 of the thesis",
        "arrivals": list(_singles(Random(seed), count, seconds)),
        "sessions": _sessions(Random(f"sessions/{seed}")),
    }
    path.write_text(json.dumps(made) + "\n", encoding="utf-8")
    return path


def read_workload(path: Path) -> Trace:
    """A trace of any shape, or what `write_workload` wrote. Raises BadTrace."""
    if path.is_file() and path.suffix == ".json" and (whole := text(path)).startswith(f'{{"{_MARK}"'):
        try:
            raw = json.loads(whole)
            arrivals = tuple(Arrival(at / 1000, _call(prompt, answer)) for at, prompt, answer in raw["arrivals"])
            sessions = tuple(Session(tuple(map(_turn, one))) for one in raw["sessions"])
            if len(arrivals) < 2 or not all(session.turns for session in sessions):
                raise ValueError(f"{len(arrivals)} arrivals, or a session without turns")
            return Trace(path.name, arrivals, sessions)
        except MISSHAPEN as error:
            raise BadTrace(path, f"is not what was generated: {error!r}; remove it, and it is made anew") from error
    return traces.read(path)


def _turn(raw: tuple[float, list[tuple[int, int]]]) -> Turn:
    gap_s, calls = raw
    if not calls or not 0 <= gap_s < inf:
        raise ValueError(f"a turn of {len(calls)} calls after {gap_s} s")
    return Turn(tuple(_call(prompt, answer) for prompt, answer in calls), gap_s)


def _call(prompt: int, answer: int) -> Call:
    if not all(isinstance(length, int) and 1 <= length <= _LONGEST for length in (prompt, answer)):
        raise ValueError(f"lengths of {prompt} and {answer} tokens")
    return Call(prompt, answer)


def _singles(chance: Random, count: int, seconds: float) -> list[tuple[int, int, int]]:
    """Milliseconds, prompt, answer."""
    made = []
    for at in sorted(chance.uniform(0, seconds) for _ in range(count)):
        one = chance.choice(APPLICATIONS)
        prompt = _drawn(chance, one.prompt.median, one.prompt.spread)
        made.append((round(at * 1000), prompt, _drawn(chance, one.answer.median, one.answer.spread)))
    return made


def _sessions(chance: Random) -> list[list[tuple[float, list[tuple[int, int]]]]]:
    """Of so many calls that a piece has the table's tokens in all, spread over it and over how long pieces are."""
    return [_session(chance, APPLICATIONS[number % len(APPLICATIONS)]) for number in range(_SESSIONS)]


def _session(chance: Random, one: Application) -> list[tuple[float, list[tuple[int, int]]]]:
    width = chance.choice(_WIDTHS)
    prompt, answer = _of_call(chance, one.all_prompts, width), _of_call(chance, one.all_answers, width)
    turns = []
    for _ in range(_TURNS):
        gap_s = round(chance.lognormvariate(log(_GAP_S), _GAP_SPREAD), 3)
        calls = [(_drawn(chance, prompt, _CALL_SPREAD), _drawn(chance, answer, _CALL_SPREAD)) for _ in range(width)]
        turns.append((gap_s, calls))
    return turns


def _of_call(chance: Random, whole: _Lengths, width: int) -> float:
    """The median of a session's calls: its own share of how far wholes lie apart is what their stages leave."""
    own = max(0.0, whole.spread**2 - _STAGES_SPREAD**2) ** 0.5
    return chance.lognormvariate(log(whole.median / (_STAGES * width)), own)


def _drawn(chance: Random, median: float, spread: float) -> int:
    return max(1, min(_LONGEST, round(chance.lognormvariate(log(median), spread))))
