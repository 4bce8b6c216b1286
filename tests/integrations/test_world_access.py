"""Files of a world by any path inside, as the adapters read and write them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ramify.integrations.world_access import FileAccessFailed, read_file, upload, write_file
from ramify.worlds.world import World


async def test_files_of_every_kind(repo: Path, sandbox: str, tmp_path: Path) -> None:
    async with World.create(repo, sandbox=sandbox, home=tmp_path / "home") as world:
        await world.exec("mkfifo fifo; ln -s /dev/zero endless; mkdir folder", check=True)
        for path, reason in (
            ("fifo", "special"),
            ("endless", "special"),
            ("folder", "folder"),
            ("missing", "missing"),
            ("/proc/meminfo", "too_large"),  # its size is said to be 0
        ):
            with pytest.raises(FileAccessFailed) as failed:
                await read_file(world, path, most=10)
            assert failed.value.reason == reason
        for path, reason in (("fifo", "special"), ("folder", "folder"), ("main.py/below", "not_folder")):
            with pytest.raises(FileAccessFailed) as failed:
                await write_file(world, path, b"")
            assert failed.value.reason == reason


async def test_a_fifo_of_this_machine_is_not_waited_for(repo: Path, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    async with World.create(repo, sandbox="copy", home=tmp_path / "home") as world:
        with pytest.raises(FileAccessFailed, match="a FIFO"):
            await upload(world, tmp_path / "fifo", "target")


async def test_a_file_beside_the_tree_may_be_larger_than_an_output(repo: Path, sandbox: str, tmp_path: Path) -> None:
    big = str(tmp_path / "beside" / "big")
    async with World.create(repo, sandbox=sandbox, home=tmp_path / "home") as world:
        most_of_output = 16 << 20
        await write_file(world, big, b"x" * (most_of_output + 1))
        assert len(await read_file(world, big)) == most_of_output + 1
