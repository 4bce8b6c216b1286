"""What is asked and shown over the browser: the runs, a question, an answer, what a resume says, the keys."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from rich.table import Table
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Input, Static

from ramify.browse.tui.line_view import LineView
from ramify.browse.tui.resume_process import Resuming
from ramify.browse.tui.styled_lines import Look, StyledLine, line, safe
from ramify.runtime.records import RunId

KEYS = (
    ("j k ↓ ↑", "next, previous line"),
    ("g G", "first, last line"),
    ("space ctrl+b", "a page down, up"),
    ("h l", "left, right"),
    ("tab", "branches or details"),
    ("1-6 [ ]", "State, Files, Timeline, Calls, Shell, Effects"),
    ("enter", "from a list: to its part below; from a bar of the timeline: to its checkpoint"),
    ("z", "the part with the cursor alone, or both"),
    ("/ n N", "search, next, previous. In the branches: in labels, steps, results, prompts, answers, paths"),
    ("a", "the node alone, or all of the run (Timeline, Calls, Shell, Effects)"),
    ("m d", "mark a node; files since the marked one, or since the parent"),
    ("f", "fork the run at this node, as a new run"),
    ("r", "resume the run: go on with it, or answer what it waits for"),
    ("o x", "what the resume says; stop it (it can be resumed again)"),
    ("R", "the runs"),
    ("F", "follow what is new, or stay"),
    ("? q", "these keys; leave"),
    ("", ""),
    ("● ○", "checkpoint; done after the last checkpoint"),
    ("✎ ↺ ✗", "model calls; taken over; something failed"),
)


class Over(ModalScreen[str | None]):
    """A box over the browser; Escape leaves it with None."""

    BINDINGS: ClassVar = [Binding("escape,q", "dismiss(None)", "Back")]
    DEFAULT_CSS = """
    Over { align: center middle; }
    Over > Vertical, Over > VerticalScroll { width: 90%; max-width: 110; height: auto; max-height: 90%;
        border: round ansi_cyan; padding: 0 1; background: ansi_default; }
    Over Static { width: 100%; height: auto; }
    Over LineView { height: auto; max-height: 30; min-height: 1; }
    """


class Keys(Over):
    BINDINGS: ClassVar = [
        Binding("question_mark,enter", "dismiss(None)", "Back"),
        Binding("j", "down", show=False),
        Binding("k", "up", show=False),
    ]

    def compose(self) -> ComposeResult:
        table = Table.grid("", "", padding=(0, 2, 0, 0))
        for keys, what in KEYS:
            table.add_row(keys, what)
        with VerticalScroll() as box:
            box.border_title = "Keys"
            yield Static(table)

    def action_down(self) -> None:
        self.query_one(VerticalScroll).scroll_down(animate=False)

    def action_up(self) -> None:
        self.query_one(VerticalScroll).scroll_up(animate=False)


class Question(Over):
    """A yes, as "y", or one of the other keys that are offered."""

    def __init__(self, text: str, keys: Sequence[tuple[str, str]]) -> None:
        super().__init__()
        self._text, self._keys = text, dict(keys)

    def compose(self) -> ComposeResult:
        with Vertical():
            offered = "   ".join(f"{key}: {what}" for key, what in self._keys.items())
            yield Static(f"{safe(self._text)}\n\n{offered}   esc: back", markup=False)

    def on_key(self, event: object) -> None:
        key = getattr(event, "key", "")
        if key in self._keys:
            self.dismiss(key)


@dataclass(frozen=True, slots=True)
class Waiting:
    """A question that a run waits for. `id`: None where none is known."""

    id: str | None
    text: str


class Answer(Over):
    """A text, to one of the questions that a run waits with."""

    BINDINGS: ClassVar = [Binding("escape", "dismiss(None)", "Back")]

    def __init__(self, asked: Waiting) -> None:
        super().__init__()
        self._asked = asked

    def compose(self) -> ComposeResult:
        with Vertical() as box:
            which = "an answer" if self._asked.id is None else f"the answer to question {self._asked.id}"
            box.border_title = f"The run waits for {which}"
            asked = "\n".join(map(safe, self._asked.text.split("\n")))
            yield Static(f"{asked}\nJSON, or a text as it is. esc: back", markup=False)
            yield Input()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        self.dismiss(event.value)


class Runs(Over):
    """The runs, newest first; the one that is chosen."""

    def __init__(self, header: str, rows: Sequence[tuple[RunId, str]], here: RunId) -> None:
        super().__init__()
        self._ids = [id for id, _ in rows]
        self._lines = [line(header, Look.BOLD), *(line(text) for _, text in rows)]
        self._lines[0] = StyledLine(self._lines[0].spans, passed=True)
        self._here = self._ids.index(here) + 1 if here in self._ids else 1

    def compose(self) -> ComposeResult:
        with Vertical() as box:
            box.border_title = "Runs"
            yield LineView(id="runs")

    def on_mount(self) -> None:
        view = self.query_one(LineView)
        view.show(self._lines, self._here)
        view.focus()

    def on_line_view_chosen(self, event: LineView.Chosen) -> None:
        if 0 < event.view.cursor <= len(self._ids):
            self.dismiss(self._ids[event.view.cursor - 1])


class Output(Over):
    """What a resume says, as it comes."""

    BINDINGS: ClassVar = [Binding("o,enter", "dismiss(None)", "Back"), Binding("x", "stop", "Stop")]

    def __init__(self, resuming: Resuming) -> None:
        super().__init__()
        self._resuming = resuming

    def compose(self) -> ComposeResult:
        with Vertical() as box:
            box.border_title = safe(f"ramify resume {self._resuming.run_id}")
            box.border_subtitle = "esc: back (it goes on)   x: stop it"
            yield LineView(id="output")

    def on_mount(self) -> None:
        self.query_one(LineView).focus()
        self.heard()

    def heard(self) -> None:
        """There is more of it: shown to its end, unless the cursor was moved up."""
        view = self.query_one(LineView)
        at_end = view.cursor >= len(view.lines) - 1
        told = [line(one) for one in self._resuming.said]
        if self._resuming.status is not None:
            done = self._resuming.status == 0
            told.append(line(f"exit {self._resuming.status}", Look.GOOD if done else Look.BAD))
        view.show(told, len(told) if at_end else view.cursor)

    def action_stop(self) -> None:
        self._resuming.stop()
