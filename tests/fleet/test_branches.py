"""Branches of one run on two raylets of this machine, one of which is killed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import branches_app
import pytest

from ramify import Runtime
from ramify.runtime.records import OpKind, OpStatus

pytestmark = [
    pytest.mark.ray,
    pytest.mark.filterwarnings("ignore"),  # Ray leaves files open and uses what is deprecated
    pytest.mark.timeout(240),  # its processes take seconds to start on slow machines
]
LONGEST_S = 120.0
WORDS = "root\n{last}\nb\n"


async def until(there: Callable[[], bool]) -> None:
    end = time.monotonic() + LONGEST_S
    while not there():
        assert time.monotonic() < end
        await asyncio.sleep(0.05)


async def where(runtime: Runtime, run: str, step: str) -> list[str]:
    """Where the calls of a step ran, in the order of their branches; "" is this process."""
    rows = [row for row in await runtime.store.ops(run) if row.step == step and row.kind is OpKind.RUN]
    assert all(row.status is OpStatus.DONE for row in rows)
    return [row.attrs.get("node", "") for row in sorted(rows, key=lambda row: row.branch)]


async def test_branches_run_on_the_nodes_of_the_runtime(raylets: Any, tmp_path: Path, folder: Path) -> None:
    async with Runtime(
        home=tmp_path / "home", sandbox="copy", remote=raylets.bucket, fleet=raylets.address
    ) as runtime:
        assert runtime.fleet is not None
        nodes = set(runtime.fleet.nodes)
        running = asyncio.create_task(runtime.run(branches_app.grow, str(folder), 2))
        await until(lambda: len(branches_app.told(folder, "begun")) == 2)
        (folder / branches_app.GATE).touch()
        result = await running
        words = WORDS.format(last=1)
        assert result == [[0, 1], ["root\n1\na\n", words], words, words, [0, 1], words]
        first, second = await where(runtime, str(runtime.last_run_id), "write")
        assert first == ""  # this process is a node, with one slot
        assert second in nodes
