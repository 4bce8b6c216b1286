"""Parse code while other threads parse, too, and each text of a file once in a process."""

from __future__ import annotations

import ast
from collections import OrderedDict
from collections.abc import Callable
from threading import Lock
from typing import TypeVar

T = TypeVar("T")

_ATTEMPTS = 50


def parsed(parse: Callable[[], T]) -> T:
    """Return what `parse` returns, which calls `ast.parse` or something that does.

    CPython 3.11 counts the depth of a tree once for all threads while it builds it. If two threads do so at once, one
    of them may get `SystemError: AST constructor recursion depth mismatch`. Then it is parsed again.
    """
    for _ in range(_ATTEMPTS - 1):
        try:
            return parse()
        except SystemError as error:
            if "recursion depth mismatch" not in str(error):
                raise
    return parse()


_MOST_KEPT = 1 << 18
"""How many characters the texts of the kept trees have in all. A tree is some fifty times as large as its text."""

_kept: OrderedDict[tuple[str, str], ast.Module] = OrderedDict()
_kept_lock = Lock()


def tree_of(text: str, path: str) -> ast.Module:
    """Return a syntax tree of a file's text, which the caller may change. Raises `SyntaxError`."""
    return parsed(lambda: ast.parse(text, filename=path))


def shared_tree_of(text: str, path: str) -> ast.Module:
    """As `tree_of`, but nobody may change the tree. The trees of the last files are kept, with what was found about
    their nodes: a process that compiles or resumes several runs of a workflow reads the same files each time."""
    key = (path, text)
    with _kept_lock:
        if (known := _kept.get(key)) is not None:
            _kept.move_to_end(key)
            return known
    tree = tree_of(text, path)
    with _kept_lock:
        _kept[key] = tree
        while sum(len(text) for _, text in _kept) > _MOST_KEPT:
            _kept.popitem(last=False)
    return tree
