"""`SyncWorld`, outside and inside a running event loop."""

from __future__ import annotations

from pathlib import Path

import pytest

from ramify.worlds.blocking import SyncWorld
from ramify.worlds.errors import CommandFailed


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
