"""A persistent bash, driven line by line. Stdlib only: the agent uses it.

Each command is one line on bash's stdin: `eval 'CMD' <input`, then, on a control descriptor that the command itself
does not hold, a random tag, the exit status, and the shell's whole state. So the end of a command is exact, whatever
it prints, and a shell that ends (`exit 3`, a timeout) is followed by one that knows what it knew when its last whole
command ended. The status is known before the state, which takes bash longer to tell than a builtin to run: nobody
waits for it until somebody wants it, or the next command.
"""

from __future__ import annotations

import os
import shlex
import signal
from collections.abc import Callable, Mapping

from ramify.sandboxes.agent import shell_state

CONTROL = 47
"""The control descriptor's number in bash: one that no script picks by hand, above what bash saves others to, below
what it takes for process substitution, and low enough to live with `ulimit -n 64`."""

GIVEN = 96 << 10
"""Bytes of variables that a program can be started with on any machine: of them and its arguments the kernel takes
128 KiB at least, and of one no more than that."""

MOST_TOLD = 64 << 20
"""Bytes of state: the commands of a world can write to the control descriptor too, through /proc."""


class Shell:
    """One bash process and its pipes' ends. It does not read: the agent's loop does, and calls `control`."""

    def __init__(self, pid: int, script: int, control: int, pwd: str) -> None:
        self.pid = pid
        self.script = script  # bash's stdin
        self.control = control
        self.pwd, self.oldpwd = pwd, ""
        self.state = b""  # as `shellstate.Report` reads it, but for the limits
        self.status: int | None = None  # of the command that was asked for last
        self.telling = False  # its state, after that command; `pwd`, `oldpwd` and `state` are still the older
        self.ended: int | None = None  # the shell's own exit code, as a shell would tell it
        self._next: list[Callable[[], None]] = []  # to be asked as soon as the state is told
        self._debug_trap = b""
        self._tag = b""
        self._heard = bytearray()
        self._searched = 0  # of it, in vain
        self._unsent = memoryview(b"")
        os.set_blocking(script, False)  # a shell that does not read must not hold the agent

    @property
    def waiting(self) -> bool:
        """Whether bash has not yet taken all of its script: `push` when it can take more."""
        return len(self._unsent) > 0

    def ask(self, command: str, *, stdin: str, env: dict[str, str], cwd: str | None) -> None:
        """Start a command. `status` is set when it has ended, `ended` if the shell ends first."""
        self._when_told(lambda: self._ask(command, stdin, env, cwd))

    def _ask(self, command: str, stdin: str, env: dict[str, str], cwd: str | None) -> None:
        assignments = " ".join(f"{name}={shlex.quote(value)}" for name, value in env.items())
        line = f"{assignments} eval {shlex.quote(completed(command))} <{shlex.quote(stdin)} {CONTROL}>&-"
        back = ""
        if cwd is not None:
            line = f"builtin cd -- {shlex.quote(cwd)} && {line}"
            back = f"builtin cd -- {shlex.quote(self.pwd)}; OLDPWD={shlex.quote(self.oldpwd)};"
        self._send(line, back)

    def report(self) -> None:
        """Have it tell its state, which a trap may have changed while it waited."""
        self._when_told(lambda: self._send(":", ""))

    def recall(self, command: str) -> None:
        """The first line of a new shell: bring back a state, at the directory that it was started in."""
        report = shlex.quote(f"{shell_state.TRAPS}; {shell_state.REPORT}")
        self._send(f"declare -r {shell_state.VARIABLE}={report}; {command}; PWD={shlex.quote(self.pwd)}", "")

    def step_aside(self) -> None:
        """Leave the tree, so that its mount can go; `come_back` is the other half."""
        self._when_told(lambda: self._send("builtin cd /", ""))

    def come_back(self, pwd: str, oldpwd: str) -> None:
        self._when_told(lambda: self._send(f"builtin cd -- {shlex.quote(pwd)}; OLDPWD={shlex.quote(oldpwd)}", ""))

    def _when_told(self, send: Callable[[], None]) -> None:
        """What is sent depends on the state: where to come back to, and the DEBUG trap."""
        self.status = None
        if self.telling:
            self._next.append(send)
        else:
            send()

    def _send(self, line: str, back: str) -> None:
        self._tag = os.urandom(8).hex().encode()
        self._heard.clear()
        self._searched = 0
        tag = self._tag.decode()
        report = f'builtin printf "{tag}\\0%s\\0" "$?"; {back} builtin eval "${shell_state.VARIABLE}"'
        text = f'{line}\n{{ {report}; builtin printf "\\n{tag}\\n"; }} >&{CONTROL} 2>/dev/null\n'
        # after what a shell that was stopped has not taken yet
        self._unsent = memoryview(b"".join((self._unsent, self._debug_trap, b"\n", os.fsencode(text))))
        self.push()

    def push(self) -> None:
        """Hand bash as much of its script as it takes now."""
        try:
            while self._unsent:
                self._unsent = self._unsent[os.write(self.script, self._unsent) :]
        except BlockingIOError:
            pass  # its pipe is full
        except BrokenPipeError:
            self._unsent = memoryview(b"")  # it has ended: the reaper says how

    def hear(self, data: bytes) -> None:
        """What came on the control descriptor. A shell that talks nonsense there is killed."""
        self._heard += data
        try:
            self._understand()
        except ValueError:
            self._heard.clear()
            if self.ended is None:
                os.kill(self.pid, signal.SIGKILL)

    def _understand(self) -> None:
        if not self._tag:
            self._heard.clear()  # nothing was asked
        if len(self._heard) > MOST_TOLD:
            raise ValueError("more than any state takes")
        if not self.telling and not self._hear_status():
            return
        end = b"\n" + self._tag + b"\n"
        if not self._heard.endswith(end):
            return
        self.state = shell_state.with_options(bytes(self._heard[: -len(end)]), self.state)
        traps, pwd, oldpwd, _ = self.state.split(b"\0", 3)
        self._debug_trap = shell_state.debug_trap(traps) if b"DEBUG" in traps else b""
        self.pwd, self.oldpwd = os.fsdecode(pwd), os.fsdecode(oldpwd)
        self._heard.clear()
        self._tag, self.telling = b"", False
        due, self._next = self._next, []
        for send in due:
            send()

    def _hear_status(self) -> bool:
        """Whether it has come; then `_heard` begins with the state."""
        mark = self._tag + b"\0"
        begin = self._heard.find(mark, self._searched) if self._tag else -1
        self._searched = begin if begin >= 0 else max(0, len(self._heard) - len(mark))  # once: a flood may be long
        end = self._heard.find(b"\0", begin + len(mark)) if begin >= 0 else -1
        if end < 0:
            return False
        self.status = int(self._heard[begin + len(self._tag) + 1 : end])
        self.telling = True
        del self._heard[: end + 1]
        return True


def completed(command: str) -> str:
    """After a text that ends amid a continued line, bash reads what follows `eval` amiss, and ends."""
    if command.endswith("\\\n"):
        return f"{command}\n"
    odd = (len(command) - len(command.rstrip("\\"))) % 2
    return command + "\\" * odd


def beyond(env: Mapping[str, str]) -> dict[str, str]:
    """The variables, the longest ones, that no new bash can be given with all the others. A shell may export what no
    program can be started with: a new one is told of them by script."""
    late: dict[str, str] = {}
    left = GIVEN
    for name, value in sorted(env.items(), key=lambda item: len(item[1])):
        left -= len(os.fsencode(f"{name}={value}")) + 9  # a NUL and a pointer
        if left < 0 and shell_state.NAME.fullmatch(name):
            late[name] = value
    return late
