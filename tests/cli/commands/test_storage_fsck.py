"""`ramify fsck`: what it says, and its exit status."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ramify import paths
from ramify.fork_engine.store import SnapshotStore


@pytest.fixture
def layer(tmp_path: Path) -> Path:
    """The tree of the one layer in the store."""
    (tmp_path / "w").mkdir()
    (tmp_path / "w/a").write_text("the only copy")
    store = SnapshotStore(paths.snapshots(tmp_path / "home"))
    return store.lower_dirs(store.import_tree(tmp_path / "w").snapshot)[0]


def test_fsck_without_a_store(ramify: Any, tmp_path: Path) -> None:
    said = ramify("fsck")
    assert said.status == 0 and "no snapshots yet" in said.out
    assert ramify("fsck", "--json").json["ok"] is True
    assert not (tmp_path / "home").exists()


def test_fsck_of_a_sound_store(ramify: Any, layer: Path) -> None:
    said = ramify("fsck")
    assert said.status == 0
    assert said.out.splitlines() == ["checked 1 layers, 0 images, 0 blobs, 1 snapshots: no problems"]


def test_damage_and_its_repair(ramify: Any, layer: Path) -> None:
    (layer / "a").write_text("another")
    said = ramify("fsck")
    assert said.status == 1 and "'a': changed (size, time, bytes)" in said.out
    assert "cannot be restored completely" in said.out and "--repair" in said.out
    told = ramify("fsck", "--repair", "--json")
    assert told.status == 1 and len(told.json["lost"]) == 1 and len(told.json["aside"]) == 2
    assert ramify("fsck").status == 0


def test_fsck_reports_missing_parts(ramify: Any, layer: Path) -> None:
    (layer / "a").unlink()
    told = ramify("fsck", "--json")
    assert told.status == 3  # the file is missing, and its folder's time is another one
    assert {problem["damage"] for problem in told.json["problems"]} == {"missing", "changed"}


def test_fsck_ignores_snapshots_of_other_homes(ramify: Any, home: Any, tmp_path: Path) -> None:
    """A database may be several homes', each with snapshots of its own: a run's lie where it was worked on."""
    (tmp_path / "w").mkdir()
    SnapshotStore(paths.snapshots(tmp_path / "other")).import_tree(tmp_path / "w")
    there = ("--home", tmp_path / "other", "--database", home.path / "ramify.db", "fsck")
    said = ramify(*there)
    assert (said.status, "1 run never worked on from" in said.err) == (0, True), said.out
    paths.locks(tmp_path / "other").mkdir()
    (paths.locks(tmp_path / "other") / f"{home.story.run.id}.lock").touch()
    assert ramify(*there).status == 2


def test_leftovers_alone_are_no_damage(ramify: Any, layer: Path) -> None:
    (layer.parents[2] / "tmp/left").mkdir()
    said = ramify("fsck")
    assert said.status == 0 and "left by a crash" in said.out
    assert "repaired" in ramify("fsck", "--repair").out and "no problems" in ramify("fsck").out


def test_fsck_reports_snapshots_that_runs_name(ramify: Any, home: Any) -> None:
    assert ramify("fsck").status == 0
    id = home.story.run.base_snapshot
    (paths.snapshots(home.path) / "snapshots" / f"{id}.json").unlink()
    told = ramify("fsck", "--json")
    assert told.status == 2 and told.json["lost"] == [id]
    assert [(problem["name"], problem["damage"]) for problem in told.json["problems"]] == [(id, "missing")]
    repaired = ramify("fsck", "--repair", "--json")  # no other file holds the record's fields: nothing is guessed
    assert repaired.status == 2 and repaired.json["lost"] == [id]
