"""Whole process trees in Ramify's own images: every fork goes on from the same instant and shares the pages."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from ramify.fork_engine.store import SnapshotStore
from ramify.fork_engine.types import ProcessTier, Snapshot
from ramify.sandboxes.backends.namespaces.backend import NamespaceBackend
from ramify.sandboxes.contract import World, WorldSpec
from ramify.sandboxes.errors import WorldStartFailed
from ramify.sandboxes.linux import ptrace

pytestmark = [
    pytest.mark.linux_ns,
    pytest.mark.criu,
    pytest.mark.skipif(ptrace.why_not() != "", reason=ptrace.why_not()),
]

Out = Callable[[World, str], Awaitable[str]]
Until = Callable[[World, str], Awaitable[None]]
COUNTER = """
import os, time
held = os.urandom(40 << 20)
check = sum(held[:1000])
file, n = open("count", "w", buffering=1), 0
while True:
    assert sum(held[:1000]) == check
    print(n, len(held), file=file)
    n += 1
    time.sleep(0.01)
"""


async def test_a_tree_goes_on_in_every_fork_and_shares_its_memory(
    namespaces: NamespaceBackend, base: Snapshot, dumpable: WorldSpec, out: Out, until: Until
) -> None:
    world = await namespaces.materialise(base, dumpable)
    (world.path / "counter.py").write_text(COUNTER)
    await out(world, "plain=kept; f() { echo $plain; }; trap 'echo ended' USR1")
    await out(world, "sleep 1000 & a=$!; (sleep 2000; echo never) & b=$!")
    await out(world, "cd package; umask 27; cd ..; python3 counter.py & program=$!")
    await until(world, "[ $(wc -l < count) -gt 10 ]")
    sealed = await world.seal()
    assert (sealed.tier, sealed.processes.dropped, sealed.processes.reason) == (ProcessTier.TREE, 0, "")
    tree = "ps -o pid=,ppid=,pgid=,sid=,comm= -p $$,$a,$b,$program"
    expected = await out(world, tree)
    forks = await asyncio.gather(*(namespaces.materialise(sealed, dumpable) for _ in range(3)))
    for live in (world, *forks):
        assert await live.background_processes() == 4
        assert await out(live, "f; jobs | wc -l; umask; kill -USR1 $$; ps -o comm= -p $program") == (
            "kept\n3\n0027\nended\npython3\n"
        )
        assert await out(live, tree) == expected
        begun = int(await out(live, "wc -l < count"))
        await until(live, f"[ $(wc -l < count) -gt {begun + 5} ]")
        lines = (live.path / "count").read_text().splitlines()
        assert lines == [f"{n} {40 << 20}" for n in range(len(lines))], "a line is twice or missing"
    private = "awk '/^Private_Dirty/ { print $2 }' /proc/$program/smaps_rollup"
    assert int(await out(forks[0], private)) < 20 << 10, "kilobytes: it copied what it could share"
    await out(forks[0], "kill %1 %2 %3; wait; pkill sleep || :")
    await until(forks[0], "! pgrep sleep")
    assert await forks[1].background_processes() == 4


async def test_forks_of_forks_write_what_changed_and_roll_back(
    namespaces: NamespaceBackend, base: Snapshot, dumpable: WorldSpec, store: SnapshotStore, out: Out, until: Until
) -> None:
    world = await namespaces.materialise(base, dumpable)
    (world.path / "counter.py").write_text(COUNTER)
    await out(world, "level=1; python3 counter.py &")
    await until(world, "[ -s count ]")
    first = await world.seal()
    fork = await namespaces.materialise(first, dumpable)
    await out(fork, "level=2; (setsid sleep 2000 &) ; echo x > file")
    second = await fork.seal()
    again = await fork.seal()
    deeper = await namespaces.materialise(again, dumpable)
    assert await out(deeper, "echo $level; cat file; pgrep -c sleep") == "2\nx\n1\n"
    for number in range(3):
        await deeper.rollback((first, again)[number % 2])
        begun = int(await out(deeper, "wc -l < count"))
        await until(deeper, f"[ $(wc -l < count) -gt {begun} ]")
        assert await out(deeper, "echo $level; pgrep -c sleep || :") == ("1\n0\n", "2\n1\n")[number % 2]
    sizes = []
    for sealed in (first, second, again):
        assert sealed.tier.whole
        folder = store.image_dir(sealed.processes.image)
        sizes.append(sum(file.stat().st_blocks * 512 for file in folder.glob("*/pages")))
    assert sizes[2] < sizes[0] / 4, "the second image of the same processes holds only what they wrote"


@pytest.mark.parametrize(
    ("command", "why"),
    [
        ("sleep 1000 | sleep 1000 &", "open"),
        ("exec 5>held; sleep 1000 &", "share the open file"),
        (
            "python3 -c 'import threading, time; threading.Thread(target=time.sleep, args=(1000,)).start()' &",
            "threads",
        ),
        ("nice -n 3 sleep 1000 &", "priority"),
        ("sleep 1000 & kill -STOP $!", "stopped"),
        ("(setsid sh -c 'sleep 1000 & sleep 0.1' &) ; sleep 0.3", "session"),
    ],
)
async def test_what_images_cannot_hold_is_dumped_by_criu(
    namespaces: NamespaceBackend, base: Snapshot, dumpable: WorldSpec, out: Out, until: Until, command: str, why: str
) -> None:
    """Also where a part of the tree was restored from images before."""
    world = await namespaces.materialise(base, dumpable)
    (world.path / "counter.py").write_text(COUNTER)
    await out(world, "python3 counter.py & program=$!")
    await until(world, "[ -s count ]")
    fork = await namespaces.materialise(await world.seal(), dumpable)
    await out(fork, command)
    if "threads" in why:
        await until(fork, "[ $(ls /proc/$!/task | wc -l) = 2 ]")
    sealed = await fork.seal()
    assert sealed.tier is ProcessTier.CRIU, sealed.processes.reason
    assert why in sealed.processes.reason
    last = await namespaces.materialise(sealed, dumpable)
    begun = int(await out(last, "wc -l < count"))
    await until(last, f"[ $(wc -l < count) -gt {begun + 5} ]")


async def test_a_damaged_image_starts_no_world(
    namespaces: NamespaceBackend, base: Snapshot, dumpable: WorldSpec, store: SnapshotStore, out: Out
) -> None:
    world = await namespaces.materialise(base, dumpable)
    await out(world, "sleep 1000 & echo $! > pid")
    sealed = await world.seal()
    assert sealed.tier is ProcessTier.TREE
    folder = store.image_dir(sealed.processes.image) / (world.path / "pid").read_text().strip()
    folder.chmod(0o700)
    (folder / "pages").unlink()
    with pytest.raises(WorldStartFailed, match="pages"):
        await (await namespaces.materialise(sealed, dumpable)).run("true")
    assert (await (await namespaces.materialise(base, dumpable)).run("true")).ok
