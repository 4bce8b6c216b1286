"""Details of a process that the kernel keeps: a restored one finds them as they were."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import struct
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from ramify.fork_engine.store import SnapshotStore
from ramify.fork_engine.types import ProcessTier, Snapshot
from ramify.sandboxes.agent.checkpointing.process_image import NOTE
from ramify.sandboxes.backends.namespaces.backend import NamespaceBackend
from ramify.sandboxes.contract import World, WorldSpec
from ramify.sandboxes.linux import ptrace

Out = Callable[[World, str], Awaitable[str]]
Until = Callable[[World, str], Awaitable[None]]
pytestmark = pytest.mark.skipif(ptrace.why_not() != "", reason=ptrace.why_not())

PROGRAM = """
import ctypes, fcntl, json, os, time
libc = ctypes.CDLL(None, use_errno=True)
LONG, POINTER, INT = ctypes.c_long, ctypes.c_void_p, ctypes.c_int
libc.mmap.restype, libc.mmap.argtypes = POINTER, (POINTER, LONG, INT, INT, INT, LONG)
libc.madvise.argtypes = libc.mprotect.argtypes = (POINTER, LONG, INT)
def anonymous(flags=0x22):
    at = libc.mmap(None, 8192, 3, flags, -1, 0)
    ctypes.memset(at, 7, 8192)
    return at
wiped, missing = anonymous(), anonymous()
assert libc.madvise(wiped, 8192, 18) == libc.madvise(missing, 8192, 10) == 0
droppable = libc.mmap(None, 8192, 3, 0x28, -1, 0)
if droppable != 2 ** 64 - 1:
    ctypes.memset(droppable, 7, 8192)
file = open("mapped", "w+b")
file.write(bytes(8192))
file.flush()
mapped = libc.mmap(None, 8192, 1, 1, file.fileno(), 0)
file.close()
direct = os.open("direct", os.O_RDWR | os.O_CREAT | os.O_DIRECT)
for option, value in ((29, 123456), (41, 1)):
    assert libc.prctl(option, value, 0, 0, 0) == 0
seen = open("log", "w+b", buffering=0)
seen.write(bytes(4096))
seen.close()
reader = os.open("log", os.O_RDONLY)
log = libc.mmap(None, 4096, 1, 1, reader, 0)
os.close(reader)
if os.fork() == 0:
    os.close(direct)
    writer = os.open("log", os.O_RDWR)
    n = 0
    while True:
        n = n % 200 + 1
        os.pwrite(writer, bytes([n]), 0)
        time.sleep(0.01)

def child(work):
    pid = os.fork()
    if pid == 0:
        os._exit(work())
    return os.waitpid(pid, 0)[1]

def seen_to_change():
    before = ctypes.string_at(log, 1)
    for _ in range(6000):
        if ctypes.string_at(log, 1) != before:
            return True
        time.sleep(0.01)
    return False

open("ready", "w").close()
while not os.path.exists("go"):
    time.sleep(0.01)
told = dict(
    wiped=child(lambda: ctypes.string_at(wiped, 1)[0]) >> 8,
    missing=child(lambda: ctypes.string_at(missing, 1)[0]),
    droppable=droppable == 2 ** 64 - 1 or child(lambda: ctypes.string_at(droppable, 1)[0]) >> 8,
    protect=libc.mprotect(mapped, 8192, 3),
    direct=fcntl.fcntl(direct, fcntl.F_GETFL) & os.O_DIRECT,
    options=[libc.prctl(option, 0, 0, 0, 0) for option in (30, 42)],
    log=seen_to_change(),
)
if not told["protect"]:
    ctypes.memset(mapped, 120, 4)
told["file"] = open("mapped").read(4)
with open("done.tmp", "w") as done:
    json.dump(told, done)
os.rename("done.tmp", "done")
time.sleep(1000)
"""


@pytest.mark.linux_ns
@pytest.mark.criu
async def test_memory_files_and_options_are_as_before(
    namespaces: NamespaceBackend, base: Snapshot, dumpable: WorldSpec, out: Out, until: Until
) -> None:
    world = await namespaces.materialise(base, dumpable)
    (world.path / "program.py").write_text(PROGRAM)
    await out(world, "python3 program.py 2>>errors &")
    await until(world, "[ -e ready ]")
    first = await world.seal(flush=False)
    assert first.tier is ProcessTier.TREE, first.processes.reason
    fork = await namespaces.materialise(first, dumpable)
    second = await fork.seal(flush=False)
    assert second.tier is ProcessTier.TREE, second.processes.reason
    told = []
    for live in (world, fork, await namespaces.materialise(second, dumpable)):
        await out(live, "touch go")
        await until(live, "[ -e done ] || [ -s errors ]")
        told.append(json.loads(await out(live, "cat errors >&2; cat done")))
    assert told[0] == told[1] == told[2]
    assert told[0]["wiped"] == 0
    assert (told[0]["missing"], told[0]["file"], told[0]["log"]) == (signal.SIGSEGV, "xxxx", True)


CLOSED = """
import ctypes, time
libc = ctypes.CDLL(None)
libc.prctl(4, 0, 0, 0, 0)
open("ready", "w").close()
while True:
    time.sleep(0.05)
    open("told", "w").write(str(libc.prctl(3, 0, 0, 0, 0)))
"""


@pytest.mark.linux_ns
@pytest.mark.criu
async def test_a_program_that_is_closed_to_others_stays_so_or_is_refused_by_name(
    namespaces: NamespaceBackend, base: Snapshot, dumpable: WorldSpec, out: Out, until: Until
) -> None:
    """To the kernel its state is root's: an ordinary user cannot read it."""
    world = await namespaces.materialise(base, dumpable)
    (world.path / "closed.py").write_text(CLOSED)
    await out(world, "python3 closed.py &")
    await until(world, "[ -e ready ]")
    sealed = await world.seal(flush=False)
    if os.geteuid() != 0:
        assert (sealed.tier, await world.background_processes()) == (ProcessTier.DROPPED, 1)
        assert "closed to others" in sealed.processes.reason
        return
    assert sealed.tier is ProcessTier.TREE, sealed.processes.reason
    fork = await namespaces.materialise(sealed, dumpable)
    await out(fork, "rm -f told")
    await until(fork, "[ -s told ]")
    assert await out(fork, "cat told") == "0"


WAITING = """
import ctypes, os, time
libc = ctypes.CDLL(None, use_errno=True)
open("ready", "w").close()
begun = time.monotonic()
result = libc.poll(None, 0, 2000)
with open("done.tmp", "w") as done:
    print(result, time.monotonic() - begun >= 1.9, file=done)
os.rename("done.tmp", "done")
time.sleep(1000)
"""


@pytest.mark.linux_ns
@pytest.mark.criu
async def test_a_call_with_a_timeout_goes_on_in_every_fork(
    namespaces: NamespaceBackend, base: Snapshot, dumpable: WorldSpec, out: Out, until: Until
) -> None:
    """Also where it was interrupted before, as by an earlier seal."""
    world = await namespaces.materialise(base, dumpable)
    (world.path / "waiting.py").write_text(WAITING)
    await out(world, "python3 waiting.py &")
    await until(world, "[ -e ready ]")
    sealed = [await world.seal(flush=False) for _ in range(2)]
    assert [one.tier for one in sealed] == [ProcessTier.TREE] * 2
    assert await out(world, "ls done 2>/dev/null || echo waits") == "waits\n"
    for live in (world, *await asyncio.gather(*(namespaces.materialise(one, dumpable) for one in sealed))):
        await until(live, "[ -e done ]")
        assert await out(live, "cat done") == "0 True\n"


def test_an_interrupted_call_is_left_to_the_kernel(tmp_path: Path) -> None:
    (tmp_path / "code").write_bytes(b"\xb8\x07\0\0\0\x0f\x05" + b"\xb8\x01\0\0\0\x0f\x05" + b"\x90" * 5 + b"\x0f\x05")

    def later(number: int, result: int, instruction: int = 0) -> tuple[int, int]:
        registers = {"orig_rax": number & ptrace.NONE, "rax": result & ptrace.NONE, "rip": instruction}
        code = os.open(tmp_path / "code", os.O_RDONLY)
        try:
            changed = ptrace.restart_interrupted_call(registers, code)
        finally:
            os.close(code)
        assert changed["rip"] == instruction
        return ptrace.signed(changed["orig_rax"]), ptrace.signed(changed["rax"])

    assert later(-1, 5) == (-1, 5), "it was in no call"
    assert later(0, 3) == (-1, 3), "the call was complete"
    assert later(34, -514) == (34, -514), "pause: whether a handler runs decides"
    assert later(7, -516) == (7, -514)
    assert later(219, -516, 7) == (7, -514), "poll, by the instruction before it"
    assert later(219, -516, 14) == (-1, -4), "write has no timeout"
    assert later(219, -516, 21) == (-1, -4), "unknown"


YEARS = 10**8
"""Seconds for which no machine has been up."""


@pytest.mark.linux_ns
@pytest.mark.criu
async def test_clocks_go_on_after_another_boot_of_the_machine(
    namespaces: NamespaceBackend,
    base: Snapshot,
    spec: WorldSpec,
    dumpable: WorldSpec,
    store: SnapshotStore,
) -> None:
    """A program that waits for a time of its clock would otherwise wait for as long as the machine was up before."""
    for how, tier in ((dumpable, ProcessTier.TREE), (spec, ProcessTier.REPL)):
        world = await namespaces.materialise(base, how)
        begun = await (await world.python()).run("import time; int(time.monotonic())")
        sealed = await world.seal(flush=False)
        assert sealed.tier is tier, sealed.processes.reason
        for note in store.image_dir(sealed.processes.image).glob(f"*/{NOTE}"):
            raw = json.loads(note.read_text())
            assert abs(raw["thread"]["clocks"][0] - int(begun.value or 0)) < 60
            raw["thread"]["clocks"] = [YEARS, YEARS]
            note.write_text(json.dumps(raw))
        for _ in range(2):  # also of a world whose clocks are ahead
            world = await namespaces.materialise(sealed, how)
            session = await world.python()
            for clock in ("time.monotonic()", "time.clock_gettime(time.CLOCK_BOOTTIME)"):
                told = await session.run(f"{YEARS} <= {clock} < {YEARS} + 1000")
                assert told.value == "True", told
            sealed = await world.seal(flush=False)
            assert sealed.tier is tier, sealed.processes.reason


ELF = struct.Struct("<16sHHIIIIIHHHHHH")
SEGMENT = struct.Struct("<8I")
PAUSE = bytes.fromhex("b81d000000cd80ebf7")  # next: mov eax, 29 (pause); int 0x80; jmp next


def program_for_32_bits() -> bytes:
    at, begin = 0x8048000, ELF.size + 2 * SEGMENT.size
    size = begin + len(PAUSE)
    identity = b"\x7fELF\1\1\1".ljust(16, b"\0")
    return (
        ELF.pack(identity, 2, 3, 1, at + begin, ELF.size, 0, 0, ELF.size, SEGMENT.size, 2, 0, 0, 0)
        + SEGMENT.pack(1, 0, at, at, size, size, 5, 4096)
        + SEGMENT.pack(0x6474E551, 0, 0, 0, 0, 0, 6, 16)  # its stack holds no code, so its personality is as any
        + PAUSE
    )


@pytest.mark.linux_ns
@pytest.mark.criu
async def test_a_program_for_32_bits_is_no_harm_to_its_world(
    namespaces: NamespaceBackend, base: Snapshot, dumpable: WorldSpec, out: Out
) -> None:
    world = await namespaces.materialise(base, dumpable)
    (world.path / "program").write_bytes(program_for_32_bits())
    begun = await world.run("chmod +x program; ./program & sleep 0.1; kill -0 $!")
    if not begun.ok:
        pytest.skip("this kernel runs no programs for 32 bits")
    sealed = await world.seal(flush=False)
    assert sealed.tier is not ProcessTier.TREE
    assert sealed.processes.reason
    assert await out(world, "kill $! && echo lives") == "lives\n"
