"""`ramify gc`: what it says, and that `ramify fsck` agrees with it."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest
import reuse_app

from ramify import Runtime, paths
from ramify.fork_engine.store import SnapshotStore
from ramify.runtime.worlds.garbage_collection import EvictionMarks


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """The home, empty at first."""
    return tmp_path / "home"


@pytest.fixture
def run(place: Path, workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reuse_app, "LOG", tmp_path / "log")

    async def work() -> None:
        async with Runtime(home=place, sandbox="copy") as runtime:
            await runtime.run(reuse_app.tools_at_once, workspace=workspace)

    asyncio.run(work())


def test_gc_in_an_empty_home(ramify: Any) -> None:
    assert "no runs yet" in ramify("gc").out
    assert ramify("gc", "--json").json["snapshots"] == 0


def test_unneeded_snapshots_are_deleted_after_the_grace_period(
    ramify: Any, run: None, place: Path, workspace: Path
) -> None:
    (workspace / "more").write_text("x" * 2000)
    unnamed = SnapshotStore(paths.snapshots(place)).import_tree(workspace).snapshot
    said = ramify("gc").out
    assert said.startswith("deleted 0 snapshots") and "1 snapshot of the last 5 minutes" in said
    assert ramify("gc", "--dry-run", "--json").json["young"] == 1
    record = paths.snapshots(place) / "snapshots" / f"{unnamed.id}.json"
    os.utime(record, (1, 1))
    assert ramify("gc", "--dry-run").out.startswith("would delete 1 snapshot")
    assert record.exists()
    said = ramify("gc").out
    assert said.startswith("deleted 1 snapshot") and "minutes" not in said
    assert not record.exists() and ramify("fsck").status == 0


def test_runs_in_the_homes_own_database_keep_their_states_whatever_database_is_named(
    ramify: Any, run: None, place: Path, tmp_path: Path
) -> None:
    async def create() -> None:
        async with Runtime(home=place, database=tmp_path / "other.db", sandbox="copy"):
            pass

    asyncio.run(create())
    records = list((paths.snapshots(place) / "snapshots").iterdir())
    for record in records:
        os.utime(record, (1, 1))
    gc = ("gc", "--budget", "0", "--json")
    assert ramify("--database", tmp_path / "other.db", *gc).json["snapshots"] == 0
    assert all(record.exists() for record in records)
    assert ramify("--database", place / "ramify.db", *gc).json["snapshots"] > 0


def test_budget_deletes_states_that_can_be_recomputed(ramify: Any, run: None, place: Path) -> None:
    for record in (paths.snapshots(place) / "snapshots").iterdir():
        os.utime(record, (1, 1))
    done = ramify("gc", "--budget", "0", "--json").json
    assert not done["within_budget"] and done["evicted"]
    assert EvictionMarks(paths.evicted(place)).all() == {one["snapshot"] for one in done["evicted"]}
    assert ramify("fsck").status == 0
    again = ramify("gc", "--budget", "0")
    assert again.out.startswith("deleted 0 snapshots") and "more than the budget of 0 B" in again.out


def test_malformed_size_is_refused(ramify: Any) -> None:
    said = ramify("gc", "--budget", "much")
    assert said.status == 2 and "is not a size" in said.err


def test_auto_collects_above_the_budget_once_in_an_hour(
    ramify: Any, run: None, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for record in (paths.snapshots(place) / "snapshots").iterdir():
        os.utime(record, (1, 1))
    monkeypatch.setenv("RAMIFY_DISK_BUDGET", "off")
    assert ramify("gc", "--auto").out == "not due\n"
    monkeypatch.setenv("RAMIFY_DISK_BUDGET", "0")
    assert ramify("gc", "--auto", "--json").json["evicted"]
    assert ramify("gc", "--auto").out == "not due\n"
    assert ramify("fsck").status == 0
    assert ramify("gc", "--auto", "--budget", "1").status == 2


def test_a_run_collects_at_its_end(ramify: Any, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flow = tmp_path / "flow.py"
    flow.write_text("from ramify import workflow\n\n\n@workflow\nasync def one() -> int:\n    return 1\n")
    stamp = paths.locks(place) / "collected"
    for budget, collects in (("off", False), ("100G", True)):
        monkeypatch.setenv("RAMIFY_DISK_BUDGET", budget)
        assert ramify("run", f"{flow}:one", "--sandbox", "copy", "--quiet").out == "1\n"
        assert stamp.exists() is collects


def test_a_malformed_budget_of_the_environment_is_told_before_the_run(
    ramify: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flow = tmp_path / "flow.py"
    flow.write_text("from ramify import workflow\n\n\n@workflow\nasync def one() -> int:\n    return 1\n")
    monkeypatch.setenv("RAMIFY_DISK_BUDGET", "much")
    said = ramify("run", f"{flow}:one", "--sandbox", "copy", "--quiet")
    assert (said.status, said.out) == (1, "")
    assert said.err.startswith("ramify: $RAMIFY_DISK_BUDGET: 'much' is not a size: write 500M, 2G")
    assert "no runs yet" in ramify("ls").err
