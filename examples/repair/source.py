"""One Python file as text and syntax tree: where each node is in the text, and which names are in scope there."""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from .fstrings import place_fstrings

Function = ast.FunctionDef | ast.AsyncFunctionDef
Scope = Function | ast.ClassDef | ast.Module
BUILTINS = frozenset(dir(builtins))


@dataclass(frozen=True)
class Span:
    start: int  # characters from the start of the text
    end: int


class Source:
    """A parsed file. Raises SyntaxError if it does not parse."""

    def __init__(self, path: str, text: str) -> None:
        self.path = path
        self.text = text
        self.tree = ast.parse(text)
        place_fstrings(text, self.tree)
        self.parents: dict[ast.AST, ast.AST] = {
            child: node for node in ast.walk(self.tree) for child in ast.iter_child_nodes(node)
        }
        self._lines = re.findall(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+", text)  # as Python counts lines
        self._starts = [0]
        for line in self._lines:
            self._starts.append(self._starts[-1] + len(line))

    # Positions

    def offset(self, line: int, column: int) -> int:
        """Return the offset of a line (from 1) and a column in UTF-8 bytes, as syntax trees count."""
        row = self._lines[line - 1] if line <= len(self._lines) else ""
        width = column if row.isascii() else len(row.encode()[:column].decode())
        return self._starts[line - 1] + width

    def span(self, node: ast.AST) -> Span:
        assert isinstance(node, ast.expr | ast.stmt | ast.excepthandler | ast.arg | ast.keyword | ast.alias)
        assert node.end_lineno is not None and node.end_col_offset is not None
        line, column = node.lineno, node.col_offset
        if isinstance(node, Function | ast.ClassDef) and node.decorator_list:
            first = node.decorator_list[0]
            line, column = first.lineno, first.col_offset - 1
        return Span(self.offset(line, column), self.offset(node.end_lineno, node.end_col_offset))

    def code(self, node: ast.AST) -> str:
        span = self.span(node)
        return self.text[span.start : span.end]

    def line_span(self, node: ast.stmt) -> Span:
        """Return the whole lines of a statement, comment and line end included."""
        assert node.end_lineno is not None
        return Span(self._starts[first_line(node) - 1], self._starts[node.end_lineno])

    def line(self, number: int) -> str:
        return self._lines[number - 1].rstrip("\r\n") if 0 < number <= len(self._lines) else ""

    def indent(self, node: ast.stmt) -> str:
        row = self.line(first_line(node))
        return row[: len(row) - len(row.lstrip())]

    def alone(self, node: ast.stmt) -> bool:
        """Return True if the statement shares its lines with no other code (`if x: return` does)."""
        span = self.span(node)
        lines = self.line_span(node)
        rest = self.text[span.end : lines.end].strip()
        return not self.text[lines.start : span.start].strip() and (not rest or rest.startswith("#"))

    # Surroundings

    def ancestors(self, node: ast.AST) -> Iterator[ast.AST]:
        while node in self.parents:
            node = self.parents[node]
            yield node

    def function(self, node: ast.AST) -> Function | None:
        return next((up for up in self.ancestors(node) if isinstance(up, Function)), None)

    def class_of(self, node: ast.AST) -> ast.ClassDef | None:
        return next((up for up in self.ancestors(node) if isinstance(up, ast.ClassDef)), None)

    def statement(self, node: ast.AST) -> ast.stmt | None:
        if isinstance(node, ast.stmt):
            return node
        return next((up for up in self.ancestors(node) if isinstance(up, ast.stmt)), None)

    def loop(self, node: ast.AST) -> ast.For | ast.While | None:
        """Return the nearest loop around the node, in the same function."""
        for up in self.ancestors(node):
            if isinstance(up, ast.For | ast.While):
                return up
            if isinstance(up, Function | ast.Lambda):
                return None
        return None

    def block(self, node: ast.stmt) -> list[ast.stmt]:
        """Return the list of statements that contains this one."""
        parent = self.parents[node]
        for name in ("body", "orelse", "finalbody"):
            statements = getattr(parent, name, None)
            if isinstance(statements, list) and node in statements:
                return statements
        return [node]

    def blocks(self) -> Iterator[list[ast.stmt]]:
        for node in ast.walk(self.tree):
            for name in ("body", "orelse", "finalbody"):
                statements = getattr(node, name, None)
                if isinstance(statements, list) and statements:
                    yield statements

    @cached_property
    def functions(self) -> list[Function]:
        return [node for node in ast.walk(self.tree) if isinstance(node, Function)]

    @cached_property
    def module_names(self) -> frozenset[str]:
        return frozenset(bound_names(self.tree.body))

    def names_in(self, scope: Function) -> list[str]:
        """Return parameters and locals of a function and of those around it, in the order in which they appear."""
        names = [arg.arg for arg in parameters(scope)]
        names += [name for name in bound_names(scope.body) if name not in names]
        outer = self.function(scope)
        return names + [name for name in (self.names_in(outer) if outer else []) if name not in names]


def first_line(node: ast.stmt) -> int:
    """Return the line where a statement starts, decorators included: the first line of its code object."""
    decorators = getattr(node, "decorator_list", None)
    return min([node.lineno, *(item.lineno for item in decorators)]) if decorators else node.lineno


def parameters(function: Function | ast.Lambda) -> list[ast.arg]:
    args = function.args
    extra = [arg for arg in (args.vararg, args.kwarg) if arg]
    return [*args.posonlyargs, *args.args, *args.kwonlyargs, *extra]


def bound_names(body: list[ast.stmt]) -> list[str]:
    """Return the names that statements bind, without looking into nested functions."""
    names: dict[str, None] = {}
    todo: list[ast.AST] = list(body)
    while todo:
        node = todo.pop(0)
        if isinstance(node, Function | ast.ClassDef):
            names[node.name] = None
            continue
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names[node.id] = None
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names.update(dict.fromkeys((alias.asname or alias.name).split(".")[0] for alias in node.names))
        elif isinstance(node, ast.ExceptHandler) and node.name:
            names[node.name] = None
        if not isinstance(node, ast.Lambda | ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp):
            todo.extend(ast.iter_child_nodes(node))
    return list(names)


def used_names(node: ast.AST) -> set[str]:
    return {sub.id for sub in ast.walk(node) if isinstance(sub, ast.Name)}
