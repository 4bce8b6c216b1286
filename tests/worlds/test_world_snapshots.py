"""`World.begin_snapshot`: snapshots that are written while their user goes on."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from ramify.fork_engine import crash_points
from ramify.fork_engine.errors import ForkEngineError
from ramify.fork_engine.types import Snapshot
from ramify.sandboxes.errors import SealFailed
from ramify.worlds.blocking import SyncWorld
from ramify.worlds.errors import NameTaken
from ramify.worlds.home import WorldHome
from ramify.worlds.world import World


async def test_what_comes_later_is_in_the_next_snapshot(home: WorldHome, repo: Path) -> None:
    async with World.create(repo, home=home, name="kept") as world:
        await world.write("file", "one")
        first = await world.begin_snapshot("first")
        await world.write("file", "two")
        second = await world.begin_snapshot()
        assert await world.read("file") == b"two"
        assert (await world.exec("cat file")).stdout == "two"
        one, two = await first, await second
        assert first.done()
        assert home.saved("kept").id == two.id == world.state.id
        await world.restore("first")
        assert await world.read("file") == b"one"
        assert home.saved("kept").id == one.id


async def test_what_depends_on_it_waits_for_it(home: WorldHome, repo: Path) -> None:
    async with World.create(repo, home=home, name="kept") as world:
        await world.write("file", "one")
        begun = await world.begin_snapshot()
        (fork,) = await world.fork()
        assert begun.done()
        assert (await fork.read("file")) == b"one"
        await fork.close()
        await world.write("file", "two")
        begun = await world.begin_snapshot("tag")
        await world.restore(await begun)
        assert await world.read("file") == b"two"
        await world.write("file", "three")
        begun = await world.begin_snapshot()
    assert begun.done()
    assert home.saved("kept").id == (await begun).id


async def test_its_tag_can_be_used_at_once(home: WorldHome, repo: Path) -> None:
    async with World.create(repo, home=home, name="kept") as world, World.create(repo, home=home) as other:
        await world.write("file", "one")
        await world.begin_snapshot("first")
        await world.write("file", "two")
        await world.restore("first")
        assert await world.read("file") == b"one"
        await world.write("new", "")
        begun = await world.begin_snapshot("second")
        assert (await world.merge("second")).id == (await begun).id
        await other.merge("second")
        assert await other.read("file") == b"one"


async def test_its_failure_is_raised_where_it_is_awaited(
    home: WorldHome, repo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with World.create(repo, home=home, name="kept") as world:
        before = await world.snapshot("taken")
        await world.write("file", "one")
        with pytest.raises(NameTaken):
            await (await world.begin_snapshot("taken"))

        def refuse(name: str) -> None:
            if name == "written":
                raise ForkEngineError("no room")

        await world.write("file", "two")
        monkeypatch.setattr(crash_points, "at", refuse)
        begun = await world.begin_snapshot()
        with pytest.raises(SealFailed, match="no room"):
            await begun
        monkeypatch.undo()
        assert await world.read("file") == b"two"
        last = await world.snapshot()
        assert last.id not in (before.id, home.resolve("taken"))
        assert home.saved("kept").id == last.id


async def test_a_cancelled_wait_does_not_stop_it(home: WorldHome, repo: Path) -> None:
    async with World.create(repo, home=home, name="kept") as world:
        await world.write("file", "one")
        begun = await world.begin_snapshot()
        waiting = asyncio.ensure_future(begun.result())
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert (await begun).id == home.saved("kept").id


async def test_a_slow_snapshot_does_not_move_the_name_back(
    home: WorldHome, repo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go, flush = threading.Event(), threading.Event(), home.store.flush

    def late() -> None:
        if not begun.is_set():
            begun.set()
            go.wait()
        flush()

    async def first_snapshot(world: World) -> asyncio.Future[Snapshot]:
        begun.clear()
        go.clear()
        slow = asyncio.ensure_future(world.snapshot())
        await asyncio.to_thread(begun.wait)
        return slow

    world = await World.create(repo, home=home, name="kept")
    monkeypatch.setattr(home.store, "flush", late)
    for later in (world.snapshot, world.close):
        await world.write("file", f"before {later.__name__}")
        slow = await first_snapshot(world)
        await world.write("file", later.__name__)
        then = asyncio.ensure_future(later())
        await asyncio.wait({then}, timeout=0.2)  # it would overtake now
        go.set()
        older = await slow
        await then
        assert home.saved("kept").id != older.id


async def test_two_closes_at_once_count_as_one(home: WorldHome, repo: Path) -> None:
    world = await World.create(repo, home=home.place, sandbox="copy", name="kept")
    (fork,) = await world.fork()
    await asyncio.gather(world.close(), world.close())
    assert (await fork.exec("echo here")).stdout == "here\n"
    await fork.close()


async def test_one_that_failed_does_not_overtake_the_one_before(
    home: WorldHome, repo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go, flush = threading.Event(), home.store.flush

    def refuse(name: str) -> None:
        if name == "written":
            raise ForkEngineError("no room")

    def slow() -> None:
        go.wait()
        flush()

    async with World.create(repo, home=home, name="kept") as world:
        await world.write("file", "one")
        monkeypatch.setattr(home.store, "flush", slow)
        first = await world.begin_snapshot()
        await first.taken()
        monkeypatch.setattr(crash_points, "at", refuse)
        await world.write("file", "two")
        second = await world.begin_snapshot()
        await second.taken()
        monkeypatch.undo()
        later = asyncio.ensure_future(world.snapshot())
        await asyncio.wait({later}, timeout=0.3)
        go.set()
        with pytest.raises(SealFailed, match="no room"):
            await second
        assert first.done()
        last = await later
        assert home.saved("kept").id == last.id != (await first).id


async def test_one_that_was_cancelled_before_it_began_leaves_nothing(home: WorldHome, repo: Path) -> None:
    async with World.create(repo, home=home) as world:
        await world.write("go", "")
        running = asyncio.ensure_future(world.run("while [ -e go ]; do sleep .01; done; echo new > file"))
        await asyncio.sleep(0.1)
        before = world.state.id
        beginning = asyncio.ensure_future(world.begin_snapshot())
        await asyncio.sleep(0.1)
        beginning.cancel()
        with pytest.raises(asyncio.CancelledError):
            await beginning
        (world.path / "go").unlink()
        await running
        assert await world.exec("cat file", check=True)
        assert world.state.id == before


async def test_a_cancelled_snapshot_leaves_the_world_over_a_state_that_is_kept(home: WorldHome, repo: Path) -> None:
    async with World.create(repo, home=home) as world:
        await world.write("file", "one")
        taking = asyncio.ensure_future(world.snapshot())
        for _ in range(10):
            await asyncio.sleep(0)
        taking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await taking
        assert world._live.snapshot.id in home.pins.kept()


def test_without_an_event_loop(repo: Path, tmp_path: Path) -> None:
    with SyncWorld.create(repo, home=tmp_path / "home", sandbox="copy") as world:
        world.write("file", "one")
        begun = world.begin_snapshot("tag")
        world.write("file", "two")
        assert begun.result().id != world.snapshot().id
        world.restore("tag")
        assert world.read("file") == b"one"


KILLED = """
import asyncio, os, sys
from ramify.fork_engine import crash_points
from ramify.sandboxes.backends.copying import CopyBackend
from ramify.worlds.world import World
repo, home = sys.argv[1:]
async def trial(number):
    passed = 0
    def at(name):
        nonlocal passed
        passed += 1
        if passed == number:
            print(name, flush=True)
            os._exit(9)
    async with World.create(repo, home=home, sandbox="copy", name=f"world{number}") as world:
        await world.write("file", "one")
        await world.snapshot()
        await world.write("file", "two")
        crash_points.at = at
        begun = await world.begin_snapshot()
        await world.write("file", "three")
        await begun
        print("told", flush=True)
        os._exit(0)
for number in range(1, 60):  # children of one process that has its modules loaded
    child = os.fork()
    if child == 0:
        asyncio.run(trial(number))
    if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 9:
        break
"""


async def test_a_crash_before_it_is_awaited_leaves_the_state_before(tmp_path: Path, repo: Path) -> None:
    words = [sys.executable, "-c", KILLED, str(repo), str(tmp_path / "home")]
    done = await asyncio.to_thread(subprocess.run, words, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    points = done.stdout.split()
    assert set(points) >= {"written", "placed", "snapshot", "flushed", "cleared", "told"}, done.stderr
    async with WorldHome(tmp_path / "home", "copy") as home:
        for number, point in enumerate(points, 1):
            async with World.open(f"world{number}", home=home) as world:
                assert await world.read("file") == (b"two" if point == "told" else b"one"), point


async def test_a_world_whose_closing_is_cancelled_holds_its_name_until_the_snapshot_has_ended(
    home: WorldHome, repo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = await World.create(repo, home=home, name="kept")
    await world.write("file", "one")
    taken, released, flush, close = asyncio.Event(), threading.Event(), home.store.flush, world._live.close
    loop = asyncio.get_running_loop()

    def held_flush() -> None:
        loop.call_soon_threadsafe(taken.set)
        released.wait(60)
        flush()

    async def closed_first() -> None:
        await close()
        released.set()

    monkeypatch.setattr(home.store, "flush", held_flush)
    monkeypatch.setattr(world._live, "close", closed_first)
    begun = await world.begin_snapshot()
    await taken.wait()
    closing = asyncio.ensure_future(world.close())
    await asyncio.sleep(0)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    assert begun.done(), "else it would move the name after another process took that over"
    assert home.saved("kept").id == (await begun).id
