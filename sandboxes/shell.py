"""A persistent bash, driven line by line. Stdlib only: the agent uses it.

Each command is one line on bash's stdin: `eval 'CMD' <input`, then, on a control descriptor that the command itself
does not hold, a random tag, the exit status, and the shell's state (directory, variables, functions, options). So
the end of a command is exact, whatever it prints, and a shell that ends (`exit 3`, a timeout) is followed by one
that knows what it knew when its last whole command ended.
"""

from __future__ import annotations

import os
import re
import shlex

CONTROL = 163
"""The control descriptor's number in bash: one that no script picks by hand."""

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
HOUSEKEEPING = frozenset({"PWD", "OLDPWD", "SHLVL", "_"})
STATE = "declare -p; declare -f; alias -p; shopt -p; umask -p; set +o"


class Shell:
    """One bash process and its pipes' ends. It does not read: the agent's loop does, and calls `control`."""

    def __init__(self, pid: int, script: int, control: int, pwd: str) -> None:
        self.pid = pid
        self.script = script  # bash's stdin
        self.control = control
        self.pwd, self.oldpwd, self.state = pwd, "", b""
        self.status: int | None = None  # of the command that was asked for last
        self.ended: int | None = None  # the shell's own exit code, as a shell would tell it
        self._tag = b""
        self._heard = b""

    def ask(self, command: str, *, stdin: str, env: dict[str, str], cwd: str | None) -> None:
        """Start a command. `status` is set when it has ended, `ended` if the shell ends first."""
        self.status = None
        assignments = " ".join(f"{name}={shlex.quote(value)}" for name, value in env.items())
        line = f"{assignments} eval {shlex.quote(command)} <{shlex.quote(stdin)} {CONTROL}>&-"
        back = ""
        if cwd is not None:
            line = f"builtin cd -- {shlex.quote(cwd)} && {line}"
            back = f"builtin cd -- {shlex.quote(self.pwd)}; OLDPWD={shlex.quote(self.oldpwd)};"
        self._send(line, back, STATE)

    def listing(self) -> None:
        """Ask for the exported environment, exact: `state` is then a NUL-separated list."""
        self._send(":", "", "/usr/bin/env -0")

    def recall(self, command: str, oldpwd: str) -> None:
        """The first line of a new shell: bring back a state, at the directory that it was started in."""
        self._send(f"{command}; PWD={shlex.quote(self.pwd)}; OLDPWD={shlex.quote(oldpwd)}", "", STATE)

    def step_aside(self) -> None:
        """Leave the tree, so that its mount can go; `come_back` is the other half."""
        self._send("builtin cd /", "", ":")

    def come_back(self, pwd: str, oldpwd: str) -> None:
        self._send(f"builtin cd -- {shlex.quote(pwd)}; OLDPWD={shlex.quote(oldpwd)}", "", STATE)

    def _send(self, line: str, back: str, state: str) -> None:
        self.status = None
        self._tag = os.urandom(8).hex().encode()
        self._heard = b""
        tag = self._tag.decode()
        report = f'builtin printf "{tag}\\0%s\\0" "$?"; {back} builtin printf "%s\\0%s\\0" "$PWD" "${{OLDPWD-}}"'
        text = f'{line}\n{{ {report}; {state}; builtin printf "{tag}\\n"; }} >&{CONTROL} 2>/dev/null\n'
        data = os.fsencode(text)
        try:
            while data:
                data = data[os.write(self.script, data) :]
        except BrokenPipeError:
            pass  # it has ended: the reaper says how

    def hear(self, data: bytes) -> None:
        """What came on the control descriptor."""
        self._heard += data
        if not self._heard.endswith(self._tag + b"\n"):
            return
        begin = self._heard.find(self._tag + b"\0")
        if begin < 0:
            return
        fields = self._heard[begin:].split(b"\0", 4)
        self.pwd, self.oldpwd = os.fsdecode(fields[2]), os.fsdecode(fields[3])
        self.state = fields[4][: -len(self._tag) - 1]
        self.status = int(fields[1])
        self._heard = b""
