"""Styled text, line by line."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from ramify.inspect.text import printable
from ramify.inspect.values import plain
from ramify.runtime.records import CheckpointId

_LONGEST = 4000  # characters of a line; the rest is cut
_TAB = 8


class Look(StrEnum):
    """A style: one of the terminal's own sixteen colours, so that it is legible on light and dark."""

    PLAIN = ""
    BOLD = "bold"
    DIM = "dim"
    GOOD = "green"
    BAD = "red"
    NOTE = "yellow"
    INFO = "cyan"
    HEAD = "bold underline"


Span = tuple[str, Look]


@dataclass(frozen=True, slots=True)
class StyledLine:
    """Spans of text with their styles. Enter leads from it to another line, or to a node of the graph."""

    spans: tuple[Span, ...] = ()
    to: int | None = None  # Enter leads to this line of the same view
    node: CheckpointId | None = None  # or to this node of the graph
    passed: bool = False  # the cursor does not stop at it

    @property
    def text(self) -> str:
        return "".join(text for text, _ in self.spans)


def line(
    text: str = "", look: Look = Look.PLAIN, *, to: int | None = None, node: CheckpointId | None = None
) -> StyledLine:
    """A line; `text` may come from a user's program, and is made safe to print."""
    return StyledLine(((safe(text), look),) if text else (), to, node)


def safe(text: str) -> str:
    """One line of any text: tabs as blanks, no control characters, not endless."""
    if len(text) > _LONGEST:
        text = f"{text[:_LONGEST]}… ({len(text)} characters)"
    return printable(text.expandtabs(_TAB))


def paragraphs(text: str, look: Look = Look.PLAIN, *, indent: str = "") -> Iterator[StyledLine]:
    """Each line of a text by itself."""
    for one in text.split("\n"):
        yield line(indent + one.removesuffix("\r"), look)


def wrapped(text: str, width: int, look: Look = Look.PLAIN, *, indent: str = "") -> Iterator[StyledLine]:
    """A text for reading: longer lines are broken, at blanks if possible."""
    room = max(20, width - len(indent) - 2)
    for one in text.split("\n"):
        rest = safe(one.removesuffix("\r"))
        while len(rest) > room:
            cut = rest.rfind(" ", room // 2, room + 1)
            cut = room if cut < 0 else cut
            yield StyledLine(((indent + rest[:cut], look),))
            rest = rest[cut:].removeprefix(" ")
        yield StyledLine(((indent + rest, look),))


def table_lines(rows: Sequence[str], *, targets: Sequence[int | None] = ()) -> Iterator[StyledLine]:
    """The lines of `text.table`, its head in bold. `targets`: where Enter leads from each row below the head."""
    for at, row in enumerate(rows):
        to = targets[at - 1] if 0 < at <= len(targets) else None
        yield line(row, Look.BOLD if at == 0 else Look.PLAIN, to=to)


def fact_lines(facts: Iterable[tuple[str, str]]) -> Iterator[StyledLine]:
    for name, value in facts:
        yield StyledLine(((f"{name:<11}", Look.DIM), (safe(value), Look.PLAIN)))


def heading(text: str) -> Iterator[StyledLine]:
    yield StyledLine()
    yield line(text, Look.HEAD)


def scope_of(whole_run: bool, what: str, part: str = "of this node") -> StyledLine:
    """What the lines below describe, and which key shows the others."""
    if whole_run:
        return line(f"{what} of the whole run (a: {part} alone)", Look.DIM)
    return line(f"{what} {part} (a: of the whole run)", Look.DIM)


def json_lines(text: str, width: int, *, indent: str = "  ") -> Iterator[StyledLine]:
    """A stored value with line breaks. The user's types are not loaded: they are shown as stored."""
    for one in _laid(plain(json.loads(text)), max(20, width - len(indent) - 2)):
        yield from wrapped(one, width, indent=indent)


def _laid(value: object, room: int) -> Iterator[str]:
    """On one line if it fits, otherwise each part by itself."""
    whole = json.dumps(value, ensure_ascii=False)
    if len(whole) <= room or not isinstance(value, dict | list) or not value:
        yield whole
        return
    named = isinstance(value, dict)
    yield "{" if named else "["
    parts = list(value.items()) if isinstance(value, dict) else [("", one) for one in value]
    for at, (name, part) in enumerate(parts):
        first, *rest = _laid(part, room - 2)
        head = f"{json.dumps(name, ensure_ascii=False)}: " if named else ""
        told = [f"  {head}{first}", *(f"  {one}" for one in rest)]
        told[-1] += "," if at < len(parts) - 1 else ""
        yield from told
    yield "}" if named else "]"
