"""The agent of one world: the parent of its processes, which runs commands for the host. Stdlib only.

In a namespace it is PID 1 and ends with the host; without one (`copy`) it is a child subreaper. Either way every
process of the world descends from it. One thread, one loop: `_turn` waits for whatever comes first (the host, the
shell's output, a child's end) and everything else is written on top of it.
"""

from __future__ import annotations

import array
import fcntl
import os
import select
import shlex
import signal
import termios
import time
from pathlib import Path
from typing import Protocol

from ramify.sandboxes import processes
from ramify.sandboxes.namespaces import kernel
from ramify.sandboxes.shell import CONTROL, Shell
from ramify.sandboxes.wire import (
    Attach,
    Cancel,
    Detach,
    Done,
    Failed,
    Freeze,
    Link,
    Look,
    Looked,
    Message,
    Ran,
    Run,
    Start,
    Thaw,
)

CHUNK = 1 << 16
FREEZES = 5  # attempts


class Tree(Protocol):
    """The mount that comes and goes at a seal; a plain folder has none."""

    def attach(self, layers: Attach) -> None: ...

    def detach(self) -> bool: ...


class Output:
    """One of the two streams: a pipe that outlives commands and shells.

    What a background process writes while no command runs is read and dropped, so that it never blocks.
    """

    def __init__(self, limit: int) -> None:
        self.read_end, self.write_end = os.pipe()
        os.set_blocking(self.read_end, False)
        self._limit = limit
        self._kept = bytearray()
        self.truncated = False
        self.wanted = False

    def begin(self) -> None:
        self.drain()
        self._kept, self.truncated, self.wanted = bytearray(), False, True

    def end(self) -> bytes:
        self.drain()
        self.wanted = False
        kept, self._kept = bytes(self._kept), bytearray()
        return kept

    def drain(self) -> None:
        """Take what is there now, and no more: a process that never stops writing must not hold us."""
        waiting = array.array("i", [0])
        fcntl.ioctl(self.read_end, termios.FIONREAD, waiting)
        left = waiting[0]
        while left > 0:
            left -= self.take()

    def take(self) -> int:
        data = os.read(self.read_end, CHUNK)
        if self.wanted:
            room = self._limit - len(self._kept)
            self._kept += data[:room]
            self.truncated = self.truncated or len(data) > room
        return len(data)


class Agent:
    """Answers the host's messages, one after the other, until the host hangs up or ends."""

    def __init__(self, start: Start, link: Link, host: int, tree: Tree | None) -> None:
        self._start, self._link, self._tree = start, link, tree
        self._host = host  # a pidfd of the host process
        self._out, self._err = Output(start.max_output), Output(start.max_output)
        self._shell: Shell | None = None
        self._known: tuple[str, str, bytes] | None = None  # pwd, oldpwd and state of a shell that ended
        self._frozen: list[processes.Process] = []
        self._inbox: list[Message] = []
        self._gone = False
        self._wake, wake_in = os.pipe()
        for end in (self._wake, wake_in):
            os.set_blocking(end, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wake_in, warn_on_full_buffer=False)
        self._poll = select.poll()
        for descriptor in (link.sock.fileno(), host, self._wake, self._out.read_end, self._err.read_end):
            self._poll.register(descriptor, select.POLLIN)

    def serve(self) -> None:
        try:
            while not self._gone:
                self._turn(None)
                self._bury()
                while self._inbox and not self._gone:
                    self._handle(self._inbox.pop(0))
        finally:
            processes.kill(self._all, self._reap)

    def _handle(self, message: Message) -> None:
        if isinstance(message, Cancel):
            return  # its command ended before it came
        try:
            answer = self._answer(message)
        except (OSError, EOFError) as error:
            answer = Failed(str(error))
        if not self._gone:
            self._link.send(answer)

    def _answer(self, message: Message) -> Message:
        match message:
            case Run():
                return self._run(message)
            case Look():
                return self._look()
            case Detach():
                return Done(self._detach())
            case Attach():
                self._attach(message)
                return Done()
            case Freeze():
                self._freeze()
                return Done()
            case Thaw():
                self._thaw()
                return Done()
            case _:
                return Failed(f"the agent has no answer to {type(message).__name__}")

    # The loop

    def _turn(self, timeout_s: float | None) -> None:
        for descriptor, _ in self._poll.poll(None if timeout_s is None else max(0.0, timeout_s * 1000)):
            if descriptor == self._out.read_end:
                self._out.take()
            elif descriptor == self._err.read_end:
                self._err.take()
            elif descriptor == self._wake:
                os.read(self._wake, CHUNK)
                self._reap()
            elif descriptor == self._host:
                self._gone = True
            elif descriptor == self._link.sock.fileno():
                message = self._link.receive()
                if message is None:
                    self._gone = True
                else:
                    self._inbox.append(message)
            elif self._shell is not None and descriptor == self._shell.control:
                self._shell.hear(os.read(descriptor, CHUNK))

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if self._shell is not None and pid == self._shell.pid:
                code = os.waitstatus_to_exitcode(status)
                self._shell.ended = code if code >= 0 else 128 - code

    def _all(self) -> list[processes.Process]:
        return processes.descendants(os.getpid())

    def _others(self) -> list[processes.Process]:
        shell = self._shell.pid if self._shell is not None else -1
        return [p for p in self._all() if p.pid != shell]

    # Commands

    def _run(self, message: Run) -> Ran:
        began = time.monotonic()
        shell = self._living_shell()
        before = {p.key for p in self._others()}
        stdin = "/dev/null"
        if message.stdin:
            stdin = f"{self._start.private}/stdin"
            Path(stdin).write_bytes(message.stdin)
        cwd = None if message.cwd is None else str(Path(self._start.tree, message.cwd))
        self._out.begin()
        self._err.begin()
        shell.ask(message.command, stdin=stdin, env=message.env, cwd=cwd)
        deadline = None if message.timeout is None else began + message.timeout
        timed_out = not self._await_end(shell, deadline, cancellable=True)
        if timed_out:
            processes.kill(lambda: processes.descendants(os.getpid(), spare=before), self._reap)
        code = 124 if timed_out else shell.status if shell.status is not None else shell.ended
        self._bury()
        if message.stdin:
            Path(stdin).unlink(missing_ok=True)
        out, err = self._out.end(), self._err.end()
        truncated = self._out.truncated or self._err.truncated
        return Ran(code or 0, out, err, time.monotonic() - began, timed_out, truncated)

    def _await_end(self, shell: Shell, deadline: float | None = None, *, cancellable: bool = False) -> bool:
        """Whether the command ended by itself: not by its deadline, the host's wish, or the host's end."""
        while shell.status is None and shell.ended is None:
            if self._gone or (cancellable and any(isinstance(m, Cancel) for m in self._inbox)):
                return False
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                return False
            self._turn(left)
        return True

    def _living_shell(self) -> Shell:
        self._bury()
        if self._shell is None:
            self._shell = self._spawn_shell()
            self._poll.register(self._shell.control, select.POLLIN)
            self._restore(self._shell)
        return self._shell

    def _restore(self, shell: Shell) -> None:
        """Bring back what the last shell knew; without one, learn what this one starts with."""
        command = ":"
        if self._known is not None:
            state = Path(self._start.private, "state")
            state.write_bytes(self._known[2])
            command = f"builtin source {shlex.quote(str(state))} >/dev/null 2>&1"
        oldpwd = self._known[1] if self._known is not None else ""
        shell.recall(command, oldpwd)
        if not self._await_end(shell) or shell.ended is not None:
            raise EOFError(f"bash ended at once (exit {shell.ended})")

    def _bury(self) -> None:
        """Let go of the shell if it has ended, and remember what it knew when its last whole command ended."""
        shell = self._shell
        if shell is None or shell.ended is None:
            return
        self._poll.unregister(shell.control)
        os.close(shell.control)
        os.close(shell.script)
        self._known = (shell.pwd, shell.oldpwd, shell.state)
        self._shell = None

    def _spawn_shell(self) -> Shell:
        script, script_in = os.pipe()
        control, control_in = os.pipe()
        pwd, env = self._start_place(), self._start.env if self._known is None else {}
        pid = os.fork()
        if pid == 0:
            try:
                os.setsid()
                kernel.die_with_parent()
                os.chdir(pwd)
                for source, target in ((script, 0), (self._out.write_end, 1), (self._err.write_end, 2)):
                    os.dup2(source, target)
                os.dup2(control_in, CONTROL)
                for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT, signal.SIGCHLD):
                    signal.signal(number, signal.SIG_DFL)
                signal.set_wakeup_fd(-1)
                os.umask(0o022)
                if self._start.view is not None:
                    kernel.drop_privileges()
                os.execve(self._start.bash, ["bash", "--norc", "--noprofile"], {**env, "PWD": pwd})
            finally:
                os._exit(127)
        os.close(script)
        os.close(control_in)
        return Shell(pid, script_in, control, pwd)

    def _start_place(self) -> str:
        """Where a shell starts: where the last one stood, or as the snapshot says; else at the top of the tree."""
        tree = self._start.tree
        place = Path(self._known[0]) if self._known is not None else Path(tree, self._start.cwd)
        return str(place) if place.is_dir() else tree

    # Seals

    def _look(self) -> Looked:
        if self._shell is None and self._known is None:
            return Looked(self._start.env, self._start_place(), len(self._others()))
        shell = self._living_shell()
        state = shell.state
        shell.listing()
        self._await_end(shell)
        listed, shell.state = shell.state, state
        pairs = (os.fsdecode(item).partition("=") for item in listed.split(b"\0") if b"=" in item)
        return Looked({name: value for name, _, value in pairs}, shell.pwd, len(self._others()))

    def _detach(self) -> bool:
        if self._tree is None:
            raise OSError("this world has no mount of its own")
        if self._shell is not None:
            shell = self._living_shell()
            self._place = (shell.pwd, shell.oldpwd)
            shell.step_aside()
            self._await_end(shell)
        if self._tree.detach():
            return True
        self._return()
        return False

    def _attach(self, layers: Attach) -> None:
        if self._tree is None:
            raise OSError("this world has no mount of its own")
        self._tree.attach(layers)
        self._return()

    def _freeze(self) -> None:
        for _ in range(FREEZES):
            self._frozen = processes.freeze(self._others)
            moving = [p.pid for p in self._others() if not processes.stands_still(p)]
            if not moving:
                return
            self._thaw()  # one that waits in vfork for a child that we stopped can go on now
        raise OSError(f"processes {moving} cannot be stopped: they hang in the kernel")

    def _thaw(self) -> None:
        for process in self._frozen:
            processes.send(process, signal.SIGCONT)
        self._frozen = []

    def _return(self) -> None:
        if self._shell is not None:
            self._shell.come_back(*self._place)
            self._await_end(self._shell)
