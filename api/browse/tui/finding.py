"""Searching in the branches and in the details."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from threading import Event

from textual import on, work
from textual.app import App as Terminal
from textual.widgets import Input

from ramify.browse.tui.nodes import Graph
from ramify.browse.tui.search import find_line, find_node
from ramify.browse.tui.view import LineView
from ramify.fork_engine.store import SnapshotStore

BRANCHES, PANE = "branches", "pane"


class Finding(Terminal[None]):
    """A browser's search: in the part where the cursor was when it began."""

    snapshots: SnapshotStore
    _needle = ""
    _searched = BRANCHES
    _stop = Event()

    @property
    @abstractmethod
    def shown(self) -> Graph | None: ...

    def action_search(self) -> None:
        view = self.screen.focused
        self._searched = PANE if view is not None and view.id == PANE else BRANCHES
        box = self.query_one("#search", Input)
        box.add_class("open")
        box.value = ""
        box.focus()

    def action_leave_search(self) -> None:
        """Out of the box, and no marks where something was found."""
        self._stop.set()
        self._close_box()
        for view in self.query(LineView):
            view.needle = ""
            view.refresh()

    def action_again(self, step: int) -> None:
        if self._needle:
            self._find(step, step)

    @on(Input.Submitted, "#search")
    def _asked(self, event: Input.Submitted) -> None:
        self._close_box()
        self._needle = event.value
        for view in self.query(LineView):
            view.needle = event.value if view.id == self._searched or view.id == PANE else ""
            view.refresh()
        self._find(0, 1)

    def _close_box(self) -> None:
        box = self.query_one("#search", Input)
        if box.has_class("open"):
            box.remove_class("open")
            self.query_one(f"#{self._searched}", LineView).focus()

    @work(exclusive=True, group="search")
    async def _find(self, away: int, step: int) -> None:
        """From so many lines away, in one direction and round the end."""
        self._stop.set()  # an older search in its thread
        self._stop = stop = Event()
        view, graph = self.query_one(f"#{self._searched}", LineView), self.shown
        if not self._needle or graph is None or not view.lines:
            return
        start = (view.cursor + away) % len(view.lines)
        if self._searched == PANE:
            found = find_line(view.lines, self._needle, start, step)
        else:
            found = await asyncio.to_thread(find_node, graph, self.snapshots, self._needle, start, step, stop.is_set)
        if stop.is_set():
            return
        if found is None:
            self.notify(f"{self._needle!r} is nowhere here", markup=False)
        else:
            view.move_to(found)
