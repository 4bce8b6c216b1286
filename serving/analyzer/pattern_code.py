"""A pattern graph in at most a fifth of a kilobyte, for most graphs.

Nodes of one stage that are of one kind and name with the same parents become one row with a count. Lengths and times
are kept by their logarithm in a byte (eight steps an octave: 4 % off at most). A graph that is still too long, as an
agent's loop of a hundred steps is, has neighbouring stages of the same shape folded into one with a repeat count, the
most alike first: the price is that their lengths become a mean.

    graph := version:u8 run*
    run   := (rows << 1 | 0):varint row*                                a stage
           | (rows << 1 | 1):varint repeats:varint row*                 stages folded into one
    row   := (name << 2 | 0 | kind):varint weights                      one node, its parent is the row before
           | (name << 2 | 2 | kind):varint weights count:varint parents:varint back:varint*
    weights := input:u8 output:u8 time:u8                               of a model's calls
             | time:u8                                                  of a tool

`name` indexes a table that all graphs share; `back` counts rows backwards to a parent's row.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import exp2, log2

from ramify.serving.analyzer.pattern_graph import Kind, PatternGraph, StageProfile

VERSION = 1
BUDGET = 200  # bytes
_STEPS = 8  # of an octave
_TICK_S = 0.001


@dataclass(frozen=True, slots=True)
class _Row:
    kind: Kind
    name: int
    count: int
    input: float
    output: float
    seconds: float
    back: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Run:
    repeats: int
    rows: tuple[_Row, ...]

    @property
    def shape(self) -> tuple[tuple[int, int], ...]:
        return tuple((row.kind, row.name) for row in self.rows)


class Names:
    """The identities of all graphs, each once."""

    def __init__(self, names: Sequence[str] = ()) -> None:
        self._names = list(names)
        self._index = {name: i for i, name in enumerate(self._names)}

    def index(self, name: str) -> int:
        if name not in self._index:
            self._index[name] = len(self._names)
            self._names.append(name)
        return self._index[name]

    def __getitem__(self, index: int) -> str:
        return self._names[index]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)


def encode(graph: PatternGraph, names: Names, budget: int = BUDGET) -> bytes:
    """The graph's bytes, folded until they are within `budget` where that is possible."""
    runs = _runs(graph, names)
    size = [len(_written(run)) for run in runs]
    while 1 + sum(size) > budget and (at := _most_alike(runs)) is not None:
        runs[at : at + 2] = [_folded(runs[at], runs[at + 1])]
        size[at : at + 2] = [len(_written(runs[at]))]
    return bytes([VERSION]) + b"".join(map(_written, runs))


def decode(code: bytes, names: Names) -> tuple[StageProfile, ...]:
    """The stage profiles of an encoded graph. Raises ValueError where the bytes are none."""
    if not code or code[0] != VERSION:
        raise ValueError(f"no pattern graph of version {VERSION}: {code[:8]!r}")
    out: list[StageProfile] = []
    at = 1
    try:
        while at < len(code):
            head, at = _number(code, at)
            repeats, at = _number(code, at) if head & 1 else (1, at)
            rows = []
            for _ in range(head >> 1):
                row, at = _read_row(code, at)
                rows.append(row)
            out += [_profile(rows, names)] * min(repeats, 10_000)
    except IndexError as error:
        raise ValueError("a pattern graph's bytes end inside a row, or name an identity that there is not") from error
    return tuple(out)


def _runs(graph: PatternGraph, names: Names) -> list[_Run]:
    """A run for each stage, rows merged."""
    stages: list[list[list[int]]] = [[] for _ in range(graph.stages)]
    row_of: dict[int, tuple[int, int]] = {}
    merged: dict[tuple[object, ...], tuple[int, int]] = {}
    for i, node in enumerate(graph.nodes):
        parents = tuple(sorted({row_of[p] for p in node.parents}))
        place = merged.get((node.kind, node.name, node.stage, parents))
        if place is None:
            place = merged[(node.kind, node.name, node.stage, parents)] = (node.stage, len(stages[node.stage]))
            stages[node.stage].append([])
        stages[node.stage][place[1]].append(i)
        row_of[i] = place
    starts, total = [], 0
    for stage in stages:
        starts.append(total)
        total += len(stage)
    runs = []
    for s, stage in enumerate(stages):
        rows = []
        for r, members in enumerate(stage):
            nodes = [graph.nodes[i] for i in members]
            back = {starts[s] + r - starts[ps] - pr for ps, pr in (row_of[p] for p in nodes[0].parents)}
            mean = 1 / len(nodes)
            rows.append(
                _Row(
                    nodes[0].kind,
                    names.index(nodes[0].name),
                    len(nodes),
                    sum(n.input for n in nodes) * mean,
                    sum(n.output for n in nodes) * mean,
                    max(n.seconds for n in nodes),
                    tuple(sorted(b for b in back if b > 0)),
                )
            )
        runs.append(_Run(1, tuple(rows)))
    return runs


def _most_alike(runs: list[_Run]) -> int | None:
    """The first of the two neighbours of one shape whose lengths differ least, None where no two have one shape."""
    best, best_at = float("inf"), None
    for i in range(len(runs) - 1):
        a, b = runs[i], runs[i + 1]
        if a.shape == b.shape:
            apart = sum(_apart(x, y) for x, y in zip(a.rows, b.rows, strict=True)) * (a.repeats + b.repeats)
            if apart < best:
                best, best_at = apart, i
    return best_at


def _apart(a: _Row, b: _Row) -> float:
    pairs = ((a.input, b.input), (a.output, b.output), (a.seconds / _TICK_S, b.seconds / _TICK_S))
    return 1e-9 + sum(abs(log2(1 + x) - log2(1 + y)) for x, y in pairs)


def _folded(a: _Run, b: _Run) -> _Run:
    total = a.repeats + b.repeats
    wa, wb = a.repeats / total, b.repeats / total
    rows = tuple(
        replace(
            x,
            count=max(1, round(wa * x.count + wb * y.count)),
            input=wa * x.input + wb * y.input,
            output=wa * x.output + wb * y.output,
            seconds=wa * x.seconds + wb * y.seconds,
        )
        for x, y in zip(a.rows, b.rows, strict=True)
    )
    return _Run(total, rows)


def _profile(rows: Sequence[_Row], names: Names) -> StageProfile:
    calls = sum(row.count for row in rows if row.kind is Kind.LLM)
    mean = 1 / max(1, calls)
    return StageProfile(
        identities=tuple(sorted({(row.kind, names[row.name]) for row in rows})),
        calls=calls,
        input=sum(row.input * row.count for row in rows if row.kind is Kind.LLM) * mean,
        output=sum(row.output * row.count for row in rows if row.kind is Kind.LLM) * mean,
        llm_s=max((row.seconds for row in rows if row.kind is Kind.LLM), default=0.0),
        tool_s=max((row.seconds for row in rows if row.kind is Kind.TOOL), default=0.0),
    )


def _written(run: _Run) -> bytes:
    out = bytearray(_varint(len(run.rows) << 1 | (run.repeats > 1)))
    if run.repeats > 1:
        out += _varint(run.repeats)
    for row in run.rows:
        plain = row.count == 1 and row.back == (1,)
        out += _varint(row.name << 2 | (not plain) << 1 | row.kind)
        if row.kind is Kind.LLM:
            out += bytes((_byte(row.input), _byte(row.output)))
        out.append(_byte(row.seconds / _TICK_S))
        if not plain:
            out += _varint(row.count) + _varint(len(row.back)) + b"".join(map(_varint, row.back))
    return bytes(out)


def _read_row(code: bytes, at: int) -> tuple[_Row, int]:
    head, at = _number(code, at)
    kind, count, back = Kind(head & 1), 1, [1]
    size_in = size_out = 0
    if kind is Kind.LLM:
        size_in, size_out, at = code[at], code[at + 1], at + 2
    seconds, at = _value(code[at]) * _TICK_S, at + 1
    if head & 2:
        count, at = _number(code, at)
        parents, at = _number(code, at)
        back = []
        for _ in range(parents):
            step, at = _number(code, at)
            back.append(step)
    return _Row(kind, head >> 2, count, _value(size_in), _value(size_out), seconds, tuple(back)), at


def _byte(value: float) -> int:
    return min(255, round(_STEPS * log2(1 + value)))


def _value(byte: int) -> float:
    return exp2(byte / _STEPS) - 1


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _number(code: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = code[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at
        if shift > 63:
            raise ValueError("a number in a pattern graph does not end")
