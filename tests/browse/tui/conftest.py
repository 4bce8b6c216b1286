"""A browser on the recorded story, with real snapshots of two states."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from story import STARTED, Story, story
from textual.pilot import Pilot
from textual.widgets import Input, Static

from ramify import paths
from ramify.browse.tui.app import Browser
from ramify.browse.tui.styled_lines import LineView
from ramify.fork_engine.store import SnapshotStore
from ramify.inspect.home import Home
from ramify.runtime.codec import codec
from ramify.runtime.store import RunStore
from ramify.serving.types import ChatRequest, user

REPORT = '{"$": "dataclass", "t": "agent:Report", "v": {"passed": 3}}'  # of the first step, as the codec writes it


@dataclass
class Driven:
    """A running browser, and what a person would read on it."""

    app: Browser
    pilot: Pilot[None]

    @property
    def branches(self) -> LineView:
        return self.app.query_one("#branches", LineView)

    @property
    def pane(self) -> LineView:
        return self.app.query_one("#pane", LineView)

    @property
    def tree(self) -> list[str]:
        return [one.text for one in self.branches.lines]

    @property
    def text(self) -> str:
        """All of the details."""
        return "\n".join(one.text for one in self.pane.lines)

    @property
    def here(self) -> str:
        return self.branches.lines[self.branches.cursor].text

    @property
    def head(self) -> str:
        return str(self.app.query_one("#head", Static).render())

    @property
    def screen(self) -> str:
        """What stands in the cells of the screen."""
        return "\n".join(strip.text for strip in self.app.screen._compositor.render_strips())

    async def press(self, *keys: str) -> None:
        await self.pilot.press(*("space" if key == " " else key for key in keys))
        await self.settled()

    async def search(self, needle: str) -> None:
        await self.press("slash")
        box = self.app.query_one("#search", Input)
        await self.until(lambda: box.has_focus)
        box.value = needle
        await self.press("enter")
        await self.until(lambda: not box.has_class("open"))

    @property
    def said(self) -> str:
        """What it notified of."""
        return "\n".join(one.message for one in self.app._notifications)

    async def settled(self) -> None:
        """Until the details are those of where the cursor stands."""
        await self.until(lambda: self.app.is_settled)

    async def until(self, fits: Callable[[], bool]) -> None:
        for _ in range(200):
            await self.pilot.pause()
            if fits():
                return
            await self.pilot.pause(0.01)
        raise AssertionError(f"this never came to be:\n{self.screen}")


Browse = Callable[..., AbstractAsyncContextManager[Driven]]


@pytest.fixture
def told() -> Story:
    return story()


@pytest.fixture
async def home(tmp_path: Path, told: Story) -> Path:
    """A home in which the story took place: its last merge changed a file."""
    where = tmp_path / "home"
    snapshots = SnapshotStore(paths.snapshots(where))
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "gcd.py").write_text("def gcd(a, b):\n    return a\n")
    base = snapshots.import_tree(folder).snapshot.id
    (folder / "gcd.py").write_text("def gcd(a, b):\n    return gcd(b, a % b) if b else a\n")
    (folder / "notes.txt").write_text("why\n")
    final = snapshots.import_tree(folder).snapshot.id
    ids = dict(zip((0, 8, 12, 14), (base, base, final, final), strict=True))
    request = codec.encode(ChatRequest(user("How do I mend gcd?", system="You mend programs.")))
    recorded = Story(
        replace(told.run, base_snapshot=base),
        [replace(row, result_json=REPORT) if row.seq == 1 else row for row in told.ops],
        [replace(row, request_json=request) for row in told.llm],
        [replace(one, snapshot_id=ids[one.seq]) for one in told.checkpoints],
    )
    async with RunStore(paths.database(where), clock=lambda: STARTED + 30) as store:
        await store.create_run(recorded.run)
        await store.commit(recorded.run.id, ops=recorded.ops, llm=recorded.llm, checkpoints=recorded.checkpoints)
    return where


@pytest.fixture
def browse(home: Path) -> Browse:
    """Drives a browser: of the story, or of what is given."""

    @asynccontextmanager
    async def driving(
        run: str | None = None, *, at: Path = home, size: tuple[int, int] = (160, 50)
    ) -> AsyncIterator[Driven]:
        app = Home(at)
        async with app.store() as store:
            chosen = next(one for one in await store.runs() if run in (None, one.id))
        browser = Browser(app, chosen)
        async with browser.run_test(size=size) as pilot:
            driven = Driven(browser, pilot)
            await driven.settled()
            yield driven

    return driving
