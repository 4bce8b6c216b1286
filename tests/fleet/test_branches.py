"""Branches of one run on two raylets of this machine, one of which is killed."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import branches_app
import pytest

from ramify import Runtime
from ramify.cli.main import run_command_line
from ramify.compiler.plan import OpKind
from ramify.fleet.fleet import Fleet
from ramify.fleet.types import NodeLost, StepMoved
from ramify.runtime.records import OpStatus

pytestmark = [
    pytest.mark.ray,
    pytest.mark.filterwarnings("ignore"),  # Ray leaves files open and uses what is deprecated
    pytest.mark.timeout(240),  # its processes take seconds to start on slow machines
]
LONGEST_S = 120.0


async def done(runtime: Runtime) -> list[str | None]:
    """The steps on branches that have a result."""
    rows = [row for run in await runtime.store.runs() for row in await runtime.store.ops(run.id)]
    return [row.step for row in rows if row.kind is OpKind.RUN and row.status is OpStatus.DONE]


async def until(there: Callable[[], bool]) -> None:
    end = time.monotonic() + LONGEST_S
    while not there():
        assert time.monotonic() < end
        await asyncio.sleep(0.05)


async def where(runtime: Runtime, step: str) -> list[str]:
    """Where the calls of a step of the only run ran, in the order of their branches; "" is where the run was."""
    (run,) = await runtime.store.runs()
    rows = [row for row in await runtime.store.ops(run.id) if row.step == step and row.kind is OpKind.RUN]
    assert all(row.status is OpStatus.DONE for row in rows)
    return [row.attrs.get("node", "") for row in sorted(rows, key=lambda row: row.branch)]


def expected(count: int) -> list[object]:
    """What `grow` returns."""
    words = f"root\n{count - 1}\nb\n"
    below = [words.replace("b", "a"), words]
    return [[*range(count)], below, words, words, [one * one for one in range(count)], words]


async def test_branches_of_a_run_here_survive_a_node(raylets: Any, tmp_path: Path, heard: Any, folder: Path) -> None:
    """This process is one of the nodes, with a slot. One of the two others is killed."""
    victim = raylets.add()
    async with (
        Runtime(home=tmp_path / "home", sandbox="copy", remote=raylets.bucket) as runtime,
        Fleet(runtime, raylets.address, observer=heard.events.append) as fleet,
    ):
        names = set(fleet.nodes)
        running = asyncio.create_task(runtime.run(branches_app.grow, str(folder), 3))
        await until(lambda: len(branches_app.told(folder, "begun")) == 3)
        await asyncio.to_thread(raylets.kill, victim)
        await until(lambda: bool(heard.of(NodeLost)))
        (folder / branches_app.GATE).touch()
        assert await running == expected(3)
        here, *others = await where(runtime, "write")
        assert here == ""
        (lost,) = [one.node for one in heard.of(NodeLost)]
        assert {one.earlier for one in heard.of(StepMoved)} <= {(lost,)}
        assert lost in names
        assert lost not in others  # its step began again on the other node or here, whichever was free first
    assert sorted(branches_app.told(folder, "begun")) in (["0", "1", "1", "2"], ["0", "1", "2", "2"])


PROGRAM = """
import asyncio, sys
sys.path[:0] = [sys.argv[1]]
import branches_app
from ramify import Runtime

async def main():
    home, bucket, address, folder = sys.argv[2:]
    async with Runtime(home=home, sandbox="copy", remote=bucket, fleet=address) as runtime:
        await runtime.run(branches_app.grow, folder, 2)

asyncio.run(main())
"""


async def test_a_killed_program_repeats_no_branch_that_was_answered(
    raylets: Any, tmp_path: Path, folder: Path
) -> None:
    (folder / f"{branches_app.GATE}1").touch()
    given = [Path(branches_app.__file__).parent, tmp_path / "home", raylets.bucket, raylets.address, folder]
    program = subprocess.Popen([sys.executable, "-c", PROGRAM, *map(str, given)])  # noqa: ASYNC220
    try:
        await until((tmp_path / "home" / "ramify.db").exists)
        async with Runtime(
            home=tmp_path / "home", sandbox="copy", remote=raylets.bucket, fleet=raylets.address
        ) as runtime:
            assert runtime.fleet is not None
            while len(await done(runtime)) != 2 or "0" not in branches_app.told(folder, "begun"):
                assert program.poll() is None
                await asyncio.sleep(0.05)
            program.kill()
            program.wait()
            (run,) = await runtime.store.runs()
            (folder / branches_app.GATE).touch()
            assert await runtime.resume(run.id) == expected(2)
    finally:
        program.kill()
        program.wait()
    assert sorted(branches_app.told(folder, "begun")) == ["0", "0", "1"]


def test_the_command_runs_branches_on_two_nodes(
    raylets: Any, tmp_path: Path, folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The run is on a node, whose slot one of its branches uses."""

    def opens() -> None:
        end = time.monotonic() + LONGEST_S
        while len(branches_app.told(folder, "begun")) < 2 and time.monotonic() < end:
            time.sleep(0.05)
        (folder / branches_app.GATE).touch()

    opening = threading.Thread(target=opens)
    opening.start()
    home = tmp_path / "home"
    flow = ["run", f"{branches_app.__file__}:grow", str(folder), "2", "--sandbox", "copy", "--json"]
    how = ["--fleet", raylets.address, "--remote", str(raylets.bucket)]
    assert run_command_line(["--home", str(home), *flow, *how]) == 0
    opening.join()
    assert json.loads(capfd.readouterr().out)["result"] == expected(2)

    async def ran() -> list[str]:
        async with Runtime(home=home, sandbox="copy") as runtime:
            return await where(runtime, "write")

    first, second = asyncio.run(ran())
    assert first == ""
    assert second != ""
