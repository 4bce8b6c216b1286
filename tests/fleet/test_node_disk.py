"""The store of a node as a bounded cache of the bucket."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import fleet_app
import pytest

from ramify import Runtime, paths
from ramify.fleet.carried_errors import rebuilt
from ramify.fleet.errors import NodeUnfit
from ramify.fleet.fleet import _shared
from ramify.fleet.node_disk import NodeDisk, collect_node
from ramify.fleet.run_host import RunHost
from ramify.fork_engine.gc_pins import Pins
from ramify.fork_engine.store import SnapshotStore
from ramify.inspect.home import Home
from ramify.runtime.records import RunId

pytest.importorskip("obstore", reason="needs obstore (ramify[remote])")


async def test_a_full_node_drops_what_the_bucket_has_and_fetches_it_again(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "repo").mkdir()
    (tmp_path / "repo" / "words").write_text("before\n")
    node = tmp_path / "node"
    store = SnapshotStore(paths.snapshots(node))

    def age() -> None:
        """Young snapshots stay."""
        for record in paths.snapshots(node).rglob("*.json"):
            os.utime(record, (0, 0))

    async with Runtime(home=tmp_path / "home", sandbox="copy", remote=tmp_path / "bucket") as program:

        async def placed() -> RunId:
            run = await program.create(fleet_app.where, (str(folder),), {}, workspace=tmp_path / "repo")
            assert program.bucket is not None
            await program.bucket.upload(run.base_snapshot)
            return run.id

        monkeypatch.setenv("RAMIFY_HOME", str(node))
        host = RunHost()
        shared = _shared(program)
        assert await host.open(shared, "copy", "m") is None
        first = await placed()
        assert (await host.go_on(first, "copy", "m")).error is None
        base = (await program.record(first)).base_snapshot
        age()
        monkeypatch.setenv("RAMIFY_DISK_BUDGET", "0")
        host._disk._last = None
        host._look_at_disk()
        assert host._disk._collecting is not None
        await host._disk._collecting
        assert base not in store.present()
        second = await placed()
        assert (await host.go_on(second, "copy", "m")).error is None
        assert (await program.record(second)).base_snapshot == base
        assert base in store.present()
        age()
        monkeypatch.setenv("RAMIFY_DISK_BUDGET", "1G")
        await collect_node(Home(node, database_given=shared.database))
        assert base in store.present()  # it was fetched again, and fits
        assert await host.close() is None


async def test_a_run_that_begins_waits_for_a_collection_of_its_home(tmp_path: Path) -> None:
    with Pins(paths.locks(tmp_path)).collecting():
        ready = asyncio.create_task(NodeDisk(tmp_path).ready())
        await asyncio.sleep(0)
        assert not ready.done()
    await ready


async def test_a_budget_that_is_no_size_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with Runtime(home=tmp_path / "home", sandbox="copy", remote=tmp_path / "bucket") as program:
        monkeypatch.setenv("RAMIFY_HOME", str(tmp_path / "node"))
        monkeypatch.setenv("RAMIFY_DISK_BUDGET", "much")
        error = await RunHost().open(_shared(program), "copy", "m")
    assert error is not None
    assert isinstance(made := rebuilt(error, "m"), NodeUnfit)
    assert "RAMIFY_DISK_BUDGET is wrong: 'much' is not a size" in made.reason
