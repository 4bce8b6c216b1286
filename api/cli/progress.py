"""The progress of runs: on a terminal the growing tree of branches, in a pipe one line per operation.

with Progress.for_stream(sys.stderr) as progress:
    async with Runtime(observer=progress) as runtime: ...
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Self, TextIO

from ramify.cli.branch_tree import CANCELLED, FAILED, MERGED, REUSED, BranchTree, TreeLine, name_of
from ramify.compiler.plan import OpKind
from ramify.inspect.text import count, escaped, printable, seconds
from ramify.runtime.events import Event, LLMDone, Noticed, OpDone, Recovered, RunEnded, RunStarted
from ramify.runtime.records import ROOT, LLMRecord, OpRecord, OpStatus, RunId, RunRecord, RunStatus

if TYPE_CHECKING:
    from rich.text import Text

_LEAST_LINES = 6


@dataclass
class RunView:
    """What the events of one run say so far."""

    run: RunRecord
    begun: float  # when this process started to work on it
    tree: BranchTree = field(default_factory=BranchTree)
    steps: int = 0
    reused: int = 0
    llm_calls: int = 0
    replayed: int = 0  # operations and calls taken from the journal
    branches: set[str] = field(default_factory=set)

    def hear(self, event: OpDone | LLMDone) -> None:
        self.replayed += event.replayed
        if isinstance(event, LLMDone):
            self.llm_calls += 1
            self.tree.add_llm(event.row)
            return
        row = event.row
        self.tree.add(row)
        if row.branch != ROOT:
            self.branches.add(row.branch)
        if row.kind is OpKind.RUN and row.status is OpStatus.DONE:
            self.steps += 1
            self.reused += row.reused_from is not None

    def counters(self, now: float) -> str:
        parts = [
            count(self.steps, "step") + (f" ({self.reused} {REUSED} reused)" if self.reused else ""),
            count(len(self.branches), "fork"),
            count(self.llm_calls, "model call"),
        ]
        if self.run.deadline_s is not None:
            left = self.run.deadline_s - self.run.consumed_s - (now - self.begun)
            parts.append(f"{seconds(left)} left" if left >= 0 else f"deadline passed {seconds(-left)} ago")
        return ", ".join(parts)

    def ending(self, status: RunStatus, now: float) -> str:
        return f"{self.run.name} {self.run.id} {status} in {seconds(now - self.begun)}: {self.counters(now)}"


class Progress:
    """An observer of any number of runs that only counts. `for_stream` returns one that prints."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._views: dict[RunId, RunView] = {}

    @staticmethod
    def for_stream(stream: TextIO, *, quiet: bool = False) -> Progress:
        """A live tree if `stream` is a terminal that can move its cursor, otherwise lines; nothing if `quiet`."""
        if quiet:
            return Progress()
        if stream.isatty() and os.environ.get("TERM", "dumb") not in ("dumb", "unknown"):
            return LiveProgress(stream)
        return PlainProgress(stream)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def __call__(self, event: Event) -> None:
        """The observer."""
        match event:
            case RunStarted():
                view = RunView(event.run, self._clock())
                self._views[event.run.id] = view
                self._started(view, event)
            case Recovered():
                self._remarked(_recovered_line(event))
            case Noticed():
                self._remarked(event.what)
            case OpDone() | LLMDone():
                known = self._views.get(event.row.run_id)
                if known is not None:
                    known.hear(event)
                    self._heard(known, event)
            case RunEnded():
                ended = self._views.pop(event.run.id, None)
                if ended is not None:
                    self._ended(ended, event.status)

    def _started(self, view: RunView, event: RunStarted) -> None: ...

    def _heard(self, view: RunView, event: OpDone | LLMDone) -> None: ...

    def _remarked(self, line: str) -> None: ...

    def _ended(self, view: RunView, status: RunStatus) -> None: ...


class PlainProgress(Progress):
    """One line per operation. Results that a resumed run takes from its journal are counted in one line."""

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.time) -> None:
        super().__init__(clock)
        self._stream = stream
        self._told: set[RunId] = set()  # runs whose replay was printed

    def _started(self, view: RunView, event: RunStarted) -> None:
        verb = "continues" if event.resumed else "starts"
        self._say(f"{event.run.name} {event.run.id} {verb}")
        for line in _skipped(event):
            self._say(line)

    def _remarked(self, line: str) -> None:
        self._say(line)

    def _heard(self, view: RunView, event: OpDone | LLMDone) -> None:
        if event.replayed:
            return
        self._tell_replay(view)
        line = _llm_line(event.row) if isinstance(event, LLMDone) else _op_line(event.row)
        if line is not None:
            self._say(line)

    def _ended(self, view: RunView, status: RunStatus) -> None:
        self._tell_replay(view)
        self._say(view.ending(status, self._clock()))

    def _tell_replay(self, view: RunView) -> None:
        if view.replayed and view.run.id not in self._told:
            self._told.add(view.run.id)
            self._say(f"[{ROOT}] {count(view.replayed, 'result')} taken from the journal")

    def _say(self, line: str) -> None:
        self._stream.write(f"{escaped(line)}\n")
        self._stream.flush()


def _skipped(event: RunStarted) -> list[str]:
    lines = [f"left out of the snapshot: {printable(one.path)} ({one.reason})" for one in event.skipped[:5]]
    more = len(event.skipped) - 5
    return [*lines, f"and {more} more"] if more > 0 else lines


def _op_line(row: OpRecord) -> str | None:
    text = _op_text(row)
    return None if text is None else f"[{row.branch}] {text}"


def _op_text(row: OpRecord) -> str | None:
    """Each kind has an arm that returns, so that mypy reports a missing kind."""
    if row.status is OpStatus.FAILED and row.kind in CANCELLED:
        return f"{FAILED} {name_of(row)}: {printable(row.summary)}"  # the workflow cancelled it
    match row.kind:
        case OpKind.RUN | OpKind.CALL_TOOL | OpKind.BREAK:
            mark = {OpStatus.FAILED: f"{FAILED} "}.get(row.status, f"{REUSED} " if row.reused_from else "")
            said, took = printable(row.summary or row.error or ""), seconds(row.ended_at - row.started_at)
            return f"{mark}{printable(row.step or row.op_id)}" + (f": {said}" if said else "") + f" ({took})"
        case OpKind.FORK:
            return f"fork: {printable(row.summary)}"
        case OpKind.MERGE:
            return f"{MERGED} {printable(row.summary)}"
        case OpKind.RELEASE:
            return f"fork ends: {printable(row.summary)}"
        case OpKind.INTERRUPT:
            return f"{'asks' if row.status is OpStatus.ASKED else 'answered'}: {printable(row.summary)}"
        case OpKind.SLEEP:
            return printable(row.summary)
        case OpKind.CHANGE:
            return f"code: {printable(row.summary)}"
        case OpKind.ENTER | OpKind.SEAL | OpKind.CALL_LLM | OpKind.RESTORE | OpKind.COMMAND:
            return None
        case OpKind.PREFORK | OpKind.BARRIER:  # internal preparations
            return None


def _recovered_line(event: Recovered) -> str:
    return f"[{event.branch}] {event.level.value} in {seconds(event.took_s)}: {printable(event.why)}"


def _llm_line(row: LLMRecord) -> str:
    mark = f"{REUSED} " if row.reused_from else ""
    return f"[{row.branch}] {mark}model call ({seconds(row.ended_at - row.started_at)})"


class LiveProgress(Progress):
    """The tree of every running run, redrawn in place. When a run ends, its folded tree stays."""

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.time) -> None:
        from rich.console import Console
        from rich.live import Live

        super().__init__(clock)
        # rich calls `_draw` in a thread of its own, under its own lock: print nothing while this lock is held.
        self._lock = threading.Lock()
        self._unprinted: list[Text] = []
        self._console = Console(file=stream, highlight=False, markup=False)
        # Print the program's own output above the tree if it goes to this terminal, too.
        self._live = Live(
            console=self._console,
            get_renderable=self._draw,
            refresh_per_second=8,
            transient=True,
            redirect_stdout=_same_file(stream, 1),
            redirect_stderr=_same_file(stream, 2),
        )

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    def __call__(self, event: Event) -> None:
        with self._lock:
            super().__call__(event)
            unprinted, self._unprinted = self._unprinted, []
        for text in unprinted:
            self._console.print(text, no_wrap=True, overflow="ellipsis")

    def _started(self, view: RunView, event: RunStarted) -> None:
        self._unprinted += [_text(line, "yellow") for line in _skipped(event)]

    def _remarked(self, line: str) -> None:
        self._unprinted.append(_text(line, "yellow"))

    def _ended(self, view: RunView, status: RunStatus) -> None:
        lines = _bounded(view.tree.lines(fold=True), self._console.height - 2)
        self._unprinted += [_styled(line) for line in lines]
        look = {RunStatus.DONE: "green", RunStatus.WAITING: "yellow"}.get(status, "red")
        self._unprinted.append(_text(view.ending(status, self._clock()), look))

    def _draw(self) -> Text:
        from rich.text import Text

        with self._lock:
            drawn = Text(no_wrap=True, overflow="ellipsis")
            room = max(_LEAST_LINES, (self._console.height - 2) // max(1, len(self._views)) - 2)
            for view in self._views.values():
                drawn.append(f"{escaped(view.run.name)} {view.run.id}\n", style="bold")
                for line in _bounded(view.tree.lines(fold=True), room):
                    drawn.append_text(_styled(line)).append("\n")
                drawn.append(view.counters(self._clock()) + "\n", style="bold")
            return drawn


def _bounded(lines: list[TreeLine], room: int) -> list[TreeLine]:
    """The newest lines, and how many are above them."""
    if len(lines) <= room:
        return lines
    return [TreeLine("", f"… {len(lines) - room + 1} lines above"), *lines[len(lines) - room + 1 :]]


def _styled(line: TreeLine) -> Text:
    return _text(line.prefix, "dim").append(escaped(line.text), style=line.look.value)


def _text(text: str, look: str) -> Text:
    from rich.text import Text

    return Text().append(escaped(text), style=look)  # a style of the whole text would also apply to what is appended


def _same_file(stream: TextIO, descriptor: int) -> bool:
    """Whether the process's stdout (1) or stderr (2) is the same terminal as `stream`."""
    try:
        one, other = os.fstat(stream.fileno()), os.fstat(descriptor)
    except OSError:
        return False
    return (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino)
