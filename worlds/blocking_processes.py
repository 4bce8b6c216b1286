"""Processes and terminals of a world for code without an event loop."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from anyio.from_thread import BlockingPortal

from ramify.sandboxes.contract import Limit, RunResult
from ramify.sandboxes.process_contract import Output, Process
from ramify.worlds.shell import WorldShell
from ramify.worlds.terminal import Terminal


class SyncOutput:
    """One output of a process: an iterator of its bytes as they come."""

    def __init__(self, output: Output, portal: BlockingPortal) -> None:
        self._output, self._portal = output, portal

    def __iter__(self) -> Iterator[bytes]:
        while data := self.read():
            yield data

    def read(self) -> bytes:
        """The next bytes, b"" at the end."""
        return self._portal.call(self._output.read)


class SyncProcess:
    """As `Process`; every method blocks until it is done. Made by `SyncWorld.start`."""

    def __init__(self, process: Process, portal: BlockingPortal) -> None:
        self._process, self._portal = process, portal
        self.stdout = SyncOutput(process.stdout, portal)
        self.stderr = SyncOutput(process.stderr, portal)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.returncode

    @property
    def limit(self) -> Limit:
        return self._process.limit

    def write_stdin(self, data: bytes | str) -> None:
        self._portal.call(self._process.write_stdin, data)

    def close_stdin(self) -> None:
        self._portal.call(self._process.close_stdin)

    def send_signal(self, number: int, *, group: bool = True) -> None:
        self._portal.call(lambda: self._process.send_signal(number, group=group))

    def kill(self) -> None:
        self._portal.call(self._process.kill)

    def wait(self) -> int:
        return self._portal.call(self._process.wait)


class SyncShell:
    """As `WorldShell`; every method blocks until it is done. Made by `SyncWorld.shell`."""

    def __init__(self, shell: WorldShell, portal: BlockingPortal) -> None:
        self._shell, self._portal = shell, portal

    @property
    def name(self) -> str:
        return self._shell.name

    def run(
        self,
        command: str | Sequence[str],
        *,
        stdin: str | bytes | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        timeout: float | None = None,
        check: bool = False,
    ) -> RunResult:
        return self._portal.call(
            lambda: self._shell.run(command, stdin=stdin, env=env, cwd=cwd, timeout=timeout, check=check)
        )

    def close(self) -> None:
        self._portal.call(self._shell.close)


class SyncTerminal:
    """As `Terminal`; every method blocks until it is done. Made by `SyncWorld.pty`."""

    def __init__(self, terminal: Terminal, portal: BlockingPortal) -> None:
        self._terminal, self._portal = terminal, portal

    def __iter__(self) -> Iterator[bytes]:
        while data := self.read():
            yield data

    @property
    def pid(self) -> int:
        return self._terminal.pid

    @property
    def returncode(self) -> int | None:
        return self._terminal.returncode

    def read(self) -> bytes:
        return self._portal.call(self._terminal.read)

    def write(self, data: bytes | str) -> None:
        self._portal.call(self._terminal.write, data)

    def resize(self, rows: int, columns: int) -> None:
        self._portal.call(self._terminal.resize, rows, columns)

    def send_signal(self, number: int) -> None:
        self._portal.call(self._terminal.send_signal, number)

    def wait(self) -> int:
        return self._portal.call(self._terminal.wait)
