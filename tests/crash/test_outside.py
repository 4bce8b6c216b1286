"""Failures of the environment: a server that is unreachable for a while, a full disk, a clock that jumps. Nothing is
lost, and stopped runs continue; under the decorators and in LangGraph, whose saver has its own connection to the
database here. (Unwritable files: runtime/store/test_database_errors.py.)"""

from __future__ import annotations

import asyncio
import itertools
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from sqlalchemy.exc import SQLAlchemyError

import ramify.graph
from ramify import Runtime
from ramify.fork_engine.errors import ForkEngineError
from ramify.fork_engine.store import SnapshotStore
from ramify.runtime.errors import RunError, StoreError
from ramify.runtime.events import Event, OpDone
from ramify.runtime.records import OpStatus, RunStatus
from ramify.sandboxes.testing import ScriptedBackend
from ramify.serving.client import LLMClient
from ramify.serving.testing import ScriptedModel
from tests.samples import sample

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parent)]
import postgres  # noqa: E402
import scenarios  # noqa: E402
from disks import read_only  # noqa: E402

AWAY_S = sample(2, 10)
NAMES = ["ann", "bob"]
RESULT = [
    "receipt for hello",
    "receipt for bye",
    "bob end hello.txt notes",
    "ABOUT BOB END HELLO.TXT NOTES",  # the model of these tests answers in capitals
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


SAID = {"said": [f"a hello.txt{after}" for after in ("", " l", " r", " l r z")]}
THREAD: Any = {"configurable": {"thread_id": "t"}}


@contextmanager
def graph_app(
    home: Path, workspace: Path, threads: str | Path, observer: Callable[[Event], None] | None = None
) -> Iterator[Any]:
    with (
        ramify.graph.Saver(threads) as saver,
        ramify.compile(
            scenarios.graph(),
            workspace,
            checkpointer=saver,
            home=home,
            sandbox=backend,
            llm=model(),
            observer=observer,
            name="outside",
        ) as app,
    ):
        yield app


def gone_through(app: Any) -> Any:
    """The thread's values, after its remaining work."""
    begun = app.checkpointer.get_tuple(THREAD) is not None
    if not begun or app.get_state(THREAD).next:
        asyncio.run(app.ainvoke(None if begun else {"said": []}, THREAD))
    return app.get_state(THREAD).values


def texts() -> list[str]:
    return [text for _, text in scenarios.sent()]


@pytest.mark.slow
@pytest.mark.postgres
async def test_a_server_that_is_unreachable_for_seconds(tmp_path: Path, workspace: Path) -> None:
    if postgres.why_not() or "RAMIFY_TEST_POSTGRES" in os.environ:
        pytest.skip(postgres.why_not() or "stops its server, so it needs one of its own")
    with postgres.server() as server:
        address = postgres.new_database(server)
        stops: list[Thread] = []

        def observe(event: Event) -> None:
            if isinstance(event, OpDone) and not stops:
                stops.append(stopped(server, AWAY_S))

        async with (
            model() as client,
            Runtime(
                home=tmp_path / "home", database=address, sandbox=backend, llm=client, observer=observe
            ) as runtime,
        ):
            begun = time.monotonic()
            assert await runtime.run(scenarios.with_keys, NAMES, workspace=workspace) == RESULT
            assert time.monotonic() - begun > AWAY_S  # it was waited for
            await asyncio.to_thread(stops[0].join)
            assert (await runtime.record()).status is RunStatus.DONE
            keys = [row.key for row in await runtime.journal() if row.status is OpStatus.DONE]
            assert len(keys) == len(set(keys))
        assert texts() == ["hello", "bye"]


@pytest.mark.slow
@pytest.mark.postgres
def test_a_graph_whose_server_is_unreachable_for_seconds(
    tmp_path: Path, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if postgres.why_not() or "RAMIFY_TEST_POSTGRES" in os.environ:
        pytest.skip(postgres.why_not() or "stops its server, so it needs one of its own")
    with postgres.server() as server:
        monkeypatch.setenv("RAMIFY_DATABASE", address := postgres.new_database(server))
        stops: list[Thread] = []

        def observe(event: Event) -> None:
            if isinstance(event, OpDone) and not stops:
                stops.append(stopped(server, AWAY_S))

        with graph_app(tmp_path / "home", workspace, f"{address}?application_name=apart", observe) as app:
            begun = time.monotonic()
            assert gone_through(app) == SAID
            assert time.monotonic() - begun > AWAY_S
            assert [state.metadata["step"] for state in app.get_state_history(THREAD)] == [3, 2, 1, 0, -1]
        stops[0].join()


def stopped(server: str, away_s: float) -> Thread:
    """Stop the cluster at that address. Return the thread that starts it again."""
    is_away = threading.Event()
    restarting = Thread(target=restart, args=(server, away_s, is_away))
    restarting.start()
    assert is_away.wait(60)
    return restarting


def restart(server: str, away_s: float, is_away: threading.Event) -> None:
    """Stop the cluster at that address as a crash would, wait, and start it again."""
    import psycopg

    with psycopg.connect(server) as connection:
        row = connection.execute("SHOW data_directory").fetchone()
    assert row is not None
    folder, port = Path(row[0]).parent, server.rpartition(":")[2].partition("/")[0]
    control = postgres.binaries() / "pg_ctl"  # type: ignore[operator]
    postgres._as_user(control, "-D", row[0], "-m", "immediate", "stop").check_returncode()
    is_away.set()
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


def filling(disk: Path) -> Callable[[Event], None]:
    """An observer that fills the disk after the first operation."""

    def fill(event: Event) -> None:
        if isinstance(event, OpDone) and not (disk / "filler").exists():
            subprocess.run(["dd", "if=/dev/zero", f"of={disk}/filler", "bs=64k"], capture_output=True)

    return fill


async def test_a_full_disk_stops_the_run_which_continues_later(small_disk: Path, workspace: Path) -> None:
    home = small_disk / "home"
    async with (
        model() as client,
        Runtime(home=home, sandbox=backend, llm=client, observer=filling(small_disk)) as runtime,
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


def test_a_full_disk_stops_a_graph_which_continues_later(small_disk: Path, workspace: Path) -> None:
    home = small_disk / "home"
    with (
        pytest.raises((RunError, ForkEngineError, SQLAlchemyError), match=r"full|space"),
        graph_app(home, workspace, home / "threads.db", filling(small_disk)) as app,
    ):
        gone_through(app)
    (small_disk / "filler").unlink()
    with graph_app(home, workspace, home / "threads.db") as app:
        assert gone_through(app) == SAID
    assert SnapshotStore(home / "store").fsck().problems == ()


async def test_a_home_that_cannot_be_written_is_named_and_unchanged(tmp_path: Path, workspace: Path) -> None:
    home = tmp_path / "home"
    async with model() as client, Runtime(home=home, sandbox=backend, llm=client) as runtime:
        assert await runtime.run(scenarios.with_keys, NAMES, workspace=workspace) == RESULT
    with read_only(home):
        with pytest.raises(StoreError, match=str(home)):
            async with Runtime(home=home, sandbox=backend) as runtime:
                await runtime.run(scenarios.with_keys, NAMES, workspace=workspace)
        with pytest.raises(SQLAlchemyError) as refused, ramify.graph.Saver(home / "ramify.db"):
            pass
        assert str(home) in str(refused.value.__notes__)
    async with Runtime(home=home, sandbox=backend) as runtime:
        assert len(await runtime.store.runs()) == 1


def test_a_graph_under_a_clock_that_jumps(tmp_path: Path, workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now, jumps = time.time, itertools.cycle([0.0, -3e7, 3e8, -3e8])
    monkeypatch.setattr(time, "time", lambda: now() + next(jumps))
    with graph_app(tmp_path / "home", workspace, tmp_path / "home" / "ramify.db") as app:
        assert gone_through(app) == SAID
        assert [state.metadata["step"] for state in app.get_state_history(THREAD)] == [3, 2, 1, 0, -1]


async def test_a_clock_that_jumps(tmp_path: Path, workspace: Path) -> None:
    """Back a year, forward ten: order, deadlines and "newest" do not depend on the clock."""
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
