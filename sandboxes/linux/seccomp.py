"""The system calls that commands may make. Stdlib only: installed in a shell's child just before it executes bash.

This is a list of refused calls, not of allowed ones. A world is to run any program; its namespaces, mounts and
dropped capabilities confine it. The filter takes away what would reach past them through a kernel bug (the calls that
most such bugs were found in) and what namespaces do not cover (keys, vsock, the terminal's input queue). Calls newer
than our table answer as on an older kernel: programs fall back, and nothing passes unexamined.

Calls that programs probe for, knowing that kernels may lack them, get ENOSYS; real refusals get EPERM.

`Assembler` writes the filters in classic BPF. A program reads one `struct seccomp_data` (call number, architecture,
six 64-bit arguments) in 32-bit words and returns an action. Jumps go only forward, by at most 255 instructions, so
every program ends; the kernel checks that.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import platform
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field

from ramify.sandboxes.linux.syscalls import ARCHITECTURES, LAST, call, here

INSTRUCTION = struct.Struct("HBBI")  # struct sock_filter: code, jump if true, jump if false, k

LOAD = 0x20  # BPF_LD | BPF_W | BPF_ABS
EQUAL = 0x15  # BPF_JMP | BPF_JEQ | BPF_K
GREATER = 0x25  # BPF_JMP | BPF_JGT | BPF_K, unsigned
ANY_BIT = 0x45  # BPF_JMP | BPF_JSET | BPF_K
RETURN = 0x06  # BPF_RET | BPF_K

NUMBER, ARCHITECTURE = 0, 4  # offsets in struct seccomp_data


def argument(index: int) -> int:
    """The offset of an argument's low half. Both supported architectures are little-endian."""
    return 16 + 8 * index


@dataclass(frozen=True)
class Instruction:
    code: int
    k: int
    target: str = ""  # a jump's label


@dataclass
class Assembler:
    """Collects instructions and labels, and encodes them."""

    instructions: list[Instruction] = field(default_factory=list)
    labels: dict[str, int] = field(default_factory=dict)

    def load(self, offset: int) -> None:
        self.instructions.append(Instruction(LOAD, offset))

    def jump(self, test: int, k: int, target: str) -> None:
        """Jump to `target` if the loaded word passes `test` with `k`; else go on with the next line."""
        self.instructions.append(Instruction(test, k, target))

    def answer(self, action: int, label: str = "") -> None:
        """End with `action`; `label` names this place for jumps."""
        if label:
            self.label(label)
        self.instructions.append(Instruction(RETURN, action))

    def label(self, name: str) -> None:
        if name in self.labels:
            raise ValueError(f"the label {name} is used twice")
        self.labels[name] = len(self.instructions)

    def assemble(self) -> bytes:
        """Encode the program. Raises `ValueError` for a jump that BPF cannot do: backwards, too far, or to an unknown
        label."""
        return b"".join(
            INSTRUCTION.pack(
                instruction.code,
                self._distance(at, instruction.target) if instruction.target else 0,
                0,
                instruction.k,
            )
            for at, instruction in enumerate(self.instructions)
        )

    def _distance(self, at: int, target: str) -> int:
        if target not in self.labels:
            raise ValueError(f"line {at} jumps to {target}, an unknown label")
        distance = self.labels[target] - at - 1
        if not 0 <= distance <= 255:
            raise ValueError(f"line {at} jumps to {target}, {distance} lines away: only 0 to 255 are possible")
        return distance


ALLOW = 0x7FFF_0000
KILL = 0x8000_0000  # the whole process
ERRNO = 0x0005_0000

REFUSED = (
    # mounts: only the agent makes the world's view
    *("mount", "umount2", "pivot_root", "chroot", "open_tree", "open_tree_attr", "move_mount"),
    *("fsopen", "fsconfig", "fsmount", "fspick", "mount_setattr"),
    # other namespaces; arguments of `unshare` and `clone` are checked below
    "setns",
    # files by their number on the disk, past every mount
    *("open_by_handle_at", "lookup_dcookie", "fanotify_init"),
    # keys, which belong to the user and not to the namespace
    *("add_key", "request_key", "keyctl"),
    # the kernel and the machine
    *("bpf", "perf_event_open", "kexec_load", "kexec_file_load", "init_module", "finit_module", "delete_module"),
    *("reboot", "swapon", "swapoff", "acct", "quotactl", "quotactl_fd", "syslog", "iopl", "ioperm", "vhangup"),
    *("settimeofday", "clock_settime", "sethostname", "setdomainname", "uselib"),
)
ABSENT = (
    "clone3",
    "io_uring_setup",
    "io_uring_enter",
    "io_uring_register",
    "userfaultfd",
    "memfd_secret",
    "modify_ldt",
)
"""`clone3` passes its flags behind a pointer, where no filter can read them: the C library then uses `clone`."""

NEW_NAMESPACES = 0x7E02_0000  # CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET
NEW_TIME = 0x80  # CLONE_NEWTIME: for `unshare` only; in `clone` these bits are a signal number
AGENT = 1  # its pid inside; the kernel lets processes of the same uid change its limits
TERMINAL_TRICKS = (0x5412, 0x541C)  # TIOCSTI, TIOCLINUX: type into a terminal that another process reads
FAMILIES = (1, 2, 10, 16, 17)  # AF_UNIX, INET, INET6, NETLINK, PACKET. Not vsock, which reaches a hypervisor

OWNERS = ("chown", "fchown", "lchown", "fchownat")

SECCOMP_SET_MODE_FILTER = 1

MREMAP, MADVISE = 25, 28  # x86_64
MREMAP_FIXED = 2
GIVING_BACK = (4, 9, 24)  # MADV_DONTNEED, MADV_REMOVE, MADV_DONTNEED_LOCKED


class SockFprog(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))


@functools.cache
def program(machine: str) -> bytes:
    """The filter for `machine`, as named by `platform.machine()`. Raises `KeyError` for one without a table."""
    architecture = ARCHITECTURES[machine]
    numbers = architecture.numbers
    code = Assembler()
    code.load(ARCHITECTURE)
    code.jump(EQUAL, architecture.audit, "our table")
    code.answer(KILL)  # another call table (32-bit), in which the numbers mean other calls
    code.label("our table")
    code.load(NUMBER)
    if architecture.x32:
        code.jump(ANY_BIT, architecture.x32, "absent")
    code.jump(GREATER, LAST, "absent")
    special = {name: name for name in ("ioctl", "socket", "clone", "unshare", "prlimit64")}
    special |= dict.fromkeys(REFUSED, "refused") | dict.fromkeys(ABSENT, "absent")
    _search(code, sorted((numbers[name], target) for name, target in special.items() if name in numbers))
    _arguments(code)
    code.answer(ERRNO | errno.EPERM, "refused")
    code.answer(ERRNO | errno.ENOSYS, "absent")
    return code.assemble()


def _search(code: Assembler, special: Sequence[tuple[int, str]]) -> None:
    """Jump to the loaded number's target; allow a number that is not listed. Binary search: the kernel tries every
    number when a filter is installed, which is most of a new shell's start-up time."""
    if len(special) <= 3:
        for number, target in special:
            code.jump(EQUAL, number, target)
        code.answer(ALLOW)
        return
    middle = len(special) // 2
    above = f"above {special[middle - 1][0]}"
    code.jump(GREATER, special[middle - 1][0], above)
    _search(code, special[:middle])
    code.label(above)
    _search(code, special[middle:])


def _arguments(code: Assembler) -> None:
    """The five calls that depend on an argument. The kernel itself reads the low half of each."""
    for name, bits in (("clone", NEW_NAMESPACES), ("unshare", NEW_NAMESPACES | NEW_TIME)):
        code.label(name)
        code.load(argument(0))
        code.jump(ANY_BIT, bits, "refused")
        code.answer(ALLOW)
    code.label("ioctl")
    code.load(argument(1))
    for request in TERMINAL_TRICKS:
        code.jump(EQUAL, request, "refused")
    code.answer(ALLOW)
    code.label("prlimit64")
    code.load(argument(0))
    code.jump(EQUAL, AGENT, "refused")
    code.answer(ALLOW)
    code.label("socket")
    code.load(argument(0))
    for family in FAMILIES:
        code.jump(EQUAL, family, "family")
    code.answer(ERRNO | errno.EAFNOSUPPORT)
    code.answer(ALLOW, "family")


@functools.cache
def filter_for_restored() -> bytes:
    """Refuse what memory mapped from an image cannot do like other memory. For x86_64, which alone has such sessions.

    Grown, it would show what follows in the image; given back, it would show the image again instead of zeros. Every
    allocator can handle the refusal: it copies, or clears. MREMAP_FIXED is needed by the restore itself.
    """
    code = Assembler()
    code.load(NUMBER)
    code.jump(EQUAL, MREMAP, "mremap")
    code.jump(EQUAL, MADVISE, "madvise")
    code.answer(ALLOW, "allowed")
    code.label("mremap")
    code.load(argument(3))
    code.jump(ANY_BIT, MREMAP_FIXED, "also allowed")
    code.answer(ERRNO | errno.ENOMEM)
    code.label("madvise")
    code.load(argument(2))
    for advice in GIVING_BACK:
        code.jump(EQUAL, advice, "invalid")
    code.answer(ALLOW, "also allowed")
    code.answer(ERRNO | errno.EINVAL, "invalid")
    return code.assemble()


@functools.cache
def filter_of_owners(machine: str) -> bytes:
    """Let changes of owners succeed without effect, for a root that is the only user of its namespace: package
    managers give files to users that do not exist there. As Charliecloud does it (Priedhorsky et al., SC '24)."""
    architecture = ARCHITECTURES[machine]
    code = Assembler()
    code.load(NUMBER)
    for name in OWNERS:
        if name in architecture.numbers:
            code.jump(EQUAL, architecture.numbers[name], "owner")
    code.answer(ALLOW)
    code.answer(ERRNO, "owner")
    return code.assemble()


def why_not() -> str:
    """Why this machine has no filter; "" if it has."""
    return "" if here() is not None else f"no table of system calls for {platform.machine()}"


def install() -> None:
    """Install the filter, for this thread and all that it starts. Needs no-new-privs. Raises `OSError`."""
    _install(program(platform.machine()))


def install_for_restored() -> None:
    """As `install`, in addition to it."""
    _install(filter_for_restored())


def install_for_owners() -> None:
    """As `install`, in addition to it: let changes of owners succeed without effect."""
    _install(filter_of_owners(platform.machine()))


def _install(text: bytes) -> None:
    filter_ = SockFprog(len(text) // INSTRUCTION.size, text)
    call("seccomp", SECCOMP_SET_MODE_FILTER, 0, ctypes.byref(filter_))
