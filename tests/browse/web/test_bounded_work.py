"""Work for the page ends when its client has gone, and at a deadline."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

from starlette.requests import Request
from starlette.types import Message

from ramify.browse.web.bounded_work import DEADLINE_S, Stopped, in_thread
from ramify.browse.web.views import changes
from ramify.fork_engine.store import SnapshotStore
from ramify.fork_engine.types import Snapshot
from ramify.inspect.state import StateDiff


def request(gone: asyncio.Event) -> Request:
    begun = False

    async def receive() -> Message:
        nonlocal begun
        if not begun:
            begun = True
            return {"type": "http.request", "body": b"", "more_body": False}
        await gone.wait()
        return {"type": "http.disconnect"}

    return Request({"type": "http", "method": "GET", "path": "/", "headers": []}, receive)


async def test_work_is_stopped_when_the_client_has_gone() -> None:
    gone, begun = asyncio.Event(), threading.Event()

    def work(stopped: Stopped) -> bool:
        assert not stopped()
        begun.set()
        while not stopped():
            pass
        return True

    answering = asyncio.create_task(in_thread(request(gone), work))
    await asyncio.to_thread(begun.wait)
    assert not answering.done()
    gone.set()
    assert await answering


async def test_work_is_stopped_at_the_deadline() -> None:
    now = [0.0]

    def work(stopped: Stopped) -> list[bool]:
        before = stopped()
        now[0] += DEADLINE_S + 1
        return [before, stopped()]

    assert await in_thread(request(asyncio.Event()), work, clock=lambda: now[0]) == [False, True]


async def test_work_is_stopped_when_the_server_stops() -> None:
    begun, ended = threading.Event(), threading.Event()

    def work(stopped: Stopped) -> None:
        begun.set()
        while not stopped():
            pass
        ended.set()

    answering = asyncio.create_task(in_thread(request(asyncio.Event()), work))
    await asyncio.to_thread(begun.wait)
    answering.cancel()
    assert await asyncio.to_thread(ended.wait, 60)


def test_files_that_were_not_compared_are_named(tmp_path: Path) -> None:
    store = SnapshotStore(tmp_path / "store")

    def state(**files: str) -> Snapshot:
        tree = tmp_path / "tree"
        tree.mkdir(exist_ok=True)
        for name, text in files.items():
            (tree / name).write_text(text)
        return store.import_tree(tree).snapshot

    before, after = state(a="1", b="1", c="1"), state(a="2", b="2", c="2")
    answers: Iterator[bool] = iter([False, True, True])
    rows = changes(StateDiff(store, before, after), lambda: next(answers)).files
    assert [row.patch is not None for row in rows] == [True, False, False]
    assert [row.why for row in rows] == [
        "",
        *2 * ["only the first 1 files are compared here; `ramify diff` shows all"],
    ]
