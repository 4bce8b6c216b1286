"""What fails outside of us: a server that is away for a while, a disk that is full, a clock that jumps. Nothing is
lost, and a run that had to stop goes on afterwards. (What cannot be written: runtime/store/test_failures.py.)"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ramify import Runtime
from ramify.fork_engine.errors import ForkEngineError
from ramify.fork_engine.store import SnapshotStore
from ramify.runtime.errors import RunError
from ramify.runtime.events import Event, OpDone
from ramify.runtime.records import OpStatus, RunStatus
from ramify.sandboxes.testing import ScriptedBackend
from ramify.serving.client import LLMClient
from ramify.serving.testing import ScriptedModel

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parent)]
import postgres  # noqa: E402
import scenarios  # noqa: E402

AWAY_S = 10.0
NAMES = ["ann", "bob"]
RESULT = [
    "receipt for hello",
    "receipt for bye",
    "bob end hello.txt notes",
    "ann hello.txt notes",
    "bob hello.txt notes",
]


@pytest.fixture(autouse=True)
def outbox(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scenarios, "OUTBOX", tmp_path / "outbox")


def backend(store: SnapshotStore, scratch: Path) -> ScriptedBackend:
    return ScriptedBackend(store, scratch, scenarios.answer)


def model() -> LLMClient:
    return LLMClient("http://model.test/v1", transport=ScriptedModel(lambda r: r.messages[-1].content.upper()))


def texts() -> list[str]:
    return [text for _, text in scenarios.sent()]


@pytest.mark.slow
@pytest.mark.postgres
async def test_a_server_that_is_away_for_ten_seconds(tmp_path: Path, workspace: Path) -> None:
    if postgres.why_not() or "RAMIFY_TEST_POSTGRES" in os.environ:
        pytest.skip(postgres.why_not() or "stops its server, so it needs one of its own")
    with postgres.server() as server:
        address = postgres.new_database(server)
        stops: list[asyncio.Task[None]] = []

        def observe(event: Event) -> None:
            if isinstance(event, OpDone) and not stops:
                stops.append(asyncio.get_running_loop().create_task(asyncio.to_thread(restart, server, AWAY_S)))

        async with (
            model() as client,
            Runtime(
                home=tmp_path / "home", database=address, sandbox=backend, llm=client, observer=observe
            ) as runtime,
        ):
            begun = time.monotonic()
            assert await runtime.run(scenarios.with_keys, NAMES, workspace=workspace) == RESULT
            assert time.monotonic() - begun > AWAY_S  # it was waited for
            await asyncio.gather(*stops)
            assert (await runtime.record()).status is RunStatus.DONE
            keys = [row.key for row in await runtime.journal() if row.status is OpStatus.DONE]
            assert len(keys) == len(set(keys))
        assert texts() == ["hello", "bye"]


def restart(server: str, away_s: float) -> None:
    """Stop the cluster at that address as a crash would, wait, and start it again."""
    import psycopg

    with psycopg.connect(server) as connection:
        row = connection.execute("SHOW data_directory").fetchone()
    assert row is not None
    folder, port = Path(row[0]).parent, server.rpartition(":")[2].partition("/")[0]
    control = postgres.binaries() / "pg_ctl"  # type: ignore[operator]
    postgres._as_user(control, "-D", row[0], "-m", "immediate", "stop").check_returncode()
    time.sleep(away_s)
    options = f"-p {port} -k {folder} -c listen_addresses=127.0.0.1"
    postgres._as_user(control, "-D", row[0], "-o", options, "-l", folder / "log", "-w", "start").check_returncode()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    disk = tmp_path / "disk"
    disk.mkdir()
    if os.geteuid() != 0 or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", disk]).returncode:
        pytest.skip("cannot mount a small file system: not root")
    yield disk
    subprocess.run(["umount", disk], check=True)


async def test_a_full_disk_stops_the_run_which_goes_on_later(small_disk: Path, workspace: Path) -> None:
    def fill(event: Event) -> None:
        if isinstance(event, OpDone) and not (small_disk / "filler").exists():
            subprocess.run(["dd", "if=/dev/zero", f"of={small_disk}/filler", "bs=64k"], capture_output=True)

    home = small_disk / "home"
    async with (
        model() as client,
        Runtime(home=home, sandbox=backend, llm=client, observer=fill) as runtime,
    ):
        with pytest.raises((RunError, ForkEngineError)) as stopped:
            await runtime.run(scenarios.with_keys, NAMES, workspace=workspace)
        run_id = str(runtime.last_run_id)
    assert "full" in str(stopped.value) or "space" in str(stopped.value)
    (small_disk / "filler").unlink()
    async with model() as client, Runtime(home=home, sandbox=backend, llm=client) as runtime:
        assert await runtime.resume(run_id) == RESULT
        assert runtime.snapshots.fsck().problems == ()
    assert texts() == ["hello", "bye"]


async def test_a_clock_that_jumps(tmp_path: Path, workspace: Path) -> None:
    """Back a year, on by ten: order, deadlines and what is newest hang on no clock."""
    jumps = iter([0.0, -3e7, 3e8, -3e8] * 1000)
    async with (
        model() as client,
        Runtime(home=tmp_path / "home", sandbox=backend, llm=client, clock=lambda: 1.7e9 + next(jumps)) as runtime,
    ):
        assert await runtime.run(scenarios.with_keys, NAMES, workspace=workspace) == RESULT
        rows = await runtime.journal()
        assert [row.seq for row in rows] == sorted(row.seq for row in rows)
        assert (await runtime.store.runs())[0].id == runtime.last_run_id
        assert await runtime.resume(str(runtime.last_run_id)) == RESULT
    assert texts() == ["hello", "bye"]
