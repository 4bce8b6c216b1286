"""Gives expressions inside f-strings their true positions. Python reports them only from 3.12 on."""

from __future__ import annotations

import ast
import re
import sys

_FIELD = re.compile(r"\{\{|\}\}|\{")


def place_fstrings(text: str, tree: ast.Module) -> None:
    """Re-parse each field of each f-string at its position. A field without a known position is emptied and never
    edited.
    """
    if sys.version_info >= (3, 12):
        return
    rows = re.findall(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+", text)
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            fields = [part for part in node.values if isinstance(part, ast.FormattedValue)]
            found = _fields(rows[node.lineno - 1], node) if node.lineno == node.end_lineno else []
            placed = [_parse(source, node.lineno, column) for column, source in found]
            good = len(placed) == len(fields) and all(
                new is not None and ast.dump(new) == ast.dump(field.value)
                for new, field in zip(placed, fields, strict=True)
            )
            for field, new in zip(fields, placed if good else [None] * len(fields), strict=True):
                field.value = new if new is not None else ast.Constant(value=None)
                field.format_spec = None
            node.values = list(fields) if good else []


def _fields(row: str, node: ast.JoinedStr) -> list[tuple[int, str]]:
    """Yield the column in bytes and the text of the expression, for each field of a one-line f-string."""
    raw = row.encode()
    text = raw[node.col_offset : node.end_col_offset].decode()
    fields, at = [], 0
    while match := _FIELD.search(text, at):
        at = match.end()
        if match.group() != "{":
            continue
        depth, end = 0, at
        while end < len(text) and (depth or text[end] not in "}:!="):
            depth += (text[end] in "([{") - (text[end] in ")]}")
            end += 1
            if text[end : end + 2] in ("!=", "=="):
                end += 2
        fields.append((node.col_offset + len(text[:at].encode()), text[at:end]))
        depth = 1
        while end < len(text) and depth:
            depth += (text[end] == "{") - (text[end] == "}")
            end += 1
        at = end
    return fields


def _parse(source: str, line: int, column: int) -> ast.expr | None:
    try:
        expression = ast.parse(source.strip(), mode="eval").body
    except SyntaxError:
        return None
    shift = column + len(source) - len(source.lstrip())
    for node in ast.walk(expression):
        if isinstance(node, ast.expr | ast.keyword | ast.arg) and node.lineno == 1:
            node.lineno, node.col_offset = line, node.col_offset + shift
            node.end_lineno, node.end_col_offset = line, (node.end_col_offset or 0) + shift
    return expression
