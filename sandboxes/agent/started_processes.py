"""Processes that the host starts beside the shell, each with streams of its own. Stdlib only: used by the agent.

The host sends the ends of the streams along, so no output passes through the agent, and a reader that is slow stops
the writer. Each process has a socket to the host: how it began and ended is told there, signals come from there, and
its end kills the process with everything that it started. For that each process is the child subreaper of what it
starts, so that what daemonises stays below it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import socket
import stat
import struct
import termios
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ramify.sandboxes.agent import users
from ramify.sandboxes.agent.framing import decode_packet, encode
from ramify.sandboxes.agent.launcher import Launcher, Order
from ramify.sandboxes.agent.messages import (
    Message,
    ProcessEnded,
    ProcessRefused,
    ProcessStarted,
    SignalProcess,
    Start,
    StartProcess,
)
from ramify.sandboxes.linux import kernel, processes, resource_limits

USER_UNKNOWN, USER_FORBIDDEN, FOLDER_MISSING, NO_TERMINAL, NO_PROCESS = "user", "forbidden", "cwd", "pty", "process"
REFUSALS = (USER_UNKNOWN, USER_FORBIDDEN, FOLDER_MISSING, NO_TERMINAL, NO_PROCESS)
MOST_PACKET = 1 << 16
SPARE_AFTER_S, SPARE_FOR_S = 0.01, 5.0
"""A spare launcher is made this long after a start, at once after an end, and lives this long."""


Kill = Callable[[Callable[[], list[processes.Process]]], None]
"""Ends what a function finds."""


class Refused(Exception):
    """A process that was not started: why, for people and by a name in REFUSALS."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


@dataclass(slots=True)
class StartedProcess:
    """One process that the host started."""

    pid: int
    line: socket.socket  # to the host
    limit: str = ""  # the limit that the agent killed it for

    def tell(self, message: Message, passing: Sequence[int] = ()) -> None:
        with contextlib.suppress(OSError):  # the host has hung up
            socket.send_fds(self.line, [encode(message)], list(passing), socket.MSG_NOSIGNAL | socket.MSG_DONTWAIT)


class StartedProcesses:
    """All of them, by pid. The agent's loop calls `handle_ready`, `reaped`, and `tend` every `wait_s`."""

    def __init__(self, start: Start, poll: select.poll, score: resource_limits.OomScore) -> None:
        self._start, self._poll, self._score = start, poll, score
        self._all: dict[int, StartedProcess] = {}
        self._spare: Launcher | None = None
        self._due: float | None = None  # when to make a spare, or to end one that nobody needed

    @property
    def spare(self) -> int:
        """The pid of a launcher that waits for an order: no process of the world's; -1 for none."""
        return -1 if self._spare is None else self._spare.pid

    def note_limit(self, limit: str) -> None:
        """All of them are about to be killed for this limit."""
        for process in self._all.values():
            process.limit = limit

    def hang_up(self) -> None:
        """Tell nothing more: the world ends, and that is no end of a process's own."""
        for process in self._all.values():
            process.line.close()
        self._all.clear()

    def start(self, message: StartProcess, passed: Sequence[int]) -> None:
        """Start a process. Takes over the descriptors."""
        process = StartedProcess(0, _line(passed[0]))
        streams, folder, master = list(passed[1:]), -1, -1
        try:
            user, home = self._user(message.user)
            folder = self._folder(message.cwd)
            if message.rows:
                master, slave = _terminal(message.rows, message.columns, user)
                streams = [slave] * 3
            elif message.control:
                out, err, script, control = streams
                streams = [script, out, err, control]
            else:
                if len(streams) == 2:
                    streams.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
                _give(streams, user)
                streams = [streams[2], *streams[:2]]
            process.pid = self._launch(message, user, home, [folder, *streams])
            self._all[process.pid] = process
            self._poll.register(process.line, select.POLLIN)
            process.tell(ProcessStarted(process.pid), [master] if master >= 0 else [])
        except Refused as error:
            process.tell(ProcessRefused(error.kind, str(error)))
            process.line.close()
        finally:
            for descriptor in {*streams, folder, master} - {-1}:
                os.close(descriptor)

    def _user(self, text: str) -> tuple[users.User | None, dict[str, str]]:
        """The user to become, None for the one that every process of the world has; and the variables of a user that
        was named. Raises `Refused`."""
        if not text:
            return None, {}
        view = self._start.view
        try:
            user = users.find(text)
            becomes = users.check_allowed(user, None if view is None else view.only_user())
            return becomes, _home(user)
        except users.UserUnknown as error:
            raise Refused(USER_UNKNOWN, str(error)) from error
        except users.UserForbidden as error:
            raise Refused(USER_FORBIDDEN, str(error)) from error

    def _launch(
        self, message: StartProcess, user: users.User | None, home: dict[str, str], passing: Sequence[int]
    ) -> int:
        """Have a launcher become the process; its pid. Raises `Refused`."""
        if message.control:
            program, words = self._start.bash, ["bash", "--norc", "--noprofile"]
        elif message.script:
            program, words = self._start.bash, ["bash", "-c", *message.argv]
        else:
            program, words = message.argv[0], message.argv
        env = home | message.env
        order = Order(program, words, env, user, message.rows > 0, message.control)
        spare, self._spare = self._spare, None
        self._due = time.monotonic() + SPARE_AFTER_S
        for launcher in [spare] if spare is not None else []:
            with contextlib.suppress(OSError):  # a command has killed it
                return launcher.launch(order, passing)
        try:
            return self._new_launcher().launch(order, passing)
        except OSError as error:
            raise Refused(NO_PROCESS, f"no process could be started: {error}") from error

    def _new_launcher(self) -> Launcher:
        with self._score.raised_for_children():
            return Launcher.fork(self._start)

    def wait_s(self) -> float | None:
        """Seconds until `tend` has something to do; None for never."""
        return None if self._due is None else max(0.0, self._due - time.monotonic())

    def tend(self) -> None:
        """Make a spare launcher some time after the last start, and end it if it is not needed for longer."""
        if self._due is None or time.monotonic() < self._due:
            return
        if self._spare is None:
            with contextlib.suppress(OSError):  # no processes are left: the next start reports it
                self._spare = self._new_launcher()
            self._due = time.monotonic() + SPARE_FOR_S
        else:
            self._spare.dismiss()
            self._spare, self._due = None, None

    def handle_ready(self, descriptor: int, kill: Kill) -> bool:
        """Handle a descriptor that the loop found ready, if it is a process's."""
        for process in self._all.values():
            if process.line.fileno() == descriptor:
                self._hear(process, kill)
                return True
        return False

    def _hear(self, process: StartedProcess, kill: Kill) -> None:
        packet = b""
        try:
            packet = process.line.recv(MOST_PACKET, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return  # the number of a socket that was closed in the same turn
        except ConnectionResetError:
            pass
        message = decode_packet(packet) if packet else SignalProcess()
        if not isinstance(message, SignalProcess):
            return
        if message.number:
            with contextlib.suppress(ProcessLookupError):
                (os.killpg if message.group else os.kill)(process.pid, message.number)
        else:
            kill(processes.Family(process.pid))
        if not packet and process.pid in self._all:  # it hangs in the kernel: forget it
            self._forget(process)

    def reaped(self, pid: int, status: int) -> bool:
        """Tell the host how a process ended, if it is one of these."""
        if self._spare is not None and pid == self._spare.pid:
            self._spare.dismiss()
            self._spare = None
            return True
        process = self._all.get(pid)
        if process is None:
            return False
        code = os.waitstatus_to_exitcode(status)
        code = code if code >= 0 else 128 - code
        limit = process.limit or resource_limits.limit_behind_exit_code(self._start.bounds, code)
        process.tell(ProcessEnded(code, limit))
        self._forget(process)
        if self._spare is None:
            self._due = time.monotonic()
        return True

    def _forget(self, process: StartedProcess) -> None:
        del self._all[process.pid]
        self._poll.unregister(process.line)
        process.line.close()

    def _folder(self, cwd: str) -> int:
        """A descriptor of the folder to start in. Raises `Refused`."""
        place = os.path.join(self._start.tree, cwd)  # noqa: PTH118  (every command waits for this)
        try:
            if self._start.view is None:
                return os.open(place, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            return kernel.open_folder(place)
        except OSError as error:
            raise Refused(FOLDER_MISSING, f"{cwd} is not a folder of the world: name another cwd") from error


def _line(descriptor: int) -> socket.socket:
    """The host's socket for one process. Its kind is known: to ask for it would take three system calls."""
    return socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET, 0, descriptor)


def _home(user: users.User) -> dict[str, str]:
    """The variables that belong to a user, unless the command sets them."""
    named = {"USER": user.name, "LOGNAME": user.name} if user.name else {}
    return {"HOME": user.home, **named}


def _give(streams: Sequence[int], user: users.User | None) -> None:
    """Let the user open its own streams again by name (/dev/stdout), as any process can."""
    for stream in streams if user is not None else ():
        if user is not None and stat.S_ISFIFO(os.fstat(stream).st_mode):
            with contextlib.suppress(OSError):  # the kernel does not give it away
                os.fchown(stream, user.uid, user.gid)


def _terminal(rows: int, columns: int, user: users.User | None) -> tuple[int, int]:
    """A new terminal of the world: its master, and its slave. Raises `Refused`."""
    try:
        master, slave = os.openpty()
    except OSError as error:
        raise Refused(NO_TERMINAL, f"the world has no terminals: {error}") from error
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    if user is not None:
        with contextlib.suppress(OSError):
            os.fchown(slave, user.uid, -1)
    return master, slave
