"""A node that cannot use the bucket: an error that has its own class and names the node, and a run that goes on once
the cause is gone. The process of the node is in this one, without Ray."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import fleet_app
import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))
from benchmarks.object_server import ObjectServer
from ramify import Runtime
from ramify.cli.errors import report
from ramify.fleet.carried_errors import rebuilt
from ramify.fleet.fleet import Fleet, _shared
from ramify.fleet.placement import Member
from ramify.fleet.run_host import RunHost
from ramify.fleet.types import HostFacts, Node, NodeId
from ramify.fork_engine.errors import (
    ClockOff,
    CredentialsRefused,
    ForeignBucket,
    RemoteError,
    RemoteObjectAltered,
    RemoteObjectMissing,
)
from ramify.runtime.errors import StepFailed, Unrecoverable
from ramify.runtime.records import RunStatus

pytest.importorskip("obstore", reason="needs obstore (ramify[remote])")

FACTS = HostFacts("0.2.0", "3.11.7", "m", 7, "boot", "/home", 8 << 30, {"copy": ""}, "")
NODE = Node(NodeId("node-one"), "m", {"CPU": 1.0})


class Here(RunHost):
    """As `RayHost`."""

    async def kill(self) -> None:
        """It ends with the test."""


@asynccontextmanager
async def fleet_here(tmp_path: Path, bucket: str | Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Fleet]:
    """A fleet with one node."""
    async with Runtime(home=tmp_path / "home", sandbox="copy", remote=bucket) as runtime:
        monkeypatch.setenv("RAMIFY_HOME", str(tmp_path / "node"))
        host = Here()
        assert await host.open(_shared(runtime), "copy", NODE.name) is None
        fleet = Fleet(runtime)
        fleet._nodes.queue.add(Member(NODE, FACTS, host, 1))  # type: ignore[arg-type]
        fleet._is_open = True
        yield fleet
        assert await host.close() is None


async def fails_and_goes_on(
    fleet: Fleet, folder: Path, spoil: Callable[[], None], mend: Callable[[], None]
) -> StepFailed:
    """The error of a run whose first state the node cannot fetch."""
    run = await fleet.runtime.create(fleet_app.where, (str(folder),), {}, workspace=folder)
    assert fleet.runtime.bucket is not None
    await fleet.runtime.bucket.upload(run.base_snapshot)
    spoil()
    with pytest.raises(StepFailed) as failed:
        await fleet.resume(run.id)
    assert failed.value.__notes__ == [f"on node {NODE.name}"]
    mend()
    await fleet.resume(run.id)
    assert (await fleet.runtime.record(run.id)).status is RunStatus.DONE
    return failed.value


@pytest.mark.parametrize(
    ("status", "code", "kind"), [(400, "ExpiredToken", CredentialsRefused), (403, "RequestTimeTooSkewed", ClockOff)]
)
async def test_a_node_that_the_service_refuses(
    tmp_path: Path,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    status: int,
    code: str,
    kind: type[RemoteError],
) -> None:
    with ObjectServer(tmp_path / "objects") as server:
        for name, value in server.variables.items():
            monkeypatch.setenv(name, value)
        async with fleet_here(tmp_path, server.url, monkeypatch) as fleet:
            error = await fails_and_goes_on(fleet, folder, lambda: server.refuse(status, code), server.accept)
            server.refuse(status, code)
            refused = await Here().open(_shared(fleet.runtime), "copy", NODE.name)
            server.accept()
    assert isinstance(error.__cause__, kind)
    assert report(error) == 1
    assert f"on node {NODE.name}" in capsys.readouterr().err
    assert refused is not None
    assert isinstance(rebuilt(refused, NODE.name), kind)


@pytest.mark.parametrize(("altered", "kind"), [(b"x", RemoteObjectAltered), (None, RemoteObjectMissing)])
async def test_a_node_that_finds_a_damaged_bucket(
    tmp_path: Path,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    altered: bytes | None,
    kind: type[RemoteError],
) -> None:
    bucket = tmp_path / "bucket"
    saved: dict[Path, bytes] = {}

    def spoil() -> None:
        for path in (one for one in (bucket / "snapshots").rglob("*") if one.is_file()):
            saved[path] = path.read_bytes()
            if altered is None:
                path.unlink()
            else:
                path.write_bytes(saved[path] + altered)

    def mend() -> None:
        for path, data in saved.items():
            path.write_bytes(data)

    (folder / "content").write_text("of the workspace")
    async with fleet_here(tmp_path, bucket, monkeypatch) as fleet:
        error = await fails_and_goes_on(fleet, folder, spoil, mend)
    assert saved
    assert isinstance(error.__cause__, Unrecoverable)
    assert kind.__name__ in str(error.__cause__.__cause__)  # the traceback on the node


async def test_a_node_whose_home_knows_another_bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with Runtime(home=tmp_path / "home", sandbox="copy", remote=tmp_path / "bucket") as runtime:
        shared = _shared(runtime)
    async with Runtime(home=tmp_path / "node", sandbox="copy", remote=tmp_path / "others"):
        monkeypatch.setenv("RAMIFY_HOME", str(tmp_path / "node"))
    error = await Here().open(shared, "copy", NODE.name)
    assert error is not None
    assert isinstance(made := rebuilt(error, NODE.name), ForeignBucket)
    assert made.__notes__ == [f"on node {NODE.name}"]
