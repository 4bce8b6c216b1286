"""Processes forked from an interpreter that has its modules loaded.

Most of what a short `ramify` command takes is the import of its modules: a second, which a fork saves.
Otherwise such a process is like any other: it has its own arguments, folder, environment, streams, exit status and
signals. Tests of how the program starts use real processes (`cli/test_main.py`).

`install` puts `ramify` and `python` into a folder, for shells: small programs that hand their streams to such a fork.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Any

COMMAND_LINE = "from ramify.cli.main import main; main()"
CLIENT = """\
#!{python} -ISE
# `python FILE ARGUMENTS` or `ramify ARGUMENTS` as a fork of the interpreter behind the socket; other uses of `python`
# start it. Signals do not reach the fork.
import json, os, signal, socket, sys
name, words = os.path.basename(sys.argv[0]), sys.argv[1:]
program = {command_line!r}
if name == "python":
    if not words or words[0].startswith("-"):
        os.execv({python!r}, [{python!r}, *words])
    folder = os.path.dirname(os.path.abspath(words[0]))
    program = "import runpy, sys; sys.path[0], sys.argv[:1] = " + repr(folder) + ", []; "
    program += "runpy.run_path(sys.argv[0], None, '__main__')"
asked = dict(words=words, cwd=os.getcwd(), env=dict(os.environ), program=program)
with socket.socket(socket.AF_UNIX) as server:
    server.connect({socket!r})
    socket.send_fds(server, [b"\\n"], [0, 1, 2])
    server.sendall(json.dumps(asked).encode() + b"\\n")
    status = os.waitstatus_to_exitcode(int(server.makefile().readline()))
if status < 0:
    signal.signal(-status, signal.SIG_DFL) if -status not in (signal.SIGKILL, signal.SIGSTOP) else None
    os.kill(os.getpid(), -status)
os._exit(status)
"""


class WarmInterpreter:
    """An interpreter with `modules` loaded, which forks itself for each program. Not for several threads."""

    def __init__(self, *modules: str) -> None:
        self._modules = modules
        self._server: subprocess.Popen[bytes] | None = None
        self._folder = tempfile.TemporaryDirectory(prefix="warm-")
        self._socket = Path(self._folder.name, "socket")

    def __enter__(self) -> WarmInterpreter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        if self._server is not None:
            self._server.communicate(timeout=30)  # it ends when it can be asked nothing more
        self._folder.cleanup()

    def run(
        self,
        words: Sequence[object],
        *,
        cwd: Path,
        env: Mapping[str, str] | None = None,
        program: str = COMMAND_LINE,
        stdin: str = "",
        timeout: float = 120,
    ) -> subprocess.CompletedProcess[str]:
        """Run `program`, Python source, as `python -c program *words` does. `env`: default this process's own."""
        given = [str(word) for word in words]
        with tempfile.TemporaryDirectory(prefix="warm-") as folder:
            for name in ("stdin", "stdout", "stderr"):
                Path(folder, name).write_text(stdin if name == "stdin" else "")
            environment = dict(os.environ if env is None else env)
            status = self._ask({"words": given, "cwd": str(cwd), "env": environment, "program": program,
                                "streams": folder}, given, timeout)  # fmt: skip
            out, err = (Path(folder, name).read_text() for name in ("stdout", "stderr"))
        return subprocess.CompletedProcess(given, os.waitstatus_to_exitcode(status), out, err)

    def run_file(self, file: Path, *words: object, timeout: float = 600) -> subprocess.CompletedProcess[str]:
        """Run `file` as `python file *words` does."""
        program = (
            f"import runpy, sys; sys.path[0] = {str(file.parent)!r}; runpy.run_path({str(file)!r}, None, '__main__')"
        )
        return self.run(words, cwd=Path.cwd(), program=program, timeout=timeout)

    def install(self, folder: Path) -> None:
        """Write `ramify` and `python` into `folder`."""
        self._started()
        text = CLIENT.format(python=sys.executable, command_line=COMMAND_LINE, socket=str(self._socket))
        folder.mkdir(parents=True, exist_ok=True)
        for name in ("ramify", "python"):
            (folder / name).write_text(text)
            (folder / name).chmod(0o755)

    def _ask(self, request: dict[str, Any], words: list[str], timeout: float) -> int:
        server = self._started()
        assert server.stdin is not None and server.stdout is not None
        server.stdin.write(json.dumps(request).encode() + b"\n")
        server.stdin.flush()
        child = int(server.stdout.readline())
        if not select.select([server.stdout], [], [], timeout)[0]:
            with suppress(ProcessLookupError):  # it has just ended
                os.kill(child, signal.SIGKILL)
            server.stdout.readline()
            raise subprocess.TimeoutExpired(words, timeout)
        return int(server.stdout.readline())

    def _started(self) -> subprocess.Popen[bytes]:
        if self._server is None:
            command = [sys.executable, __file__, str(self._socket), *self._modules]
            # unbuffered: a buffer may hold both lines of a program that ends at once, while `select` waits for more
            self._server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
            assert self._server.stdout is not None and self._server.stdout.readline() == b"ready\n"
        return self._server


def _serve(requests: IO[str], answers: IO[str], clients: socket.socket) -> dict[str, Any] | None:
    """Return the request in a child that is to perform it, and None when there are no more. Only `requests`, whose
    sender waits for the end, are performed one after the other."""
    while True:
        ready, _, _ = select.select([requests, clients], [], [])
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:  # who waited for clients' programs
                pass
        if clients in ready and (request := _accept(clients)) is not None:
            return request
        if requests in ready:
            line = requests.readline()
            if not line:
                return None
            child = os.fork()
            if not child:
                return dict(json.loads(line))
            print(child, file=answers, flush=True)
            print(os.waitpid(child, 0)[1], file=answers, flush=True)


def _accept(clients: socket.socket) -> dict[str, Any] | None:
    """Return a client's request in the child that is to perform it; another child tells the client its status."""
    client, _ = clients.accept()
    with client:
        _, streams, _, _ = socket.recv_fds(client, 1, 3)
        if os.fork():
            for stream in streams:
                os.close(stream)
            return None
        clients.close()
        request = json.loads(client.makefile().readline())
        child = os.fork()
        if not child:
            return {**request, "streams": streams}
        os.closerange(0, client.fileno())  # the server's
        for stream in streams:  # their readers wait for the program's end
            os.close(stream)
        client.sendall(b"%d\n" % os.waitpid(child, 0)[1])
        os._exit(0)


def _become(request: dict[str, Any]) -> None:
    """Give this process what a new one would have."""
    streams = request["streams"]
    if isinstance(streams, str):
        streams = [os.open(Path(streams, name), os.O_RDWR) for name in ("stdin", "stdout", "stderr")]
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    sys.dont_write_bytecode = bool(os.environ.get("PYTHONDONTWRITEBYTECODE"))
    sys.path[:1] = ["", *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    sys.argv = ["-c", *request["words"]]


def _main() -> None:
    import flushes  # beside this file

    for module in sys.argv[2:]:
        importlib.import_module(module)
    for owner, name, value in flushes.left_out():
        setattr(owner, name, value)
    gc.collect()
    gc.freeze()  # the collector ignores existing objects, so that forks share their memory
    # its own pipes leave the numbers that a child's streams take
    requests, answers = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w")
    clients = socket.socket(socket.AF_UNIX)
    clients.bind(sys.argv[1])
    clients.listen()
    print("ready", file=answers, flush=True)
    request = _serve(requests, answers, clients)
    clients.close()
    if request is None:
        return
    requests.close()
    answers.close()
    _become(request)
    _end(_status_of(request["program"]))


def _status_of(program: str) -> int:
    try:
        exec(compile(program, "<string>", "exec"), {"__name__": "__main__"})
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        print(end.code, file=sys.stderr)
        return 1
    except BaseException:  # noqa: BLE001  # as the interpreter does
        sys.excepthook(*sys.exc_info())
        return 1
    return 0


def _end(status: int) -> None:
    """End as an interpreter does, but without unloading every module, which takes most of a short program's time."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    _main()
