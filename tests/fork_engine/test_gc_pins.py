"""Pins: a collection waits for operations in progress, and later operations wait for the collection."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import signal
import tempfile
from pathlib import Path

import pytest

from ramify.fork_engine.gc_pins import Pins, snapshots_named_in
from ramify.fork_engine.types import SnapshotId
from tests.open_files import left_open, open_files

ID = SnapshotId("a" * 64)


class Holder:
    pass


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


def test_a_kept_snapshot_is_listed_until_it_is_released(tmp_path: Path) -> None:
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


def test_a_pin_whose_file_a_collection_removed_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The collection may look between the creation of the file and its lock."""
    pins, taken, lock = Pins(tmp_path), list[set[str]](), fcntl.flock

    def late(fd: int, how: int) -> None:
        if how == fcntl.LOCK_SH and not taken:
            taken.append({*pins.kept()})
        lock(fd, how)

    monkeypatch.setattr(fcntl, "flock", late)
    open_before = open_files(tmp_path)
    with pins.keep(ID):
        assert (taken, pins.kept()) == ([set()], {ID})
    assert left_open(open_before, tmp_path) == []


def test_a_snapshot_is_kept_with_what_holds_it(tmp_path: Path) -> None:
    pins, holder = Pins(tmp_path), [Holder(), Holder()]
    pins.keep_with(holder[0], ID)
    pins.keep_with(holder[1], ID)
    holder.pop()
    assert pins.kept() == {ID}
    if (child := os.fork()) == 0:
        holder.pop()  # the child's copy
        os._exit(0)
    os.waitpid(child, 0)
    assert pins.kept() == {ID}
    holder.pop()
    assert pins.kept() == set()


def test_many_pins_take_one_file_which_does_not_grow(tmp_path: Path) -> None:
    pins = Pins(tmp_path)
    with pins.keep(ID):
        for number in range(5000):
            with pins.keep(SnapshotId(f"{number:064x}")):
                pass
        (file,) = (tmp_path / "kept").iterdir()
        assert file.stat().st_size < 3000 * 66
        assert pins.kept() == {ID}


@pytest.mark.parametrize("fails", ["mkstemp", "write"])
def test_the_old_file_goes_on_where_no_new_one_can_be_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    pins, made, write = Pins(tmp_path), list[Path](), os.write
    open_before = open_files(tmp_path)

    def no_file(**_: object) -> None:
        made.append(tmp_path)
        raise OSError(errno.EMFILE, "too many open files")

    def no_room(fd: int, data: bytes) -> int:
        if len(list((tmp_path / "kept").iterdir())) > 1:
            made.append(tmp_path)
            raise OSError(errno.ENOSPC, "no space")
        return write(fd, data)

    with pins.keep(ID):
        if fails == "mkstemp":
            monkeypatch.setattr(tempfile, "mkstemp", no_file)
        else:
            monkeypatch.setattr(os, "write", no_room)
        for number in range(1200):
            with pins.keep(SnapshotId(f"{number:064x}")):
                pass
        assert made
        monkeypatch.undo()
        assert pins.kept() == {ID}
        assert len(list((tmp_path / "kept").iterdir())) == 1
    assert left_open(open_before, tmp_path) == []


def test_a_record_that_was_cut_off_keeps_and_frees_nothing() -> None:
    other = SnapshotId("b" * 64)
    assert snapshots_named_in(f"\n+{ID}\n+{other}\n-{other[:30]}".encode()) >= {ID, other}
    assert ID not in snapshots_named_in(f"\n+{ID[:30]}".encode())


def test_pins_of_an_earlier_version_are_read(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / f"{'b' * 64}.abc").touch()
    with (tmp_path / "kept" / f"{ID}.abc").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        assert Pins(tmp_path).kept() == {ID}


def test_files_that_are_no_pins_stay(tmp_path: Path) -> None:
    """In the home of somebody else, a link can lead to a folder of the user's."""
    (tmp_path / "of-the-user").mkdir()
    (tmp_path / "of-the-user" / "thesis.tex").touch()
    (tmp_path / "kept").symlink_to(tmp_path / "of-the-user")
    assert Pins(tmp_path).kept() == set()
    assert (tmp_path / "of-the-user" / "thesis.tex").exists()


def test_a_world_pin_keeps_the_newest_state_until_it_is_closed(tmp_path: Path) -> None:
    """A command may still run when its step has ended."""
    pins, other = Pins(tmp_path), SnapshotId("b" * 64)
    open_before = open_files(tmp_path)
    world_pins = pins.of_world()
    world_pins.moved(other)
    world_pins.moved(ID)
    assert pins.kept() == {ID}
    world_pins.keep(ID)
    world_pins.moved(other)
    assert pins.kept() == {ID, other}
    world_pins.close()
    world_pins.keep(ID)
    world_pins.moved(other)
    assert pins.kept() == set()
    assert left_open(open_before, tmp_path) == []
