"""What ends with a world: programs that count on it are not kept, and the record says why."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from ramify.fork_engine.types import ProcessTier, Snapshot
from ramify.sandboxes.backends.namespaces.backend import NamespaceBackend
from ramify.sandboxes.contract import World, WorldSpec
from ramify.sandboxes.linux import ptrace

Out = Callable[[World, str], Awaitable[str]]
Until = Callable[[World, str], Awaitable[None]]
pytestmark = [
    pytest.mark.linux_ns,
    pytest.mark.criu,
    pytest.mark.skipif(ptrace.why_not() != "", reason=ptrace.why_not()),
]

PROGRAM = """
import ctypes, mmap, os, threading, time
libc = ctypes.CDLL(None)
{what}
open("ready", "w").close()
while True:
    time.sleep(1000)
"""
QUEUE = 'libc.mq_close(libc.mq_open(b"/jobs", 0o102, 0o600, None))'
LISTED = """
for n in range(2000): open(f"package/{n:020}", "w").close()
entries = os.scandir("package")
next(entries)
"""
MEMORY = """
held = os.memfd_create("held")
os.write(held, bytes(4096))
kept = mmap.mmap(held, 4096, flags=mmap.MAP_PRIVATE)
os.close(held)
"""
GONE = """
import shutil, subprocess
shutil.copy("/bin/sleep", "program")
subprocess.Popen(["./program", "1000"])
os.unlink("program")
"""


@pytest.mark.parametrize(
    ("what", "why"),
    [
        ("libc.semget(7, 1, 0o1600)", "semaphores of System V"),
        ("libc.shmget(7, 4096, 0o1600)", "shared memory of System V"),
        ("libc.msgget(7, 0o1600)", "message queues of System V"),
        (QUEUE, "message queue /jobs"),
        ('open("/dev/shm/segment", "w").close()', "/dev/shm/segment"),
        ('held = open("/run/held", "w")', "/run/held"),
        ('os.mkdir("/run/here"); os.chdir("/run/here")', "working folder is /run/here"),
        (LISTED, "is listing"),
        (MEMORY, "private memory of /memfd:held"),
        (GONE, "program was removed"),
        ("threading.Thread(target=time.sleep, args=(1000,)).start(); libc.semget(7, 1, 0o1600)", "System V"),
    ],
)
async def test_what_no_snapshot_keeps_is_refused_by_name(
    namespaces: NamespaceBackend, base: Snapshot, dumpable: WorldSpec, out: Out, until: Until, what: str, why: str
) -> None:
    world = await namespaces.materialise(base, dumpable)
    here = what.replace("os.chdir", "open('ready', 'w'); os.chdir") if "chdir" in what else what
    (world.path / "program.py").write_text(PROGRAM.format(what=here))
    await out(world, "python3 program.py &")
    await until(world, "[ -e ready ]")
    sealed = await world.seal(flush=False)
    assert sealed.tier is ProcessTier.DROPPED
    assert why in sealed.processes.reason
    assert await world.background_processes() >= 1, "it lives on"
    fork = await namespaces.materialise(sealed, dumpable)
    assert await out(fork, "ls ready") == "ready\n"


async def test_a_personality_of_its_own_is_refused_and_what_a_world_has_anyway_is_kept(
    namespaces: NamespaceBackend, base: Snapshot, dumpable: WorldSpec, out: Out, until: Until
) -> None:
    world = await namespaces.materialise(base, dumpable)
    await out(world, "cd /dev/shm; exec 7</run 8<>/dev/null; sleep 1000 &")
    assert (await world.seal(flush=False)).tier.whole
    await out(world, "setarch -R sleep 1000 &")
    await until(world, "! cmp -s /proc/$!/personality /proc/self/personality")
    sealed = await world.seal(flush=False)
    assert "personality" in sealed.processes.reason
    await out(world, "kill $!; wait $! || :; ipcmk -S 1 >/dev/null; ipcrm --all")
    assert (await world.seal(flush=False)).tier.whole
