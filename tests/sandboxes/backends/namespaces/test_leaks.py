"""Nothing leaks: after many forks and releases, some killed half way at random, everything is as before."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ramify.fork_engine.store import SnapshotStore
from ramify.fork_engine.types import Snapshot
from ramify.sandboxes.agent.mount_server import PLACES
from ramify.sandboxes.backends.namespaces.backend import NamespaceBackend
from ramify.sandboxes.contract import World, WorldSpec
from ramify.sandboxes.errors import SandboxError, WorldDied
from ramify.sandboxes.host.fork_server_client import SPARES
from ramify.sandboxes.linux import cgroups, processes
from ramify.sandboxes.linux.cgroups import Groups

pytestmark = pytest.mark.linux_ns

FORKS = int(os.environ.get("RAMIFY_LEAK_FORKS", "60"))
AT_ONCE = 20
PATIENCE_S = 60.0


def helper_of(backend: NamespaceBackend) -> int:
    assert backend._helper is not None
    assert backend._helper._process is not None
    return backend._helper._process.pid


def keeper_of(world: World) -> int:
    return int(world.path.parts[2])


def agent_of(world: World) -> int:
    pid = world._link.pid  # type: ignore[attr-defined]
    assert isinstance(pid, int)
    return pid


def descriptors(pid: int) -> int:
    """Without /dev/null: uvloop keeps one open from its first connection on."""
    return sum(not held.samefile(os.devnull) for held in Path(f"/proc/{pid}/fd").iterdir() if held.exists())


def mounts(pid: int, of: Path | str) -> int:
    """Mounts that name `of`: others mount and unmount on this machine."""
    return sum(str(of) in line for line in Path(f"/proc/{pid}/mountinfo").read_text().splitlines())


def control_groups() -> list[str]:
    """The control groups that this process has made for worlds."""
    groups = cgroups.find()
    if not isinstance(groups, Groups):
        return []
    return sorted(str(path) for place in groups.places.values() for path in place.glob(f"{groups.owner}-*"))


async def settled(backend: NamespaceBackend) -> None:
    """End the prepared places, and wait until the spares are back and waiting, and trees are prepared again."""
    assert backend._helper is not None
    await backend._prepared.clear()
    deadline = time.monotonic() + PATIENCE_S
    spares = backend._helper._spares
    while len(spares) < SPARES or len(processes.descendants(helper_of(backend))) != SPARES + 1:
        assert time.monotonic() < deadline, processes.descendants(helper_of(backend))
        await asyncio.sleep(0.01)
    assert backend._pool._making is not None
    await backend._pool._making
    await asyncio.wait(
        {spare.group for spare in spares if spare.group is not None} or {asyncio.ensure_future(asyncio.sleep(0))}
    )


def gone(family: list[processes.Process]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while left := {p.key for p in family} & {p.key for p in processes.all_processes().values()}:
        assert time.monotonic() < deadline, f"processes are left: {left}"
        time.sleep(0.02)


def where_mounted(folder: Path) -> list[Path]:
    """The mounts files of processes that have a mount of this folder."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/mountinfo"):
        with contextlib.suppress(OSError):  # it has ended, or is another user's
            if str(folder) in entry.read_text():
                found.append(entry)
    return found


async def live(world: World, base: Snapshot, chance: random.Random) -> None:
    """The life of a world, of several kinds and possibly short."""
    match chance.randrange(6):
        case 0:
            pass
        case 1:
            await world.run("echo x > x; echo y > /tmp/y")
        case 2:
            await world.run("sleep 1000 & (setsid sleep 1000 &) ; touch x")
        case 3:
            (world.path / "from-the-host").write_text("x")
            await world.seal()
        case 4:
            await world.run("echo z > z; echo home > ~/ramify-leak-test")
            await world.rollback(await world.seal())
        case _:
            running = asyncio.create_task(world.run("sleep 1000"))
            await asyncio.sleep(chance.random() * 0.02)
            running.cancel()
            await asyncio.wait({running})
    await world.close()


async def test_forks_and_releases_leave_nothing(
    namespaces: NamespaceBackend,
    base: Snapshot,
    spec: WorldSpec,
    scratch: Path,
    list_scratch: Callable[[], list[Path]],
) -> None:
    chance = random.Random(1)
    first = await namespaces.materialise(base, spec)
    mount_server = keeper_of(first)
    await live(first, base, random.Random(4))
    await live(await namespaces.materialise(base, spec), base, random.Random(4))  # from now on trees are prepared

    def held() -> list[int]:
        return [descriptors(pid) for pid in (os.getpid(), helper_of(namespaces), mount_server)]

    def left() -> tuple[object, ...]:
        files = [path.name for path in list_scratch()]
        mounted = mounts(os.getpid(), scratch), mounts(mount_server, PLACES)
        return mounted, files, len(control_groups()), namespaces._worlds

    await settled(namespaces)
    before, open_before = left(), held()
    for _ in range(FORKS // AT_ONCE):
        worlds = await namespaces.fork(base, spec, AT_ONCE)
        await asyncio.gather(*(live(world, base, chance) for world in worlds))
    await settled(namespaces)
    assert left() == before
    # The helper may have fewer: it closes what it handed to a spare only after that has answered.
    assert all(now <= then for now, then in zip(held(), open_before, strict=True)), (held(), open_before)
    assert not (Path.home() / "ramify-leak-test").exists()


async def test_a_fork_that_fails_or_is_cancelled_leaves_nothing(
    namespaces: NamespaceBackend,
    store: SnapshotStore,
    base: Snapshot,
    spec: WorldSpec,
    scratch: Path,
    list_scratch: Callable[[], list[Path]],
) -> None:
    worlds = [await namespaces.materialise(base, spec) for _ in range(2)]  # from now on trees are prepared
    mount_server = keeper_of(worlds[0])
    await asyncio.gather(*(world.close() for world in worlds))
    await settled(namespaces)
    before = mounts(mount_server, PLACES), [path.name for path in list_scratch()], len(namespaces._worlds)
    for delay in (0.0, 0.0002, 0.001, 0.004):
        forking = asyncio.create_task(namespaces.fork(base, spec, 50))
        await asyncio.sleep(delay)
        forking.cancel()
        await asyncio.wait({forking})
        if not forking.cancelled():
            await asyncio.gather(*(world.close() for world in forking.result()))
    store.lower_dirs(base)[0].rename(scratch.parent / "aside")
    with pytest.raises(Exception, match="missing"):
        await namespaces.fork(base, spec, 3)
    (scratch.parent / "aside").rename(scratch.parent / "store" / "layers" / base.layers[0] / "fs")
    await (await namespaces.materialise(base, spec)).close()  # without the layer no tree was prepared
    await settled(namespaces)
    assert before == (
        mounts(mount_server, PLACES),
        [path.name for path in list_scratch()],
        len(namespaces._worlds),
    )


@pytest.mark.parametrize("victim", ["helper", "keeper", "agent"])
async def test_operations_killed_half_way_leave_nothing(
    victim: str, store: SnapshotStore, base: Snapshot, spec: WorldSpec, scratch: Path
) -> None:
    before = descriptors(os.getpid())
    others = {process.key for process in processes.descendants(os.getpid())}  # of tests that ran before this one
    groups_before = control_groups()
    chance = random.Random(victim)
    async with NamespaceBackend(store, scratch) as backend:
        worlds = await backend.fork(base, spec, 12)
        await worlds[0].run("true")
        pids: dict[str, Callable[[], int]] = {
            "helper": lambda: helper_of(backend),
            "keeper": lambda: keeper_of(worlds[0]),
            "agent": lambda: agent_of(worlds[0]),
        }
        lives = asyncio.gather(*(live(world, base, chance) for world in worlds[1:]), return_exceptions=True)
        await asyncio.sleep(0.03)
        family = [process for process in processes.descendants(os.getpid()) if process.key not in others]
        os.kill(pids[victim](), signal.SIGKILL)
        for outcome in await lives:
            assert outcome is None or (victim != "agent" and isinstance(outcome, SandboxError | OSError)), outcome
        if victim == "agent":
            with pytest.raises(WorldDied, match="SIGKILL"):
                await worlds[0].run("true")
        else:
            with pytest.raises(SandboxError):
                await (await backend.materialise(base, spec)).run("true")
    gone(family)
    assert descriptors(os.getpid()) == before
    assert mounts(os.getpid(), scratch) == 0
    assert list(scratch.iterdir()) == []
    assert control_groups() == groups_before


OWNER = """
import asyncio, random, sys
from pathlib import Path
from ramify.fork_engine.store import SnapshotStore
from ramify.sandboxes.contract import WorldSpec
from ramify.sandboxes.backends.namespaces.backend import NamespaceBackend

async def main(root, chance):
    (root / "tree").mkdir(exist_ok=True)
    store = SnapshotStore(root / "store")
    base = store.import_tree(root / "tree").snapshot
    async with NamespaceBackend(store, root / "worlds") as backend:
        print("ready", flush=True)
        while True:
            worlds = await backend.fork(base, WorldSpec(mount_at=root / "tree"), 8)
            await asyncio.gather(*(world.run("echo > x; sleep 1000 & disown") for world in worlds[:4]))
            await asyncio.gather(*(world.seal() for world in worlds[2:6]))
            await asyncio.gather(*(world.close() for world in worlds[chance.randrange(8):]))

asyncio.run(main(Path(sys.argv[1]), random.Random(int(sys.argv[2]))))
"""


@pytest.mark.parametrize("seed", range(max(2, FORKS // 100)))
def test_a_killed_owner_takes_everything_along(tmp_path: Path, seed: int) -> None:
    owner = subprocess.Popen([sys.executable, "-c", OWNER, str(tmp_path), str(seed)], stdout=subprocess.PIPE)
    assert owner.stdout is not None
    with owner, owner.stdout:
        assert owner.stdout.readline() == b"ready\n"
        time.sleep(random.Random(seed).random() * 0.4)
        family = processes.descendants(owner.pid)
        owner.kill()
    gone(family)
    deadline = time.monotonic() + PATIENCE_S
    while left := where_mounted(tmp_path):  # processes that began after the family was listed end like it
        assert time.monotonic() < deadline, left
        time.sleep(0.02)
    leftovers = len(list((tmp_path / "worlds").iterdir()))
    assert leftovers == 2  # a session's folder and its lock

    async def next_owner() -> None:
        async with NamespaceBackend(SnapshotStore(tmp_path / "store"), tmp_path / "worlds"):
            assert len(list((tmp_path / "worlds").iterdir())) == 2  # its own folder and lock

    asyncio.run(next_owner())
    found = cgroups.find()
    for place in found.places.values() if isinstance(found, Groups) else ():
        assert not list(place.glob(f"ramify-{owner.pid}-*"))
    assert list((tmp_path / "worlds").iterdir()) == []
