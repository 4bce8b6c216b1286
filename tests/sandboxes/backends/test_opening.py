"""A backend that is cancelled while it opens leaves nothing: no process, no folder, no descriptor."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from ramify.fork_engine.store import SnapshotStore
from ramify.sandboxes.backends.agent_backend import AgentBackend
from ramify.sandboxes.backends.copying import CopyBackend
from ramify.sandboxes.backends.namespaces.backend import NamespaceBackend
from ramify.sandboxes.host import fork_server_client
from ramify.sandboxes.host.fork_server_client import ForkServerClient
from ramify.sandboxes.linux import cgroups, processes
from tests.open_files import SOCKETS, left_open, open_files

KINDS = [CopyBackend, pytest.param(NamespaceBackend, marks=pytest.mark.linux_ns)]


def children() -> set[tuple[int, int]]:
    return {process.key for process in processes.descendants(os.getpid())}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("cancels", [1, 2])
@pytest.mark.parametrize("steps", [1, 5, 34])
async def test_a_cancelled_opening_leaves_nothing(
    kind: type[AgentBackend], cancels: int, steps: int, store: SnapshotStore, scratch: Path
) -> None:
    await asyncio.to_thread(scratch.mkdir)
    before, opened = children(), open_files(*SOCKETS, scratch)

    async def live() -> None:
        async with kind(store, scratch):
            await asyncio.Event().wait()

    living = asyncio.create_task(live())
    for _ in range(steps):
        await asyncio.sleep(0)
    for _ in range(cancels):
        living.cancel()
        await asyncio.sleep(0)
    await asyncio.wait({living})
    assert living.cancelled()
    assert children() <= before
    assert await asyncio.to_thread(left_open, opened, *SOCKETS, scratch) == []
    assert list(scratch.iterdir()) == []


@pytest.mark.parametrize("kind", KINDS)
async def test_a_cancel_while_the_control_groups_are_looked_for_leaves_nothing(
    kind: type[AgentBackend], store: SnapshotStore, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They were looked for after the helper process had started: a branch that was cancelled then left it running."""
    before, looked = children(), asyncio.Event()
    loop, find = asyncio.get_running_loop(), cgroups.find

    def finding() -> cgroups.Groups | str:
        loop.call_soon_threadsafe(looked.set)
        return find()

    monkeypatch.setattr(fork_server_client.cgroups, "find", finding)

    async def live() -> None:
        async with kind(store, scratch):
            await asyncio.Event().wait()

    living = asyncio.create_task(live())
    await looked.wait()
    living.cancel()
    await asyncio.wait({living})
    assert children() <= before
    assert list(scratch.iterdir()) == []


@pytest.mark.parametrize("kind", KINDS)
async def test_an_opening_that_fails_half_way_is_undone(
    kind: type[AgentBackend], store: SnapshotStore, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = children()

    async def start(self: ForkServerClient) -> None:
        await started(self)
        raise OSError("as if no socket were left")

    started = ForkServerClient.start
    monkeypatch.setattr(ForkServerClient, "start", start)
    with pytest.raises(OSError, match="no socket"):
        async with kind(store, scratch):
            pass
    assert children() <= before
    assert list(scratch.iterdir()) == []
    monkeypatch.undo()
    async with kind(store, scratch):  # and the next one opens
        pass
