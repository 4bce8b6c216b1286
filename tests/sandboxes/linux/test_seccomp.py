"""The system-call filter, checked for every call number of both architectures by an interpreter of its BPF."""

from __future__ import annotations

import errno
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramify.sandboxes.linux import seccomp
from ramify.sandboxes.linux.syscalls import ARCHITECTURES, LAST

MACHINES = sorted(ARCHITECTURES)
LOOKED_INTO = {"ioctl", "socket", "clone", "unshare"}


def verdict(program: bytes, number: int, arguments: tuple[int, ...] = (), audit: int | None = None) -> int:
    """What the kernel would do: an interpreter of the instructions of `Assembler`."""
    assert audit is not None
    data = struct.pack("=IIQ6Q", number, audit, 0, *(arguments + (0,) * 6)[:6])
    lines = list(seccomp.INSTRUCTION.iter_unpack(program))
    at, loaded = 0, 0
    while True:
        code, true, false, k = lines[at]
        at += 1
        if code == seccomp.LOAD:
            (loaded,) = struct.unpack_from("=I", data, k)
        elif code == seccomp.RETURN:
            return int(k)
        else:
            holds = {seccomp.EQUAL: loaded == k, seccomp.GREATER: loaded > k, seccomp.ANY_BIT: bool(loaded & k)}[code]
            at += true if holds else false


def told(machine: str, number: int, *arguments: int) -> int:
    return verdict(seccomp.program(machine), number, arguments, ARCHITECTURES[machine].audit)


def refused(number: int) -> int:
    return seccomp.ERRNO | number


@pytest.mark.parametrize("machine", MACHINES)
def test_exactly_the_calls_of_the_lists_are_refused(machine: str) -> None:
    names = {number: name for name, number in ARCHITECTURES[machine].numbers.items()}
    for number in range(LAST + 1):
        name = names.get(number, "")
        if name in LOOKED_INTO:
            continue
        due = seccomp.ALLOW
        if name in seccomp.REFUSED:
            due = refused(errno.EPERM)
        elif name in seccomp.ABSENT:
            due = refused(errno.ENOSYS)
        assert told(machine, number) == due, f"{number} {name}"


@pytest.mark.parametrize("machine", MACHINES)
def test_every_call_of_the_lists_has_a_number_where_the_architecture_has_the_call(machine: str) -> None:
    only_x86 = {"iopl", "ioperm", "uselib", "modify_ldt"}
    missing = {*seccomp.REFUSED, *seccomp.ABSENT, *LOOKED_INTO} - set(ARCHITECTURES[machine].numbers)
    assert missing == (only_x86 if machine == "aarch64" else set())


@given(st.sampled_from(MACHINES), st.integers(LAST + 1, 2**32 - 1))
def test_calls_newer_than_the_table_are_absent(machine: str, number: int) -> None:
    assert told(machine, number) == refused(errno.ENOSYS)


@given(st.sampled_from(MACHINES), st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1))
def test_another_call_table_ends_the_process(machine: str, number: int, audit: int) -> None:
    architecture = ARCHITECTURES[machine]
    if audit != architecture.audit:
        assert verdict(seccomp.program(machine), number, (), audit) == seccomp.KILL


def test_the_second_call_table_of_x86_is_absent() -> None:
    x86 = ARCHITECTURES["x86_64"]
    for number in (0, 165, 520, *x86.numbers.values()):
        assert told("x86_64", number | x86.x32) == refused(errno.ENOSYS)


@pytest.mark.parametrize("machine", MACHINES)
def test_new_namespaces_are_refused_and_threads_are_not(machine: str) -> None:
    numbers = ARCHITECTURES[machine].numbers
    thread, vfork, fork = 0x3D0F00, 0x4111, 0x1200011
    for flags in (thread, vfork, fork, 0):
        assert told(machine, numbers["clone"], flags) == seccomp.ALLOW
    for bit in (0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000):
        assert told(machine, numbers["clone"], fork | bit) == refused(errno.EPERM)
        assert told(machine, numbers["unshare"], bit) == refused(errno.EPERM)
    assert told(machine, numbers["unshare"], 0x400) == seccomp.ALLOW  # CLONE_FILES
    assert told(machine, numbers["unshare"], 0x80) == refused(errno.EPERM)


@given(st.sampled_from(MACHINES), st.sampled_from(seccomp.TERMINAL_TRICKS), st.integers(0, 2**32 - 1))
def test_the_terminals_input_is_not_written_whatever_the_upper_half_says(
    machine: str, request: int, upper: int
) -> None:
    number = ARCHITECTURES[machine].numbers["ioctl"]
    assert told(machine, number, 1, request | upper << 32) == refused(errno.EPERM)
    assert told(machine, number, 1, 0x5401) == seccomp.ALLOW  # TCGETS


@given(st.sampled_from(MACHINES), st.integers(0, 60))
def test_sockets_of_the_five_families_only(machine: str, family: int) -> None:
    due = seccomp.ALLOW if family in seccomp.FAMILIES else refused(errno.EAFNOSUPPORT)
    assert told(machine, ARCHITECTURES[machine].numbers["socket"], family) == due


def test_what_the_assembler_refuses() -> None:
    backwards = seccomp.Assembler()
    backwards.label("top")
    backwards.load(0)
    backwards.jump(seccomp.EQUAL, 1, "top")
    nowhere = seccomp.Assembler()
    nowhere.jump(seccomp.EQUAL, 1, "no such place")
    far = seccomp.Assembler()
    far.jump(seccomp.EQUAL, 1, "end")
    for _ in range(256):
        far.load(0)
    far.answer(0, "end")
    for code in (backwards, nowhere, far):
        with pytest.raises(ValueError, match="jumps to"):
            code.assemble()
    far.instructions.pop(1)
    far.labels["end"] -= 1
    assert len(far.assemble()) == 257 * seccomp.INSTRUCTION.size
    with pytest.raises(ValueError, match="used twice"):
        backwards.label("top")


def test_the_table_agrees_with_this_machines_headers() -> None:
    """Compare with the compiler's headers if they are installed; the table was copied from the kernel's sources."""
    import platform
    from pathlib import Path

    machine = platform.machine()
    found = sorted(
        Path("/usr/include").glob(f"**/{'unistd_64.h' if machine == 'x86_64' else 'asm-generic/unistd.h'}")
    )
    if machine not in ARCHITECTURES or not found:
        pytest.skip("no kernel headers on this machine, or no table for it")
    lines = [line.split() for line in found[0].read_text().splitlines() if line.startswith("#define __NR_")]
    said = {words[1].removeprefix("__NR_"): int(words[2]) for words in lines if words[2].isdigit()}
    numbers = ARCHITECTURES[machine].numbers
    assert len(said) > 250
    assert {name: said[name] for name in numbers if name in said} == {n: v for n, v in numbers.items() if n in said}
