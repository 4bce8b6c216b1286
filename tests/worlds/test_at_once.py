"""What is asked of a world at once, or is cancelled half way, is done one after the other and whole."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path

import pytest

from ramify.sandboxes.contract import Brokered
from ramify.sandboxes.egress.settings import Egress
from ramify.worlds import world_files
from ramify.worlds.errors import WorldClosed
from ramify.worlds.home import WorldHome
from ramify.worlds.references import Kind, Reference
from ramify.worlds.world import World


async def test_each_of_several_merges_at_once_is_kept(home: WorldHome, repo: Path) -> None:
    async with World.create(repo, home=home) as world:
        forks = await world.fork(3)
        for number, fork in enumerate(forks):
            await fork.write(f"new{number}", str(number))
        await asyncio.gather(*(world.merge(fork) for fork in forks))
        assert [await world.read(f"new{number}") for number in range(3)] == [b"0", b"1", b"2"]
        for fork in forks:
            await fork.close()


async def test_a_cancelled_merge_leaves_the_world_over_a_state_that_is_kept(
    home: WorldHome, repo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with World.create(repo, home=home) as world, (await world.fork())[0] as fork:
        await fork.write("new", "1")
        await world.write("other", "2")
        live = world._live
        begun, go, begin = asyncio.Event(), asyncio.Event(), live.begin  # type: ignore[attr-defined]

        async def late() -> None:
            begun.set()
            await go.wait()
            await begin()

        monkeypatch.setattr(live, "begin", late)
        merging = asyncio.ensure_future(world.merge(fork))
        await begun.wait()
        merging.cancel()
        await asyncio.sleep(0)
        go.set()
        with pytest.raises(asyncio.CancelledError):
            await merging
        assert live.snapshot.id in home.pins.kept()
        assert (await world.exec("cat new other")).stdout == "12"


async def test_a_new_allow_list_and_a_new_state_are_both_recorded(
    home: WorldHome, repo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writing, moved, put = threading.Event(), threading.Event(), home.references.put

    def late(kind: Kind, reference: Reference, *, new: bool = False) -> None:
        if reference.egress and not moved.is_set():
            writing.set()
            moved.wait(0.5)
        put(kind, reference, new=new)

    async with World.create(repo, home=home) as world, (await world.fork())[0] as fork:
        await fork.write("new", "1")
        state = await fork.snapshot()
        home.register("one", world.state, world._spec, "")
        monkeypatch.setattr(home.references, "put", late)
        before = home.references.get(Kind.WORLD, "one")
        monkeypatch.setattr("ramify.worlds.home_names._WITHOUT_BROKER", ())
        allowing = asyncio.ensure_future(asyncio.to_thread(home.egress_changed, before, Egress(["ok.test"])))
        await asyncio.to_thread(writing.wait)
        await asyncio.to_thread(home.moved, before, state)
        moved.set()
        await allowing
        after = home.references.get(Kind.WORLD, "one")
        assert (after.egress, after.snapshot) == (("ok.test",), state.id)


@pytest.mark.linux_ns
@pytest.mark.parametrize("sandbox", ["namespaces"])
async def test_a_cancelled_change_of_the_allow_list_holds_as_it_is_recorded(
    home: WorldHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go, record = asyncio.Event(), threading.Event(), home.egress_changed
    loop = asyncio.get_running_loop()

    def late(reference: Reference, egress: Egress) -> Reference:
        loop.call_soon_threadsafe(begun.set)
        go.wait()
        return record(reference, egress)

    async with World.create(egress=["ok.test"], home=home, name="one") as world:
        monkeypatch.setattr(home, "egress_changed", late)
        changing = asyncio.ensure_future(world.set_egress([]))
        await begun.wait()
        changing.cancel()
        await asyncio.sleep(0)
        go.set()
        with pytest.raises(asyncio.CancelledError):
            await changing
        assert home.references.get(Kind.WORLD, "one").egress == ()
        assert isinstance(world._live, Brokered) and world._live.broker is not None
        assert world._live.broker.egress.allow == ()


class Held:
    """The first write of bytes into a file of a world waits until `go`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun, self.go, self._write = threading.Event(), threading.Event(), world_files._write_all
        monkeypatch.setattr(world_files, "_write_all", self)

    def __call__(self, out: int, data: bytes) -> None:
        self.begun.set()
        self.go.wait(60)
        self._write(out, data)


async def test_a_snapshot_has_a_written_file_whole(
    home: WorldHome, repo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It had the file under another name, and half of it. In the middle of a snapshot, no file was found."""
    held = Held(monkeypatch)
    async with World.create(repo, home=home) as world:
        writing = asyncio.ensure_future(world.write("new", "1"))
        await asyncio.to_thread(held.begun.wait)
        forking = asyncio.ensure_future(world.fork())
        await asyncio.wait({forking}, timeout=0.2)
        reading = asyncio.ensure_future(world.read("README"))
        held.go.set()
        (fork,) = await forking
        await writing
        assert await reading == b"one\ntwo\nthree\n"
        assert (await fork.exec("ls -A; cat new")).stdout == "README\nnew\nsrc\n1"
        await fork.close()


async def test_a_cancelled_upload_ends_after_a_whole_file(
    home: WorldHome, repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "given").mkdir()
    for name in ("a", "b"):
        (tmp_path / "given" / name).write_text("1")
    held = Held(monkeypatch)
    async with World.create(repo, home=home) as world:
        uploading = asyncio.ensure_future(world.upload(tmp_path / "given", "taken"))
        await asyncio.to_thread(held.begun.wait)
        uploading.cancel()
        await asyncio.sleep(0)
        held.go.set()
        with pytest.raises(asyncio.CancelledError):
            await uploading
        assert (await world.exec("ls -A taken")).stdout == "a\n"


async def test_another_event_loop_is_refused(home: WorldHome, repo: Path) -> None:
    """It waited for ever, whatever timeout its caller had."""
    async with World.create(repo, home=home, name="one") as world:
        uses: tuple[Callable[[], Coroutine[None, None, object]], ...] = (
            lambda: world.exec("true"),
            lambda: world.run("true"),
            lambda: world.shell("other").run("true"),
            lambda: world.read("README"),
            world.snapshot,
            world.fork,
            world.close,
            home.backend,
        )
        for use in uses:
            with pytest.raises(WorldClosed, match="another event loop"):
                await asyncio.to_thread(asyncio.run, use())
        assert await asyncio.to_thread(lambda: (world.path / "README").exists())
        assert (await world.run("echo here")).stdout == "here\n"
