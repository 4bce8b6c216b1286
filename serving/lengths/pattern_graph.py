"""Pattern graphs (thesis §4.1, figure 4.2): what a compound request did, without its texts.

A node is one call of a model or a tool, with its name, lengths and time; its parents are the edges. Stages are those
of the compound tags: one round of model calls each. A tool belongs to the stage whose calls come after it, so a
stage's time is the time of its tools and then of its calls. Matching looks at a graph as a row of stage profiles.

The second part of the module encodes a graph into at most 200 bytes, for most graphs. Nodes of one stage with the
same kind, name and parents become one row with a count. Lengths and times are kept by their logarithm in a byte
(eight steps an octave: at most 4 % off). If a graph is still too long, as for an agent's loop of a hundred steps,
neighbouring stages of the same shape are folded into one with a repeat count, the most similar first; their lengths
become a mean.

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

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from math import exp2, log2


class Kind(IntEnum):
    LLM = 0
    TOOL = 1


@dataclass(frozen=True, slots=True)
class Node:
    """One call of a model or a tool. Lengths in tokens, for models only; `parents` index earlier nodes."""

    kind: Kind
    name: str  # the model or the tool
    stage: int
    input: int = 0
    output: int = 0
    seconds: float = 0.0
    parents: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class PatternGraph:
    """Nodes, each after its parents. Raises ValueError otherwise."""

    nodes: tuple[Node, ...]

    def __post_init__(self) -> None:
        for i, node in enumerate(self.nodes):
            if min(node.stage, node.input, node.output) < 0 or not node.seconds >= 0:
                raise ValueError(f"node {i} of a pattern graph has a negative stage, length or time: {node}")
            for parent in node.parents:
                if not 0 <= parent < i:
                    raise ValueError(f"node {i} of a pattern graph names parent {parent}: parents come first")
                if self.nodes[parent].stage > node.stage:
                    raise ValueError(f"node {i} of a pattern graph is of an earlier stage than its parent {parent}")

    @property
    def stages(self) -> int:
        return 1 + max((node.stage for node in self.nodes), default=-1)


@dataclass(frozen=True, slots=True)
class StageProfile:
    """One stage, as matching and estimates look at it."""

    identities: tuple[tuple[Kind, str], ...]  # distinct and sorted; they must agree with a pattern's prefix
    calls: int  # of models
    input: float  # mean tokens per call: the weight of the edges into the stage
    output: float  # mean tokens per call: the weight of its nodes
    llm_s: float  # seconds of its slowest call
    tool_s: float  # seconds of its slowest tool, before the calls

    @property
    def seconds(self) -> float:
        return self.tool_s + self.llm_s


def linked(stages: Sequence[Sequence[Node]]) -> PatternGraph:
    """The graph of stages as a gateway sees them: each call waits for the tools of its stage, if there are any, and
    those wait for all calls of the stage before. Numbers the stages and sets the edges: an edge says what had ended
    before, not whose result was read."""
    nodes: list[Node] = []
    before: tuple[int, ...] = ()
    for s, stage in enumerate(stages):
        for kind in (Kind.TOOL, Kind.LLM):
            first = len(nodes)
            nodes += [replace(node, stage=s, parents=before) for node in stage if node.kind is kind]
            before = tuple(range(first, len(nodes))) or before
    return PatternGraph(tuple(nodes))


def profiles(graph: PatternGraph) -> tuple[StageProfile, ...]:
    """A profile for each stage, from the first to the last; an empty one for a stage in which nothing ran."""
    by_stage: list[list[Node]] = [[] for _ in range(graph.stages)]
    for node in graph.nodes:
        by_stage[node.stage].append(node)
    return tuple(profile(nodes) for nodes in by_stage)


def profile(nodes: Iterable[Node]) -> StageProfile:
    """The profile of one stage's nodes."""
    nodes = tuple(nodes)
    calls = [node for node in nodes if node.kind is Kind.LLM]
    return StageProfile(
        identities=tuple(sorted({(node.kind, node.name) for node in nodes})),
        calls=len(calls),
        input=sum(node.input for node in calls) / max(1, len(calls)),
        output=sum(node.output for node in calls) / max(1, len(calls)),
        llm_s=max((node.seconds for node in calls), default=0.0),
        tool_s=max((node.seconds for node in nodes if node.kind is Kind.TOOL), default=0.0),
    )


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
    """The names of all graphs (models and tools), each stored once."""

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
    """The bytes of a graph, folded until they fit `budget` if that is possible."""
    runs = _runs(graph, names)
    size = [len(_written(run)) for run in runs]
    while 1 + sum(size) > budget and (at := _most_alike(runs)) is not None:
        runs[at : at + 2] = [_folded(runs[at], runs[at + 1])]
        size[at : at + 2] = [len(_written(runs[at]))]
    return bytes([VERSION]) + b"".join(map(_written, runs))


def decode(code: bytes, names: Names) -> tuple[StageProfile, ...]:
    """The stage profiles of an encoded graph. Raises ValueError if the bytes are not a graph."""
    if not code or code[0] != VERSION:
        raise ValueError(f"not a pattern graph of version {VERSION}: {code[:8]!r}")
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
        raise ValueError(
            "the bytes of a pattern graph end inside a row, or use a name that is not in the table"
        ) from error
    return tuple(out)


def _runs(graph: PatternGraph, names: Names) -> list[_Run]:
    """A run for each stage, with equal nodes merged into rows."""
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
    """The index of the two neighbouring runs of one shape whose lengths differ least; None if there are none."""
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
            raise ValueError("a number in a pattern graph has no end")
