"""A persistent bash, driven line by line, and what it reports of its state. Stdlib only: used by the agent.

Each command is one line on bash's stdin: `eval 'CMD' <input`. Then bash writes a random tag, the exit status and the
shell's whole state to a control descriptor that the command itself does not hold. So the end of a command is exact,
whatever it prints. A shell that ends (`exit 3`, a timeout) is replaced by one with the state after its last complete
command. The status arrives before the state, which takes bash longer to report than a builtin takes to run: only the
next command, or a request for the state, waits for it.

The report (`TRAPS` and `REPORT`, parsed by `Report`) takes bash 0.1 ms: it uses builtins only. `shell_snapshot.py`
keeps the part of it that a new shell would not have by itself.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Self

OPTIONS = (
    'if [[ "$BASHOPTS $SHELLOPTS" != "${RAMIFY_OPTIONS-}" ]]; then'
    ' RAMIFY_OPTIONS="$BASHOPTS $SHELLOPTS"; builtin export -n RAMIFY_OPTIONS; builtin shopt -p; builtin set +o; fi'
)
"""Eighty lines. Bash repeats them only if they have changed; `fill_in_options` fills them in."""

SECTIONS = (
    'builtin printf "%s" "$PWD"',
    'builtin printf "%s" "${OLDPWD-}"',
    "builtin declare -p",
    "builtin declare -f",
    "builtin declare -F",
    "builtin alias -p",
    "builtin umask -p; " + OPTIONS,
    'builtin printf " %q" "${DIRSTACK[@]}"',
    'builtin printf " %q" "$#" "$@"',
)
TRAPS = "builtin trap -p; builtin trap - DEBUG; builtin printf '\\0'"
"""Sent first, so that no DEBUG trap runs during the rest. The shell gets it back before its next command."""
REPORT = "; builtin printf '\\0'; ".join(SECTIONS)
"""Everything else, separated by NUL."""

AT_OPTIONS = 1 + next(at for at, section in enumerate(SECTIONS) if OPTIONS in section)

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
VARIABLE = "RAMIFY_REPORT"
"""A read-only shell variable that holds `TRAPS` and `REPORT`: bash reads its script byte by byte."""

TRAP = re.compile(rb"^trap -- (?:'[^']*'|\\'|\$'(?:[^'\\]|\\.)*')* (\w+)$", re.MULTILINE)
_ITEM = re.compile(rb"^declare -([A-Za-z-]+) ([A-Za-z_][A-Za-z0-9_]*)(=?)", re.MULTILINE)
_WORD = re.compile(
    rb"""(?P<space>[ \t\n]+) | '(?P<single>[^']*)' | \$'(?P<ansi>(?:[^'\\]|\\.)*)' | \$?"(?P<double>(?:[^"\\]|\\.)*)"
    | \\(?P<escaped>.) | (?P<plain>[^ \t\n'"\\])""",
    re.VERBOSE | re.DOTALL,
)
_ANSI = re.compile(
    rb"""\\(?: ([0-7]{1,3}) | x([0-9A-Fa-f]{1,2}) | u([0-9A-Fa-f]{1,4}) | U([0-9A-Fa-f]{1,8}) | (.) )""",
    re.VERBOSE | re.DOTALL,
)
_LETTERS = {b"a": b"\a", b"b": b"\b", b"e": b"\x1b", b"E": b"\x1b", b"f": b"\f", b"n": b"\n", b"r": b"\r"} | {
    b"t": b"\t",
    b"v": b"\v",
}


def fill_in_options(told: bytes, before: bytes) -> bytes:
    """Complete a state for which bash reported the options only if they had changed since `before`.

    Raises `ValueError` for anything that is no state: commands may forge reports, and must not end their agent.
    """
    parts = told.split(b"\0")
    if len(parts) != len(SECTIONS) + 1:
        raise ValueError(f"bash reported {len(parts)} parts of its state, not {len(SECTIONS) + 1}")
    if not before:
        return told
    umask, _, options = parts[AT_OPTIONS].partition(b"\n")
    if not options:
        parts[AT_OPTIONS] = umask + b"\n" + before.split(b"\0")[AT_OPTIONS].partition(b"\n")[2]
    return b"\0".join(parts)


def debug_trap(traps: bytes) -> bytes:
    """The command that sets the DEBUG trap again; "" without one."""
    return next((match[0] for match in TRAP.finditer(traps) if match[1] == b"DEBUG"), b"")


def words(text: bytes) -> list[bytes]:
    """The words that bash's own quoting (`%q`, `declare -p`) stands for. Expands nothing."""
    found: list[bytearray] = []
    begun = False
    for match in _WORD.finditer(text):
        kind, piece = match.lastgroup or "", match[match.lastgroup or 0]
        if kind == "space":
            begun = False
            continue
        if kind == "ansi":
            piece = _ANSI.sub(_ansi, piece)
        elif kind == "double":
            piece = re.sub(rb'\\([$`"\\])', rb"\1", piece)
        if not begun:
            found.append(bytearray())
        begun = True
        found[-1] += piece
    return [bytes(word) for word in found]


def _ansi(match: re.Match[bytes]) -> bytes:
    octal, short, four, eight, letter = match.groups()
    if octal or short:
        return bytes([int(octal, 8) & 0xFF if octal else int(short, 16)])
    if four or eight:
        point = int(four or eight, 16)
        # bash writes none beyond Unicode
        return chr(point).encode("utf-8", "surrogatepass") if point <= sys.maxunicode else match[0]
    return _LETTERS.get(letter, letter)


@dataclass(frozen=True, slots=True)
class Variable:
    """One line of `declare -p`."""

    name: str
    flags: str  # as in `declare -p`; "-" for none
    text: bytes  # the whole declaration
    value: bytes | None  # as written, quoted; None without a value

    @property
    def in_environment(self) -> bool:
        return "x" in self.flags and self.value is not None and not set(self.flags) & set("aA")


@dataclass(frozen=True, slots=True)
class Report:
    """Bash's report after a command, parsed. Raises `ValueError` for anything else."""

    pwd: bytes
    oldpwd: bytes
    variables: tuple[Variable, ...]
    functions: bytes
    attributes: bytes  # of functions: `declare -f name`, `declare -fx name`
    aliases: bytes
    traps: bytes
    options: bytes  # umask, shopt, set: commands that restore them
    dirs: tuple[bytes, ...]  # the directory stack below the working directory
    args: tuple[bytes, ...]  # $1, $2, …
    limits: Mapping[str, tuple[int, int]]  # by RLIMIT name: soft, hard

    @classmethod
    def parse(cls, raw: bytes) -> Self:
        parts = raw.split(b"\0")
        if len(parts) != len(SECTIONS) + 2:
            raise ValueError(f"bash reported {len(parts)} parts of its state, not {len(SECTIONS) + 2}")
        traps, pwd, oldpwd, variables, functions, attributes, aliases, options, dirs, args, limits = parts
        return cls(
            pwd,
            oldpwd,
            tuple(parse_variables(variables)),
            functions,
            attributes,
            aliases,
            traps,
            options,
            tuple(words(dirs)[1:]),
            tuple(words(args)[1:]),
            {name: (int(soft), int(hard)) for name, soft, hard in map(str.split, limits.decode().splitlines())},
        )

    @property
    def environment(self) -> dict[str, str]:
        """The environment of programs that the shell starts, without exported functions."""
        return {v.name: os.fsdecode(b"".join(words(v.value or b""))) for v in self.variables if v.in_environment}


def parse_variables(listing: bytes) -> Iterable[Variable]:
    starts = list(_ITEM.finditer(listing))
    for match, following in zip(starts, [*(m.start() for m in starts[1:]), len(listing)], strict=True):
        text = listing[match.start() : following].rstrip(b"\n")
        value = listing[match.end() : following].rstrip(b"\n") if match[3] else None
        yield Variable(match[2].decode(), match[1].decode(), text, value)


CONTROL = 47
"""The control descriptor's number in bash: one that no script picks by hand, above those where bash saves others,
below those for process substitution, and low enough for `ulimit -n 64`.
"""

MOST_EXEC_BYTES = 96 << 10
"""Bytes of variables that a program can be started with on any machine. The kernel allows at least 128 KiB for
variables and arguments together, and at most that for a single one.
"""

MOST_STATE_BYTES = 64 << 20
"""Most bytes of state: commands can also write to the control descriptor, through /proc."""


class Shell:
    """One bash process and its pipe ends. It does not read by itself: the agent's loop calls `receive`."""

    def __init__(self, pid: int, script: int, control: int, pwd: str) -> None:
        self.pid = pid
        self.script = script  # bash's stdin
        self.control = control
        self.pwd, self.oldpwd = pwd, ""
        self.state = b""  # as `Report` reads it, without the limits
        self.status: int | None = None  # of the last command
        self.awaiting_state = False  # the state after that command is still to come; `pwd` and `state` are older
        self.ended: int | None = None  # the shell's own exit code, as a shell would report it
        self._next: list[Callable[[], None]] = []  # requests that wait for the state
        self._debug_trap = b""
        self._tag = b""
        self._received = bytearray()
        self._searched = 0  # searched without finding the tag
        self._unsent = memoryview(b"")
        os.set_blocking(script, False)  # a shell that does not read must not block the agent

    @property
    def waiting(self) -> bool:
        """Whether bash has not yet taken all of its script: call `push` when it can take more."""
        return len(self._unsent) > 0

    def ask(self, command: str, *, stdin: str | bytes, env: dict[str, str], cwd: str | None) -> None:
        """Start a command. `status` is set when it has ended, `ended` if the shell ends first. `stdin`: a path, or
        the bytes themselves."""
        given = shlex.quote(stdin) if isinstance(stdin, str) else f" <(builtin printf %b {_escaped(stdin)})"
        self._after_state(lambda: self._ask(command, given, env, cwd))

    def _ask(self, command: str, stdin: str, env: dict[str, str], cwd: str | None) -> None:
        assignments = " ".join(f"{name}={shlex.quote(value)}" for name, value in env.items())
        line = f"{assignments} eval {shlex.quote(complete_continued_line(command))} <{stdin} {CONTROL}>&-"
        back = ""
        if cwd is not None:
            line = f"builtin cd -- {shlex.quote(cwd)} && {line}"
            back = f"builtin cd -- {shlex.quote(self.pwd)}; OLDPWD={shlex.quote(self.oldpwd)};"
        self._send(line, back)

    def report(self) -> None:
        """Let it report its state, which a trap may have changed while it waited."""
        self._after_state(lambda: self._send(":", ""))

    def restore(self, command: str) -> None:
        """Send the first line of a new shell: restore a state, at the directory that it was started in."""
        report = shlex.quote(f"{TRAPS}; {REPORT}")
        self._send(f"declare -r {VARIABLE}={report}; {command}; PWD={shlex.quote(self.pwd)}", "")

    def take_over(self, command: str, pwd: str, top: str) -> None:
        """Become the shell of a world that began in `pwd`, or in `top` if there is no such folder, by a command that
        restores a state. The shell was started in "/", before the world was known."""
        move = f"builtin cd -- {shlex.quote(pwd)} 2>/dev/null || builtin cd -- {shlex.quote(top)}"
        forget = "builtin unset -v OLDPWD; builtin declare -x OLDPWD; SECONDS=0"
        self._after_state(lambda: self._send(f"{move}; {forget}; {command}", ""))

    def reset_clock(self) -> None:
        """Count its SECONDS from now. It tells nothing back, and does so before its next command."""
        self._unsent = memoryview(b"".join((self._unsent, b"SECONDS=0\n")))
        self.push()

    def step_aside(self) -> None:
        """Leave the tree, so that it can be unmounted; `come_back` returns."""
        self._after_state(lambda: self._send("builtin cd /", ""))

    def come_back(self, pwd: str, oldpwd: str) -> None:
        self._after_state(lambda: self._send(f"builtin cd -- {shlex.quote(pwd)}; OLDPWD={shlex.quote(oldpwd)}", ""))

    def _after_state(self, send: Callable[[], None]) -> None:
        """Send now, or after the state has arrived: the text depends on its directory and its DEBUG trap."""
        self.status = None
        if self.awaiting_state:
            self._next.append(send)
        else:
            send()

    def _send(self, line: str, back: str) -> None:
        self._tag = os.urandom(8).hex().encode()
        self._received.clear()
        self._searched = 0
        tag = self._tag.decode()
        report = f'builtin printf "{tag}\\0%s\\0" "$?"; {back} builtin eval "${VARIABLE}"'
        text = f'{line}\n{{ {report}; builtin printf "\\n{tag}\\n"; }} >&{CONTROL} 2>/dev/null\n'
        # queued after what a stopped shell has not taken yet
        self._unsent = memoryview(b"".join((self._unsent, self._debug_trap, b"\n", os.fsencode(text))))
        self.push()

    def push(self) -> None:
        """Give bash as much of its script as it takes now."""
        try:
            while self._unsent:
                self._unsent = self._unsent[os.write(self.script, self._unsent) :]
        except BlockingIOError:
            pass  # its pipe is full
        except BrokenPipeError:
            self._unsent = memoryview(b"")  # it has ended: the reaper reports how

    def receive(self, data: bytes) -> None:
        """Handle data of the control descriptor. A shell that sends anything malformed is killed."""
        self._received += data
        try:
            self._parse()
        except ValueError:
            self._received.clear()
            if self.ended is None:
                self._kill()

    def _kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)

    def _parse(self) -> None:
        """Take the status and the state out of what has arrived. Raises `ValueError` for malformed data."""
        if not self._tag:
            self._received.clear()  # nothing was requested
        if len(self._received) > MOST_STATE_BYTES:
            raise ValueError("the report exceeds the maximum size")
        if not self.awaiting_state and not self._parse_status():
            return
        end = b"\n" + self._tag + b"\n"
        if not self._received.endswith(end):
            return
        self.state = fill_in_options(bytes(self._received[: -len(end)]), self.state)
        traps, pwd, oldpwd, _ = self.state.split(b"\0", 3)
        self._debug_trap = debug_trap(traps) if b"DEBUG" in traps else b""
        self.pwd, self.oldpwd = os.fsdecode(pwd), os.fsdecode(oldpwd)
        self._received.clear()
        self._tag, self.awaiting_state = b"", False
        due, self._next = self._next, []
        for send in due:
            send()

    def _parse_status(self) -> bool:
        """Whether the status has arrived; then `_received` begins with the state."""
        mark = self._tag + b"\0"
        begin = self._received.find(mark, self._searched) if self._tag else -1
        self._searched = begin if begin >= 0 else max(0, len(self._received) - len(mark))  # search no byte twice
        end = self._received.find(b"\0", begin + len(mark)) if begin >= 0 else -1
        if end < 0:
            return False
        self.status = int(self._received[begin + len(self._tag) + 1 : end])
        self.awaiting_state = True
        del self._received[: end + 1]
        return True


def _escaped(data: bytes) -> str:
    """Bytes as a word for `printf %b`, which can hold a NUL."""
    plain = "".join(chr(byte) if 32 <= byte < 127 and byte not in b"\\'" else f"\\0{byte:03o}" for byte in data)
    return f"'{plain}'"


def complete_continued_line(command: str) -> str:
    """Complete a command that ends in a continued line, after which bash would misread what follows `eval` and
    end."""
    if command.endswith("\\\n"):
        return f"{command}\n"
    odd = (len(command) - len(command.rstrip("\\"))) % 2
    return command + "\\" * odd


def too_long_for_exec(env: Mapping[str, str]) -> dict[str, str]:
    """The longest variables that no new bash can be started with together with all others. A shell may export more
    than any program can be started with; a new shell gets these by script."""
    late: dict[str, str] = {}
    left = MOST_EXEC_BYTES
    for name, value in sorted(env.items(), key=lambda item: len(item[1])):
        left -= len(os.fsencode(f"{name}={value}")) + 9  # a NUL and a pointer
        if left < 0 and NAME.fullmatch(name):
            late[name] = value
    return late
