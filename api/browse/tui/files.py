"""The tab Files: what differs in the environment and on disk, as a list that leads into the diffs below it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ramify.browse.tui.styled_lines import Line, Look, line, wrapped
from ramify.cli.commands.diff import change_lines, variable_lines
from ramify.inspect.text import count

if TYPE_CHECKING:
    from ramify.browse.tui.subject import Subject
    from ramify.inspect.patch import FilePatch
    from ramify.inspect.state import Between

_LOOKS = (
    ("diff ", Look.HEAD),
    ("+++ ", Look.BOLD),
    ("--- ", Look.BOLD),
    ("@@", Look.INFO),
    ("+", Look.GOOD),
    ("-", Look.BAD),
)
_CHANGES = {"A": Look.GOOD, "D": Look.BAD}


def lines(of: Subject) -> Iterator[Line]:
    change = of.change
    if change is None:
        nothing = "The workspace as it was" if of.node.checkpoint else "Not sealed: its files were not kept"
        yield from wrapped(f"{nothing}. m marks a state, d shows what differs from it.", of.width, Look.NOTE)
        return
    since = "since its parent" if of.against is None else f"since {of.against.id[:10]} ({of.against.branch})"
    yield line(f"{count(len(change.files), 'path')} changed {since}", Look.BOLD)
    yield from (line(one, Look.NOTE) for one in variable_lines(change))
    yield from _files(change)


def _files(change: Between) -> Iterator[Line]:
    by_path = {patch.path: patch for patch in change.patches}
    bodies = {path: list(_patch_lines(patch)) for path, patch in by_path.items()}
    at = 1 + len(variable_lines(change)) + len(change.files) + 1
    for one, said in zip(change.files, change_lines(list(change.files)), strict=True):
        body = bodies.get(one.path)
        spans = ((f"{said[:1]} ", _CHANGES.get(said[:1], Look.NOTE)), (line(said[2:]).text, Look.PLAIN))
        yield Line(spans + _counts(by_path.get(one.path)), to=None if body is None else at)
        at += len(body or ())
    yield Line()
    for one in change.files:
        yield from bodies.get(one.path, ())


def _counts(patch: FilePatch | None) -> tuple[tuple[str, Look], ...]:
    if patch is None:
        return ()
    if patch.added is None or patch.removed is None:
        return (("  binary or large", Look.DIM),)
    return ((f"  +{patch.added}", Look.GOOD), (f" -{patch.removed}", Look.BAD))


def _patch_lines(patch: FilePatch) -> Iterator[Line]:
    for one in os.fsdecode(patch.text).split("\n")[:-1]:
        look = next((look for start, look in _LOOKS if one.startswith(start)), Look.PLAIN)
        yield line(one, look)
    yield Line()
