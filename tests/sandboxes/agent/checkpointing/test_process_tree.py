"""Whole process trees in Ramify's own images: every fork goes on from the same instant and shares the pages."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from ramify.fork_engine.store import SnapshotStore
from ramify.fork_engine.types import ProcessTier, Snapshot
from ramify.sandboxes.backends.namespaces.backend import NamespaceBackend
from ramify.sandboxes.backends.namespaces.world import NamespaceWorld
from ramify.sandboxes.contract import World, WorldSpec
from ramify.sandboxes.errors import WorldStartFailed
from ramify.sandboxes.linux import ptrace
from ramify.sandboxes.process_contract import Command

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
        ("sleep 1000 & kill -STOP $!", "stopped"),
        ("(setsid sh -c 'sleep 1000 & sleep 0.1' &) ; sleep 0.3", "session"),
    ],
)
async def test_what_images_cannot_hold_is_dumped_by_criu(
    namespaces: NamespaceBackend, base: Snapshot, dumpable: WorldSpec, out: Out, until: Until, command: str, why: str
) -> None:
    """Also where a part of the tree was restored from images before."""
    world = await namespaces.materialise(base, dumpable)
    (world.path / "counter.py").write_text(COUNTER.replace("40 << 20", "1 << 20"))
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


SCHEDULED = """
import os, time
os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
os.nice(3)
os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
open("ready", "w").close()
time.sleep(1000)
"""
TELL = """
import os, sys
for pid in map(int, sys.argv[1:]):
    print(sorted(os.sched_getaffinity(pid)), os.sched_getscheduler(pid), os.getpriority(os.PRIO_PROCESS, pid))
"""


async def test_processes_are_scheduled_as_before(
    namespaces: NamespaceBackend, base: Snapshot, dumpable: WorldSpec, out: Out, until: Until
) -> None:
    world = await namespaces.materialise(base, dumpable)
    (world.path / "scheduled.py").write_text(SCHEDULED)
    (world.path / "tell.py").write_text(TELL)
    await out(world, "python3 scheduled.py & program=$!; nice -n 5 sleep 1000 & other=$!")
    await until(world, "[ -e ready ]")
    tell = "python3 tell.py $program $other $$"
    expected = await out(world, tell)
    nice = min(os.getpriority(os.PRIO_PROCESS, 0) + 3, 19)
    assert expected.startswith(f"[{max(os.sched_getaffinity(0))}] {os.SCHED_BATCH} {nice}\n")
    for _ in range(2):
        sealed = await world.seal()
        assert (sealed.tier, sealed.processes.reason) == (ProcessTier.TREE, "")
        world = await namespaces.materialise(sealed, dumpable)
        assert await out(world, tell) == expected
    if len(os.sched_getaffinity(0)) > 1:
        await out(world, "sleep 1000 | sleep 1000 &")
        sealed = await world.seal()
        assert sealed.tier is ProcessTier.CRIU, sealed.processes.reason
        assert "no CPU affinity" in sealed.processes.reason


async def test_the_orphan_of_a_program_that_shares_pages_is_named(
    namespaces: NamespaceBackend, base: Snapshot, dumpable: WorldSpec, out: Out, until: Until
) -> None:
    """It is under the program's filter, which neither the images nor CRIU can hold."""
    program = f"import os, time; held = os.urandom({40 << 20}); open('ready', 'w').close()\n"
    program += "while not os.path.exists('go'): time.sleep(0.01)\n"
    program += "os.fork() or (open('left', 'w').close(), time.sleep(1000))"
    world = await namespaces.materialise(base, dumpable)
    (world.path / "parent.py").write_text(program)
    await out(world, "python3 parent.py & program=$!")
    await until(world, "[ -e ready ]")
    world = await namespaces.materialise(await world.seal(), dumpable)
    await out(world, "touch go; wait $program")
    await until(world, "[ -e left ]")
    sealed = await world.seal()
    assert sealed.tier is ProcessTier.DROPPED
    assert "of all that these start" in sealed.processes.reason
    assert "End them" in sealed.processes.reason
    assert (await out(world, "pgrep -fc parent.py")) == "1\n", "it runs on"


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


async def test_processes_with_few_descriptors_left_are_restored(
    namespaces: NamespaceBackend, base: Snapshot, dumpable: WorldSpec, out: Out, until: Until
) -> None:
    """To rebuild a process takes descriptors and memory beyond its own limits. Bash holds its script at 255."""
    few = replace(dumpable, limits=replace(dumpable.limits, open_files=256))
    world = await namespaces.materialise(base, few)
    (world.path / "counter.py").write_text(
        COUNTER.replace("held =", "more = [open('/dev/null') for _ in range(9)]; held =")
    )
    await out(world, "echo 'sleep 1000; :' > script; bash script & script=$!")
    await out(world, "(ulimit -n 14; ulimit -v $((1 << 20)); exec python3 counter.py) & program=$!")
    await until(world, "[ -s count ] && [ -e /proc/$script/fd/255 ]")
    limits = "grep -hE 'open files|address space' /proc/$script/limits /proc/$program/limits"
    expected = await out(world, limits)
    sealed = await world.seal()
    assert sealed.tier is ProcessTier.TREE, sealed.processes.reason
    await world.rollback(sealed)
    begun = int(await out(world, "wc -l < count"))
    await until(world, f"[ $(wc -l < count) -gt {begun + 5} ]")
    assert await out(world, limits) == expected
    fewer = await namespaces.materialise(sealed, replace(few, limits=replace(few.limits, open_files=100)))
    assert await out(fewer, "ulimit -Hn; awk '/open files/ { print $5 }' /proc/$script/limits") == "100\n100\n"


async def test_a_session_that_was_kept_with_its_tree_is_kept_alone(
    namespaces: NamespaceBackend, base: Snapshot, dumpable: WorldSpec
) -> None:
    """A process beside the shell's tree makes the difference. The session's pages come from an image each time."""
    world = await namespaces.materialise(base, dumpable)
    repl = await world.python()
    await repl.run("kept = [bytes([n % 256]) * 10000 for n in range(2000)]")
    for tier in (ProcessTier.TREE, ProcessTier.REPL, ProcessTier.REPL):
        if tier is ProcessTier.REPL:
            assert isinstance(world, NamespaceWorld)
            await world.start(Command(words=("sleep", "1000")))
        sealed = await world.seal()
        assert sealed.tier is tier, sealed.processes.reason
        world = await namespaces.materialise(sealed, dumpable)
        repl = await world.python()
        await repl.run("kept.append(len(kept))")
    told = await repl.run("all(kept[n] == bytes([n % 256]) * 10000 for n in range(2000)), kept[2000:]")
    assert told.value == "(True, [2000, 2001, 2002])"


async def test_a_program_that_opens_and_closes_files_all_the_time_is_kept(
    namespaces: NamespaceBackend, base: Snapshot, dumpable: WorldSpec, out: Out, until: Until
) -> None:
    """Before it stands still, the agent looks at its files, some of which are gone when their turn comes."""
    world = await namespaces.materialise(base, dumpable)
    busy = "while True:\n held = [open('busy.py') for n in range(20)]\n [one.close() for one in held]\n"
    (world.path / "busy.py").write_text(f"open('begun', 'w').close()\n{busy}")
    await out(world, "python3 busy.py & program=$!")
    await until(world, "[ -e begun ]")
    for _ in range(5):
        sealed = await world.seal()
        assert sealed.tier is ProcessTier.TREE, sealed.processes.reason


async def test_processes_in_a_removed_folder_are_kept(
    namespaces: NamespaceBackend, base: Snapshot, dumpable: WorldSpec, out: Out
) -> None:
    """CRIU cannot restore two of them, nor dump one for an ordinary user."""
    world = await namespaces.materialise(base, dumpable)
    repl = await world.python()
    await out(world, "mkdir -p gone/x; cd gone/x; sleep 1000 & program=$!")
    session = await world.python("inner")
    await session.run("kept = 1")
    await out(world, "rm -r ../../gone")
    await repl.run("kept = 2")
    (world.path / "found").touch()
    sealed = await world.seal()
    assert sealed.tier is ProcessTier.TREE, sealed.processes.reason
    for _ in range(2):
        await world.rollback(sealed)
        told = await out(world, "ls -A | wc -l; echo x 2>/dev/null > file || echo none; ls -A /dev/shm")
        assert told == "0\nnone\n"
        assert await out(world, "ls -A ..; ls ../../found") == "../../found\n", "where the folder was"
        assert await out(world, "pwd; ps -o comm= -p $program") == f"{dumpable.mount_at}/gone/x\nsleep\n"
        for name, value in (("inner", "1"), ("python", "2")):
            repl = await world.python(name)
            assert (await repl.run("kept")).value == value
        again = await world.seal()
        assert again.tier is ProcessTier.TREE, again.processes.reason
        assert again.content_key == sealed.content_key, "the restored processes have left nothing but times"
        sealed = again
    await out(world, "sleep 1000 | sleep 1000 &")
    sealed = await world.seal()
    assert sealed.tier is ProcessTier.REPL
    assert "removed folder" in sealed.processes.reason
    await world.rollback(sealed)
    repl = await world.python("inner")
    assert (await repl.run("kept")).value == "1"


MEMORY = """
import ctypes, os, signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
libc, size, both, anonymous = ctypes.CDLL(None), 1 << 20, 3, 0x22
for name in ("mmap", "mremap"):
    getattr(libc, name).restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
libc.mremap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int]
libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
def filled():
    at = libc.mmap(None, size, both, anonymous, -1, 0)
    ctypes.memset(at, 65, size)
    return at
given_back, grown, many = filled(), filled(), list(range(1 << 15))
held = os.urandom(int(sys.argv[1]))
open("ready", "w").close()
signal.sigwait([signal.SIGUSR1])
many.extend(range(1 << 22))
refused = libc.madvise(given_back, size, 4) != 0
told = ["refused" if refused else "zeros" if ctypes.string_at(given_back, size) == bytes(size) else "old"]
at = libc.mremap(grown, size, 3 * size, 1)
refused = at == (1 << 64) - 1
told.append("refused" if refused else "zeros" if ctypes.string_at(at + size, 2 * size) == bytes(2 * size) else "old")
print(*told, len(held), sum(many[-2:]), flush=True)
signal.sigwait([signal.SIGUSR1])
"""


@pytest.mark.parametrize(("held", "expected"), [(0, "zeros zeros"), (40 << 20, "refused refused")])
async def test_restored_memory_grows_and_is_given_back_as_any(
    namespaces: NamespaceBackend,
    base: Snapshot,
    dumpable: WorldSpec,
    out: Out,
    until: Until,
    held: int,
    expected: str,
) -> None:
    """Memory that is mapped from an image would show the image: there these calls are refused, as allocators expect.
    Such processes are dumped into images again, with what they start, and never by CRIU."""
    world = await namespaces.materialise(base, dumpable)
    (world.path / "memory.py").write_text(MEMORY)
    await out(world, f"python3 memory.py {held} > told & program=$!")
    await until(world, "[ -e ready ]")
    for _ in range(2):
        sealed = await world.seal()
        assert sealed.tier is ProcessTier.TREE, sealed.processes.reason
        world = await namespaces.materialise(sealed, dumpable)
    await out(world, "kill -USR1 $program")
    await until(world, "[ -s told ] || ! kill -0 $program")
    assert (world.path / "told").read_text() == f"{expected} {held} {2 * (1 << 22) - 3}\n"
    await out(world, "sleep 1000 | sleep 1000 &")
    sealed = await world.seal()
    if held:
        assert sealed.tier is ProcessTier.DROPPED
        assert "share pages with an image" in sealed.processes.reason
    else:
        assert sealed.tier is ProcessTier.CRIU, sealed.processes.reason
