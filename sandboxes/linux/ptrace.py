"""Make a stopped process do system calls, with ptrace. Stdlib only; x86_64.

A single call is one single step of a `syscall` instruction in the process's vDSO. Many calls are a table that a few
instructions of ours run through, on a page that is removed afterwards: a stop for each call would cost two context
switches. None of the process's own code runs meanwhile. The calls pass the process's seccomp filter and Landlock
domain, so nobody can make it do what it may not do itself.

Numbers are from the kernel's uapi headers (`ptrace.h`, `elf.h`); registers are in the order of `user_regs_struct`.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import signal
import struct
from collections.abc import Sequence
from functools import cmp_to_key
from typing import Self

from ramify.sandboxes.linux.process_memory import Area

CONT, SINGLESTEP, DETACH = 7, 9, 17
GETREGSET, SETREGSET, SEIZE, INTERRUPT = 0x4204, 0x4205, 0x4206, 0x4207
GETSIGMASK, SETSIGMASK, GET_RSEQ = 0x420A, 0x420B, 0x420F
TRACE_EXEC, EXIT_KILL = 0x10, 0x10_0000
EVENT_EXEC, EVENT_STOP = 4, 128
NT_PRSTATUS, NT_X86_XSTATE = 1, 0x202
WALL = 0x4000_0000
KCMP = 312
OPEN_FILE, MEMORY, TABLE_OF_FILES, FOLDERS = 0, 1, 2, 3  # KCMP_FILE, KCMP_VM, KCMP_FILES, KCMP_FS
LESS = 1  # how KCMP orders two processes

REGISTERS = (
    *("r15", "r14", "r13", "r12", "rbp", "rbx", "r11", "r10", "r9", "r8", "rax", "rcx", "rdx", "rsi", "rdi"),
    *("orig_rax", "rip", "cs", "eflags", "rsp", "ss", "fs_base", "gs_base", "ds", "es", "fs", "gs"),
)
LAYOUT = struct.Struct(f"={len(REGISTERS)}Q")
ARGUMENTS = ("rdi", "rsi", "rdx", "r10", "r8", "r9")
SYSCALL = b"\x0f\x05"
RUNNER = bytes.fromhex(
    "488b03"  # next: mov rax, [rbx]
    "488b7b08 488b7310 488b5318 4c8b5320 4c8b4328 4c8b4b30"  # rdi, rsi, rdx, r10, r8, r9: [rbx + 8 …]
    "0f05"  # syscall
    "48894338"  # mov [rbx + 56], rax
    "4883c340"  # add rbx, 64
    "49ffcc 75d6"  # dec r12; jnz next
    "cc"  # int3
)
ENTRY = struct.Struct("=8Q")  # a call's number, its six arguments, its result
PADDING = (0,) * 6
CODE = 64  # bytes at the beginning of the room
NONE = (1 << 64) - 1  # as `orig_rax`: not in a system call
INTERRUPTED, RESTART_UNLESS_HANDLED = -4, -514  # EINTR, ERESTARTNOHAND
RESTART = {-512, -513, -514}  # ERESTARTSYS, ERESTARTNOINTR, ERESTARTNOHAND: the kernel would make the call again
RESTART_BLOCK = -516  # as well, with what the kernel remembers of it
CONTINUED = 219  # restart_syscall: it was interrupted before, and the kernel made it go on
WITH_MEMORY = frozenset({7, 35, 202, 230})  # poll, nanosleep, futex, clock_nanosleep
MOVE = 0xB8  # mov eax, imm32
XSTATE_MOST = 1 << 14

_libc = ctypes.CDLL(None, use_errno=True)
_libc.ptrace.restype = ctypes.c_long
_libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]


Call = Sequence[int]
"""A system call's number and its arguments."""


class IoVec(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


class Tracee:
    """A traced process, which stands still. Every failure is an `OSError`.

    As a context manager it detaches at the end: the process runs on, or stops if a SIGSTOP is pending.
    """

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.memory = -1  # /proc/PID/mem
        self._syscall = 0  # the address of a `syscall` instruction

    @classmethod
    def seize(cls, pid: int, options: int = 0) -> Self:
        """Attach to a process that may still run: then `interrupt` it, or wait for its exec."""
        tracee = cls(pid)
        tracee._ask(SEIZE, 0, options)
        return tracee

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.detach()

    def interrupt(self) -> None:
        self._ask(INTERRUPT)
        self._await_stop()
        self._open()

    def await_exec(self) -> None:
        """Wait until it stands at the first instruction of a new program."""
        while (status := self._await_stop()) >> 8 != (signal.SIGTRAP | EVENT_EXEC << 8):
            number = 0 if status >> 16 else status >> 8 & 0xFF
            self._ask(CONT, 0, number)
        self._ask(SINGLESTEP)  # leave execve, which still has to write its result into a register
        self._await_stop()
        self._open()

    def _open(self) -> None:
        self.memory = os.open(f"/proc/{self.pid}/mem", os.O_RDWR | os.O_CLOEXEC)

    def _await_stop(self) -> int:
        _, status = os.waitpid(self.pid, WALL)
        if not os.WIFSTOPPED(status):
            raise OSError(f"process {self.pid} ended while it was traced")
        return status

    def _ask(self, request: int, address: int = 0, data: int | None = 0) -> None:
        if _libc.ptrace(request, self.pid, address, data) == -1:
            number = ctypes.get_errno()
            raise OSError(number, f"ptrace({request:#x}) of process {self.pid}: {os.strerror(number)}")

    # Registers and the like

    def _regset(self, request: int, kind: int, data: bytes) -> bytes:
        room = ctypes.create_string_buffer(data, len(data))
        vector = IoVec(ctypes.addressof(room), len(data))
        self._ask(request, kind, ctypes.addressof(vector))
        return room.raw[: vector.length]

    @property
    def registers(self) -> dict[str, int]:
        raw = self._regset(GETREGSET, NT_PRSTATUS, bytes(LAYOUT.size))
        if len(raw) != LAYOUT.size:
            raise OSError(f"process {self.pid} runs a program for 32 bits")
        return dict(zip(REGISTERS, LAYOUT.unpack(raw), strict=True))

    @registers.setter
    def registers(self, values: dict[str, int]) -> None:
        self._regset(SETREGSET, NT_PRSTATUS, LAYOUT.pack(*(values[name] for name in REGISTERS)))

    @property
    def floats(self) -> bytes:
        return self._regset(GETREGSET, NT_X86_XSTATE, bytes(XSTATE_MOST))

    @floats.setter
    def floats(self, state: bytes) -> None:
        self._regset(SETREGSET, NT_X86_XSTATE, state)

    @property
    def blocked(self) -> int:
        """The mask of blocked signals."""
        mask = ctypes.c_uint64()
        self._ask(GETSIGMASK, 8, ctypes.addressof(mask))
        return mask.value

    @blocked.setter
    def blocked(self, mask: int) -> None:
        value = ctypes.c_uint64(mask)
        self._ask(SETSIGMASK, 8, ctypes.addressof(value))

    @property
    def restartable(self) -> tuple[int, int, int]:
        """Address, length and signature of its area for restartable sequences; zeros without one."""
        room = ctypes.create_string_buffer(24)
        self._ask(GET_RSEQ, 24, ctypes.addressof(room))
        address, length, signature, _, _ = struct.unpack("=QIIII", room.raw)
        return address, length, signature

    # System calls

    def step_from(self, vdso: Area) -> None:
        """Make calls with the `syscall` instruction found in this area."""
        at = os.pread(self.memory, vdso.size, vdso.start).find(SYSCALL)
        if at < 0:
            raise OSError(f"the vDSO of process {self.pid} contains no system call instruction")
        self._syscall = vdso.start + at

    def call(self, number: int, *arguments: int) -> int:
        """Make one call and return its result. Raises `OSError` with the kernel's error."""
        registers = self.registers
        registers |= dict(zip(ARGUMENTS, (value & NONE for value in arguments), strict=False))
        registers |= {"rax": number, "orig_rax": NONE, "rip": self._syscall}
        self.registers = registers
        self._go(SINGLESTEP)
        return self._checked(number, signed(self.registers["rax"]))

    def run(self, calls: Sequence[Call], room: int) -> list[int]:
        """Make the calls in order, from a table at `room`, which must be writable and executable.

        Raises `OSError` for the first that failed; the others were made all the same."""
        results = self.try_all(calls, room)
        self.check(calls, results)
        return results

    def check(self, calls: Sequence[Call], results: Sequence[int]) -> None:
        """Raise `OSError` for the first of these calls that failed."""
        for call, result in zip(calls, results, strict=True):
            self._checked(call[0], result)

    def try_all(self, calls: Sequence[Call], room: int) -> list[int]:
        """As `run`; a call that failed has its negative error number as its result."""
        table = room + CODE
        rows = (
            ENTRY.pack(number, *(value & NONE for value in (*values, *PADDING)[:6]), 0) for number, *values in calls
        )
        os.pwrite(self.memory, RUNNER.ljust(CODE, b"\xcc") + b"".join(rows), room)
        self.registers = {**self.registers, "rbx": table, "r12": len(calls), "rip": room, "orig_rax": NONE}
        self._go(CONT)
        told = os.pread(self.memory, ENTRY.size * len(calls), table)
        return [signed(row[-1]) for row in ENTRY.iter_unpack(told)]

    def _go(self, request: int) -> None:
        """Run to the next trap. Signals are blocked meanwhile, so another stop is a pending stop or a fault."""
        self._ask(request)
        while (stop := self._await_stop() >> 8) != signal.SIGTRAP:
            if stop >> 8 != EVENT_STOP and stop != signal.SIGSTOP:
                raise OSError(f"process {self.pid} was stopped by signal {stop & 0xFF} during an injected call")
            self._ask(request)

    def _checked(self, number: int, result: int) -> int:
        if -4096 < result < 0:
            raise OSError(-result, f"system call {number} of process {self.pid}: {os.strerror(-result)}")
        return result

    def detach(self) -> None:
        if self.memory >= 0:
            os.close(self.memory)
            self.memory = -1
        with contextlib.suppress(ProcessLookupError):  # it was killed meanwhile
            self._ask(DETACH)


def signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value


def restart_interrupted_call(registers: dict[str, int], memory: int) -> dict[str, int]:
    """Registers to continue with elsewhere: the kernel restarts an interrupted system call, or lets it end with EINTR
    if a signal is handled first. `memory`: of the process.

    What only the kernel remembers is lost: a call with a timeout waits for all of it again. A call that was
    interrupted before has lost its number: the instruction before it tells that, or the call ends with EINTR.
    """
    result, number = signed(registers["rax"]), registers["orig_rax"]
    if signed(number) < 0 or result in RESTART:
        return registers
    if result != RESTART_BLOCK:
        return {**registers, "orig_rax": NONE}
    if number == CONTINUED:
        number = _number_before(memory, registers["rip"] - len(SYSCALL))
    if number not in WITH_MEMORY:
        return {**registers, "rax": INTERRUPTED & NONE, "orig_rax": NONE}
    return {**registers, "rax": RESTART_UNLESS_HANDLED & NONE, "orig_rax": number}


def _number_before(memory: int, at: int) -> int:
    """The number that the instruction before the address `at` sets for a system call; -1 if it is another one."""
    code = os.pread(memory, 5, at - 5)
    return int.from_bytes(code[1:], "little") if len(code) == 5 and code[0] == MOVE else -1


def share_open_file(pid: int, one: int, other: int) -> bool:
    """Whether two descriptors of a process refer to the same open file description. Raises `OSError`."""
    return share_open_file_among((pid, one), (pid, other))


def share_open_file_among(one: tuple[int, int], other: tuple[int, int]) -> bool:
    """As `share_open_file`, for two processes: each with its descriptor."""
    return _order(one[0], other[0], OPEN_FILE, one[1], other[1]) == 0


def pair_that_shares(pids: Sequence[int], what: int) -> tuple[int, int] | None:
    """Two of these processes that share one of `MEMORY`, `TABLE_OF_FILES`, `FOLDERS`: only `clone` makes such. Raises
    `OSError`."""
    pairs: list[tuple[int, int]] = []

    def compare(one: int, other: int) -> int:
        order = _order(one, other, what)
        if order == 0:
            pairs.append((one, other))
        return {0: 0, LESS: -1}.get(order, 1)

    sorted(pids, key=cmp_to_key(compare))  # it compares all that come to lie side by side
    return pairs[0] if pairs else None


def _order(one: int, other: int, what: int, *descriptors: int) -> int:
    order = int(_libc.syscall(KCMP, one, other, what, *(descriptors or (0, 0))))
    if order == -1:
        number = ctypes.get_errno()
        raise OSError(number, f"kcmp of process {one}: {os.strerror(number)}")
    return order


def why_not() -> str:
    """Why this machine is not supported; "" if it is."""
    return "" if platform.machine() == "x86_64" else f"no table of registers for {platform.machine()}"
