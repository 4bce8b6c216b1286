"""`SyncWorld`, outside and inside a running event loop."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ramify.worlds.blocking import SyncWorld
from ramify.worlds.blocking_home import SyncWorldHome, shared_home
from ramify.worlds.errors import CommandFailed, WorldClosed


def test_the_same_without_an_event_loop(repo: Path, tmp_path: Path, sandbox: str) -> None:
    home = tmp_path / "home"
    with SyncWorld.create(repo, home=home, sandbox=sandbox, name="mine") as world:
        one, two = world.fork(2)
        with one, two:
            two.write("new", "two")
            assert two.read("new") == b"two"
            world.merge(two)
        assert world.exec("cat new").stdout == "two"
        assert [change.path for change in world.diff()] == ["new"]
        tagged = world.snapshot("tagged")
        world.run("rm new", check=True)
        world.restore("tagged")
        assert world.state.id == tagged.id
        with pytest.raises(CommandFailed):
            world.exec("false", check=True)
        world.checkout(tmp_path / "out")
        world.upload(tmp_path / "out" / "new", "uploaded")
        world.download("uploaded", tmp_path / "downloaded")
    assert (tmp_path / "downloaded").read_text() == "two"
    with SyncWorld.open("mine", home=home, sandbox=sandbox) as again:
        assert again.name == "mine" and again.read("uploaded") == b"two"


async def test_it_blocks_only_its_own_thread_inside_a_loop(repo: Path, tmp_path: Path) -> None:
    with SyncWorld.create(repo, home=tmp_path / "home", sandbox="copy") as world:
        assert world.exec("echo here").stdout == "here\n"


def test_worlds_of_several_threads_share_an_open_home(repo: Path, tmp_path: Path, sandbox: str) -> None:
    def one(number: int) -> str:
        with SyncWorld.create(repo, home=home) as world:
            world.write("number", str(number))
            return world.exec("cat number").stdout

    with SyncWorldHome(tmp_path / "home", sandbox) as home:
        with ThreadPoolExecutor(4) as pool:
            assert list(pool.map(one, range(8))) == [str(number) for number in range(8)]
        with SyncWorld.create(repo, home=home, name="kept") as kept:
            kept.snapshot("before")
            kept.snapshot("after")
            kept.delete_tag("before")
        assert [one.name for one in home.tags()] == ["after"] and [one.name for one in home.worlds()] == ["kept"]
        home.delete_tags("after")
        home.delete_worlds("kept")
        assert not home.tags() and not home.worlds()
        left_open = SyncWorld.create(repo, home=home)
        top = left_open.path
    assert not top.exists()
    with pytest.raises(WorldClosed, match="home"):
        left_open.exec("true")
    left_open.close()
    with pytest.raises(RuntimeError, match="not open"):
        SyncWorld.create(repo, home=home)


def test_the_last_user_of_a_shared_home_closes_it(tmp_path: Path) -> None:
    with shared_home(tmp_path / "home", "copy") as one:
        with shared_home(tmp_path / "home", "copy") as two:
            assert one is two
        with SyncWorld.create(home=one) as world:
            assert world.exec("echo open").ok
    with shared_home(tmp_path / "home", "copy") as three:
        assert three is not one
    with pytest.raises(RuntimeError):
        SyncWorld.create(home=one)
