"""Search in the branches, and in the details."""

from __future__ import annotations

import asyncio
import json
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from threading import Event
from typing import TYPE_CHECKING

from textual import on, work
from textual.app import App as Terminal
from textual.widgets import Input

from ramify.browse.tui.branch_graph import Graph
from ramify.browse.tui.styled_lines import LineView, StyledLine, matches
from ramify.fork_engine.errors import SnapshotNotFound
from ramify.fork_engine.store import SnapshotStore
from ramify.inspect.state import state_at

if TYPE_CHECKING:
    from ramify.browse.tui.branch_graph import Graph, Node
    from ramify.fork_engine.store import SnapshotStore
    from ramify.inspect.history import History


def texts(history: History, snapshots: SnapshotStore, node: Node) -> Iterator[str]:
    """The texts of a node: branch, label and id; steps and results; prompts and answers; paths of changed files.

    The cheapest come first, because a search stops at the first match.
    """
    yield node.branch
    if node.checkpoint is not None:
        yield f"{node.checkpoint.id} {node.checkpoint.label}"
    for moment in node.moments:
        yield f"{moment.name} {moment.summary}"
        if moment.op is not None:
            yield moment.op.error or ""
            yield _read(history.result_of(moment.op))
        if moment.llm is not None:
            yield _read(moment.llm.request_json)
            yield _read(moment.llm.result_json)
    if node.checkpoint is not None and node.parents:
        try:
            change = state_at(history, snapshots, node.checkpoint).change
            yield from (one.path for one in (*change.files, *change.outside)) if change is not None else ()
        except SnapshotNotFound:  # garbage-collected: only its changes are unknown
            return


def find_node(
    graph: Graph, snapshots: SnapshotStore, needle: str, start: int, step: int, stopped: Callable[[], bool]
) -> int | None:
    """The row of the next node with the needle, from `start` on, round the end.

    It may read snapshots, and take long if there are many: `stopped` is asked before each whether anybody still
    waits.
    """
    rows = sorted(graph.at_row)

    def fits(at: int) -> bool:
        return not stopped() and any(
            matches(text, needle) for text in texts(graph.history, snapshots, graph.at_row[rows[at]])
        )

    begin = next((at for at, row in enumerate(rows) if row >= start), 0)
    if step < 0:
        begin = next((at for at in range(len(rows) - 1, -1, -1) if rows[at] <= start), len(rows) - 1)
    found = _round(len(rows), begin, step, fits)
    return None if found is None else rows[found]


def find_line(lines: Sequence[StyledLine], needle: str, start: int, step: int) -> int | None:
    return _round(len(lines), start, step, lambda at: matches(lines[at].text, needle))


def _round(count: int, start: int, step: int, fits: Callable[[int], bool]) -> int | None:
    for far in range(count):
        at = (start + far * step) % count
        if fits(at):
            return at
    return None


def _read(kept: str | None) -> str:
    """The texts inside a stored value, as somebody would type them."""
    return "" if kept is None else "\n".join(_strings(json.loads(kept)))


def _strings(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for one in value:
            yield from _strings(one)
    elif isinstance(value, dict):
        for key, one in value.items():
            yield str(key)
            yield from _strings(one)
    elif value is not None:
        yield json.dumps(value)


BRANCHES, PANE = "branches", "pane"


class SearchActions(Terminal[None]):
    """A browser's search, in the part of the screen where the cursor was when it started."""

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
        """Close the box, and remove the marks of matches."""
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
        """Search from `away` lines away, in one direction and round the end."""
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
            self.notify(f"{self._needle!r} was not found here", markup=False)
        else:
            view.move_to(found)
