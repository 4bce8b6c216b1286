"""Parse code while other threads parse, too."""

from __future__ import annotations

from collections.abc import Callable
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
