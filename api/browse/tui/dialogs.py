"""The dialogs over the browser: the runs, a question, an answer, the output of a resume, the keys.

A resume runs in a process of its own, as if the user had typed it. The user's code prints, changes signal handlers,
imports anything and may hang. None of this may affect the terminal that the browser draws on. The browser reads the
run from the database, as it reads any other.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from rich.table import Table
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Input, Static

from ramify.browse.tui.styled_lines import LineView, Look, StyledLine, line, safe
from ramify.inspect.home import Home
from ramify.runtime.records import RunId

_KILLED_AFTER_S = 10.0


def command(home: Home, run_id: str, answers: Sequence[str]) -> list[str]:
    """`-P`: a module of the current folder does not stand in for one of Python's or ours, as with the command."""
    words = [sys.executable, "-P", "-m", "ramify.cli.main", "--home", str(home.folder)]
    if home.database_given is not None:
        words += ["--database", home.database_given]
    return [*words, "resume", run_id, *(f"--answer={answer}" for answer in answers)]


@dataclass
class ResumeProcess:
    """One resume and its output. `heard` is called after each line, and at the end."""

    run_id: str
    heard: Callable[[], None]
    said: list[str] = field(default_factory=list)
    status: int | None = None  # its exit status; None while it runs
    _process: asyncio.subprocess.Process | None = None

    async def work(self, words: Sequence[str]) -> None:
        """Run to the end. If cancelled, the process is stopped as by Ctrl-C, and the run can be resumed again."""
        self._process = process = await asyncio.create_subprocess_exec(
            *words,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env={**os.environ, "NO_COLOR": "1", "PYTHONUNBUFFERED": "1"},
            start_new_session=True,  # the terminal's Ctrl-C is for the browser
        )
        assert process.stdout is not None
        try:
            while chunk := await process.stdout.read(1 << 16):
                self._hear(chunk.decode(errors="replace"))
            self.status = await process.wait()
        finally:
            if process.returncode is None:
                await asyncio.shield(self._end(process))
        self.heard()

    def stop(self) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.send_signal(signal.SIGINT)

    async def _end(self, process: asyncio.subprocess.Process) -> None:
        process.send_signal(signal.SIGINT)
        try:
            await asyncio.wait_for(process.wait(), _KILLED_AFTER_S)
        except TimeoutError:
            process.kill()
            await process.wait()

    def _hear(self, text: str) -> None:
        first, *rest = text.split("\n")
        self.said[-1:] = [(self.said[-1] if self.said else "") + first]
        self.said += rest
        self.heard()


KEYS = (
    ("j k ↓ ↑", "next, previous line"),
    ("g G", "first, last line"),
    ("space ctrl+b", "a page down, up"),
    ("h l", "left, right"),
    ("tab", "branches or details"),
    ("1-6 [ ]", "State, Files, Timeline, Calls, Shell, Effects"),
    ("enter", "from a list to the details below; from a bar of the timeline to its checkpoint"),
    ("z", "only the part with the cursor, or both"),
    ("/ n N", "search, next, previous. In the branches: in labels, steps, results, prompts, answers, paths"),
    ("a", "only the node, or the whole run (Timeline, Calls, Shell, Effects)"),
    ("m d", "mark a node; compare files with the marked node, or with the parent"),
    ("f", "fork the run at this node, as a new run"),
    ("r", "resume the run, or answer its question"),
    ("o x", "output of the resume; stop it (it can be resumed again)"),
    ("R", "the runs"),
    ("F", "follow new checkpoints, or stay"),
    ("? q", "show these keys; quit"),
    ("", ""),
    ("● ○", "checkpoint; done after the last checkpoint"),
    ("✎ ↺ ✗", "model calls; reused; failed"),
)


class Dialog(ModalScreen[str | None]):
    """A box over the browser; Escape closes it with None."""

    BINDINGS: ClassVar = [Binding("escape,q", "dismiss(None)", "Back")]
    DEFAULT_CSS = """
    Dialog { align: center middle; }
    Dialog > Vertical, Dialog > VerticalScroll { width: 90%; max-width: 110; height: auto; max-height: 90%;
        border: round ansi_cyan; padding: 0 1; background: ansi_default; }
    Dialog Static { width: 100%; height: auto; }
    Dialog LineView { height: auto; max-height: 30; min-height: 1; }
    """


class KeysDialog(Dialog):
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


class ConfirmDialog(Dialog):
    """Returns the key that was pressed: "y" for yes, or another key that is offered."""

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
    """A question that a run waits for. `id`: None if it is not known."""

    id: str | None
    text: str


class AnswerDialog(Dialog):
    """Asks for a text that answers one of the run's questions."""

    BINDINGS: ClassVar = [Binding("escape", "dismiss(None)", "Back")]

    def __init__(self, asked: Waiting) -> None:
        super().__init__()
        self._asked = asked

    def compose(self) -> ComposeResult:
        with Vertical() as box:
            which = "an answer" if self._asked.id is None else f"the answer to question {self._asked.id}"
            box.border_title = Text(safe(f"The run waits for {which}"))  # a `str` is read as markup
            asked = "\n".join(map(safe, self._asked.text.split("\n")))
            yield Static(f"{asked}\nJSON or text. esc: back", markup=False)
            yield Input()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        self.dismiss(event.value)


class RunsDialog(Dialog):
    """The runs, newest first; returns the chosen one."""

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


class OutputDialog(Dialog):
    """The output of a resume, live."""

    BINDINGS: ClassVar = [Binding("o,enter", "dismiss(None)", "Back"), Binding("x", "stop", "Stop")]

    def __init__(self, resuming: ResumeProcess) -> None:
        super().__init__()
        self._resuming = resuming

    def compose(self) -> ComposeResult:
        with Vertical() as box:
            box.border_title = Text(safe(f"ramify resume {self._resuming.run_id}"))
            box.border_subtitle = "esc: back (it continues)   x: stop it"
            yield LineView(id="output")

    def on_mount(self) -> None:
        self.query_one(LineView).focus()
        self.heard()

    def heard(self) -> None:
        """There is more output: scroll to its end, unless the cursor was moved up."""
        view = self.query_one(LineView)
        at_end = view.cursor >= len(view.lines) - 1
        told = [line(one) for one in self._resuming.said]
        if self._resuming.status is not None:
            done = self._resuming.status == 0
            told.append(line(f"exit {self._resuming.status}", Look.GOOD if done else Look.BAD))
        view.show(told, len(told) if at_end else view.cursor)

    def action_stop(self) -> None:
        self._resuming.stop()
