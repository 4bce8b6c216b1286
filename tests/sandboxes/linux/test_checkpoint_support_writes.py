"""Pages that count as not written hold what they held, whatever the program does with its memory."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from ramify.sandboxes.linux import process_memory, ptrace
from ramify.sandboxes.linux.checkpoint_support import WriteTracker
from ramify.sandboxes.linux.process_memory import PAGE
from ramify.sandboxes.linux.ptrace import Tracee

pytestmark = pytest.mark.skipif(ptrace.why_not() != "", reason=ptrace.why_not())

PAGES, ROUNDS = 96, 150
PROGRAM = """
import ctypes, mmap, os, sys
libc, page = ctypes.CDLL(None, use_errno=True), 4096
for name in ("mmap", "mremap"):
    getattr(libc, name).restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
libc.mremap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p]
for name in ("madvise", "munmap", "mprotect"):
    getattr(libc, name).argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int][: 3 if name != "munmap" else 2]
size = int(sys.argv[1]) * page
at = libc.mmap(None, size, 3, 0x22, -1, 0)
noise = os.open("/dev/urandom", os.O_RDONLY)
print(at, flush=True)
for line in sys.stdin:
    what, first, count = line.split()
    place, length = at + int(first) * page, int(count) * page
    if what == "write":
        ctypes.memset(place, ord(os.read(noise, 1)), length)
    elif what == "same":  # written, with what was there
        ctypes.memmove(place, ctypes.string_at(place, length), length)
    elif what == "kernel":  # the kernel writes for it
        os.readv(noise, [(ctypes.c_char * length).from_address(place)])
    elif what == "read":
        ctypes.string_at(place, length)
    elif what == "give":
        libc.madvise(place, length, 4)
    elif what == "new":
        libc.munmap(place, length)
        assert libc.mmap(place, length, 3, 0x32, -1, 0) == place
    elif what == "move":  # over the beginning
        libc.mremap(place, length, length, 3, at)
        libc.mmap(place, length, 3, 0x32, -1, 0) if place >= at + length else None
    elif what == "fork":
        child = os.fork()
        if child == 0:
            ctypes.memset(place, 7, length)
            os._exit(0)
        ctypes.memset(place, 8, page)
        os.waitpid(child, 0)
    elif what == "protect":
        libc.mprotect(place, length, 1)
        libc.mprotect(place, length, 3)
    print(".", flush=True)
"""
DEEDS = ("write", "same", "kernel", "read", "give", "new", "move", "fork", "protect")


@dataclass
class Program:
    process: subprocess.Popen[str]
    at: int = 0
    done: list[str] = field(default_factory=list)

    def do(self, what: str, first: int, count: int) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.done.append(f"{what} {first} {count}")
        self.process.stdin.write(f"{self.done[-1]}\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == ".\n", self.done

    @contextmanager
    def standing(self) -> Iterator[tuple[Tracee, int]]:
        """The stopped process, and its pagemap."""
        pagemap = os.open(f"/proc/{self.process.pid}/pagemap", os.O_RDONLY)
        try:
            with Tracee.seize(self.process.pid) as tracee:
                tracee.interrupt()
                before, blocked = tracee.registers, tracee.blocked
                tracee.blocked = (1 << 64) - 1
                tracee.step_from(next(a for a in process_memory.areas(tracee.pid) if a.name == "[vdso]"))
                yield tracee, pagemap
                tracee.registers = ptrace.restart_interrupted_call(before, tracee.memory)
                tracee.blocked = blocked
        finally:
            os.close(pagemap)

    def content(self) -> list[bytes]:
        with Path(f"/proc/{self.process.pid}/mem").open("rb", buffering=0) as memory:
            memory.seek(self.at)
            held = memory.read(PAGES * PAGE)
        return [held[n * PAGE : (n + 1) * PAGE] for n in range(PAGES)]

    def tracked(self) -> WriteTracker:
        with self.standing() as (tracee, pagemap):
            ranges = [
                (area.start, area.end)
                for area in process_memory.areas(tracee.pid)
                if area.start < self.at + PAGES * PAGE and area.end > self.at
            ]
            tracker = WriteTracker.begin(tracee, pagemap, ranges)
        if tracker is None:
            pytest.skip("this kernel or the tests' own filter does not track the writes of another process")
        return tracker

    def not_written(self, tracker: WriteTracker) -> set[int]:
        with self.standing() as (_, pagemap):
            found = list(tracker.not_written(pagemap, self.at, self.at + PAGES * PAGE))
        return {(at - self.at) // PAGE for start, end in found for at in range(start, end, PAGE)}


@pytest.fixture
def program() -> Iterator[Program]:
    words = [sys.executable, "-I", "-S", "-c", PROGRAM, str(PAGES)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        found = Program(process, int(process.stdout.readline()))
        found.do("kernel", 0, PAGES)
        yield found
        process.kill()


def test_what_was_not_written_is_known(program: Program) -> None:
    tracker = program.tracked()
    program.do("write", 3, 2)
    program.do("kernel", 10, 1)
    program.do("read", 20, 9)
    assert program.not_written(tracker) == set(range(PAGES)) - {3, 4, 10}
    program.do("give", 30, 4)
    assert program.not_written(tracker).isdisjoint({3, 4, 10, *range(30, 34)})
    tracker.close()
    assert program.not_written(tracker) == set()
    again = program.tracked()
    assert program.not_written(again) >= {3, 4, 10}
    again.close()


def test_what_counts_as_not_written_is_as_it_was(program: Program) -> None:
    draw = random.Random(31)
    tracker = program.tracked()
    held = program.content()
    for _ in range(ROUNDS):
        for _ in range(draw.randrange(1, 4)):
            count = draw.randrange(1, 12)
            first = draw.randrange(count, PAGES - count)
            program.do(draw.choice(DEEDS), first, count)
        now = program.content()
        wrong = {page for page in program.not_written(tracker) if now[page] != held[page]}
        assert not wrong, program.done
        if draw.random() < 0.1:
            tracker.close()
            tracker, held = program.tracked(), program.content()
    tracker.close()
