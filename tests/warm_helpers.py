"""Helper processes of backends, forked from one that has their modules loaded.

A new one takes 0.1 s of CPU, most of it for imports, and most tests of runs start one. A forked one is like it: a
child of the test's process, in a session of its own, with the same descriptors and environment. Tests of helper
processes, and of what worlds are kept from, start real ones (`conftest.py`).
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

CLONE = {"x86_64": 56, "aarch64": 220}
"""The number of the system call. With `CLONE_PARENT` the new process is a child of our parent, who waits for it."""
CLONE_PARENT = 0x8000


class Forked:
    """What `subprocess.Popen` is for a process that it started, as far as backends use it."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        until = None if timeout is None else time.monotonic() + timeout
        while (status := self.poll()) is None:
            if until is not None and time.monotonic() > until:
                raise subprocess.TimeoutExpired("a helper process", timeout or 0)
            time.sleep(0.002)
        return status

    def kill(self) -> None:
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)


class WarmHelpers:
    """A process that forks itself for each helper. It ends with this one, or by `close`."""

    def __init__(self) -> None:
        from ramify.sandboxes.host import fork_server_client  # not in the process that is started from this file

        self._agent = fork_server_client.AGENT
        self._process: subprocess.Popen[bytes] | None = None
        self._orders: socket.socket | None = None
        self._owner = os.getpid()
        self._start = fork_server_client.launch
        self._lock = threading.Lock()

    def launch(
        self, control: socket.socket, log: int, keeper: socket.socket | None = None, anchors: Sequence[Path] = ()
    ) -> Forked | subprocess.Popen[bytes]:
        """As `ramify.sandboxes.host.fork_server_client.launch`."""
        if os.getpid() != self._owner or os.uname().machine not in CLONE:  # not in a test's own fork
            return self._start(control, log, keeper, anchors)
        with self._lock:
            return self._fork(control, log, keeper, anchors)

    def _fork(
        self, control: socket.socket, log: int, keeper: socket.socket | None, anchors: Sequence[Path]
    ) -> Forked:
        if self._orders is None:
            self._orders, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with theirs:
                command = [sys.executable, "-I", "-S", __file__, str(self._agent), str(theirs.fileno())]
                self._process = subprocess.Popen(command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)
        order = {"anchors": [str(anchor) for anchor in anchors], "env": dict(os.environ)}
        text = os.memfd_create("order")  # may be larger than a message
        os.write(text, json.dumps(order).encode())
        descriptors = [text, log, control.fileno(), *([] if keeper is None else [keeper.fileno()])]
        socket.send_fds(self._orders, [b"launch"], descriptors)
        os.close(text)
        pid = int(self._orders.recv(64) or b"-1")
        assert pid > 0, "the process that helpers are forked from ended"
        return Forked(pid)

    def close(self) -> None:
        if self._orders is not None and self._process is not None:
            self._orders.close()
            self._process.wait(30)


def _serve(orders: socket.socket) -> None:
    clone, call = CLONE[os.uname().machine], ctypes.CDLL(None, use_errno=True).syscall
    while True:
        message, descriptors, _, _ = socket.recv_fds(orders, 64, 4)
        if not message:
            return
        pid = call(clone, CLONE_PARENT | signal.SIGCHLD, 0, 0, 0, 0)
        if pid == 0:
            try:
                _become(orders, descriptors)
            finally:
                os._exit(0)
        for descriptor in descriptors:
            os.close(descriptor)
        orders.send(str(pid).encode())


def _become(orders: socket.socket, descriptors: list[int]) -> None:
    from ramify.sandboxes.agent import fork_server

    text, log, control, *keeper = descriptors
    orders.close()
    os.setsid()
    os.chdir("/")
    os.dup2(log, 1)
    os.dup2(log, 2)
    order = json.loads(os.pread(text, 1 << 24, 0))
    os.close(text)
    os.close(log)
    os.environ.clear()
    os.environ.update(order["env"])
    for descriptor in (control, *keeper):
        os.set_inheritable(descriptor, True)
    fork_server.run(str(control), *map(str, keeper), *order["anchors"])


def _main(agent: str, orders: str) -> None:
    import runpy

    runpy.run_path(agent)["make_importable"]()
    from ramify.sandboxes.agent import fork_server  # noqa: F401  loaded before the first fork

    _serve(socket.socket(fileno=int(orders)))


if __name__ == "__main__":
    _main(*sys.argv[1:])
