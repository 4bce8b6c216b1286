"""What the host reads in a world's tree belongs to the world, whatever was planted there."""

from __future__ import annotations

import errno
import itertools
import os
import threading
from pathlib import Path

import pytest

from ramify.fork_engine.types import Snapshot
from ramify.sandboxes.backends.namespaces.backend import NamespaceBackend
from ramify.sandboxes.contract import WorldSpec
from ramify.sandboxes.host.world_files import open_inside, read_inside
from tests.open_files import left_open, open_files


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "secret").write_text("the host's own")
    tree = tmp_path / "tree"
    (tree / "d").mkdir(parents=True)
    (tree / "d" / "file").write_text("inside")
    (tree / "relative").symlink_to("d/../d/file")
    (tree / "up").symlink_to("../secret")
    (tree / "absolute").symlink_to(tmp_path / "secret")
    (tree / "magic").symlink_to("/proc/self/exe")
    (tree / "out").symlink_to("..")
    (tree / "loop").symlink_to("loop")
    os.mkfifo(tree / "pipe")
    return tree


def test_a_file_and_a_link_to_it_are_read(tree: Path) -> None:
    assert read_inside(tree, "d/file", 100) == read_inside(tree, "relative", 6) == b"inside"


@pytest.mark.parametrize(
    ("path", "number"),
    [
        *((path, errno.EXDEV) for path in ("up", "absolute", "magic", "out/secret", "../secret", "/etc/passwd")),
        *((path, errno.EINVAL) for path in ("pipe", "d", ".")),
        ("loop", errno.ELOOP),
        ("none", errno.ENOENT),
    ],
)
def test_what_is_refused(tree: Path, path: str, number: int) -> None:
    before = open_files(tree)
    with pytest.raises(OSError) as refused:
        read_inside(tree, path, 100)
    assert refused.value.errno == number
    assert left_open(before, tree) == []


def test_a_file_larger_than_requested_is_an_error(tree: Path) -> None:
    with pytest.raises(OSError, match="more than 5 bytes"):
        read_inside(tree, "d/file", 5)


def test_a_folder_that_turns_into_a_link_is_never_followed(tree: Path) -> None:
    host = tree.parent / "host"
    host.mkdir()
    (host / "file").write_text("the host's own")
    stop = threading.Event()

    def swap() -> None:
        while not stop.is_set():
            (tree / "d").rename(tree / "e")
            (tree / "d").symlink_to(host)
            (tree / "d").unlink()
            (tree / "e").rename(tree / "d")

    swapper = threading.Thread(target=swap)
    swapper.start()
    seen: set[bytes] = set()
    try:
        for _ in itertools.takewhile(lambda turn: turn < 3000 or not seen, range(1_000_000)):
            try:
                seen.add(read_inside(tree, "d/file", 100))
            except OSError as error:
                assert error.errno in (errno.ENOENT, errno.EXDEV, errno.EAGAIN)
    finally:
        stop.set()
        swapper.join()
    assert seen == {b"inside"}


@pytest.mark.linux_ns
async def test_a_live_world_cannot_mislead_the_host(
    namespaces: NamespaceBackend, base: Snapshot, spec: WorldSpec, tmp_path: Path
) -> None:
    (tmp_path / "precious").write_text("the host's own")
    world = await namespaces.materialise(base, spec)
    await world.run(f"ln -s {tmp_path}/precious bait; mkfifo pipe; ln -s readme.txt good")
    assert (world.path / "bait").read_text() == "the host's own"  # what a plain open does, and why this module exists
    assert read_inside(world.path, "good", 100) == b"as it was\n"
    for planted in ("bait", "pipe"):
        with pytest.raises(OSError, match=r"link|regular"):
            os.close(open_inside(world.path, planted))
