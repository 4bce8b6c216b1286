"""What a fleet refuses before it asks a cluster, and what a node refuses to share."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import fleet_app
import pytest

from ramify import Runtime, paths
from ramify.fleet.carried_errors import rebuilt
from ramify.fleet.errors import ClusterUnreachable, FleetError, NodeUnfit, NotShared, RayMissing
from ramify.fleet.fleet import Fleet, _shared
from ramify.fleet.run_host import RunHost
from ramify.fleet.types import FileIdentity
from ramify.fork_engine.errors import ForkEngineError
from ramify.fork_engine.store import SnapshotStore

pytest.importorskip("obstore", reason="needs obstore (ramify[remote])")


async def test_a_fleet_needs_a_bucket(tmp_path: Path) -> None:
    async with Runtime(home=tmp_path / "home", sandbox="copy") as runtime:
        with pytest.raises(NotShared, match="--remote"):
            async with Fleet(runtime):
                pass


@pytest.mark.parametrize("many", [0, -1, 1.5, float("nan"), float("inf"), "2"])
async def test_a_node_takes_a_whole_number_of_runs(tmp_path: Path, many: Any) -> None:
    async with Runtime(home=tmp_path / "home", sandbox="copy") as runtime:
        with pytest.raises(ValueError, match=r"runs_per_node=.*: a whole number from 1"):
            Fleet(runtime, runs_per_node=many)


async def test_a_fleet_that_is_not_open_runs_nothing(tmp_path: Path) -> None:
    async with Runtime(home=tmp_path / "home", sandbox="copy") as runtime:
        with pytest.raises(FleetError, match="not open"):
            await Fleet(runtime).run(fleet_app.where, str(tmp_path))
        assert not await runtime.store.runs()


async def test_a_fleet_that_could_not_open_can_be_entered_again(tmp_path: Path) -> None:
    async with Runtime(home=tmp_path / "home", sandbox="copy") as runtime:
        fleet = Fleet(runtime)
        for _ in range(2):
            with pytest.raises(NotShared):
                await fleet.__aenter__()


async def test_a_fleet_needs_ray(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    async with Runtime(home=tmp_path / "home", sandbox="copy", remote=tmp_path / "bucket") as runtime:
        with pytest.raises(RayMissing, match=r"pip install 'ramify\[ray\]'"):
            async with Fleet(runtime):
                pass


@pytest.mark.ray
@pytest.mark.parametrize("address", ["ray://127.0.0.1:10001", "127.0.0.1:1"])
@pytest.mark.filterwarnings("ignore")
async def test_a_fleet_needs_a_cluster(tmp_path: Path, address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ray", reason="needs Ray (ramify[ray]; .ci/run ray installs it)")
    async with Runtime(home=tmp_path / "home", sandbox="copy", remote=tmp_path / "bucket") as runtime:
        with pytest.raises(ClusterUnreachable, match=address):
            async with Fleet(runtime, address):
                pass


async def test_a_node_refuses_what_it_does_not_share(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with Runtime(home=tmp_path / "home", sandbox="copy", remote=tmp_path / "bucket") as runtime:
        shared = _shared(runtime)
    monkeypatch.setenv("RAMIFY_HOME", str(tmp_path / "node"))
    host = RunHost()
    elsewhere = replace(shared, file=FileIdentity("another boot", 1, 2))
    unlike = replace(shared, store="another")
    missing = replace(shared, bucket=str(tmp_path / "nowhere"))
    for wrong, kind, why in (
        (elsewhere, NodeUnfit, "a SQLite file belongs to one machine"),
        (unlike, NodeUnfit, "is another bucket there"),
        (missing, ForkEngineError, "nowhere"),
    ):
        error = await host.open(wrong, "copy", "m")
        assert error is not None
        assert isinstance(made := rebuilt(error, "m"), kind)
        assert why in str(made)
    assert await host.open(shared, "copy", "m") is None
    assert await host.close() is None
    tree = tmp_path / "tree"
    tree.mkdir()
    there = SnapshotStore(paths.snapshots(tmp_path / "node")).import_tree(tree).snapshot
    described = await host.describe()
    assert described["layers"] == frozenset(there.all_layers)
    assert described["images"] == ()
    assert described["home"] == str(tmp_path / "node")
