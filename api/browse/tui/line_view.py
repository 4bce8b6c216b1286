"""The widget that shows lines. Only visible lines are drawn, so ten million cost as little as ten."""

from __future__ import annotations

from collections.abc import Sequence
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

from ramify.browse.tui.styled_lines import Look, StyledLine

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
