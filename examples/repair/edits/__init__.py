"""Systematic edits of a syntax tree, written by source spans: formatting and comments stay as they are."""

from __future__ import annotations

from collections.abc import Iterator

from . import calls, guards, idioms, insertions, names, operators, statements, updates, values
from .base import Change, Edit, Facts, View, apply_edit

MAKERS = (
    *operators.MAKERS,
    *values.MAKERS,
    *names.MAKERS,
    *calls.MAKERS,
    *statements.MAKERS,
    *updates.MAKERS,
    *insertions.MAKERS,
    *guards.MAKERS,
    *idioms.MAKERS,
)

__all__ = ["Change", "Edit", "Facts", "View", "apply_edit", "every_edit"]


def every_edit(view: View) -> Iterator[Edit]:
    """Yield all edits of one file that could change what its failing tests see."""
    for make in MAKERS:
        yield from make(view)
