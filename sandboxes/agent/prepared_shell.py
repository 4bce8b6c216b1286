"""A shell that is started before its world is known, and becomes the world's own. Stdlib only: part of the agent.

An agent that waits (`Start.waits`) has everything but the tree: the view, and a shell in "/" with the environment of
the specification. `Adopt` brings the tree and what the snapshot records of the shell. What bash can only get when it
starts (its limits, its own variables) makes the shell useless: it is ended, and the first command starts another.
"""

from __future__ import annotations

import os
import shlex
import signal
import time
from collections.abc import Mapping
from dataclasses import replace

from ramify.sandboxes.agent.messages import Adopt
from ramify.sandboxes.agent.shell import NAME, too_long_for_exec
from ramify.sandboxes.agent.shell_snapshot import BASH_MANAGED, ShellSnapshot, export_script
from ramify.sandboxes.agent.supervisor import ProcessSupervisor

READ_AT_START = frozenset({"ENV", "POSIXLY_CORRECT"})
"""Variables that bash heeds only when it starts, beside its own (`BASH_MANAGED`, all that begin with BASH)."""

END_PATIENCE_S = 5.0
AGAIN_S = 0.005  # between two signals to all processes, if none of them ends


class ShellPreparer(ProcessSupervisor):
    """Starts a shell ahead, hands it over, and ends everything when the world is left."""

    _began_ahead = False  # the shell waits for its world to begin

    def prepare_shell(self) -> None:
        """Start a shell in "/". Raises `OSError`."""
        env = self._start.env
        if too_long_for_exec(env) or any(map(_read_at_start, env)):
            return  # the world's first command starts one
        shell = self._spawn_shell(None, env, "/")
        shell.restore(":")
        self._await_shell(shell)

    def begin_ahead(self) -> None:
        """Start the world's own shell before its first command, unless it was restored. Raises `OSError`."""
        if self._shell is None:
            self._living_shell()
            self._began_ahead = True

    def _continue_shell(self) -> None:
        """Let a shell that was started ahead begin now."""
        if self._began_ahead and self._shell is not None:
            self._shell.reset_clock()
        self._began_ahead = False

    def _adopt(self, message: Adopt) -> None:
        """Begin the world's life over its tree, with the prepared shell if it can have the state."""
        if self._tree is None:
            raise OSError("this world has no mount of its own")
        prepared = self._start.env
        self._start = replace(
            self._start, env=message.env, cwd=message.cwd, shell=message.shell, sessions=message.sessions
        )
        self._tree.adopt(image=message.image)
        self._release_ended_shell()
        if self._shell is None:
            self._forget_shell()
            return
        kept = ShellSnapshot.decode(message.shell) if message.shell else None
        if message.image or not can_take_over(prepared, message.env, kept):
            self._end_all()
            self._forget_shell()
            return
        script = takeover_script(prepared, message.env, kept, self._start.tree)
        command = ":"
        if script:
            self._private.write("state", script)
            command = f"builtin source {shlex.quote(self._private.path('state'))} >/dev/null 2>&1"
        self._shell.take_over(command, self._start_place(), self._start.tree)
        self._await_shell(self._shell)
        self._first_state = self._state()

    def _forget_shell(self) -> None:
        """Let the next shell begin with the world's state, not with that of the prepared one."""
        self._last_state = self._first_state = b""

    def _end_all(self) -> None:
        """Kill every process of the namespace and wait until all have ended. Raises `OSError` if one hangs."""
        self._started.hang_up()
        deadline = time.monotonic() + END_PATIENCE_S
        if os.getpid() != 1:
            raise OSError("this world has no process namespace of its own")
        while True:
            try:
                os.kill(-1, signal.SIGKILL)
            except ProcessLookupError:
                break
            self._await_child(AGAIN_S)
            self._reap()
            if time.monotonic() > deadline:
                raise OSError("a process of the world cannot be ended: it hangs in the kernel")
        self._reap()
        self._release_ended_shell()


def can_take_over(prepared: Mapping[str, str], env: Mapping[str, str], kept: ShellSnapshot | None) -> bool:
    """Whether a shell that was started with one environment can get another one and a state."""
    if kept is not None and kept.limits:
        return False
    return not any(_read_at_start(name) for name in _changed(prepared, env))


def takeover_script(
    prepared: Mapping[str, str], env: Mapping[str, str], kept: ShellSnapshot | None, tree: str
) -> bytes:
    """What such a shell sources to get them; empty if there is nothing to change."""
    changed = _changed(prepared, env)
    gone = [name for name in changed if name not in env]
    unset = b"builtin unset -v " + " ".join(gone).encode() + b"\n" if gone else b""
    exports = export_script({name: env[name] for name in changed if name in env})
    return unset + exports + (b"" if kept is None else kept.script(tree))


def _changed(prepared: Mapping[str, str], env: Mapping[str, str]) -> list[str]:
    return sorted(name for name in prepared.keys() | env.keys() if prepared.get(name) != env.get(name))


def _read_at_start(name: str) -> bool:
    """Whether bash heeds this variable only when it starts, or cannot set it."""
    special = name in READ_AT_START or name in BASH_MANAGED or name.startswith("BASH")
    return special or not NAME.fullmatch(name)
