"""The processes of a world: its shell and everything beside it, in one event loop. Stdlib only: base of the agent.

One thread. `_turn` waits for the next event (a message of the host, output of the shell, the end of a child), and
everything else is built on it.
"""

from __future__ import annotations

import contextlib
import os
import select
import shlex
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

from ramify.sandboxes.agent.checkpointing.criu_runner import FIRST_PID, CriuProgram, PidCounter
from ramify.sandboxes.agent.checkpointing.python_sessions import PythonSessions
from ramify.sandboxes.agent.framing import Link
from ramify.sandboxes.agent.launcher import become_bash
from ramify.sandboxes.agent.messages import Cancel, Dial, Message, Ran, Run, Start, StartProcess
from ramify.sandboxes.agent.ports import Listeners, dial
from ramify.sandboxes.agent.private_folder import CHUNK, OutputPipe, PrivateFolder
from ramify.sandboxes.agent.shell import NAME, Report, Shell, too_long_for_exec
from ramify.sandboxes.agent.shell_snapshot import ShellSnapshot, export_script
from ramify.sandboxes.agent.started_processes import StartedProcesses
from ramify.sandboxes.agent.watchdog import Watchdog
from ramify.sandboxes.linux import processes, resource_limits
from ramify.sandboxes.linux.process_memory import writes_by_mapping

KILLED = 128 + signal.SIGKILL
NOT_RUN = 127  # the exit code of a program that cannot be run
SHELL_ANSWER_TIMEOUT_S = 10.0
"""For a shell to start or report its state. It takes milliseconds, unless it was stopped or a trap blocks it."""
LONGEST_WAIT_S = 3600.0
"""Of one wait for events: the kernel takes no wait of more than 24 days. Whoever waits longer waits again."""


class Tree(Protocol):
    """The mounts that are detached and attached again at a seal; a plain folder has none."""

    def adopt(self, *, image: bool) -> None: ...

    def attach(self, *, outside: bool) -> None: ...

    def detach(self, *, outside: bool) -> bool: ...

    def folder(self) -> int:
        """A new descriptor of the world's own folder, which holds what it writes."""
        ...

    @property
    def image(self) -> int:
        """A descriptor of the processes to begin with, -1 for none."""
        ...

    def path_inside(self, path: str) -> str:
        """A host path below the store or the world's folder, as seen from inside."""
        ...

    @property
    def pids(self) -> int:
        """A descriptor of ns_last_pid."""
        ...


class ProcessSupervisor:
    """Supervises the shell, its commands, and all other processes of the world."""

    def __init__(self, start: Start, link: Link, host: int, tree: Tree | None) -> None:
        self._start, self._link, self._tree = start, link, tree
        self._host = host  # the host process's pidfd
        self._private = PrivateFolder(start.private)
        self._out, self._err = (OutputPipe(self._private, name, start.max_output) for name in ("out", "err"))
        self._shell: Shell | None = None
        self._last_state = b""  # the state of a shell that has ended
        self._first_state = b""  # the first shell's state before its first command
        self._limits = ""  # the shell's limits when the last command ended
        self._only_shell = True  # only the shell lived when the last command ended
        self._watchdog = Watchdog(start.bounds, os.getpid(), tree.folder if tree is not None else None)
        self._exceeded = ""  # the limit that the world exceeded during the current command
        self._exceeded_earlier = ""  # the limit that it exceeded while no command ran
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
        self._sessions = PythonSessions(self._private, self._poll)
        self._score = resource_limits.OomScore()
        self._started = StartedProcesses(start, self._poll, self._score)
        self._listeners: Listeners | None = None
        self._criu: CriuProgram | None = None
        if start.criu and tree is not None:
            self._criu = CriuProgram(start.criu, PidCounter(tree.pids))
            self._criu.pids.last = FIRST_PID

    def open_ports(self, listeners: Listeners) -> None:
        """Open the ports that the host asks for, now and later."""
        if listeners.serve():
            self._listeners = listeners
            self._poll.register(listeners.fileno(), select.POLLIN)

    # The loop

    def _turn(self, timeout_s: float | None) -> None:
        """Wait for events, at most this long, and handle them."""
        self._started.tend()
        waits = [wait for wait in (timeout_s, self._watchdog.wait_s(), self._started.wait_s()) if wait is not None]
        unread = self._shell.script if self._shell is not None and self._shell.waiting else None
        if unread is not None:
            self._poll.register(unread, select.POLLOUT)
        events = self._poll.poll(max(0.0, min(*waits, LONGEST_WAIT_S) * 1000) if waits else None)
        if unread is not None:
            self._poll.unregister(unread)
        for descriptor, _ in events:
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
                self._receive()
            elif self._listeners is not None and descriptor == self._listeners.fileno():
                self._open_more_ports(self._listeners)
            elif self._shell is not None and descriptor == self._shell.control:
                self._read_control(self._shell)
            elif self._shell is not None and descriptor == unread:
                self._shell.push()
            elif not self._started.handle_ready(descriptor, self._kill):
                self._sessions.handle_ready(descriptor)
        self._exceeded = self._exceeded or self._watchdog.check(self._own())

    def _open_more_ports(self, listeners: Listeners) -> None:
        if not listeners.serve():
            self._poll.unregister(listeners.fileno())
            listeners.close()
            self._listeners = None

    def _receive(self) -> None:
        while not self._gone:
            message = self._link.receive()
            if message is None:
                self._gone = True
            elif isinstance(message, StartProcess):
                self._start_process(message)
            elif isinstance(message, Dial):
                dial(message, self._link.passed.pop(0))
            else:
                self._inbox.append(message)
            if not self._link.waiting:
                return

    def _start_process(self, message: StartProcess) -> None:
        """Start a process that runs beside whatever else does."""
        passed, self._link.passed = self._link.passed[: message.passed], self._link.passed[message.passed :]
        self._only_shell = False
        self._watchdog.watch()
        self._started.start(message, passed)

    def _read_control(self, shell: Shell) -> None:
        before = shell.state
        shell.receive(os.read(shell.control, CHUNK))
        if shell.state is not before:
            with contextlib.suppress(ProcessLookupError):  # it has ended since: keep its earlier limits
                self._limits = resource_limits.read_rlimits(shell.pid)

    def _await_child(self, timeout_s: float) -> None:
        """Wait until a child has ended, at most this long."""
        poll = select.poll()
        poll.register(self._wake, select.POLLIN)
        if poll.poll(timeout_s * 1000):
            os.read(self._wake, CHUNK)

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if self._started.reaped(pid, status):
                continue
            if self._shell is not None and pid == self._shell.pid:
                code = os.waitstatus_to_exitcode(status)
                self._shell.ended = code if code >= 0 else 128 - code

    def _own(self) -> set[int]:
        """The processes that wait for a command: the shell, and a launcher."""
        return {-1 if self._shell is None else self._shell.pid, self._started.spare}

    def _all(self) -> list[processes.Process]:
        """All processes of the world: the shell and the others."""
        return [p for p in processes.descendants(os.getpid()) if p.pid != self._started.spare]

    def _others(self) -> list[processes.Process]:
        own = self._own()
        return [p for p in self._all() if p.pid not in own]

    def _count_others(self) -> int:
        """The number of `_others`, without reading all of /proc if there are none.

        The shell is read first: a process that loses its parent in between becomes our child and is seen by the
        second look.
        """
        shell = [] if self._shell is None else [self._shell.pid]
        try:
            lonely = not any(map(processes.children, shell)) and self._own().issuperset(
                processes.children(os.getpid())
            )
        except FileNotFoundError:  # a kernel without CONFIG_PROC_CHILDREN
            lonely = False
        return 0 if lonely else len(self._others())

    def _maps_files(self) -> bool:
        """Whether a process can write to a file by a mapping. Call it while all stand still."""
        return any(writes_by_mapping(process.pid) for process in self._all())

    # Commands

    def _run(self, message: Run) -> Ran:
        """Run a command to its end, or kill what it started when its timeout, a limit or the host ends it."""
        began = time.monotonic()
        shell = self._living_shell()
        begun = time.monotonic()
        self._end_what_exceeded()
        before = set() if self._only_shell else {p.key for p in self._others()}
        stdin = "/dev/null"
        if message.stdin:
            stdin = self._private.path("stdin")
            self._private.write("stdin", message.stdin)
        cwd = None if message.cwd is None else str(Path(self._start.tree, message.cwd))
        self._out.begin()
        self._err.begin()
        self._watchdog.begin()
        shell.ask(message.command, stdin=stdin, env=message.env, cwd=cwd)
        deadline = None if message.timeout is None else begun + message.timeout
        ended = self._await_end(shell, deadline, cancellable=True)
        over, self._exceeded = self._exceeded, ""
        if not ended:
            self._kill(processes.Family(shell.pid, before))  # all stays below the shell, a child subreaper
        if over and self._watchdog.still_exceeded(over):
            self._started.note_limit(over)
            self._kill(self._all)  # other processes take part in exceeding the limit
        timed_out = not ended and not over
        code = KILLED if over else 124 if timed_out else shell.status if shell.status is not None else shell.ended
        over = over or resource_limits.limit_behind_exit_code(self._start.bounds, code or 0)
        earlier, self._exceeded_earlier = self._exceeded_earlier, ""
        self._release_ended_shell()
        if message.stdin:
            self._private.remove("stdin")
        out, err = self._out.end(), self._err.end()
        truncated = self._out.truncated or self._err.truncated
        others = self._count_others()
        self._only_shell = others == 0
        duration = time.monotonic() - began
        return Ran(code or 0, out, err, duration, timed_out, truncated, others, over, earlier)

    def _end_what_exceeded(self) -> None:
        """If the world exceeded a limit while no command ran, end what earlier commands left running."""
        if self._exceeded:
            self._exceeded_earlier, self._exceeded = self._exceeded, ""
            self._started.note_limit(self._exceeded_earlier)
            self._kill(self._others)

    def _kill(self, select: Callable[[], list[processes.Process]]) -> None:
        """Kill what `select` finds. PID 1 first stops the whole namespace at once, so that no fork bomb outruns
        it."""
        spared = []
        if os.getpid() == 1:
            spared = [p.key for p in processes.descendants(1) if processes.is_stopped(p)]
            with contextlib.suppress(ProcessLookupError):  # there is no process
                os.kill(-1, signal.SIGSTOP)
        processes.kill(select, self._reap)
        if os.getpid() == 1:
            for process in processes.descendants(1):  # a launcher is stopped too
                if process.key not in spared:
                    processes.send_signal(process, signal.SIGCONT)

    def _await_end(self, shell: Shell, deadline: float | None = None, *, cancellable: bool = False) -> bool:
        """Whether the command ended by itself, not by its deadline, the host's request or the host's end."""
        while shell.status is None and shell.ended is None:
            if self._gone or (cancellable and (self._exceeded or any(isinstance(m, Cancel) for m in self._inbox))):
                return False
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                return False
            self._turn(left)
        return True

    def _await_state(self) -> bool:
        """Whether the shell reported its state, or ended, in time."""
        deadline = time.monotonic() + SHELL_ANSWER_TIMEOUT_S
        while self._shell is not None and self._shell.awaiting_state and self._shell.ended is None and not self._gone:
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            self._turn(left)
        return True

    def _await_shell(self, shell: Shell) -> None:
        """Wait where no caller sets a deadline. Raises `OSError` if the shell does not answer."""
        if not (self._await_end(shell, time.monotonic() + SHELL_ANSWER_TIMEOUT_S) and self._await_state()):
            raise OSError("the shell of this world does not answer: it was stopped, or one of its traps blocks it")

    def _living_shell(self) -> Shell:
        """A shell that has reported its state, if it ever will, so that the next command is not lost in an ending
        shell."""
        self._await_state()
        self._release_ended_shell()
        if self._shell is None:
            kept, env = self._state_for_new_shell(), self._start_env()
            late = too_long_for_exec(env)
            env = {name: env[name] for name in env if name not in late}
            self._restore(started := self._spawn_shell(kept, env, self._start_place()), kept, late)
            return started
        return self._shell

    def _state_for_new_shell(self) -> ShellSnapshot | None:
        """The state for a new shell: that of the last shell, else that of the snapshot."""
        if self._last_state:
            return ShellSnapshot.of(Report.parse(self._last_state), self._start.tree)
        return ShellSnapshot.decode(self._start.shell) if self._start.shell else None

    def _restore(self, shell: Shell, kept: ShellSnapshot | None, late: Mapping[str, str]) -> None:
        """Restore the last shell's state; without one, record what this one starts with. `late`: variables that it
        could not be started with."""
        command = ":"
        if kept is not None or late:
            script = b"" if kept is None else kept.script(self._start.tree)
            self._private.write("state", export_script(late) + script)
            command = f"builtin source {shlex.quote(self._private.path('state'))} >/dev/null 2>&1"
        shell.restore(command)
        try:
            self._await_shell(shell)
        except OSError:
            os.kill(shell.pid, signal.SIGKILL)
            raise
        if shell.status is None or shell.awaiting_state:
            why = f": the tree at {self._start.tree} may cover what it needs" if shell.ended == NOT_RUN else ""
            raise EOFError(f"bash ended immediately (exit {shell.ended}){why}")
        self._first_state = self._first_state or self._state()

    def _state(self) -> bytes:
        """The state as `Report` reads it; empty if there never was a shell. Call it after the shell has reported."""
        shell = self._shell
        if shell is None:
            return self._last_state
        return shell.state + b"\0" + self._limits.encode()

    def _release_ended_shell(self) -> None:
        """Release the shell if it has ended, and remember its state after its last complete command."""
        shell = self._shell
        if shell is None or shell.ended is None:
            return
        self._poll.unregister(shell.control)
        os.close(shell.control)
        os.close(shell.script)
        if shell.state:  # else it never received the previous shell's state
            self._last_state = shell.state + b"\0" + self._limits.encode()
        self._shell = None

    def _spawn_shell(self, kept: ShellSnapshot | None, env: Mapping[str, str], pwd: str) -> Shell:
        """Fork a child that confines itself and executes bash in `pwd`. It becomes the world's shell."""
        script, script_in = self._private.pipe("script")
        control, control_in = self._private.pipe("control")
        with self._score.raised_for_children():
            pid = os.fork()
        if pid == 0:
            streams = (script, self._out.write_end, self._err.write_end, control_in)
            limits = kept.limits if kept is not None else {}
            become_bash(self._start, streams, pwd, env, limits, filtered=self._criu is None)
        os.close(script)
        os.close(control_in)
        shell = self._shell = Shell(pid, script_in, control, pwd)
        self._poll.register(control, select.POLLIN)
        return shell

    def _start_place(self) -> str:
        """Where a shell starts: the last shell's directory, else the snapshot's, else the top of the tree."""
        tree = self._start.tree
        pwd = os.fsdecode(Report.parse(self._last_state).pwd) if self._last_state else ""
        place = Path(pwd) if pwd else Path(tree, self._start.cwd)
        return str(place) if place.is_dir() else tree

    def _start_env(self) -> dict[str, str]:
        if not self._last_state:
            return self._start.env
        unknown = {name: value for name, value in self._start.env.items() if not NAME.fullmatch(name)}
        return unknown | Report.parse(self._last_state).environment  # bash passes on names that it cannot use itself
