"""Children of the agent that confine themselves and become a program: the world's bash, or what an order says. Stdlib
only.

Forking and confining take most of the time that a short command takes. So the agent keeps one launcher ready after
the first start, and an order costs a message and an exec. Until its exec a launcher holds the agent's memory, so
nothing may trace it (confinement.py).

`become_bash` is for a child that becomes the world's shell at once.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import signal
import socket
import struct
import termios
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn

from ramify.sandboxes.agent import confinement, users
from ramify.sandboxes.agent.messages import Start
from ramify.sandboxes.agent.shell import CONTROL
from ramify.sandboxes.linux import kernel, resource_limits

NOT_FOUND, NOT_EXECUTABLE = 127, 126  # exit codes, as a shell's
RESET = (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT, signal.SIGCHLD)
LINE = 3  # the launcher's end of its socket, beside which it holds nothing
LENGTH = struct.Struct("!I")
MOST_TAKEN = 1 << 16


@dataclass(frozen=True, slots=True)
class Order:
    """What to become."""

    program: str
    words: list[str]
    env: dict[str, str]
    user: users.User | None
    terminal: bool = False  # the first stream is one, and controls the process
    control: bool = False  # a fourth stream is a shell's control descriptor


@dataclass(frozen=True, slots=True)
class Launcher:
    """The agent's view of one launcher."""

    pid: int
    _line: socket.socket

    @classmethod
    def fork(cls, start: Start) -> Launcher:
        """Raises `OSError`."""
        mine, its = socket.socketpair()
        try:
            pid = os.fork()
        except OSError:
            mine.close()
            its.close()
            raise
        if pid == 0:
            _be(start, its)
        its.close()
        return cls(pid, mine)

    def launch(self, order: Order, passing: Sequence[int]) -> int:
        """Let it become a program in the folder and with the streams in `passing`; the pid. Raises `OSError` if it
        lives no more."""
        user = order.user
        who = None if user is None else [user.uid, user.gid, list(user.groups)]
        data = json.dumps([order.program, order.words, order.env, who, order.terminal, order.control]).encode()
        data = LENGTH.pack(len(data)) + data
        with self._line:
            data = data[socket.send_fds(self._line, [data], list(passing), socket.MSG_NOSIGNAL) :]
            while data:
                data = data[self._line.send(data, socket.MSG_NOSIGNAL) :]
        return self.pid

    def dismiss(self) -> None:
        """End it: there is no order."""
        self._line.close()


def _be(start: Start, line: socket.socket) -> None:
    """The launcher. Does not return."""
    code = NOT_EXECUTABLE
    try:
        _confine(start, line)
        order, streams = _receive()
        folder, *streams = streams
        for number, stream in zip((0, 1, 2, CONTROL), streams, strict=False):
            os.dup2(stream, number)
        os.fchdir(folder)  # an error of which goes to the command's own stderr
        if order.terminal:
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)
        if order.user is not None:
            users.become(order.user)
        if os.getppid() != 1:
            kernel.die_with_parent()  # without a PID 1 that would end it; a change of the user clears it
        _execute(order.program, order.words, order.env, start.bash)
    except EOFError:
        code = 0
    except (FileNotFoundError, NotADirectoryError):
        code = NOT_FOUND
        os.write(2, f"{order.program}: command not found\n".encode(errors="surrogateescape"))
    except OSError as error:
        os.write(2, f"{order.program}: {error.strerror}\n".encode(errors="surrogateescape"))
    finally:
        os._exit(code)


def _confine(start: Start, line: socket.socket) -> None:
    """All that is the same for every program."""
    os.setsid()
    kernel.become_subreaper()  # so that all that it starts stays below it
    if os.getppid() != 1:
        kernel.die_with_parent()
    os.chdir("/")  # it holds no mount
    os.dup2(line.fileno(), LINE)
    for number in RESET:
        signal.signal(number, signal.SIG_DFL)
    signal.set_wakeup_fd(-1)
    os.umask(0o022)
    view = start.view
    confinement.enter(
        start.bounds,
        isolated=view is not None,
        image=view is not None and view.image,
        user=None if view is None else view.only_user(),
    )
    kernel.close_all_but((0, 1, 2, LINE))  # the path of the program could lead through descriptors


def _receive() -> tuple[Order, list[int]]:
    """The order, and the folder and streams that came along. Raises `EOFError` if there is none."""
    line = socket.socket(fileno=LINE)
    data, passed = kernel.receive_descriptors(line, MOST_TAKEN, 5)
    while data and len(data) < LENGTH.size + LENGTH.unpack_from(data)[0]:
        more = line.recv(MOST_TAKEN)
        data = data + more if more else b""
    line.close()
    if not data:
        raise EOFError
    program, words, env, who, terminal, control = json.loads(data[LENGTH.size :])
    user = None if who is None else users.User(who[0], who[1], tuple(who[2]))
    return Order(program, words, env, user, terminal, control), passed


def _execute(program: str, words: list[str], env: Mapping[str, str], bash: str) -> None:
    """Become a program, found by the command's own PATH. Raises the `OSError` of the best candidate."""
    folders = [""] if "/" in program else env.get("PATH", os.defpath).split(os.pathsep)
    denied: OSError | None = None
    for folder in folders:
        path = f"{folder or '.'}/{program}" if folders != [""] else program
        try:
            os.execve(path, words, env)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except PermissionError as error:
            if os.access(path, os.F_OK):  # else the folder may not be read, which a shell passes over, too
                denied = error
        except OSError as error:
            if error.errno != errno.ENOEXEC:
                raise
            os.execve(bash, ["bash", path, *words[1:]], env)  # a script without a first line, as a shell runs it
    raise denied or FileNotFoundError(program)


def become_bash(
    start: Start,
    streams: Sequence[int],
    pwd: str,
    env: Mapping[str, str],
    limits: Mapping[str, Sequence[int]],
    *,
    filtered: bool,
) -> NoReturn:
    """`streams`: its script, output, error output and control descriptor. `limits`: as an earlier shell had them."""
    try:
        os.setsid()
        kernel.become_subreaper()  # so that all that it starts stays below it, and is dumped with it
        if os.getppid() != 1:
            kernel.die_with_parent()  # without a PID 1 that would end it
        _enter(start, pwd)
        for source, target in zip(streams, (0, 1, 2, CONTROL), strict=True):
            os.dup2(source, target)
        for number in RESET:
            signal.signal(number, signal.SIG_DFL)
        signal.set_wakeup_fd(-1)
        os.umask(0o022)
        resource_limits.restore_rlimits(limits)
        view = start.view
        confinement.enter(
            start.bounds,
            isolated=view is not None,
            image=view is not None and view.image,
            filtered=filtered,
            user=None if view is None else view.only_user(),
        )
        if view is not None:
            kernel.close_all_but((0, 1, 2, CONTROL))  # the path to bash could lead through descriptors
        os.execve(start.bash, ["bash", "--norc", "--noprofile"], {**env, "PWD": pwd})
    finally:
        os._exit(127)


def _enter(start: Start, pwd: str) -> None:
    enter = os.chdir if start.view is None else kernel.enter_folder
    try:
        enter(pwd)
    except OSError:  # now a magic link of /proc, or no folder: use the world's top
        enter(start.tree)
