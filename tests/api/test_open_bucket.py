"""`Runtime(remote=…)`: a run goes on on another machine, with one database and one bucket between them."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import moving_app
import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))
import postgres

from ramify import Runtime
from ramify.fork_engine.errors import RemoteError
from ramify.fork_engine.remote import pull as pulling
from ramify.fork_engine.remote.remote_store import RemoteStore
from ramify.fork_engine.store import SnapshotStore
from ramify.open_bucket import OpenBucket
from ramify.paths import remote, snapshots
from ramify.runtime.events import Event, Level, Recovered
from ramify.runtime.store.address import parse
from ramify.runtime.store.engines import writer

pytest.importorskip("obstore", reason="needs obstore (ramify[remote])")
LONGEST_S = 120.0


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Used by both machines. A file is shared by two homes of one machine."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/shared.db"
        return
    if why := postgres.why_not():
        pytest.skip(why)
    with postgres.server() as server:
        yield postgres.new_database(server)


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "log"
    monkeypatch.setenv(moving_app.LOG, str(path))
    return path


def states_in(bucket: Path) -> set[str]:
    return {path.name for path in (bucket / "snapshots").glob("*")}


def end_leases(database: str) -> None:
    """Let the time pass for which another machine waits for a killed process."""
    engine = writer(parse(database))
    with engine.begin() as connection:
        connection.exec_driver_sql("UPDATE leases SET renewed_at = renewed_at - 7200")
    engine.dispose()


async def test_a_run_goes_on_on_another_machine(database: str, tmp_path: Path, log: Path) -> None:
    bucket, homes = tmp_path / "bucket", (tmp_path / "here", tmp_path / "there")
    words = [sys.executable, moving_app.__file__, str(homes[0]), database, str(bucket)]
    env = {**os.environ, "PYTHONPATH": str(Path(moving_app.__file__).parent), moving_app.WAITS: "1"}
    heard: list[Event] = []
    with subprocess.Popen(words, env=env) as child:  # noqa: ASYNC220
        try:
            until = time.monotonic() + LONGEST_S
            while len(states_in(bucket)) < 3:  # the workspace, and each step's
                assert child.poll() is None
                assert time.monotonic() < until
                await asyncio.sleep(0.05)
        finally:
            child.kill()
    (homes[0] / "store").rename(tmp_path / "gone with its machine")
    end_leases(database)
    async with Runtime(
        home=homes[1], database=database, remote=bucket, sandbox="copy", observer=heard.append
    ) as runtime:
        (run,) = await runtime.store.runs()
        assert await runtime.resume(run.id) == "one\ntwo\nthree\n"
    assert log.read_text().split() == ["one", "two", "three"]
    levels = [event.level for event in heard if isinstance(event, Recovered)]
    assert levels == [Level.FETCH, Level.RESTORE]  # nothing is computed again
    assert len(states_in(bucket)) == 4


async def test_a_created_run_is_started_by_a_resume_elsewhere(tmp_path: Path, log: Path) -> None:
    database, bucket, folder = f"sqlite:///{tmp_path}/shared.db", tmp_path / "bucket", tmp_path / "workspace"
    folder.mkdir()
    (folder / "words").write_text("zero\n")
    async with Runtime(home=tmp_path / "here", database=database, remote=bucket, sandbox="copy") as here:
        run = await here.create(moving_app.words, workspace=folder, deadline=60)
        assert not log.exists()
        assert here.bucket is not None
        await here.bucket.upload(run.base_snapshot)
        async with Runtime(home=tmp_path / "there", database=database, remote=bucket, sandbox="copy") as there:
            assert await there.resume(run.id) == "zero\none\ntwo\nthree\n"
        assert (await here.record(run.id)).deadline_s == 60


async def test_states_are_uploaded_at_the_latest_at_the_end(tmp_path: Path, log: Path) -> None:
    bucket = tmp_path / "bucket"
    async with Runtime(home=tmp_path / "home", remote=bucket, sandbox="copy") as runtime:
        await runtime.run(moving_app.words)
        rows = await runtime.store.checkpoints((await runtime.record()).id)
    assert states_in(bucket) == {row.snapshot_id for row in rows}


async def test_a_bucket_that_fails_does_not_fail_the_run(tmp_path: Path, log: Path) -> None:
    bucket = tmp_path / "bucket"
    runtime = Runtime(home=tmp_path / "home", remote=bucket, sandbox="copy")
    with pytest.raises(RemoteError, match="names"):
        async with runtime:
            (bucket / "names").write_text("in the way")
            assert await runtime.run(moving_app.words) == "one\ntwo\nthree\n"
    (bucket / "names").unlink()
    async with Runtime(home=tmp_path / "home", remote=bucket, sandbox="copy") as later:
        assert await later.resume(str(runtime.last_run_id)) == "one\ntwo\nthree\n"


async def test_branches_that_need_one_state_wait_for_one_fetch(
    tmp_path: Path, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket = tmp_path / "bucket"
    async with Runtime(home=tmp_path / "home", remote=bucket, sandbox="copy") as runtime:
        await runtime.run(moving_app.words)
        last = (await runtime.store.checkpoints((await runtime.record()).id))[-1]
    pulled: list[Any] = []
    asked = threading.Event()
    original = pulling.pull

    def counted(remote: RemoteStore, ids: Any) -> Any:
        assert asked.wait(LONGEST_S)
        pulled.append(ids)
        return original(remote, ids)

    monkeypatch.setattr(pulling, "pull", counted)
    other = tmp_path / "other"
    store = SnapshotStore(snapshots(other))
    async with OpenBucket(other, store, bucket) as opened:
        fetches = [asyncio.ensure_future(opened.fetch(last.snapshot_id)) for _ in range(5)]
        fetches[0].cancel()
        asked.set()
        found = await asyncio.gather(*fetches[1:])
    assert {one.id for one in found} == {last.snapshot_id}
    assert len(pulled) == 1
    assert remote(other).exists()
