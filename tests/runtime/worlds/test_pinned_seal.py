"""What a world stands over is kept, although the seal that made it was cancelled."""

from __future__ import annotations

import asyncio
import gc
from pathlib import Path
from typing import Any

import pytest

from ramify.fork_engine.gc_pins import Pins
from ramify.fork_engine.store import SnapshotStore
from ramify.fork_engine.types import Snapshot, SnapshotId
from ramify.runtime.worlds.pinned_seal import sealed
from ramify.sandboxes.backends.copying import CopyBackend
from ramify.sandboxes.contract import WorldSpec
from ramify.sandboxes.host.agent_world import AgentWorld


def kept(pins: Pins) -> set[SnapshotId]:
    with pins.collecting():
        return pins.kept()


async def test_a_cancelled_seal_is_kept_as_long_as_its_world(
    tmp_path: Path, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, pins = SnapshotStore(tmp_path / "store"), Pins(tmp_path / "locks")
    base = store.import_tree(workspace).snapshot
    begun, go, seal = asyncio.Event(), asyncio.Event(), AgentWorld._seal_with_processes

    async def slow(world: AgentWorld, *state: Any) -> Snapshot:
        begun.set()
        await go.wait()
        return await seal(world, *state)

    monkeypatch.setattr(AgentWorld, "_seal_with_processes", slow)
    async with CopyBackend(store, tmp_path / "worlds") as backend:
        world = await backend.materialise(base, WorldSpec(mount_at=workspace))
        await world.run("echo new > new")
        sealing = asyncio.create_task(sealed(world, pins))
        await begun.wait()
        sealing.cancel()
        go.set()
        with pytest.raises(asyncio.CancelledError):
            await sealing
        assert world.snapshot.id != base.id
        assert kept(pins) == {world.snapshot.id}
        await sealed(world, pins)
        await world.close()
    del world, sealing
    gc.collect()
    assert kept(pins) == set()
