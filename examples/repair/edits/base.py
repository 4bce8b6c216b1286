"""The types of edits, and the view of one file that the edit makers work on."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeVar

from ..source import Function, Source, first_line

ATOMS = (
    ast.Name | ast.Constant | ast.Call | ast.Attribute | ast.Subscript | ast.List | ast.Dict | ast.Set | ast.Tuple
    | ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp | ast.JoinedStr
)  # fmt: skip


N = TypeVar("N", bound=ast.AST)


@dataclass(frozen=True, slots=True)
class Change:
    """Replace the characters start:end of a file, which read `old`, by `new`."""

    start: int
    end: int
    old: str
    new: str


@dataclass(frozen=True, slots=True)
class Edit:
    """One small change of one file. `weight` is its plausibility among edits of its kind, before any test has run."""

    path: str
    kind: str
    line: int
    changes: tuple[Change, ...]
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class Facts:
    """What the traced suite shows about one file."""

    suspicion: dict[int, float]  # line -> suspicion, 0..1; only lines that a failing test ran
    types: dict[tuple[int, str], frozenset[str]] = field(default_factory=dict)  # (function line, name) -> types
    holds: tuple[tuple[int, str, int, int], ...] = ()  # (function line, predicate, failing, passing tests)
    expected: tuple[str, ...] = ()  # literals that failing tests expected
    raises: tuple[str, ...] = ()  # exceptions that failing tests expected
    hints: frozenset[str] = frozenset()  # how results differ from what was expected: see localise.differences
    factors: tuple[str, ...] = ()  # "/ 100", "* 2", "+ 3": what would make a result the expected one


class View:
    """One file with its facts. It finds suspicious nodes and writes edits for them."""

    def __init__(self, source: Source, facts: Facts) -> None:
        self.source = source
        self.facts = facts

    # Finding

    def live(self, node: ast.AST) -> float:
        """Return how suspicious a node is: by its own lines, or by its statement's if it has none."""
        here = self._span_suspicion(node)
        if here:
            return here
        statement = self.source.statement(node)
        if statement is None or statement is node:
            return 0.0
        return self.facts.suspicion.get(statement.lineno, 0.0)

    def _span_suspicion(self, node: ast.AST) -> float:
        if isinstance(node, Function | ast.ClassDef):
            return self.facts.suspicion.get(first_line(node), 0.0)
        start = getattr(node, "lineno", 0)
        end = getattr(node, "end_lineno", start) or start
        if isinstance(node, ast.If | ast.While | ast.For | ast.With | ast.Try):
            end = start
        return max((self.facts.suspicion.get(line, 0.0) for line in range(start, end + 1)), default=0.0)

    def nodes(self, kind: type[N]) -> Iterator[N]:
        """Yield the nodes of a type that a failing test ran."""
        for node in self._ordered:
            if isinstance(node, kind) and self.live(node) > 0:
                yield node

    @cached_property
    def _ordered(self) -> list[ast.AST]:
        return list(self.source.parents)

    def types(self, node: ast.AST, name: str) -> frozenset[str]:
        """Return the runtime types of a variable (or `self.name`) in the function around a node; empty if unknown."""
        function = self.source.function(node)
        if function is None:
            found = [kinds for (line, known), kinds in self.facts.types.items() if known == name]
        else:
            start, end = first_line(function), function.end_lineno or function.lineno
            found = [
                kinds for (line, known), kinds in self.facts.types.items() if known == name and start <= line <= end
            ]
        return frozenset().union(*found)

    # Writing

    def replace(self, node: ast.AST, text: str, kind: str, weight: float = 1.0) -> Iterator[Edit]:
        """Replace a node's text by `text`, in parentheses if it would bind differently."""
        span = self.source.span(node)
        old = self.source.text[span.start : span.end]
        if isinstance(node, ast.expr):
            text = self._bracketed(node, text)
        if text != old:
            yield self.edit(node, kind, weight, Change(span.start, span.end, old, text))

    def edit(self, node: ast.AST, kind: str, weight: float, *changes: Change) -> Edit:
        line = first_line(node) if isinstance(node, ast.stmt) else getattr(node, "lineno", 1)
        return Edit(self.source.path, kind, line, tuple(sorted(changes, key=lambda c: (c.start, c.end))), weight)

    def between(self, left: ast.AST, right: ast.AST, old: str, new: str) -> Change | None:
        """Return the change of the token `old` that stands between two nodes."""
        start, end = self.source.span(left).end, self.source.span(right).start
        at = self.source.text.find(old, start, end)
        return Change(at, at + len(old), old, new) if at >= 0 else None

    def swap(self, one: ast.AST, two: ast.AST, kind: str, weight: float = 1.0) -> Iterator[Edit]:
        a, b = self.source.span(one), self.source.span(two)
        first, second = self.source.text[a.start : a.end], self.source.text[b.start : b.end]
        if first != second and (a.end <= b.start or b.end <= a.start):
            yield self.edit(
                one, kind, weight, Change(a.start, a.end, first, second), Change(b.start, b.end, second, first)
            )

    def insert(
        self, statement: ast.stmt, text: str, kind: str, weight: float, *, after: bool = False
    ) -> Iterator[Edit]:
        """Insert lines before or after a statement, at its indentation. `text` may have several lines."""
        if not self.source.alone(statement):
            return
        span = self.source.line_span(statement)
        at = span.end if after else span.start
        indent = self.source.indent(statement)
        new = "".join(f"{indent}{line}\n" for line in text.split("\n"))
        if after and not self.source.text[:at].endswith("\n"):
            new = "\n" + new
        yield self.edit(statement, kind, weight, Change(at, at, "", new))

    def _bracketed(self, node: ast.expr, text: str) -> str:
        parent = self.source.parents.get(node)
        tight = isinstance(parent, ast.BinOp | ast.UnaryOp | ast.Compare | ast.BoolOp | ast.Starred) or (
            isinstance(parent, ast.Attribute | ast.Subscript | ast.Call)
            and node is getattr(parent, "value", getattr(parent, "func", None))
        )
        if not tight:
            return text
        try:
            tree = ast.parse(text.strip(), mode="eval").body
        except SyntaxError:
            return text
        return text if isinstance(tree, ATOMS) else f"({text})"


Maker = Callable[[View], Iterator[Edit]]


def apply_edit(text: str, edit: Edit) -> str:
    """Return the text after an edit. Raises ValueError if the edit was made for another text."""
    for change in reversed(edit.changes):
        if text[change.start : change.end] != change.old:
            raise ValueError(f"{edit.path}: {change.old!r} does not stand at {change.start}")
        text = text[: change.start] + change.new + text[change.end :]
    return text
