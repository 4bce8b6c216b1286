"""Pins: a collection waits for what is under way, and what comes later waits for it."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

from ramify.fork_engine.types import SnapshotId
from ramify.runtime.pins import Pins

ID = SnapshotId("a" * 64)


async def test_a_collection_waits_for_pins(tmp_path: Path) -> None:
    pins, order = Pins(tmp_path), list[str]()

    def collection() -> None:
        with pins.collecting():
            order.append("collected")

    async with pins.held():
        collecting = asyncio.create_task(asyncio.to_thread(collection))
        await asyncio.sleep(0.1)
        order.append("committed")
    await collecting
    async with pins.held():
        order.append("later")
    assert order == ["committed", "collected", "later"]


def test_what_is_kept_is_told_until_it_is_let_go(tmp_path: Path) -> None:
    pins = Pins(tmp_path)
    with pins.keep(ID), pins.keep(ID):
        assert pins.kept() == {ID}
    assert pins.kept() == set()


def test_a_killed_process_keeps_nothing(tmp_path: Path) -> None:
    pins = Pins(tmp_path)
    ready, told = os.pipe()
    if (child := os.fork()) == 0:
        with pins.keep(ID):
            os.write(told, b"x")
            signal.pause()
    os.read(ready, 1)
    assert pins.kept() == {ID}
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    assert pins.kept() == set()
    assert not list((tmp_path / "kept").iterdir())
    os.close(ready)
    os.close(told)
