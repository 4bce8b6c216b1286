"""Candidate edits of a Python file: one token replaced by a likely neighbour.

A model of 135M parameters cannot write an edit, but it can choose which of several edits to try.
"""

from __future__ import annotations

import ast
import io
import tokenize
from typing import TypedDict

NEIGHBOURS = {
    "<": ["<="],
    "<=": ["<"],
    ">": [">="],
    ">=": [">"],
    "==": ["!="],
    "!=": ["=="],
    "+": ["-"],
    "-": ["+"],
    "and": ["or"],
    "or": ["and"],
    "any": ["all"],
    "all": ["any"],
    "min": ["max"],
    "max": ["min"],
    "True": ["False"],
    "False": ["True"],
    "0": ["1"],
    "1": ["0", "2"],
    "2": ["1", "3"],
}


class Edit(TypedDict):
    """JSON values only, so that any checkpointer can store it."""

    file: str
    line: int
    before: str
    after: str


def candidates(file: str, source: str, test: str) -> list[Edit]:
    """Return every edit of one token in the function that the test is named after, in the order of the text."""
    lines, found = source.splitlines(), []
    first, last = _function(source, test)
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        line, column = token.start
        if first <= line <= last:
            for other in NEIGHBOURS.get(token.string, []):
                before = lines[line - 1]
                after = before[:column] + other + before[column + len(token.string) :]
                found.append(Edit(file=file, line=line, before=before, after=after))
    return found


def _function(source: str, test: str) -> tuple[int, int]:
    """Return the lines of the function with the longest name that the test's name contains; else all lines."""
    functions = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef)]
    named = [node for node in functions if node.name in test]
    node = max(named, key=lambda node: len(node.name), default=None)
    return (1, source.count("\n") + 1) if node is None else (node.lineno, node.end_lineno or node.lineno)


def applied(source: str, edit: Edit) -> str:
    lines = source.splitlines(keepends=True)
    lines[edit["line"] - 1] = edit["after"] + "\n"
    return "".join(lines)


def shown(edit: Edit) -> str:
    return f"line {edit['line']}: `{edit['before'].strip()}` becomes `{edit['after'].strip()}`"
