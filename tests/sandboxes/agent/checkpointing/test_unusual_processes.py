"""Unusual processes are kept as they are, or refused with a reason: no seal ends a world, and every snapshot can be
restored."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from ramify.fork_engine.types import ProcessTier, Snapshot
from ramify.sandboxes.agent.checkpointing.byte_ranges import PageCopier, write_memory
from ramify.sandboxes.agent.checkpointing.memory_image import CannotDump
from ramify.sandboxes.agent.checkpointing.process_tree import members_of
from ramify.sandboxes.backends.namespaces.backend import NamespaceBackend
from ramify.sandboxes.contract import World, WorldSpec
from ramify.sandboxes.linux import process_memory, processes, ptrace

Out = Callable[[World, str], Awaitable[str]]
Until = Callable[[World, str], Awaitable[None]]
pytestmark = pytest.mark.skipif(ptrace.why_not() != "", reason=ptrace.why_not())

BEGIN = """
import ctypes, fcntl, mmap, os, struct, time
libc = ctypes.CDLL(None, use_errno=True)
LONG, POINTER, INT = ctypes.c_long, ctypes.c_void_p, ctypes.c_int
libc.mmap.restype, libc.mmap.argtypes = POINTER, (POINTER, LONG, INT, INT, INT, LONG)
libc.madvise.argtypes = libc.mprotect.argtypes = (POINTER, LONG, INT)
libc.munmap.argtypes = (POINTER, LONG)
"""
END = """
open("ready", "w").close()
while not os.path.exists("go"):
    time.sleep(0.01)
open("told.tmp", "w").write(str(tell()))
os.rename("told.tmp", "told")
time.sleep(1000)
"""
MANY_AREAS = """
size, count = 4096, 6000
begin = libc.mmap(None, count * size, 3, 0x22, -1, 0)
for n in range(count):
    ctypes.memset(begin + n * size, n % 251 + 1, size)
for n in range(0, count, 2):
    assert libc.mprotect(begin + n * size, size, 1) == 0
    assert libc.madvise(begin + n * size, size, 10) == 0
    if n % 3 == 0:
        assert libc.madvise(begin + n * size, size, 18) == 0
def tell():
    found = [ctypes.string_at(begin + n * size, 1)[0] for n in range(count)]
    return all(one == n % 251 + 1 or n % 6 == 0 and one == 0 for n, one in enumerate(found))
"""
FLAGGED_AREAS = """
kept = []
for n in range(300):
    at = libc.mmap(None, 8192, 3, 0x22, -1, 0)
    ctypes.memset(at, 7, 8192)
    assert libc.madvise(at, 4096, 10) == libc.madvise(at, 4096, 18) == 0
    kept.append(at)
def tell():
    return all(ctypes.string_at(at + 4096, 4096) == bytes([7]) * 4096 for at in kept)
"""
MANY_LOCKS = """
held = os.open("locked", os.O_RDWR | os.O_CREAT)
for n in range(1500):
    fcntl.fcntl(held, fcntl.F_SETLK, struct.pack("=hh4xqqi4x", fcntl.F_WRLCK, 0, 2 * n, 1, 0))
def tell():
    if os.fork() == 0:
        other = os.open("locked", os.O_RDWR)
        for n in range(1500):
            asked = fcntl.fcntl(other, fcntl.F_GETLK, struct.pack("=hh4xqqi4x", fcntl.F_WRLCK, 0, 2 * n, 1, 0))
            if struct.unpack_from("=h", asked)[0] == fcntl.F_UNLCK:
                os._exit(1)
        os._exit(0)
    return os.wait()[1] == 0
"""
SPARSE = """
size, step = 30 << 30, 16 << 20
begin = libc.mmap(None, size, 3, 0x4022, -1, 0)
places = range(begin, begin + size, step)
for n, at in enumerate(places):
    ctypes.memset(at, n % 255 + 1, 1)
def tell():
    return all(ctypes.string_at(at, 2) == bytes([n % 255 + 1, 0]) for n, at in enumerate(places))
"""
NAMED_LIKE_FLAGS = r"""
names = [b"a\xff", b"VmFlags: dc wf", b"b VmFlags:dc", b"c " + b"long" * 60, b"d (deleted) e"]
kept = []
for name in names:
    file = os.open(name, os.O_RDWR | os.O_CREAT)
    os.write(file, name.ljust(4096, b"."))
    kept.append((name, libc.mmap(None, 4096, 3, 2, file, 0)))
    os.close(file)
libc.prctl(15, b"x\nVmFlags:\xff", 0, 0, 0)
def tell():
    told = ctypes.create_string_buffer(16)
    libc.prctl(16, told, 0, 0, 0)
    return all(ctypes.string_at(at, 4096) == name.ljust(4096, b".") for name, at in kept) and (
        told.value == b"x\nVmFlags:\xff"
    )
"""


async def started(world: World, program: str, out: Out, until: Until) -> None:
    (world.path / "program.py").write_text(BEGIN + program + END)
    await out(world, "python3 program.py 2>errors & p=$!")
    await until(world, "[ -e ready ] || [ -s errors ]")
    assert await out(world, "cat errors") == ""


async def asked(world: World, out: Out, until: Until) -> None:
    await out(world, "touch go")
    await until(world, "[ -e told ] || [ -s errors ] || ! kill -0 $p")
    assert await out(world, "cat errors told") == "True"


@pytest.mark.linux_ns
@pytest.mark.criu
@pytest.mark.parametrize("program", [MANY_AREAS, FLAGGED_AREAS, MANY_LOCKS, SPARSE, NAMED_LIKE_FLAGS])
async def test_what_is_kept_goes_on_in_forks_of_forks(
    namespaces: NamespaceBackend, base: Snapshot, dumpable: WorldSpec, out: Out, until: Until, program: str
) -> None:
    world = await namespaces.materialise(base, dumpable)
    await started(world, program, out, until)
    first = await world.seal(flush=False)
    assert first.tier is ProcessTier.TREE, first.processes.reason
    fork = await namespaces.materialise(first, dumpable)
    second = await fork.seal(flush=False)
    assert second.tier is ProcessTier.TREE, second.processes.reason
    await asked(world, out, until)
    await world.rollback(first)
    for live in (world, fork, await namespaces.materialise(second, dumpable)):
        await asked(live, out, until)


WITHOUT_VDSO = """
for line in open("/proc/self/maps").read().splitlines():
    if line.endswith(NAME):
        begin, end = (int(one, 16) for one in line.split()[0].split("-"))
libc.munmap(begin, end - begin)
libc.creat(b"ready", 0o600)
while True:
    libc.pause()
"""
NEWLINE = r"""
for name, text in (("a\nb", b"mine"), (r"a\012b", b"other")):
    file = os.open(name, os.O_RDWR | os.O_CREAT)
    os.write(file, text.ljust(4096, b"."))
    if text == b"mine":
        held = libc.mmap(None, 4096, 1, 2, file, 0)
    os.close(file)
"""
TOO_MANY = """
begin = libc.mmap(None, 20000 * 4096, 3, 0x22, -1, 0)
for n in range(0, 20000, 2):
    assert libc.mprotect(begin + n * 4096, 4096, 1) == 0
"""


@pytest.mark.linux_ns
@pytest.mark.criu
@pytest.mark.parametrize(
    ("program", "why"),
    [
        ("NAME = '[vdso]'" + WITHOUT_VDSO, "vDSO"),
        ("NAME = '[vvar]'" + WITHOUT_VDSO, "vDSO"),
        ("NAME = '[vdso]'; held = os.pipe()" + WITHOUT_VDSO, "vDSO"),  # CRIU would keep the pipe
        (NEWLINE, "newline"),
        (TOO_MANY, "mappings"),
    ],
)
async def test_what_is_refused_is_named_and_lives_on(
    namespaces: NamespaceBackend, base: Snapshot, dumpable: WorldSpec, out: Out, until: Until, program: str, why: str
) -> None:
    world = await namespaces.materialise(base, dumpable)
    await started(world, program, out, until)
    await out(world, "touch before")
    first = await world.seal(flush=False)
    assert first.tier is not ProcessTier.TREE
    assert why in first.processes.reason
    assert await out(world, "kill -0 $p && echo lives") == "lives\n"
    fork = await namespaces.materialise(first, dumpable)
    assert await out(fork, "ls before") == "before\n"


CLONED = """
stack = ctypes.create_string_buffer(1 << 16)
libc.clone.argtypes = (POINTER, POINTER, INT, POINTER)
top = ctypes.addressof(stack) + (1 << 16) & ~15
assert libc.clone(ctypes.cast(libc.sleep, POINTER), top, FLAGS | 17, 1000) > 0
"""


@pytest.mark.linux_ns
@pytest.mark.criu
@pytest.mark.parametrize(("flags", "what"), [(0x100, "memory"), (0x200, "working folder"), (0x400, "open files")])
async def test_processes_that_share_what_forks_do_not_are_in_no_image(
    namespaces: NamespaceBackend, base: Snapshot, dumpable: WorldSpec, out: Out, until: Until, flags: int, what: str
) -> None:
    world = await namespaces.materialise(base, dumpable)
    program = CLONED.replace("FLAGS", str(flags)) + "open('ready', 'w').close(); time.sleep(1000)"
    (world.path / "program.py").write_text(BEGIN + program)
    await out(world, "python3 program.py &")
    await until(world, "[ -e ready ]")
    sealed = await world.seal(flush=False)
    assert sealed.tier is not ProcessTier.TREE
    assert what in sealed.processes.reason
    assert await world.background_processes() >= 1


@pytest.fixture
def killed() -> Iterator[tuple[int, int]]:
    """The memory of a process that was killed, and an address that it had."""
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(100)"]) as program:
        memory = os.open(f"/proc/{program.pid}/mem", os.O_RDWR)
        at = next(area.start for area in process_memory.areas(program.pid) if area.modes == "rw-p")
        program.kill()
    yield memory, at
    os.close(memory)


def test_memory_of_a_process_that_was_killed_is_not_waited_for(killed: tuple[int, int], tmp_path: Path) -> None:
    memory, at = killed
    with (tmp_path / "image").open("w+b") as image, pytest.raises(OSError, match="no bytes"):
        PageCopier(memory, image.fileno()).copy(at, 0, 4096)
    with pytest.raises(OSError, match="no bytes"):
        write_memory(memory, b"x", at)


def test_a_process_beside_the_tree_is_no_member() -> None:
    """Such as one that became a daemon while the others were stopped."""
    command, null = ["sleep", "100"], subprocess.DEVNULL
    with (
        subprocess.Popen(command, start_new_session=True, stdin=null, stdout=null, stderr=null) as one,
        subprocess.Popen(command, start_new_session=True, stdin=null, stdout=null, stderr=null) as other,
    ):
        try:
            found = processes.all_processes()
            with pytest.raises(CannotDump, match="does not descend"):
                members_of([found[one.pid], found[other.pid]], "/nowhere", ())
        finally:
            one.kill()
            other.kill()
