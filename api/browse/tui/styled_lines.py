"""Styled text, line by line, and the widget that shows it (`LineView`). Only visible lines are drawn, so ten million
cost as little as ten."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from typing import ClassVar

from rich.cells import cell_len
from rich.segment import Segment
from rich.style import Style
from textual.binding import Binding
from textual.events import Click
from textual.geometry import Region, Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

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


_FOUND = Style(color="black", bgcolor="yellow")
_CURSOR, _CURSOR_AWAY = Style(reverse=True), Style(bold=True)
_MARK = Style(color="magenta", bold=True)
_MEASURED = 20_000  # lines whose width is measured; later lines are cut at the widest of these
_SIDEWAYS = 8


class LineView(ScrollView, can_focus=True):
    """Lines with a cursor."""

    BINDINGS: ClassVar = [
        Binding("j,down", "move(1)", "Down", show=False),
        Binding("k,up", "move(-1)", "Up", show=False),
        Binding("pagedown,space,ctrl+f", "page(1)", "Page down", show=False),
        Binding("pageup,ctrl+b", "page(-1)", "Page up", show=False),
        Binding("g,home", "to(0)", "First", show=False),
        Binding("G,end", "to(-1)", "Last", show=False),
        Binding("h,left", "sideways(-1)", "Left", show=False),
        Binding("l,right", "sideways(1)", "Right", show=False),
        Binding("enter", "choose", "Open", show=False),
    ]

    class Moved(Message):
        """The cursor is at another line."""

        def __init__(self, view: LineView) -> None:
            super().__init__()
            self.view = view

        @property
        def control(self) -> LineView:
            return self.view

    class Chosen(Moved):
        """Enter, or a second click."""

    def __init__(self, *, id: str) -> None:
        super().__init__(id=id)
        self.lines: Sequence[StyledLine] = ()
        self.cursor = 0
        self.needle = ""
        self.marked: str | None = None  # the node whose line is marked

    @property
    def current(self) -> StyledLine | None:
        return self.lines[self.cursor] if self.cursor < len(self.lines) else None

    def show(self, lines: Sequence[StyledLine], cursor: int = 0) -> None:
        """Show other lines, with the cursor at or near the given one."""
        self.lines = lines
        widest = max((cell_len(one.text) for one in lines[:_MEASURED]), default=0)
        self.virtual_size = Size(widest, len(lines))
        self.cursor = self._stop(max(0, min(cursor, len(lines) - 1)), 1)
        self._keep_in_sight()
        self.refresh()

    def move_to(self, at: int) -> None:
        """Move the cursor; a line outside means the nearest one inside."""
        at = self._stop(max(0, min(at, len(self.lines) - 1)), 1 if at >= self.cursor else -1)
        if at != self.cursor:
            self.cursor = at
            self.post_message(self.Moved(self))
        self._keep_in_sight()
        self.refresh()

    def _stop(self, at: int, step: int) -> int:
        """The nearest line in that direction where the cursor may stop; in the other direction if there is none."""
        for way in (step, -step):
            found = at
            while 0 <= found < len(self.lines):
                if not self.lines[found].passed:
                    return found
                found += way
        return 0

    def _keep_in_sight(self) -> None:
        region = Region(round(self.scroll_x), self.cursor, 1, 1)
        self.scroll_to_region(region, animate=False, force=True, immediate=True)

    def action_move(self, by: int) -> None:
        self.move_to(self.cursor + by)

    def action_page(self, by: int) -> None:
        self.move_to(self.cursor + by * max(1, self.size.height - 1))

    def action_to(self, at: int) -> None:
        self.move_to(len(self.lines) - 1 if at < 0 else at)

    def action_sideways(self, by: int) -> None:
        self.scroll_relative(x=by * _SIDEWAYS, animate=False, force=True, immediate=True)

    def action_choose(self) -> None:
        self.post_message(self.Chosen(self))

    def on_click(self, event: Click) -> None:
        at = round(self.scroll_y) + event.y
        if at < len(self.lines):
            again = at == self.cursor
            self.move_to(at)
            if again:
                self.action_choose()

    def on_resize(self) -> None:
        self._keep_in_sight()

    def on_focus(self) -> None:
        self.refresh()

    def on_blur(self) -> None:
        self.refresh()

    def render_line(self, y: int) -> Strip:
        at, width = round(self.scroll_y) + y, self.size.width
        base = self.rich_style
        if at >= len(self.lines):
            return Strip.blank(width, base)
        if at == self.cursor:
            base += _CURSOR if self.has_focus else _CURSOR_AWAY
        if self.marked is not None and self.lines[at].node == self.marked:
            base += _MARK
        pieces = [Segment(text, base + _style(look)) for text, look in self.lines[at].spans]
        strip = Strip(_marked(pieces, self.needle) if self.needle else pieces)
        left = round(self.scroll_x)
        return strip.crop_extend(left, left + width, base)


@cache
def _style(look: Look) -> Style:
    return Style.parse(look.value)


def matches(text: str, needle: str) -> bool:
    """Case counts if the needle has capitals."""
    return needle in text if needle != needle.lower() else needle in text.lower()


def _marked(pieces: list[Segment], needle: str) -> list[Segment]:
    """The pieces, with every match inside a piece in its own style."""
    marked = []
    for text, style, _ in pieces:
        seen = text if needle != needle.lower() else text.lower()
        if len(seen) != len(text):  # a letter whose lower-case form is longer
            seen = text
        begin = 0
        while (at := seen.find(needle, begin)) >= 0:
            marked += [Segment(text[begin:at], style), Segment(text[at : at + len(needle)], _FOUND)]
            begin = at + len(needle)
        marked.append(Segment(text[begin:], style))
    return marked
