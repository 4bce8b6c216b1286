"""A run's branches as a tree that grows row by row. `ramify tree` prints it, `Progress` shows it while it grows."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum

from ramify.compiler.plan import OpKind
from ramify.inspect.text import printable
from ramify.runtime.records import ROOT, LLMRecord, OpRecord, OpStatus

REUSED, MERGED, FAILED = "↺", "✓", "✗"
CANCELLED = (OpKind.FORK, OpKind.MERGE, OpKind.RELEASE, OpKind.INTERRUPT, OpKind.SLEEP)
"""Kinds of rows that fail only because the workflow cancelled the operation."""


class Look(StrEnum):
    """The style of a line, if colours can be shown."""

    PLAIN = ""
    DIM = "dim"  # released, or only counted
    GOOD = "green"  # merged
    BAD = "red"  # failed
    TAKEN = "cyan"  # reused from another branch


@dataclass(frozen=True, slots=True)
class TreeLine:
    prefix: str  # the tree's drawing
    text: str
    look: Look = Look.PLAIN


@dataclass(slots=True)
class Entry:
    """A step, or a stage of model calls that the workflow itself made."""

    name: str
    summary: str = ""
    look: Look = Look.PLAIN
    op_id: str = ""
    calls: int = 0  # 0: a step

    def text(self) -> str:
        if self.calls:
            return f"{self.name} ({self.calls} {'call' if self.calls == 1 else 'calls'})"
        mark = {Look.TAKEN: f"{REUSED} ", Look.BAD: f"{FAILED} "}.get(self.look, "")
        return f"{mark}{self.name}" + (f"  {self.summary}" if self.summary else "")


@dataclass(slots=True)
class ForkEntry:
    """A fork and the branches that it created."""

    place: str  # "fork.1.0": operation and occurrence, as in branch paths
    count: int = 0
    released: bool = False
    children: dict[str, BranchNode] = field(default_factory=dict)

    def text(self) -> str:
        count = max(self.count, len(self.children))
        return f"{self.place}  {count} {'branch' if count == 1 else 'branches'}"


@dataclass(slots=True)
class BranchNode:
    name: str
    entries: list[Entry | ForkEntry] = field(default_factory=list)
    merged: bool = False


class BranchTree:
    """Built from a run's rows in order; a row that comes twice counts once."""

    def __init__(self) -> None:
        self.root = BranchNode(ROOT)
        self._branches: dict[str, BranchNode] = {ROOT: self.root}
        self._forks: dict[str, ForkEntry] = {}  # by the path of the branch, "/" and the place
        self._seen: set[int] = set()

    def add(self, row: OpRecord) -> None:
        if row.seq in self._seen or row.status is OpStatus.UNDONE:
            return
        self._seen.add(row.seq)
        branch = self._branch(row.branch)
        if row.status is OpStatus.FAILED and row.kind in CANCELLED:
            branch.entries.append(_step(row))  # the workflow cancelled it
            return
        match row.kind:
            case OpKind.FORK:
                place, count = _place_and_count(row)
                self._fork(row.branch, place).count = count
            case OpKind.RELEASE:
                fork = self._forks.get(f"{row.branch}/{_place_and_count(row)[0]}")
                if fork is not None:  # None: the end of the root branch
                    fork.released = True
            case OpKind.MERGE:
                self._branch(row.attrs.get("theirs_branch", "")).merged = True
            case OpKind.RUN | OpKind.BREAK:
                branch.entries.append(_step(row))
            case OpKind.INTERRUPT:
                what = "answered" if row.status is OpStatus.DONE else row.status.value
                branch.entries.append(Entry(f"{what}: {printable(row.summary)}", op_id=row.op_id))
            case OpKind.SLEEP:
                branch.entries.append(Entry(printable(row.summary), op_id=row.op_id))
            case OpKind.CHANGE:
                branch.entries.append(Entry("code", printable(row.summary), op_id=row.op_id))
            case OpKind.RESTORE:
                branch.entries.append(Entry("restore", printable(row.summary), op_id=row.op_id))
            case OpKind.ENTER | OpKind.SEAL | OpKind.CALL_LLM:
                pass  # checkpoints are not drawn; model calls have rows of their own

    def add_llm(self, row: LLMRecord) -> None:
        if row.seq in self._seen:
            return
        self._seen.add(row.seq)
        if row.step_key is not None:
            return  # part of its step
        entries = self._branch(row.branch).entries
        last = entries[-1] if entries else None
        if isinstance(last, Entry) and last.calls and last.op_id == row.op_id:
            last.calls += 1
        else:
            entries.append(Entry("model", op_id=row.op_id, calls=1))

    def lines(self, *, fold: bool = False) -> list[TreeLine]:
        """`fold`: of a fork whose branches were released, draw only the merged ones and count the others."""
        return [TreeLine("", ROOT), *_entries(self.root, "", fold)]

    def _branch(self, path: str) -> BranchNode:
        known = self._branches.get(path)
        if known is not None:
            return known
        parent, _, last = path.rpartition("/")
        if not parent:
            return self.root
        place, _, index = last.rpartition(".")
        node = self._fork(parent, place).children.setdefault(index, BranchNode(index))
        self._branches[path] = node
        return node

    def _fork(self, branch: str, place: str) -> ForkEntry:
        key = f"{branch}/{place}"
        if key not in self._forks:
            self._forks[key] = ForkEntry(place)
            self._branch(branch).entries.append(self._forks[key])
        return self._forks[key]


def _step(row: OpRecord) -> Entry:
    look = Look.TAKEN if row.reused_from else Look.PLAIN
    if row.status is OpStatus.FAILED:
        look = Look.BAD
    return Entry(name_of(row), printable(row.summary or row.error or ""), look, row.op_id)


def name_of(row: OpRecord) -> str:
    """Return how a row is called in one line: a step by its name."""
    return "question" if row.kind is OpKind.INTERRUPT else printable(row.step or row.op_id)


def _entries(branch: BranchNode, prefix: str, fold: bool) -> Iterator[TreeLine]:
    for at, entry in enumerate(branch.entries):
        last = at == len(branch.entries) - 1
        look = entry.look if isinstance(entry, Entry) else Look.PLAIN
        yield TreeLine(prefix + ("└─ " if last else "├─ "), entry.text(), look)
        if isinstance(entry, ForkEntry):
            yield from _children(entry, prefix + ("   " if last else "│  "), fold)


def _children(fork: ForkEntry, prefix: str, fold: bool) -> Iterator[TreeLine]:
    children = sorted(fork.children.values(), key=lambda child: (len(child.name), child.name))
    folded = [child for child in children if fold and fork.released and not child.merged]
    drawn = [child for child in children if child not in folded]
    for at, child in enumerate(drawn):
        last = at == len(drawn) - 1 and not folded
        yield from _child(child, fork, prefix, last, fold)
    if folded:
        yield TreeLine(f"{prefix}└─ ", f"{len(folded)} released", Look.DIM)


def _child(child: BranchNode, fork: ForkEntry, prefix: str, last: bool, fold: bool) -> Iterator[TreeLine]:
    """One line if the branch has a single entry, otherwise a line and its entries below."""
    only = child.entries[0] if len(child.entries) == 1 else None
    inline = only if isinstance(only, Entry) else None
    look = inline.look if inline else Look.PLAIN
    ending = ""
    if child.merged:
        look, ending = Look.GOOD, f"  {MERGED} merged"
    elif fork.released and look is Look.PLAIN:
        look = Look.DIM
    text = f"{child.name}: {inline.text()}" if inline else f"{child.name}:"
    yield TreeLine(prefix + ("└─ " if last else "├─ "), text + ending, look)
    if not inline:
        yield from _entries(child, prefix + ("   " if last else "│  "), fold)


def _place_and_count(row: OpRecord) -> tuple[str, int]:
    """Of a fork, from its row or its release's: "op.occurrence" as in its children's paths, and their number."""
    said = json.loads(row.result_json or "{}")
    return str(said.get("place", row.op_id)), int(said.get("children", 0))
