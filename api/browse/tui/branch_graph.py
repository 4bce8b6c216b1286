"""The rows of the branch graph: every checkpoint, and what a branch did after its last one.

A plan seals only where it pays, so a branch may end in steps that no checkpoint holds, or have no checkpoint at all.
Such an open end is a node, too (`checkpoint` is None): it can be viewed, and is forked at the state before it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from ramify.browse.tui.styled_lines import Look, Span, StyledLine, safe
from ramify.compiler.plan import OpKind
from ramify.inspect.checkpoint_graph import NODE, draw
from ramify.inspect.history import BranchHistory, End, History, Moment
from ramify.inspect.values import command_result
from ramify.runtime.records import BranchPath, CheckpointId, CheckpointRecord, OpStatus
from ramify.sandboxes.contract import RunResult

OPEN_NODE = "○"
_WIDEST = 16  # columns of the graph at most
_BOOKKEEPING = {OpKind.FORK, OpKind.RELEASE, OpKind.PREFORK, OpKind.SEAL, OpKind.BARRIER, OpKind.MERGE}
_ENDS = {End.OPEN: Look.INFO, End.MERGED: Look.GOOD, End.RELEASED: Look.DIM}


@dataclass(frozen=True, slots=True)
class Node:
    """A checkpoint, or the open end of a branch."""

    id: CheckpointId  # for an open end: "+" and its branch
    seq: int
    branch: BranchPath
    parents: tuple[CheckpointId, ...]
    moments: tuple[Moment, ...]  # since the previous checkpoint of the branch
    checkpoint: CheckpointRecord | None


@dataclass(frozen=True)
class Graph:
    """All nodes of a history, drawn newest first."""

    history: History
    lines: tuple[StyledLine, ...]
    at_row: Mapping[int, Node]
    row_of: Mapping[CheckpointId, int]

    @cached_property
    def _by_branch(self) -> Mapping[BranchPath, Sequence[Node]]:
        """Each branch's nodes, oldest first."""
        found: dict[BranchPath, list[Node]] = {}
        for node in sorted(self.at_row.values(), key=lambda node: node.seq):
            found.setdefault(node.branch, []).append(node)
        return found

    def holding(self, moment: Moment) -> CheckpointId | None:
        """The node that a moment belongs to; None for a fork that is the last moment of its branch."""
        mine = self._by_branch.get(moment.branch, ())
        at = bisect_left(mine, moment.seq, key=lambda node: node.seq)
        return mine[at].id if at < len(mine) else None


def graph(history: History) -> Graph:
    """The graph of a history. Takes time proportional to rows and open branches: call it outside the event loop."""
    lines: list[StyledLine] = []
    at_row: dict[int, Node] = {}
    every = list(nodes(history))
    tips = {node.branch: node.id for node in sorted(every, key=lambda node: node.seq)}
    for drawn, node in draw(every):
        if node is not None:
            at_row[len(lines)] = node
        lines.append(_shown(history, drawn, node, tips))
    return Graph(history, tuple(lines), at_row, {node.id: row for row, node in at_row.items()})


def nodes(history: History) -> Iterator[Node]:
    for of in history.branches.values():
        seqs = [moment.seq for moment in of.moments]
        begin = 0
        for one in of.checkpoints:
            end = bisect_left(seqs, one.seq + 1)
            yield Node(one.id, one.seq, of.path, one.parents, of.moments[begin:end], one)
            begin = end
        rest = of.moments[begin:]
        if any(moment.kind not in _BOOKKEEPING for moment in rest):
            parent = _before(history, of)
            yield Node(CheckpointId(f"+{of.path}"), rest[-1].seq, of.path, parent, rest, None)


def _before(history: History, of: BranchHistory) -> tuple[CheckpointId, ...]:
    """Its last checkpoint; without one, the last of the branches above when it was forked."""
    if of.checkpoints:
        return (of.checkpoints[-1].id,)
    until, above = of.forked_at, of.parent
    while above is not None:
        line = history.branches[above]
        seen = [one.id for one in line.checkpoints if one.seq <= until]
        if seen:
            return (seen[-1],)
        until, above = line.forked_at, line.parent
    return ()


def name_of(moment: Moment) -> str:
    """The name of a moment's step, otherwise its kind."""
    if moment.llm is not None:
        return f"model call #{moment.seq}"
    named = moment.op is None or moment.op.step is not None
    return moment.name if named else moment.kind.value.lower()


def came(moment: Moment) -> str:
    """A moment's result in a line; for a command the last line of its output, which says more than its call."""
    if moment.op is None or not moment.summary.startswith(RunResult.__name__):
        return moment.summary
    result = command_result(moment.op)
    if result is None:
        return moment.summary
    said = (result.stdout.strip() or result.stderr.strip()).rpartition("\n")[2]
    return f"exit {result.exit_code}" + (f", {said}" if said else "")


def title(node: Node) -> str:
    """What a node was made by, in a line."""
    if node.checkpoint is None:
        told = [moment for moment in node.moments if moment.kind not in _BOOKKEEPING]
        last = next((moment for moment in reversed(told) if moment.llm is None), None)
        if last is None:
            return "model calls"
        return f"{name_of(last)}: {came(last)}" if last.summary else name_of(last)
    made = node.moments[-1] if node.moments and node.moments[-1].seq == node.seq else None
    if made is not None and made.kind is OpKind.SEAL:  # the step that it seals says more
        sealed = (one for one in reversed(node.moments) if one.op is not None and one.kind not in _BOOKKEEPING)
        made = next(sealed, made)
    label = node.checkpoint.label
    if made is None or not made.summary:
        return label
    name, said = label or made.name, came(made)
    return said if made.kind is OpKind.MERGE or name in said else f"{name}: {said}"


def _shown(history: History, drawn: str, node: Node | None, tips: Mapping[BranchPath, CheckpointId]) -> StyledLine:
    if node is None:
        return StyledLine(((_narrow(drawn), Look.DIM),), passed=True)
    if node.checkpoint is None:
        drawn = drawn.replace(NODE, OPEN_NODE)
    failed = any(moment.status is OpStatus.FAILED for moment in node.moments)
    spans: list[Span] = [(f"{_narrow(drawn)} ", Look.BAD if failed else Look.PLAIN)]
    spans.append((safe(title(node)), Look.PLAIN))
    if failed:
        spans.append((" ✗", Look.BAD))
    if any(moment.reused_from for moment in node.moments):
        spans.append((" ↺", Look.INFO))
    calls = sum(moment.llm is not None for moment in node.moments)
    if calls:
        spans.append((f" ✎{calls}", Look.NOTE))
    if tips[node.branch] == node.id:
        end = history.branches[node.branch].end
        short = node.branch.rpartition("/")[2]
        spans.append((f" ({short})" if end is End.OPEN else f" ({short} {end.value})", _ENDS[end]))
    if node.checkpoint is not None:
        spans.append((f" {node.id[:8]}", Look.DIM))
    return StyledLine(tuple(spans), node=node.id)


def _narrow(drawn: str) -> str:
    """At most as many columns as fit, those around the node."""
    if len(drawn) <= _WIDEST:
        return drawn
    begin = max(0, max(drawn.find(NODE), drawn.find(OPEN_NODE), drawn.find("├")) - _WIDEST + 4)
    head = "…" if begin else ""
    tail = "…" if begin + _WIDEST < len(drawn) else ""
    return head + drawn[begin + len(head) : begin + _WIDEST - len(tail)] + tail
