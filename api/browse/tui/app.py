"""The browser: the branch graph, the tabs beside it, and what the keys do."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack
from typing import ClassVar

from rich.text import Text
from textual import on, work
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Container, Vertical
from textual.events import Resize
from textual.widgets import Footer, Input, Static

from ramify.browse.tui.activity_tabs import Subject, Tab
from ramify.browse.tui.branch_graph import Graph, Node, graph
from ramify.browse.tui.dialogs import KeysDialog, RunsDialog
from ramify.browse.tui.run_actions import RunActions
from ramify.browse.tui.search import SearchActions
from ramify.browse.tui.styled_lines import LineView, safe
from ramify.browse.tui.tabs import lines_of
from ramify.inspect.facts import deadline_line, run_table
from ramify.inspect.history import History, read
from ramify.inspect.home import Home
from ramify.inspect.text import count
from ramify.runtime.errors import RunError
from ramify.runtime.records import CheckpointId, CheckpointRecord, RunId, RunRecord

POLL_S = 0.5
_SHARE = 4  # polling takes at most this fraction of the time
_BAR = 400  # columns of the head, which is a bar from side to side
_WIDE = 110  # from this width, branches and details are side by side
_RUNS = 500
_REST_S = 0.02  # while a key is held down, the details of passed nodes are skipped


class Browser(RunActions, SearchActions):
    """Shows `run`: at `checkpoint` if one is given, otherwise at the newest one, which it follows."""

    ENABLE_COMMAND_PALETTE = False
    CSS_PATH = "browser.tcss"
    BINDINGS: ClassVar = [
        Binding("tab,shift+tab", "other_part", "Part", priority=True),
        *(Binding(str(at + 1), f"tab('{tab.name}')", show=False) for at, tab in enumerate(Tab)),
        Binding("right_square_bracket", "next_tab(1)", "Tab", key_display="1-6"),
        Binding("left_square_bracket", "next_tab(-1)", show=False),
        Binding("slash", "search", "Search", key_display="/"),
        Binding("n", "again(1)", show=False),
        Binding("N", "again(-1)", show=False),
        Binding("a", "scope", show=False),
        Binding("m", "mark", "Mark"),
        Binding("d", "compare", "Diff"),
        Binding("f", "fork", "Fork"),
        Binding("r", "resume", "Resume"),
        Binding("R", "runs", "Runs"),
        Binding("question_mark", "keys", "Keys", key_display="?"),
        Binding("q", "quit", "Quit"),
        Binding("ctrl+c", "quit", show=False, priority=True),  # also in dialogs
        Binding("o", "output", show=False),
        Binding("x", "stop_resume", show=False),
        Binding("F", "follow", show=False),
        Binding("z", "zoom", show=False),
        Binding("escape", "leave_search", show=False),
    ]

    def __init__(self, home: Home, run: RunRecord, checkpoint: CheckpointRecord | None = None) -> None:
        super().__init__()
        self.theme = "ansi-dark"  # the terminal's own colours
        self.home = home
        self._run, self._at = run.id, None if checkpoint is None else checkpoint.id
        self._following = checkpoint is None
        self._graph: Graph | None = None
        self._status = self._head = ""
        self._tab, self._whole_run = Tab.STATE, False
        self._marked: Node | None = None
        self._comparing = False
        self._wanted = asyncio.Event()
        self._telling = False
        self._told: tuple[object, ...] = ()  # what the details describe
        self._stack = AsyncExitStack()

    # The screen

    def compose(self) -> ComposeResult:
        yield Static(id="head")
        with Container(id="body"):
            yield LineView(id="branches")
            with Vertical(id="detail"):
                yield Static(id="tabs")
                yield LineView(id="pane")
        yield Input(id="search", compact=True, placeholder="search")
        yield Footer(compact=True, show_command_palette=False)

    async def on_mount(self) -> None:
        self._branches, self._pane = self.query_one("#branches", LineView), self.query_one("#pane", LineView)
        self._store = await self._stack.enter_async_context(self.home.store_or_reader())
        self.snapshots = self.home.snapshots()
        self._branches.focus()
        self._say_tabs()
        self._tell()
        self.open_run(self._run, self._at)

    async def on_unmount(self) -> None:
        self._stop.set()
        await self._stack.aclose()

    def on_resize(self, event: Resize) -> None:
        self.query_one("#body").set_class(event.size.width >= _WIDE, "wide")
        self._wanted.set()

    @property
    def shown(self) -> Graph | None:
        return self._graph

    @property
    def status(self) -> str:
        return self._status

    @property
    def node(self) -> Node | None:
        return None if self._graph is None else self._graph.at_row.get(self._branches.cursor)

    def open_run(self, run: RunId, at: CheckpointId | None = None) -> None:
        self._run, self._at, self._graph, self._following = run, at, None, at is None
        self._watch()

    @work(exclusive=True, group="watch")
    async def _watch(self) -> None:
        """Show the run, and what is new in it, until another run is shown."""
        seen: History | None = None
        while True:
            begun = time.monotonic()
            try:
                now = await read(self._store, self._run, since=seen)
            except RunError as error:
                self.notify(str(error), severity="error", markup=False)
                return
            self._status = self.home.status(now.run)
            if seen is None or _differs(seen, now):
                self._take(await asyncio.to_thread(graph, now))
            seen = now
            self._say_head(now)
            await asyncio.sleep(max(POLL_S, (_SHARE - 1) * (time.monotonic() - begun)))

    def _take(self, new: Graph) -> None:
        """The same run with more in it, or another one: the cursor stays at its node, or follows the newest."""
        here = self._at if self._graph is None else None if self.node is None else self.node.id
        self._graph = new
        newest = min(new.at_row, default=0)
        row = newest if self._following or here is None else new.row_of.get(here, self._branches.cursor)
        self._branches.show(new.lines, row)
        self._wanted.set()

    def _say_head(self, now: History) -> None:
        parts = [now.run.name, now.run.id, self._status, count(len(now.checkpoints), "checkpoint")]
        parts += [count(len(now.llm), "model call")] if now.llm else []
        parts += [f"deadline {deadline_line(now.run)}"] if now.run.deadline_s is not None else []
        parts += [f"marked {self._marked.id[:10]}"] if self._marked is not None else []
        parts += ["following"] if self._following and self._status == "running" else []
        said = " " + safe("  ".join(parts))
        if said != self._head:
            self._head = said
            self.query_one("#head", Static).update(
                Text(said.ljust(_BAR), no_wrap=True, overflow="crop"), layout=False
            )

    def _say_tabs(self) -> None:
        text = Text(no_wrap=True)
        for at, tab in enumerate(Tab):
            text.append(f"{at + 1} {tab.value}", "bold reverse" if tab is self._tab else "")
            text.append("  ")
        self.query_one("#tabs", Static).update(text)

    @work(group="tell")
    async def _tell(self) -> None:
        """Fill the details whenever another subject is wanted; the latest request wins."""
        while True:
            self._telling = False
            await self._wanted.wait()
            self._telling = True
            await asyncio.sleep(_REST_S)
            self._wanted.clear()
            if self._graph is None or self.node is None:
                continue
            subject = self._subject(self._graph, self.node)
            told = subject.key(self._tab)
            lines = await asyncio.to_thread(lines_of, self._tab, subject)
            if not self._wanted.is_set():
                self._pane.show(lines, self._pane.cursor if told == self._told else 0)
                self._told = told

    @property
    def is_settled(self) -> bool:
        """Whether the details are those of the node at the cursor."""
        if self._graph is None or self.node is None or self._wanted.is_set() or self._telling:
            return False
        return self._told == self._subject(self._graph, self.node).key(self._tab)

    def _subject(self, of: Graph, node: Node) -> Subject:
        against = self._marked if self._comparing and self._tab is Tab.FILES else None
        width = max(20, self._pane.size.width)
        return Subject(
            of,
            node,
            self.snapshots,
            self.home.database,
            self._status,
            self.home.clock(),
            width,
            self._whole_run,
            against,
        )

    @on(LineView.Moved, "#branches")
    def _moved(self) -> None:
        self._following = self._graph is not None and self._branches.cursor == min(self._graph.at_row, default=0)
        self._wanted.set()

    @on(LineView.Chosen)
    def _chosen(self, event: LineView.Chosen) -> None:
        chosen = event.view.current
        if event.view is self._branches:
            self._pane.focus()
        elif chosen is not None and chosen.to is not None:
            self._pane.move_to(chosen.to)
        elif chosen is not None and chosen.node is not None and self._graph is not None:
            self._branches.move_to(self._graph.row_of.get(chosen.node, self._branches.cursor))

    # The keys

    def action_other_part(self) -> None:
        (self._pane if self._branches.has_focus else self._branches).focus()
        body = self.query_one("#body")
        body.set_class(body.has_class("zoom") and not self._branches.has_focus, "left")

    def action_zoom(self) -> None:
        body = self.query_one("#body")
        body.toggle_class("zoom")
        body.set_class(body.has_class("zoom") and self._branches.has_focus, "left")
        self._wanted.set()

    def action_tab(self, name: str) -> None:
        self._tab = Tab[name]
        self._say_tabs()
        self._wanted.set()

    def action_next_tab(self, by: int) -> None:
        tabs = list(Tab)
        self.action_tab(tabs[(tabs.index(self._tab) + by) % len(tabs)].name)

    def action_scope(self) -> None:
        self._whole_run = not self._whole_run
        self._wanted.set()

    def action_follow(self) -> None:
        self._following = not self._following
        if self._following and self._graph is not None:
            self._branches.move_to(min(self._graph.at_row, default=0))

    def action_mark(self) -> None:
        """Mark the node, or remove its mark."""
        node = self.node
        if node is None or node.checkpoint is None:
            self.notify("Only a checkpoint has files to compare: later changes of a branch were not sealed")
            return
        self._marked = None if self._marked is not None and self._marked.id == node.id else node
        self._comparing = self._comparing and self._marked is not None
        self._branches.marked = None if self._marked is None else node.id
        self._branches.refresh()
        self._wanted.set()
        if self._graph is not None:
            self._say_head(self._graph.history)

    def action_compare(self) -> None:
        """Show the files that differ from the marked node; when repeated, from the parent."""
        if self._marked is None:
            self.notify("m marks a node; then d at another node shows the differences")
            return
        self._comparing = self._tab is not Tab.FILES or not self._comparing
        self.action_tab(Tab.FILES.name)

    @work(exclusive=True, group="ask")
    async def action_runs(self) -> None:
        runs = await self._store.runs(_RUNS)
        statuses = {run.id: self.home.status(run) for run in runs}
        header, *rows = run_table(runs, await self._store.tallies([*statuses]), statuses, self.home.clock())
        chosen = await self.push_screen_wait(RunsDialog(header, list(zip(statuses, rows, strict=True)), self._run))
        if chosen is not None and chosen != self._run:
            self.open_run(RunId(chosen))

    def action_keys(self) -> None:
        self.push_screen(KeysDialog())


def _differs(seen: History, now: History) -> bool:
    """Whether there is anything new to show. Rows are only added, except for the run's own and the effects'."""
    counts = (len(seen.ops), len(seen.llm), len(seen.checkpoints)), (len(now.ops), len(now.llm), len(now.checkpoints))
    return counts[0] != counts[1] or seen.run != now.run or seen.effects != now.effects
