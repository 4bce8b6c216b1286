"""Tier (d): commands that are started again if their processes were not kept."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from ramify.fork_engine.store import SnapshotStore
from ramify.fork_engine.types import ProcessTier, Snapshot
from ramify.sandboxes.backends.copying import CopyBackend
from ramify.sandboxes.backends.namespaces.backend import NamespaceBackend
from ramify.sandboxes.contract import Backend, World, WorldSpec

Out = Callable[[World, str], Awaitable[str]]
SERVER = "echo started >> starts; while :; do sleep 0.05; done"


@pytest.fixture(params=[pytest.param(NamespaceBackend, marks=pytest.mark.linux_ns), CopyBackend])
async def opened(request: pytest.FixtureRequest, store: SnapshotStore, scratch: Path) -> AsyncIterator[Backend]:
    async with request.param(store, scratch) as backend:
        yield backend


async def starts(world: World, out: Out, n: int) -> None:
    await out(world, f"until [ $(wc -l < starts) -ge {n} ]; do sleep 0.01; done")
    assert (world.path / "starts").read_text() == "started\n" * n


async def test_a_kept_command_starts_again_in_every_fork_and_is_recorded(
    opened: Backend, base: Snapshot, spec: WorldSpec, out: Out
) -> None:
    world = await opened.materialise(base, spec)
    await world.keep_running(SERVER)
    await starts(world, out, 1)
    assert await out(world, "jobs") == ""
    first = await world.seal()
    assert (first.processes.tier, first.processes.commands) == (ProcessTier.COMMANDS, (SERVER,))
    assert (first.processes.dropped, first.processes.declared) == (0, True)
    await starts(world, out, 1)  # it lives on in the parent
    fork = await opened.materialise(first, spec)
    await starts(fork, out, 2)
    second = await fork.seal()
    assert second.processes.commands == (SERVER,)
    untouched = await opened.materialise(second, spec)
    assert (await untouched.seal()).id == second.id  # sealed before its first use: nothing of it is lost
    await starts(untouched, out, 3)
    await untouched.rollback(base)
    assert await untouched.background_processes() == 0


async def test_other_processes_are_dropped_and_counted(
    opened: Backend, base: Snapshot, spec: WorldSpec, out: Out
) -> None:
    world = await opened.materialise(base, spec)
    await world.keep_running(SERVER)
    await out(world, "sleep 1000 & sleep 1001 &")
    kept = (await world.seal()).processes
    assert (kept.tier, kept.commands, kept.dropped, kept.declared) == (ProcessTier.COMMANDS, (SERVER,), 2, False)


async def test_a_specifications_commands_run_in_every_world(
    opened: Backend, base: Snapshot, spec: WorldSpec, out: Out
) -> None:
    with_server = replace(spec, startup=(SERVER,))
    world = await opened.materialise(base, with_server)
    assert await world.background_processes() > 0
    await starts(world, out, 1)
    sealed = await world.seal()
    fork = await opened.materialise(sealed, with_server)
    await starts(fork, out, 2)  # once, although the snapshot and the specification both name it


@pytest.mark.linux_ns
@pytest.mark.criu
async def test_dumped_commands_are_not_started_again(
    namespaces: NamespaceBackend, base: Snapshot, spec: WorldSpec, out: Out
) -> None:
    dumpable = replace(spec, dumpable=True, startup=(SERVER,))
    world = await namespaces.materialise(base, dumpable)
    await starts(world, out, 1)
    sealed = await world.seal()
    assert (sealed.processes.tier.whole, sealed.processes.commands) == (True, (SERVER,))
    fork = await namespaces.materialise(sealed, dumpable)
    assert await fork.background_processes() > 0
    await out(fork, "sleep 0.1")
    await starts(fork, out, 1)
