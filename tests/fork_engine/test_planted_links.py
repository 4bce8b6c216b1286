"""Links in a store of somebody else, in place of its folders: they can lead to folders of the user."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from ramify.fork_engine.errors import SnapshotCorrupt, StoreUnusable
from ramify.fork_engine.store import SnapshotStore


@pytest.mark.parametrize("name", ["tmp", "unflushed"])
def test_a_link_in_place_of_a_folder_that_is_emptied_is_refused(name: str, tmp_path: Path) -> None:
    """In the store of somebody else it can lead to a folder of the user's. What an earlier boot left unflushed there
    was removed when the store was opened, and the user's folders looked like that."""
    users = tmp_path / "of-the-user"
    (users / "folder").mkdir(parents=True)
    (users / "folder" / f"layers-{'0' * 64}").touch()
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / name).symlink_to(users)
    with pytest.raises(StoreUnusable, match=f"{name}: something else has the name"):
        SnapshotStore(tmp_path / "store")
    assert (users / "folder").is_dir()


@pytest.mark.parametrize("name", ["layers", "images", "blobs", "snapshots"])
def test_a_deletion_leaves_what_is_not_the_stores(name: str, tmp_path: Path) -> None:
    """For the same reason: users may move these folders elsewhere, with a link in their place."""
    users = tmp_path / "of-the-user"
    (users / "folder" / "fs").mkdir(parents=True)
    for file in (users / "thesis.tex", users / "settings.json"):
        file.touch()
        os.utime(file, (0, 0))
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / name).symlink_to(users)
    SnapshotStore(tmp_path / "store").delete_unreachable([])
    assert sorted(path.name for path in users.iterdir()) == ["folder", "settings.json", "thesis.tex"]


def test_a_link_in_place_of_a_layers_folder_is_refused(bench: Any, tmp_path: Path) -> None:
    """A world over such a layer would see a folder of this machine that is hidden from it."""
    base = bench.base({"a": "1"})
    fs = bench.store.lower_dirs(base)[0]
    fs.rename(tmp_path / "away")
    fs.symlink_to(tmp_path / "away")
    with pytest.raises(SnapshotCorrupt, match=base.layers[0]):
        bench.store.lower_dirs(base)


def test_a_store_may_be_elsewhere_by_a_link(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "store").symlink_to(tmp_path / "disk")
    assert SnapshotStore(tmp_path / "store").present() == []
