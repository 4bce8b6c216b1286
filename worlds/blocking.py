"""`SyncWorld`: the methods of `World` for code without an event loop; and its processes, shells and terminals."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path, PurePosixPath
from types import TracebackType
from typing import IO, Any, TypeVar

from anyio.from_thread import BlockingPortal, start_blocking_portal

from ramify.fork_engine.types import Change, MergeStrategy, Resolver, Snapshot, Written
from ramify.sandboxes.contract import KeptReady, Limit, RunResult
from ramify.sandboxes.egress.connection_log import Connection
from ramify.sandboxes.process_contract import Output, Process
from ramify.worlds.blocking_home import SyncWorldHome
from ramify.worlds.commands import Terminal, WorldShell
from ramify.worlds.errors import WorldClosed
from ramify.worlds.home import Opening, WorldHome
from ramify.worlds.world import World
from ramify.worlds.world_files import MOST_READ
from ramify.worlds.world_network import Allowed, ExposedPort


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


T = TypeVar("T")
_Where = WorldHome | str | Path | None


class SyncWorld:
    """A live world, and the event loop in a thread that drives it. A context manager. Every method blocks until it is
    done; see `World` for arguments and errors. Forks share the thread of the world that they come from."""

    def __init__(
        self, world: World, portal: BlockingPortal, owned: AbstractContextManager[Any] | None = None
    ) -> None:
        """Use `create`, `open` or `fork` instead."""
        self._world = world
        self._loop = portal
        self._owned = owned
        self._closed = False

    @classmethod
    def create(
        cls, folder: str | Path | None = None, *, home: SyncWorldHome | str | Path | None = None, **options: Any
    ) -> SyncWorld:
        """As `World.create`, with the same options. An open `home` is one of `SyncWorldHome`."""
        return cls._opened(home, lambda where: World.create(folder, home=where, **options))

    @classmethod
    def open(cls, name: str, *, home: SyncWorldHome | str | Path | None = None, **options: Any) -> SyncWorld:
        """As `World.open`, with the same options. An open `home` is one of `SyncWorldHome`."""
        return cls._opened(home, lambda where: World.open(name, home=where, **options))

    @classmethod
    def _opened(
        cls, home: SyncWorldHome | str | Path | None, opening: Callable[[_Where], Opening[World]]
    ) -> SyncWorld:
        async def make() -> World:
            return await opening(home.home if isinstance(home, SyncWorldHome) else home)

        if isinstance(home, SyncWorldHome):
            return cls(home.portal.call(make), home.portal)
        with ExitStack() as stack:
            portal = stack.enter_context(start_blocking_portal("asyncio"))
            return cls(portal.call(make), portal, stack.pop_all())

    def __enter__(self) -> SyncWorld:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the world, as `World.close`. May be called twice."""
        if self._closed:
            return
        self._closed = True
        try:
            if self._world.is_open:
                self._loop.call(self._world.close)
        finally:
            if self._owned is not None:
                owned, self._owned = self._owned, None
                owned.__exit__(None, None, None)

    def delete(self) -> None:
        """As `World.delete`. The world is closed afterwards."""
        self._portal.call(self._world.delete)
        self.close()

    @property
    def _portal(self) -> BlockingPortal:
        """Raises `WorldClosed`: the event loop ends with the world, or with the home that it is in."""
        if not self._world.is_open:
            raise WorldClosed("the world, or the home that it is in, was closed: open or create another one")
        return self._loop

    @property
    def world(self) -> World:
        """The asynchronous world that this one drives. Use it only inside `call`."""
        return self._world

    def call(self, function: Callable[[], Awaitable[T]]) -> T:
        """Call an asynchronous function in the thread of the world's event loop, and wait for its result."""
        return self._portal.call(function)

    @property
    def name(self) -> str | None:
        return self._world.name

    @property
    def path(self) -> Path:
        return self._world.path

    @property
    def mount_at(self) -> Path:
        return self._world.mount_at

    @property
    def workdir(self) -> PurePosixPath:
        return self._world.workdir

    @property
    def state(self) -> Snapshot:
        return self._world.state

    def exec(
        self,
        command: str | Sequence[str],
        *,
        stdin: str | bytes | IO[bytes] | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        user: str | int | None = None,
        timeout: float | None = None,
        check: bool = False,
    ) -> RunResult:
        return self._portal.call(
            lambda: self._world.exec(command, stdin=stdin, env=env, cwd=cwd, user=user, timeout=timeout, check=check)
        )

    @contextmanager
    def start(self, command: str | Sequence[str], **options: Any) -> Iterator[SyncProcess]:
        """As `World.start`, with the same options."""
        with self._portal.wrap_async_context_manager(self._world.start(command, **options)) as process:
            yield SyncProcess(process, self._portal)

    @contextmanager
    def pty(self, command: str | Sequence[str] | None = None, **options: Any) -> Iterator[SyncTerminal]:
        """As `World.pty`, with the same options."""
        with self._portal.wrap_async_context_manager(self._world.pty(command, **options)) as terminal:
            yield SyncTerminal(terminal, self._portal)

    def expose(self, port: int, **options: Any) -> AbstractContextManager[ExposedPort]:
        """As `World.expose`, with the same options."""
        return self._portal.wrap_async_context_manager(self._world.expose(port, **options))

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
            lambda: self._world.run(command, stdin=stdin, env=env, cwd=cwd, timeout=timeout, check=check)
        )

    def shell(self, name: str) -> SyncShell:
        return SyncShell(self._world.shell(name), self._portal)

    def read(self, path: str | Path, *, most: int = MOST_READ) -> bytes:
        return self._portal.call(lambda: self._world.read(path, most=most))

    def write(self, path: str | Path, data: bytes | str, *, mode: int = 0o644) -> None:
        self._portal.call(lambda: self._world.write(path, data, mode=mode))

    def upload(self, source: str | Path, target: str | Path = ".") -> None:
        self._portal.call(self._world.upload, source, target)

    def download(self, source: str | Path, target: str | Path) -> None:
        self._portal.call(self._world.download, source, target)

    def set_egress(self, egress: Allowed) -> None:
        self._portal.call(self._world.set_egress, egress)

    def connections(self) -> list[Connection]:
        return self._portal.call(self._world.connections)

    def snapshot(self, tag: str | None = None) -> Snapshot:
        return self._portal.call(self._world.snapshot, tag)

    def delete_tag(self, name: str) -> None:
        self._portal.call(self._world.delete_tag, name)

    def begin_snapshot(self, tag: str | None = None) -> Future[Snapshot]:
        """As `World.begin_snapshot`. `result()` waits for the snapshot; cancelling it does not stop the snapshot."""
        pending = self._portal.call(self._world.begin_snapshot, tag)
        return self._portal.start_task_soon(pending.result)

    def foresee_forks(self, n: int) -> KeptReady:
        return self._portal.call(self._world.foresee_forks, n)

    def fork(self, n: int = 1, *, names: Sequence[str] | None = None) -> list[SyncWorld]:
        made = self._portal.call(lambda: self._world.fork(n, names=names))
        return [SyncWorld(world, self._portal) for world in made]

    def restore(self, snapshot: str | Snapshot) -> None:
        self._portal.call(self._world.restore, snapshot)

    def diff(self, other: SyncWorld | Snapshot | str | None = None) -> list[Change]:
        return self._portal.call(self._world.diff, _async(other))

    def merge(
        self,
        other: SyncWorld | Snapshot | str,
        *,
        base: Snapshot | str | None = None,
        strategy: MergeStrategy | Resolver = MergeStrategy.FAIL,
    ) -> Snapshot:
        theirs = _async(other)
        assert theirs is not None
        return self._portal.call(lambda: self._world.merge(theirs, base=base, strategy=strategy))

    def checkout(self, folder: str | Path, *, force: bool = False, active_files: bool = False) -> Written:
        return self._portal.call(lambda: self._world.checkout(folder, force=force, active_files=active_files))


def _async(other: SyncWorld | Snapshot | str | None) -> World | Snapshot | str | None:
    return other._world if isinstance(other, SyncWorld) else other
