"""What the process on a node does with the runs that it is given, without Ray."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import fleet_app
import pytest
import pytest_asyncio

from ramify import Runtime, Workflow
from ramify.compiler.plan import OpId
from ramify.fleet.carried_errors import rebuilt
from ramify.fleet.errors import NodeUnfit
from ramify.fleet.fleet import _shared
from ramify.fleet.run_host import RunHost
from ramify.runtime.errors import RunFailed
from ramify.runtime.execution.placed_steps import StepOrder
from ramify.runtime.records import BranchPath, RunId, RunStatus

pytest.importorskip("obstore", reason="needs obstore (ramify[remote])")


@pytest_asyncio.fixture
async def program(tmp_path: Path) -> AsyncIterator[Runtime]:
    """The runtime of the program that stores the runs."""
    async with Runtime(home=tmp_path / "home", sandbox="copy", remote=tmp_path / "bucket") as runtime:
        yield runtime


@pytest_asyncio.fixture
async def host(program: Runtime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[RunHost]:
    monkeypatch.setenv("RAMIFY_HOME", str(tmp_path / "node"))
    opened = RunHost()
    assert await opened.open(_shared(program), "copy", "m") is None
    yield opened
    assert await opened.close() is None


async def stored(program: Runtime, workflow: Workflow[..., Any], *args: str) -> RunId:
    run = await program.create(workflow, args, {})
    assert program.bucket is not None
    await program.bucket.upload(run.base_snapshot)
    return run.id


async def test_two_calls_for_one_run_wait_for_the_same_end(program: Runtime, host: RunHost, folder: Path) -> None:
    run = await stored(program, fleet_app.words, str(folder), "a")
    calls = [asyncio.ensure_future(host.go_on(run, "copy", "m")) for _ in range(2)]
    while not (folder / fleet_app.SENT).exists():  # noqa: ASYNC110
        await asyncio.sleep(0.02)
    (folder / fleet_app.GATE).touch()
    first, second = await asyncio.gather(*calls)
    assert first.error is None
    assert first == second
    assert await program.resume(run) == "a one\na two\n"
    assert (folder / fleet_app.SENT).read_text() == "a\n"
    while await host.events(run) is not None:
        pass


@pytest.mark.parametrize("where", ["workflow", "step", "thread", "task"])
async def test_an_exit_in_a_run_ends_the_run_only(program: Runtime, host: RunHost, where: str) -> None:
    run = await stored(program, fleet_app.exits, where)
    ended = await host.go_on(run, "copy", "m")
    assert ended.error is not None
    made = rebuilt(ended.error, "m")
    assert isinstance(made, RunFailed)
    assert "it ended the program (SystemExit(3))" in str(made)
    assert (await program.record(run)).status is RunStatus.FAILED


async def test_a_node_where_another_database_has_the_fleets_address(host: RunHost) -> None:
    """It is told so for runs and for steps, and none of them has a result."""
    run = RunId("nowhere")
    ended = await host.go_on(run, "copy", "m")
    order = StepOrder("o", run, BranchPath("root/f.0"), "k", OpId("op"), "s", "code", "{}", 0, None, False, 0.0)
    reply = await host.begin_step(order, "copy")
    assert reply.answer is not None
    assert reply.answer.stops
    for error in (ended.error, reply.error):
        assert error is not None
        made = rebuilt(error, "m")
        assert isinstance(made, NodeUnfit)
        assert "there it is another one" in str(made)


async def test_a_node_in_a_container_has_the_memory_of_that(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("RAMIFY_HOME", str(tmp_path / "node"))
    monkeypatch.setattr("ramify.fleet.run_host.memory_limits", lambda: [(1, 64 << 30), (1, 8 << 30), (1, 16 << 30)])
    assert (await RunHost().describe())["memory"] == 8 << 30
