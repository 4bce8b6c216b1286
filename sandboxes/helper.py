"""The host's side of the helper process: start it, fork worlds from it, talk to their agents."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from ramify.sandboxes.errors import BackendUnavailable, SandboxError, WorldDied, WorldStartFailed
from ramify.sandboxes.namespaces.trees import Trees
from ramify.sandboxes.safety import cgroups
from ramify.sandboxes.safety.bounds import Bounds
from ramify.sandboxes.safety.cgroups import Group, Groups
from ramify.sandboxes.wire import LENGTHS, Cancel, Failed, Message, Ready, Run, Start, decode, encode

ZYGOTE = Path(__file__).with_name("zygote.py")
STARTS_AT_ONCE = 16  # more would only queue in the helper, and fill its socket
PATIENCE_S = 20.0  # with a helper process that should end or answer
SPARES = 2  # agents that wait for a world: enough for one fork after the other, little enough to cost nothing idle
RESTOCK_AFTER_S = 0.02
OBITUARY_S = 1.0  # how long a dead world's error waits to hear how it died


class AgentLink:
    """The host's end of one world's socket. One question at a time: the world's lock sees to it."""

    _group: asyncio.Future[Group] | None = None  # the world's control group, soon after the agent is ready

    def __init__(
        self,
        helper: Helper,
        exit_code: asyncio.Future[int],
        streams: tuple[asyncio.StreamReader, asyncio.StreamWriter],
    ) -> None:
        self._helper, self._exit_code = helper, exit_code
        self._reader, self._writer = streams
        self.pid = 0  # of the agent, known once it is ready

    def hold(self, groups: Groups, bounds: Bounds) -> None:
        """Put the world into a control group; meanwhile it runs, watched by its agent alone."""
        self._group = asyncio.ensure_future(asyncio.to_thread(groups.hold, self.pid, bounds))

    async def out_of_memory(self) -> int:
        """How many of the world's processes the kernel has killed for memory, where the world has a control group."""
        if self._group is None:
            return 0
        await asyncio.wait({self._group})  # a command may end sooner than the group is known here
        return 0 if self._group.exception() is not None else self._group.result().out_of_memory()

    async def ask(self, message: Message, passing: Sequence[int] = ()) -> Message:
        """Raises `WorldDied` where the agent is gone, `SandboxError` where it could not do it.

        Descriptors in `passing` go along and stay the caller's to close.
        """
        try:
            self._write(encode(message), passing)
            await self._writer.drain()
            head_length, body_length = LENGTHS.unpack(await self._reader.readexactly(LENGTHS.size))
            head, body = await self._reader.readexactly(head_length), await self._reader.readexactly(body_length)
        except (asyncio.IncompleteReadError, OSError) as error:
            raise WorldDied(await self._obituary()) from error
        answer = decode(head, body)
        if isinstance(answer, Failed):
            raise SandboxError(answer.message)
        return answer

    def _write(self, data: bytes, passing: Sequence[int]) -> None:
        if passing:  # nothing waits in the writer: the last question was answered
            with socket.socket(fileno=os.dup(self._writer.get_extra_info("socket").fileno())) as sock:
                socket.send_fds(sock, [data[: LENGTHS.size]], list(passing))
            data = data[LENGTHS.size :]
        self._writer.write(data)

    def cancel(self) -> None:
        """Have the command under way killed; its answer still comes."""
        self._writer.write(encode(Cancel()))

    async def close(self) -> None:
        """Hang up, which ends the world, and wait until it has ended."""
        self._writer.close()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()
        await asyncio.wait({self._exit_code}, timeout=PATIENCE_S)
        if self._group is not None:
            await asyncio.wait({self._group})
            if self._group.exception() is None:  # else there is none, and the world was watched by its agent alone
                await asyncio.to_thread(self._group.result().remove)

    async def _obituary(self) -> str:
        await asyncio.wait({self._exit_code}, timeout=OBITUARY_S)
        if not self._exit_code.done() or self._exit_code.cancelled():
            return f"the world is gone ({self._helper.last_words()})"
        code = self._exit_code.result()
        if code == -signal.SIGKILL and await self.out_of_memory():
            return "the world ran out of the memory that it may use; start from its last snapshot again, with more"
        how = f"by signal {-code} ({signal.Signals(-code).name})" if code < 0 else f"with exit code {code}"
        return f"the world's first process ended {how}; start from its last snapshot again"


class LateLink(AgentLink):
    """The link of a world whose agent starts with the first question: a fork that nobody uses costs a mount."""

    def __init__(self, begin: Callable[[], Awaitable[AgentLink]]) -> None:
        self._begin = begin
        self._link: AgentLink | None = None
        self._cancelled = self._closed = False
        self.pid = 0

    async def ask(self, message: Message, passing: Sequence[int] = ()) -> Message:
        """As an `AgentLink`; raises `WorldStartFailed` too."""
        self._cancelled = False
        link = self._link or await self.start()
        if self._cancelled and isinstance(message, Run):  # while it started
            message = replace(message, timeout=0.0)
        return await link.ask(message, passing)

    async def start(self) -> AgentLink:
        """Raises `WorldStartFailed`."""
        if self._hung_up():
            raise WorldDied("the world was closed")
        link = await self._begin()
        if self._hung_up():
            await link.close()
            raise WorldDied("the world was closed while it started")
        self._link, self.pid = link, link.pid
        return link

    async def out_of_memory(self) -> int:
        return 0 if self._link is None else await self._link.out_of_memory()

    def _hung_up(self) -> bool:
        return self._closed

    def cancel(self) -> None:
        self._cancelled = True
        if self._link is not None:
            self._link.cancel()

    async def close(self) -> None:
        self._closed = True
        if self._link is not None:
            await self._link.close()


class Spare(NamedTuple):
    """An agent that was not told yet what its world is."""

    sock: socket.socket
    exit_code: asyncio.Future[int]


class Helper:
    """One helper process. It ends when this object is closed, or with the host, however the host ends.

    With `anchors`, the folders that hold layers and uppers, it makes isolated worlds: it has a keeper, and some
    spare agents in namespaces of their own, which wait for a world.
    """

    def __init__(self, log: Path, anchors: Sequence[Path] = ()) -> None:
        self._log, self._anchors = log, anchors
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._numbers = itertools.count()
        self._starting = asyncio.Semaphore(STARTS_AT_ONCE)
        self._exits: dict[int, asyncio.Future[int]] = {}
        self._spares: list[Spare] = []
        self._restocking: asyncio.Task[None] | None = None
        self.trees = Trees()
        self.groups: Groups | str = "the backend is not open"  # else why there are none

    async def start(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        keeping, keepers = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs, keepers, self._log.open("wb") as log:
            self._process = launch(theirs, log.fileno(), keepers if self._anchors else None, self._anchors)
        ours.setblocking(False)
        self.groups = await asyncio.to_thread(cgroups.find)
        self._control = ours
        asyncio.get_running_loop().add_reader(ours, self._hear)
        if self._anchors:
            self.trees.open(keeping)
            self._restock()
        else:
            keeping.close()

    def late(self, start: Start, passing: Callable[[list[int]], Awaitable[None]]) -> LateLink:
        """A world's agent, once it is needed. `passing` adds the descriptors that go along with `start`."""
        return LateLink(lambda: self._begin(start, passing))

    async def _begin(self, start: Start, passing: Callable[[list[int]], Awaitable[None]]) -> AgentLink:
        passed: list[int] = []
        try:
            await passing(passed)
            return await self.spawn(start, passed)
        except WorldStartFailed as error:
            if self.trees.gone:  # it is not this world's fault
                raise WorldDied(str(error)) from error
            raise
        finally:
            for descriptor in passed:
                os.close(descriptor)

    async def spawn(self, start: Start, passing: Sequence[int] = ()) -> AgentLink:
        """A world's agent, forked and set up. Raises `WorldStartFailed`."""
        async with self._starting:
            sock, exit_code = self._agent(start)
            link = AgentLink(self, exit_code, await asyncio.open_unix_connection(sock=sock))
            try:
                answer = await link.ask(start, passing)
            except SandboxError as error:
                await link.close()
                raise WorldStartFailed(f"a world could not be set up: {error}") from error
            except BaseException:
                await link.close()
                raise
        if not isinstance(answer, Ready):
            raise WorldStartFailed(f"a world's agent answered {type(answer).__name__} to its start")
        link.pid = answer.pid
        if isinstance(self.groups, Groups):
            link.hold(self.groups, start.bounds)
        return link

    def _agent(self, start: Start) -> Spare:
        if start.view is None or start.view.network:
            return self._fork("plain" if start.view is None else "online")
        self._restock()
        while self._spares:
            spare = self._spares.pop(0)
            if not spare.exit_code.done():
                return spare
            spare.sock.close()
        return self._fork("isolated")

    def _fork(self, kind: str) -> Spare:
        if self._control is None:
            raise WorldStartFailed("the backend is not open: use it as `async with backend:`")
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        ours.setblocking(False)
        number = next(self._numbers)
        with theirs:
            try:
                socket.send_fds(self._control, [f"{kind} {number}".encode()], [theirs.fileno()])
            except OSError as error:
                ours.close()
                raise WorldStartFailed(f"the helper process is gone ({self.last_words()})") from error
        self._exits[number] = asyncio.get_running_loop().create_future()
        return Spare(ours, self._exits[number])

    def _restock(self) -> None:
        """See that there are spares again, a little later: what was just started goes first."""
        if self._restocking is None or self._restocking.done():
            self._restocking = asyncio.ensure_future(self._fill_up())

    async def _fill_up(self) -> None:
        await asyncio.sleep(RESTOCK_AFTER_S)
        while self._control is not None and len(self._spares) < SPARES:
            try:
                self._spares.append(self._fork("isolated"))
            except WorldStartFailed:
                return  # whoever asks for a world next is told

    async def close(self) -> None:
        if self._control is None or self._process is None:
            return
        if self._restocking is not None:
            self._restocking.cancel()
        self.trees.close()
        for spare in self._spares:
            spare.sock.close()
        self._spares.clear()
        asyncio.get_running_loop().remove_reader(self._control)
        self._control.close()
        self._control = None
        await asyncio.to_thread(end, self._process)
        self._forget_exits()

    def _hear(self) -> None:
        if self._control is None:
            return
        try:
            report = self._control.recv(64)
        except BlockingIOError:
            return
        except ConnectionResetError:
            report = b""
        if not report:
            asyncio.get_running_loop().remove_reader(self._control)
            self._forget_exits()
            return
        number, code = report.split()
        self._exits.pop(int(number)).set_result(int(code))

    def _forget_exits(self) -> None:
        """Nobody will tell us any more how a world ended."""
        for future in self._exits.values():
            future.cancel()
        self._exits.clear()

    def last_words(self) -> str:
        text = self._log.read_text(errors="replace").strip()
        return text.splitlines()[-1] if text else "it left no message"


def launch(
    control: socket.socket, log: int, keeper: socket.socket | None = None, anchors: Sequence[Path] = ()
) -> subprocess.Popen[bytes]:
    """The helper process on its end of the control socket, what it has to complain about into `log`."""
    isolating = [] if keeper is None else [str(keeper.fileno()), *map(str, anchors)]
    return subprocess.Popen(
        [sys.executable, "-I", "-S", str(ZYGOTE), str(control.fileno()), *isolating],
        pass_fds=[sock.fileno() for sock in (control, keeper) if sock is not None],
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        cwd="/",
        start_new_session=True,  # a Ctrl-C at the terminal is the host's to handle
    )


def end(process: subprocess.Popen[bytes]) -> None:
    """Wait for a helper process that was hung up on; kill one that does not notice."""
    try:
        process.wait(PATIENCE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def find_bash() -> str:
    """The host's bash by its real path, which is there also where a world hides /run. Raises `BackendUnavailable`."""
    found = shutil.which("bash") or shutil.which("bash", path=os.defpath)
    if found is None:
        raise BackendUnavailable("bash is not installed: worlds run their commands in it; install it")
    return os.path.realpath(found)
