"""Reads traces of arrivals and lengths in three published formats, pairs of texts, and other JSON, gzipped or not.

| format | recognised by | publisher |
|---|---|---|
| CSV | a header with TIMESTAMP, ContextTokens, GeneratedTokens | Azure/AzurePublicDataset |
| JSON lines | `timestamp` (ms), `input_length`, `output_length`, perhaps `hash_ids` (512-token blocks) | Mooncake |
| JSON, or a folder of them | `requests` of one session, each with `t`, `in`, `out`, `hash_ids` | agent sessions |

"""

from __future__ import annotations

import csv
import gzip
import io
import json
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from math import isfinite
from pathlib import Path
from typing import Any

from benchmarks.replay.errors import BadTrace
from benchmarks.replay.types import Call

LONGEST = 10_000_000  # tokens of a call: a longer one is an error in the file, and would fill the memory
# Raised by JSON that does not have the expected form.
MISSHAPEN = (ValueError, OverflowError, TypeError, LookupError, AttributeError, RecursionError)


def files_of(folder: Path, ending: str) -> list[Path]:
    """Return the files of a folder whose names end so, gzipped or not, by name. There are none without the folder."""
    found = folder.iterdir() if folder.is_dir() else ()
    return sorted(p for p in found if p.name.endswith((ending, f"{ending}.gz")) and not p.name.startswith("."))


def text(path: Path) -> str:
    """Return the text of a file, gzipped or not. Raises BadTrace if it cannot be read."""
    try:
        data = path.read_bytes()
        return (gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data).decode("utf-8-sig")
    except (OSError, UnicodeDecodeError, EOFError, zlib.error) as error:
        raise BadTrace(path, f"cannot be read: {error}") from error


def load(path: Path) -> Any:
    """Return the JSON of a file, gzipped or not. Raises BadTrace."""
    whole = text(path)
    try:
        return json.loads(whole)
    except (ValueError, RecursionError) as error:
        raise BadTrace(path, f"is no JSON: {error}") from error


_MOONCAKE_BLOCK = 512


@dataclass(frozen=True, slots=True)
class Arrival:
    at: float  # seconds since the first of its trace
    call: Call


@dataclass(frozen=True, slots=True)
class Session:
    """The turns of one agent, in order. The calls of a turn ran in parallel."""

    turns: tuple[Turn, ...]


@dataclass(frozen=True, slots=True)
class Turn:
    calls: tuple[Call, ...]
    gap_s: float  # from the end of the turn before to its arrival: tools, and people


@dataclass(frozen=True, slots=True)
class Trace:
    name: str
    arrivals: tuple[Arrival, ...]  # by time; every call, of sessions too
    sessions: tuple[Session, ...] = ()  # if the file says which calls belong to one agent


def read(path: Path) -> Trace:
    """Read a trace. Raises BadTrace, with the line, if the file has none of the formats."""
    if path.is_dir():
        if not (files := files_of(path, ".json")):
            raise BadTrace(path, "a folder without a .json or .json.gz: agent sessions are one file each")
        return _sessions(path, files)
    whole = text(path)
    is_json = whole.lstrip().startswith("{")
    if is_json and _is_session(whole):
        return _sessions(path, [path])
    rows = list(_mooncake(path, whole) if is_json else _azure(path, whole))
    if len(rows) < 2:
        raise BadTrace(path, f"{len(rows)} arrivals: a trace needs at least two")
    rows.sort(key=lambda row: row.at)
    begin = rows[0].at
    return Trace(path.name, tuple(Arrival(row.at - begin, row.call) for row in rows))


def has_pairs(path: Path) -> bool:
    """Does the file hold pairs of texts? Its first line tells. Raises BadTrace if it cannot be read."""
    if path.is_dir():
        return False
    _, first = next(_lines(text(path)), (0, ""))
    try:
        return "response" in json.loads(first)
    except MISSHAPEN:
        return False


def response_pairs(path: Path) -> Iterator[Mapping[str, str]]:
    """Yield a file's pairs, `{"prompt", "response", "dataset"}` in a line. Raises BadTrace, with the line."""
    for number, line in _lines(text(path)):
        try:
            pair = {**(raw := json.loads(line)), "dataset": raw.get("dataset") or ""}
        except MISSHAPEN as error:
            raise BadTrace(path, f"line {number}: {error!r}") from error
        if not all(isinstance(pair.get(name), str) for name in ("prompt", "response", "dataset")):
            raise BadTrace(path, f"line {number}: a pair has the texts prompt, response and perhaps dataset")
        yield pair


def _lines(whole: str) -> Iterator[tuple[int, str]]:
    """Yield the lines that are not empty, with their numbers. `str.splitlines` also splits inside JSON's texts."""
    for number, line in enumerate(io.StringIO(whole, newline=None), start=1):
        if line.strip():
            yield number, line


def _azure(path: Path, whole: str) -> Iterator[Arrival]:
    reader = csv.reader(whole.splitlines())
    wanted = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
    try:
        names = [name.strip() for name in next(filter(_filled, reader), [])]
    except csv.Error:  # a quote is never closed
        names = []
    if not set(wanted) <= set(names):
        raise BadTrace(path, f"neither JSON nor a CSV with the columns {', '.join(wanted)}")
    places = [names.index(name) for name in wanted]
    try:
        for row in filter(_filled, reader):
            if len(row) < len(names):
                raise ValueError(f"fewer than the header's {len(names)} columns")
            at, prompt, answer = [row[place] for place in places]
            yield Arrival(_clock(at), Call(_length(prompt), _length(answer)))
    except (csv.Error, ValueError) as error:
        raise BadTrace(path, f"line {reader.line_num}: {error}") from error


def _filled(row: Sequence[str]) -> bool:
    return any(map(str.strip, row))


_CLOCK = re.compile(r"(?P<second>[^.+Z]+?)(?P<fraction>\.\d+)?(?P<zone>Z|[+-]\d\d:?\d\d)?")
_SECONDS = re.compile(r"\d{1,11}(\.\d*)?")  # more digits are no seconds, but a date or smaller units


def _clock(text: str) -> float:
    """Return the seconds of a number, or of a time like `2023-11-16 18:15:46.6805900`, whose seventh decimal Python
    cannot read. Without a zone it is UTC.
    """
    text = text.strip()
    if _SECONDS.fullmatch(text):
        return float(text)
    found = _CLOCK.fullmatch(text)
    if found is None:
        raise ValueError(f"not a time: {text!r}")
    begin = datetime.fromisoformat(found["second"] + (found["zone"] or "+00:00").replace("Z", "+00:00"))
    return begin.timestamp() + float(f"0{found['fraction']}" if found["fraction"] else 0)


def _mooncake(path: Path, whole: str) -> Iterator[Arrival]:
    names: dict[object, int] = {}
    for number, line in _lines(whole):
        try:
            row = json.loads(line)
            blocks = tuple(_block(b, names) for b in row.get("hash_ids") or ())
            call = Call(_length(row["input_length"]), _length(row["output_length"]), blocks, _MOONCAKE_BLOCK)
            yield Arrival(_time(row["timestamp"]) / 1000, call)
        except MISSHAPEN as error:
            raise BadTrace(path, f"line {number}: {error!r}; an arrival has {_MOONCAKE_FIELDS}") from error


_MOONCAKE_FIELDS = "timestamp (ms), input_length, output_length"
_NAMED = 1 << 39  # blocks with names that are no numbers below this are numbered from here on


def _block(raw: object, names: dict[object, int]) -> int:
    """Return the number of a block. A name may be a text, or more than a token's 64 bits."""
    if isinstance(raw, int) and 0 <= raw < _NAMED:
        return raw
    return names.setdefault(raw, _NAMED + len(names))


def _is_session(whole: str) -> bool:
    """Does the text begin with an object that holds requests, even if it is cut off?"""
    try:
        first, _ = json.JSONDecoder().raw_decode(whole.lstrip())
    except (ValueError, RecursionError):
        head = whole[:4096]
        return '"requests"' in head and '"input_length"' not in head
    return "requests" in first and "input_length" not in first


def _sessions(path: Path, files: Sequence[Path]) -> Trace:
    sessions, arrivals, names = [], list[Arrival](), dict[object, int]()
    for number, file in enumerate(files):
        whole = text(file)
        try:
            spans = sorted(_spans(json.loads(whole), number, names), key=lambda span: span[0])
        except MISSHAPEN as error:
            raise BadTrace(file, f"not an agent session: {error!r}") from error
        arrivals += [Arrival(begin, call) for begin, _, call in spans]
        sessions.append(Session(tuple(_turns(spans))))
    if len(arrivals) < 2:
        raise BadTrace(path, f"{len(arrivals)} calls: a trace needs at least two")
    arrivals.sort(key=lambda arrival: arrival.at)
    return Trace(path.name, tuple(arrivals), tuple(session for session in sessions if session.turns))


def _length(raw: Any) -> int:
    """Return a length in tokens; 1 if the trace has 0."""
    tokens = float(raw)
    if not 0 <= tokens <= LONGEST:
        raise ValueError(f"a length of {tokens:g} tokens")
    return max(1, int(tokens))


def _time(raw: Any) -> float:
    at = float(raw)
    if not isfinite(at) or at < 0:
        raise ValueError(f"not a time: {raw!r}")
    return at


_Span = tuple[float, float, Call]  # begin, end


def _spans(raw: Mapping[str, Any], number: int, names: dict[object, int]) -> Iterator[_Span]:
    """Yield every call of a session and of its sub-agents. Block names are local to a session: `names` has numbers
    for those of all sessions.
    """
    size = 64 if raw.get("block_size") is None else int(raw["block_size"])
    if size < 1:
        raise ValueError(f"blocks of {size} tokens")
    for begin, one in _calls(raw["requests"], 0.0):
        blocks = tuple(names.setdefault((number, b), len(names)) for b in one.get("hash_ids") or ())
        call = Call(_length(one["in"]), _length(one["out"]), blocks, size)
        yield begin, begin + _time(one.get("api_time") or 0.0), call


def _calls(requests: Sequence[Mapping[str, Any]], offset: float) -> Iterator[tuple[float, Mapping[str, Any]]]:
    """Yield the calls of an agent, and of its sub-agents and theirs, each with its time. `offset`: of its clock."""
    for request in requests:
        if inner := request.get("requests"):
            begin = _time(request["t"]) + offset
            first = min([_time(one["t"]) for one in inner])
            # A sub-agent's clock may start with the sub-agent.
            yield from _calls(inner, begin if first + offset < begin else offset)
        elif request.get("in") is not None and request.get("out") is not None:
            yield _time(request["t"]) + offset, request


def _turns(spans: Sequence[_Span]) -> Iterator[Turn]:
    """Yield the turns. Calls that overlap in time are one turn: a fan-out of sub-agents."""
    calls, ended, gap = list[Call](), 0.0, 0.0
    for begin, end, call in spans:
        if calls and begin >= ended:
            yield Turn(tuple(calls), gap)
            calls, gap = [], begin - ended
        calls.append(call)
        ended = max(ended, end)
    if calls:
        yield Turn(tuple(calls), gap)
