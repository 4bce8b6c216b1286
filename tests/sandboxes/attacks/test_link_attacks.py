"""Links, pipes, devices and signals by which a world could mislead the host, on every isolated backend."""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import Awaitable, Callable
from pathlib import Path

from ramify.fork_engine.store import SnapshotStore
from ramify.fork_engine.types import Snapshot
from ramify.sandboxes.contract import Backend, World, WorldSpec
from tests.sandboxes.attack_helpers import PATIENCE, family, well

ISOLATED_ONLY = True

Out = Callable[[World, str], Awaitable[str]]


async def test_links_out_of_the_tree_are_kept_as_links(
    world: World, store: SnapshotStore, base: Snapshot, tmp_path: Path, out: Out
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_text("precious\n")
    await out(world, f"rm -r package; ln -s {outside} package; ln -s {outside}/precious file; ln -sf / root")
    planted = await world.seal()
    await out(world, "rm package file; mkdir package; echo evil > package/precious; echo evil > file")
    through = await world.seal()
    for snapshot in (planted, through):
        store.checkout(snapshot, tmp_path / "out", force=True)
        store.materialise(snapshot, tmp_path / f"copy {snapshot.id[:8]}")
    store.checkout(planted, tmp_path / "applied")
    store.checkout(through, tmp_path / "applied", only_changes_from=planted, force=True)
    assert [path.name for path in outside.iterdir()] == ["precious"]
    assert (outside / "precious").read_text() == "precious\n"
    assert {change.path for change in store.changes(base, planted)} >= {"package", "file", "root"}
    assert not any("precious" in change.path for change in store.changes(base, planted))


async def test_fifos_and_devices_do_not_block_the_host(
    world: World, store: SnapshotStore, base: Snapshot, tmp_path: Path, out: Out
) -> None:
    await out(world, "mkfifo pipe; ln -s pipe link-to-pipe; ln -s /dev/zero endless; ln -s loop loop")
    await out(world, "python3 -c \"import socket; socket.socket(socket.AF_UNIX).bind('socket')\"; rm socket")
    sealed = await asyncio.wait_for(world.seal(), PATIENCE)
    await asyncio.wait_for(asyncio.to_thread(store.checkout, sealed, tmp_path / "out"), PATIENCE)
    assert stat.S_ISFIFO((tmp_path / "out" / "pipe").lstat().st_mode)
    assert {change.path for change in store.changes(base, sealed)} == {"pipe", "link-to-pipe", "endless", "loop"}


async def test_a_name_that_becomes_a_link_during_a_seal_is_not_followed(
    world: World, store: SnapshotStore, tmp_path: Path, out: Out
) -> None:
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "file").write_text("the host's own\n")
    await out(
        world, f"mkdir d; echo inside > d/file; (while :; do mv d e; ln -s {secret} d; rm d; mv e d; done) & true"
    )
    for turn in range(5):
        sealed = await world.seal()
        copy = tmp_path / f"copy{turn}"
        store.materialise(sealed, copy)
        kept = [path.read_text() for path in copy.rglob("file") if not any(p.is_symlink() for p in path.parents)]
        assert kept == ["inside\n"]


async def test_processes_outside_are_neither_seen_nor_signalled(
    world: World, backend: Backend, base: Snapshot, spec: WorldSpec, out: Out
) -> None:
    other = await backend.materialise(base, spec)
    await out(other, "sleep 99 &")
    assert "sleep" not in await out(world, "cat /proc/[0-9]*/comm")
    await world.run("kill -9 -1")
    assert await other.background_processes() == 1
    assert (await world.run(f"kill -9 {os.getpid()} {' '.join(map(str, await family(other)))}")).exit_code != 0
    assert await well(other)
    assert await well(world)
