"""The head of a cluster is killed while a run and a world go on on a node."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path
from typing import Any

import fleet_app
import pytest

from ramify import Runtime
from ramify.fleet.errors import ClusterUnreachable
from ramify.fleet.fleet import Fleet
from ramify.runtime.records import EffectStatus

pytestmark = [
    pytest.mark.ray,
    pytest.mark.filterwarnings("ignore"),  # Ray leaves files open and uses what is deprecated
    pytest.mark.timeout(240),  # its processes take seconds to start on slow machines
]
LONGEST_S = 120.0


async def test_the_fleet_says_so_and_the_work_is_kept(
    own_raylets: Any, tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ramify.fleet.ray_cluster.RayCluster.silence_s", 5.0)
    async with Runtime(
        home=tmp_path / "program", database=tmp_path / "shared.db", remote=own_raylets.bucket, sandbox="copy"
    ) as shared:
        async with Fleet(shared, own_raylets.address) as fleet, fleet.world() as world:
            await world.exec("echo one > words")
            run = await shared.create(fleet_app.words, (str(folder), "a"), {})
            running = asyncio.create_task(fleet.resume(run.id))
            end = time.monotonic() + LONGEST_S
            while [one.status for one in await shared.store.effects(run.id)] != [EffectStatus.DONE]:
                assert time.monotonic() < end
                await asyncio.sleep(0.05)
            for process in own_raylets.cluster.head_node.all_processes["gcs_server"]:
                os.kill(process.process.pid, signal.SIGKILL)
            with pytest.raises(ClusterUnreachable, match=f"`ramify resume {run.id}` continues it: the head"):
                await running
            with pytest.raises(ClusterUnreachable, match="is its last state: the head"):
                await world.exec("echo two >> words")
            await world.checkout(tmp_path / "out")
        (folder / fleet_app.GATE).touch()
        assert await shared.resume(run.id) == "a one\na two\n"
    assert (folder / fleet_app.SENT).read_text() == "a\n"
    assert (tmp_path / "out" / "words").read_text() == "one\n"
