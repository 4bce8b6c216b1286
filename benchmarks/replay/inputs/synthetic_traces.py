"""Generates traces with the lengths of the thesis's table 6.1 and random arrivals, for use without a published trace.

Single calls have the lengths of table 6.1's single requests: log-normal, through the medians and 95th percentiles.
Compound requests of the same table come as sessions: a piece of a session, as `workload` takes them, has the
table's tokens in all. How many users want a stream and how many a whole answer (table 2.1) is the last of
`evaluation.MIXES`.

`write` generates single calls only, in the Mooncake format. `write_workload` generates single calls and sessions.
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
_STAGES, _WIDTHS = 3.4, (1, 1, 2, 3)  # mean stages of a piece of a session; parallel calls of a session
_STAGES_SPREAD = 0.33  # standard deviation of the logarithm of a piece's number of stages
_SESSIONS, _TURNS = 200, 60
_CALL_SPREAD = 0.3  # standard deviation of the log-lengths of a session's calls: what a plan does not know
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
    """A row of table 6.1: lengths of a single request, and of all calls of a compound one together."""

    prompt: _Lengths
    answer: _Lengths
    all_prompts: _Lengths
    all_answers: _Lengths


CHATBOT = Application(_Lengths(27, 391), _Lengths(225, 1024), _Lengths(1097, 2767), _Lengths(4417, 6452))
RESEARCH = Application(_Lengths(403, 7573), _Lengths(410, 1544), _Lengths(10807, 29282), _Lengths(3148, 7525))
APPLICATIONS = (CHATBOT, RESEARCH)


def write(path: Path, count: int = 12_000, seconds: float = 3600.0, seed: int = 0) -> Path:
    """Write single calls in the Mooncake format. The same seed writes the same bytes."""
    lines = [
        json.dumps({"timestamp": at, "input_length": prompt, "output_length": answer})
        for at, prompt, answer in _singles(Random(seed), count, seconds)
    ]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def write_workload(path: Path, count: int = 12_000, seconds: float = 3600.0, seed: int = 0) -> Path:
    """Write single calls and sessions for `read_workload`. The same seed writes the same bytes."""
    made = {
        _MARK: "tables 6.1 and 2.1 of the thesis",
        "arrivals": list(_singles(Random(seed), count, seconds)),
        "sessions": _sessions(Random(f"sessions/{seed}")),
    }
    path.write_text(json.dumps(made) + "\n", encoding="utf-8")
    return path


def read_workload(path: Path) -> Trace:
    """Read a trace of any format, or a file of `write_workload`. Raises BadTrace."""
    if path.is_file() and path.suffix == ".json" and (whole := text(path)).startswith(f'{{"{_MARK}"'):
        try:
            raw = json.loads(whole)
            arrivals = tuple(Arrival(at / 1000, _call(prompt, answer)) for at, prompt, answer in raw["arrivals"])
            sessions = tuple(Session(tuple(map(_turn, one))) for one in raw["sessions"])
            if len(arrivals) < 2 or not all(session.turns for session in sessions):
                raise ValueError(f"{len(arrivals)} arrivals, or a session without turns")
            return Trace(path.name, arrivals, sessions)
        except MISSHAPEN as error:
            raise BadTrace(path, f"is no generated trace: {error!r}; delete it, and it is generated again") from error
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
    """Return milliseconds of arrival, prompt tokens and answer tokens of each call."""
    made = []
    for at in sorted(chance.uniform(0, seconds) for _ in range(count)):
        one = chance.choice(APPLICATIONS)
        prompt = _drawn(chance, one.prompt.median, one.prompt.spread)
        made.append((round(at * 1000), prompt, _drawn(chance, one.answer.median, one.answer.spread)))
    return made


def _sessions(chance: Random) -> list[list[tuple[float, list[tuple[int, int]]]]]:
    """Return sessions with so many tokens a call that a piece of a session has the table's tokens in all."""
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
    """Draw the median length of a session's calls.

    The number of stages explains a part of the spread of whole pieces; the rest is the spread between sessions.
    """
    own = max(0.0, whole.spread**2 - _STAGES_SPREAD**2) ** 0.5
    return chance.lognormvariate(log(whole.median / (_STAGES * width)), own)


def _drawn(chance: Random, median: float, spread: float) -> int:
    return max(1, min(_LONGEST, round(chance.lognormvariate(log(median), spread))))
