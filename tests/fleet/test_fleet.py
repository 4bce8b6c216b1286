"""Runs on two raylets of this machine: what comes back from them, and what goes on after one is killed."""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import fleet_app
import pytest

from ramify import Runtime
from ramify.cli.errors import USAGE, WAITING
from ramify.cli.main import run_command_line
from ramify.compiler.plan import OpKind
from ramify.fleet import ray_connection
from ramify.fleet.carried_errors import NodeTraceback
from ramify.fleet.errors import FleetClosed, FleetError, NodesDied, NoFitNode
from ramify.fleet.fleet import Fleet
from ramify.fleet.nodes import MOST_DEATHS
from ramify.fleet.ray_cluster import RayCluster
from ramify.fleet.types import Needs, NodeJoined, NodeLost, NodeRefused, Placed
from ramify.runtime.errors import RunCancelled, RunWaiting, StepFailed
from ramify.runtime.events import Event, OpDone, RunEnded, RunStarted
from ramify.runtime.records import EffectStatus, RunStatus

pytestmark = [
    pytest.mark.ray,
    pytest.mark.filterwarnings("ignore"),  # Ray leaves files open and uses what is deprecated
    pytest.mark.timeout(240),  # its processes take seconds to start on slow machines
]
LONGEST_S = 120.0


async def until(there: Callable[[], bool]) -> None:
    end = time.monotonic() + LONGEST_S
    while not there():
        assert time.monotonic() < end
        await asyncio.sleep(0.05)


async def sent(shared: Runtime, runs: int) -> bool:
    """Whether that many runs have recorded that they sent: one that is killed before would be in doubt."""
    effects = [one.status for run in await shared.store.runs() for one in await shared.store.effects(run.id)]
    return effects == [EffectStatus.DONE] * runs


def lines(folder: Path, file: str) -> list[str]:
    path = folder / file
    return sorted(path.read_text().splitlines()) if path.exists() else []


async def test_runs_go_to_the_nodes(raylets: Any, tmp_path: Path, heard: Any, folder: Path) -> None:
    observed: list[Event] = []
    async with (
        Runtime(
            home=tmp_path / "program",
            database=tmp_path / "shared.db",
            remote=raylets.bucket,
            sandbox="copy",
            observer=observed.append,
        ) as shared,
        Fleet(shared, raylets.address, observer=heard.events.append) as fleet,
    ):
        pids = await asyncio.gather(*(fleet.run(fleet_app.where, str(folder)) for _ in range(4)))
        nodes = fleet.nodes
        assert [one.path for one in await shared.changes()] == ["words"]
        assert [run.status for run in await shared.store.runs()] == [RunStatus.DONE] * 4
    assert set(pids) == {facts.pid for facts in nodes.values()}
    assert os.getpid() not in pids
    kinds = Counter(type(event) for event in observed)
    assert (kinds[RunStarted], kinds[RunEnded]) == (4, 4)
    assert [event.row.step for event in observed if isinstance(event, OpDone) and event.row.kind is OpKind.RUN] == [
        "add"
    ] * 4
    assert len({facts.home for facts in nodes.values()}) == 2
    assert {one.node for one in heard.of(Placed)} == {one.node for one in heard.of(NodeJoined)} == set(nodes)


async def test_a_fleet_is_entered_again_after_it_was_left_and_not_before(
    raylets: Any, shared: Runtime, folder: Path
) -> None:
    fleet = Fleet(shared, raylets.address)
    for _ in range(2):
        async with fleet:
            with pytest.raises(FleetError, match="in use by another"):
                await fleet.__aenter__()
            assert await fleet.run(fleet_app.where, str(folder)) in {one.pid for one in fleet.nodes.values()}
        with pytest.raises(FleetClosed):
            await fleet.run(fleet_app.where, str(folder))
    assert not ray_connection._PROCESS.current


def test_fleets_of_several_threads_and_loops_work_side_by_side(raylets: Any, tmp_path: Path, folder: Path) -> None:
    async def work(number: int) -> int:
        async with (
            Runtime(
                home=tmp_path / f"program{number}",
                database=tmp_path / "shared.db",
                remote=raylets.bucket,
                sandbox="copy",
            ) as shared,
            Fleet(shared, raylets.address) as fleet,
        ):
            pids = await asyncio.gather(*(fleet.run(fleet_app.where, str(folder)) for _ in range(2)))
            return len({*pids} - {one.pid for one in fleet.nodes.values()})

    with ThreadPoolExecutor(3) as threads:
        assert list(threads.map(lambda number: asyncio.run(work(number)), range(3))) == [0, 0, 0]
    assert not ray_connection._PROCESS.current


def test_the_command_line_runs_and_resumes_on_a_node(
    raylets: Any, tmp_path: Path, folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    command, flow = ["--home", str(tmp_path / "home")], f"{fleet_app.__file__}:asks"
    where = ["--fleet", raylets.address, "--remote", str(raylets.bucket)]
    assert run_command_line([*command, "run", flow, str(folder), "ada", *where, "--sandbox", "copy"]) == WAITING
    printed = capfd.readouterr()
    assert "goes on on node" in printed.err
    assert re.search(r"asks [0-9a-f]+ starts\n", printed.err)  # the progress of the run
    assert "1 step" in printed.err
    assert run_command_line([*command, "resume", "--answer", "yes", *where]) == 0
    printed = capfd.readouterr()
    assert printed.out == "before\nyes\n\n"
    assert "1 path changed" in printed.err
    assert run_command_line([*command, "resume", "@", "--deadline", "5s", *where]) == USAGE
    assert "--fleet takes no --deadline" in capfd.readouterr().err


async def test_ray_prints_nothing_where_the_result_goes(raylets: Any, capsys: pytest.CaptureFixture[str]) -> None:
    from ray._private import worker

    said = {"lines": ["Raylet is terminated"], "pid": "raylet", "is_err": False}  # as Ray does for a node that died
    async with RayCluster(raylets.address):
        worker.print_to_stdstream(said, ignore_prefix=False)
    assert "Raylet is terminated" not in capsys.readouterr().out


async def test_errors_and_questions_come_back(raylets: Any, shared: Runtime, folder: Path) -> None:
    async with Fleet(shared, raylets.address) as fleet:
        with pytest.raises(StepFailed, match="Refusal: no") as failed:
            await fleet.run(fleet_app.refuses, "no")
        assert failed.value.step == "refuse"
        cause = failed.value.__cause__
        assert cause is not None
        assert "no" in str(cause)
        assert isinstance(cause.__cause__, NodeTraceback)
        assert "fleet_app.py" in str(cause.__cause__)
        with pytest.raises(RunWaiting) as waits:
            await fleet.run(fleet_app.asks, str(folder), "ada")
        assert waits.value.question == {"who": "ada"}
        assert await fleet.resume(waits.value.waiting_run, answer="yes") == "before\nyes\n"
    assert lines(folder, fleet_app.ADDED) == ["before", "yes"]
    with pytest.raises(StepFailed):  # kept as any run
        await shared.resume(failed.value.run_id)


async def test_runs_are_cancelled_by_their_caller_and_by_the_command(
    raylets: Any, database: str, folder: Path, tmp_path: Path
) -> None:
    async with (
        Runtime(home=tmp_path / "program", database=database, remote=raylets.bucket, sandbox="copy") as shared,
        Fleet(shared, raylets.address) as fleet,
    ):
        task = asyncio.create_task(fleet.run(fleet_app.words, str(folder), "a"))
        await until(lambda: lines(folder, fleet_app.SENT) == ["a"])
        (run,) = await shared.store.runs()
        while not await sent(shared, 1):  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        if shared.store.address.on_server:
            async with shared.store.requesting_stop(run.id):  # as `ramify cancel` does, on any machine
                with pytest.raises(RunCancelled) as cancelled:
                    await task
            assert cancelled.value.cancelled_run == run.id
        else:
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        assert (await shared.store.run(run.id)).status is RunStatus.CANCELLED
        (folder / fleet_app.GATE).touch()
        assert await fleet.resume(run.id) == "a one\na two\n"
    assert lines(folder, fleet_app.SENT) == ["a"]


async def test_a_run_goes_on_after_its_node_was_killed(
    raylets: Any, database: str, heard: Any, folder: Path, tmp_path: Path
) -> None:
    victim = raylets.add()
    names = ["a", "b", "c"]
    async with (
        Runtime(home=tmp_path / "program", database=database, remote=raylets.bucket, sandbox="copy") as shared,
        Fleet(shared, raylets.address, observer=heard.events.append) as fleet,
    ):
        assert len(fleet.nodes) == 3
        runs = [asyncio.create_task(fleet.run(fleet_app.words, str(folder), name)) for name in names]

        async def all_wait() -> bool:
            """Whether each run has recorded what it sent, and the bucket has the state before that."""
            if not await sent(shared, len(names)):
                return False
            rows = [row for run in await shared.store.runs() for row in await shared.store.checkpoints(run.id)]
            sealed = {row.snapshot_id for row in rows}
            uploaded = {path.name for path in (raylets.bucket / "snapshots").glob("*")}
            return lines(folder, fleet_app.SENT) == names and len(sealed) >= 4 and sealed <= uploaded

        end = time.monotonic() + LONGEST_S
        while not await all_wait():
            assert time.monotonic() < end
            await asyncio.sleep(0.1)
        await asyncio.to_thread(raylets.kill, victim)
        await until(lambda: bool(heard.of(NodeLost)))
        (folder / fleet_app.GATE).touch()
        assert await asyncio.gather(*runs) == [f"{name} one\n{name} two\n" for name in names]
        lost = heard.of(NodeLost)[0].node
        assert [one.earlier for one in heard.of(Placed) if one.earlier] == [(lost,)]
        assert lost not in fleet.nodes
        leases = await shared.store.leases([run.id for run in await shared.store.runs()])
    assert sorted(lease.token for lease in leases.values()) == [1, 1, 2]
    assert lines(folder, fleet_app.SENT) == names
    assert lines(folder, fleet_app.ADDED) == [f"{name} {which}" for name in names for which in ("one", "two")]


async def test_a_run_that_kills_its_nodes_ends(raylets: Any, shared: Runtime, heard: Any) -> None:
    async with Fleet(shared, raylets.address, observer=heard.events.append, patience=120) as fleet:
        with pytest.raises(NodesDied, match="may be the cause") as died:
            await fleet.run(fleet_app.dies)
    assert len(died.value.nodes) == len(heard.of(NodeLost)) == MOST_DEATHS
    assert len(heard.of(NodeJoined)) > 2  # the machine lives, and got a new process
    (run,) = await shared.store.runs()
    assert died.value.stranded_run == run.id


async def test_a_run_that_no_node_can_take_is_kept(raylets: Any, shared: Runtime, folder: Path) -> None:
    async with Fleet(shared, raylets.address) as fleet:
        with pytest.raises(NoFitNode, match="it has 0 GPU, and the run needs 1") as lacks:
            await fleet.start(fleet_app.where, (str(folder),), needs=Needs(resources={"GPU": 1}))
        assert set(lacks.value.reasons) == set(fleet.nodes)
        (run,) = await shared.store.runs()
        assert await fleet.resume(run.id) in {facts.pid for facts in fleet.nodes.values()}


async def test_a_node_with_another_version_is_refused(
    raylets: Any, shared: Runtime, heard: Any, other_version: Callable[[str], Path], folder: Path
) -> None:
    old = raylets.add(PYTHONPATH=str(other_version("0.1.9")))
    try:
        async with Fleet(shared, raylets.address, observer=heard.events.append) as fleet:
            (refused,) = heard.of(NodeRefused)
            assert "it has Ramify 0.1.9" in refused.reason
            assert refused.node not in fleet.nodes
            await fleet.run(fleet_app.where, str(folder))
    finally:
        raylets.kill(old)
