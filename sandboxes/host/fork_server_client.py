"""The host's side of the helper process: start it, fork worlds from it, connect to their agents."""

from __future__ import annotations

import asyncio
import itertools
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from ramify.fork_engine.close_on_fork import close_in_children, hang_up, refuse_in_child
from ramify.sandboxes.agent.messages import Ready, Start
from ramify.sandboxes.errors import BackendUnavailable, SandboxError, UsedAfterFork, WorldDied, WorldStartFailed
from ramify.sandboxes.host.agent_link import AgentLink, LazyAgentLink, MessageStream
from ramify.sandboxes.host.mount_server_client import MountServerClient
from ramify.sandboxes.linux import cgroups
from ramify.sandboxes.linux.cgroups import Group, Groups
from ramify.sandboxes.linux.resource_limits import Bounds

AGENT = Path(__file__).parents[1] / "agent" / "__main__.py"
STARTS_AT_ONCE = 16  # more would only queue in the helper and fill its socket
PATIENCE_S = 20.0  # for the helper process to end or answer
SPARES = 2  # agents waiting for a world: enough for consecutive forks, few enough to cost nothing when idle
RESTOCK_AFTER_S = 0.02


class SpareAgent(NamedTuple):
    """An agent that has not been told its world yet."""

    stream: MessageStream
    exit_code: asyncio.Future[int]
    group: asyncio.Future[Group] | None  # its control group, once it exists


class AgentReports(NamedTuple):
    """What the helper will report of an agent."""

    born: asyncio.Future[int]  # its pid
    dead: asyncio.Future[int]  # its exit code

    def fail_birth(self, why: str) -> None:
        """Fail the wait for its pid, if it has none yet."""
        if not self.born.done():
            self.born.set_exception(ProcessLookupError(why))
            self.born.exception()  # mark as retrieved: without control groups nobody waits for it


class ForkServerClient:
    """One helper process. It ends when this object is closed, or when the host ends for any reason.

    With `anchors`, the folders of layers and uppers, it makes isolated worlds: it has a mount server, and some spare
    agents in namespaces of their own, which wait for a world.
    """

    def __init__(self, log: Path, anchors: Sequence[Path] = ()) -> None:
        self._log, self._anchors = log, anchors
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._owner = os.getpid()
        self._fault = ""  # why the helper process was given up
        self._numbers = itertools.count()
        self._starting = asyncio.Semaphore(STARTS_AT_ONCE)
        self._children: dict[int, AgentReports] = {}
        self._spares: list[SpareAgent] = []
        self._restocking: asyncio.Task[None] | None = None
        self.trees = MountServerClient()
        self.groups: Groups | str = "the backend is not open"  # a text says why there are none

    async def start(self) -> None:
        """Start the helper process, and its mount server if there are anchors."""
        self.groups = await asyncio.to_thread(cgroups.find)  # nothing is awaited while only a part is started
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        keeping, keepers = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs, keepers, self._log.open("wb") as log:
            for sock in (ours, keeping):
                close_in_children(sock.fileno())
            self._process = launch(theirs, log.fileno(), keepers if self._anchors else None, self._anchors)
        self._owner = os.getpid()
        ours.setblocking(False)
        self._control = ours
        asyncio.get_running_loop().add_reader(ours, self._hear)
        if self._anchors:
            self.trees.open(keeping)
            self._restock()
        else:
            keeping.close()

    def lazy_link(self, start: Start, passing: Callable[[list[int]], Awaitable[None]]) -> LazyAgentLink:
        """A world's agent that starts when it is first needed. `passing` adds the descriptors that are sent with
        `start`."""
        return LazyAgentLink(lambda: self._begin(start, passing))

    async def _begin(self, start: Start, passing: Callable[[list[int]], Awaitable[None]]) -> AgentLink:
        passed: list[int] = []
        try:
            await passing(passed)
            return await self.spawn(start, passed)
        except WorldStartFailed as error:
            if self.trees.gone:  # not this world's fault
                raise WorldDied(str(error)) from error
            raise
        finally:
            for descriptor in passed:
                os.close(descriptor)

    async def spawn(self, start: Start, passing: Sequence[int] = ()) -> AgentLink:
        """Fork and set up a world's agent. Raises `WorldStartFailed`."""
        async with self._starting:
            spare = await self._take_agent(start)
            link = AgentLink(self, spare.exit_code, spare.stream)
            if spare.group is not None:
                link.apply_limits(spare.group, start.bounds)
            try:
                answer = await link.ask(start, passing)
                if not isinstance(answer, Ready):
                    raise SandboxError(f"its agent answered {type(answer).__name__} to the start")
            except SandboxError as error:
                await link.close()
                raise WorldStartFailed(f"a world could not be set up: {error}") from error
            except BaseException:
                await link.close()
                raise
        link.pid, link.made = answer.pid, answer.made
        return link

    async def _take_agent(self, start: Start) -> SpareAgent:
        if start.view is None or start.view.network:
            return await self._fork("plain" if start.view is None else "online")
        self._restock()
        while self._spares:
            spare = self._spares.pop(0)
            if not spare.exit_code.done():
                return spare
            await self._discard(spare)
        return await self._fork("isolated")

    async def _fork(self, kind: str) -> SpareAgent:
        """Have an agent forked on a new socket. `kind` is a key of `fork_server.KINDS`."""
        refuse_in_child(self._owner, "the backend", UsedAfterFork)
        if self._control is None:
            raise WorldStartFailed("the backend is not open: use it as `async with backend:`")
        if self._fault:
            raise WorldStartFailed(f"{self._fault}: close the backend and open it again")
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        close_in_children(ours.fileno())
        ours.setblocking(False)
        number = next(self._numbers)
        with theirs:
            try:
                socket.send_fds(self._control, [f"{kind} {number}".encode()], [theirs.fileno()])
            except OSError as error:
                ours.close()
                raise WorldStartFailed(f"the helper process is gone ({self.last_words()})") from error
        loop = asyncio.get_running_loop()
        child = self._children[number] = AgentReports(loop.create_future(), loop.create_future())
        try:
            stream = await MessageStream.over(ours)
        except BaseException:
            ours.close()
            raise
        return SpareAgent(stream, child.dead, self._put_in_group(child.born))

    def _put_in_group(self, born: asyncio.Future[int]) -> asyncio.Future[Group] | None:
        """Put a new agent in a control group as early as possible: every fork on the machine waits for that."""
        groups = self.groups
        if not isinstance(groups, Groups):
            return None

        async def hold() -> Group:
            return await asyncio.to_thread(groups.hold, await born)

        return asyncio.ensure_future(hold())

    async def _discard(self, spare: SpareAgent) -> None:
        link = AgentLink(self, spare.exit_code, spare.stream)
        if spare.group is not None:
            link.apply_limits(spare.group, Bounds())
        await link.close()

    def _restock(self) -> None:
        """Start more spares a little later, so that worlds being started now go first."""
        if self._restocking is None or self._restocking.done():
            self._restocking = asyncio.ensure_future(self._fill_up())

    async def _fill_up(self) -> None:
        await asyncio.sleep(RESTOCK_AFTER_S)
        while self._control is not None and len(self._spares) < SPARES:
            try:
                self._spares.append(await self._fork("isolated"))
            except (WorldStartFailed, OSError):
                return  # the next request for a world reports the error

    async def close(self) -> None:
        """End the helper process with all its worlds, and wait for its end."""
        if self._control is None or self._process is None or os.getpid() != self._owner:
            return  # a forked child's copy: its parent closes it
        if self._restocking is not None:
            self._restocking.cancel()
            await asyncio.wait({self._restocking})
        self.trees.close()
        await asyncio.gather(*(self._discard(spare) for spare in self._spares))
        self._spares.clear()
        asyncio.get_running_loop().remove_reader(self._control)
        hang_up(self._control)
        self._control.close()
        self._control = None
        await asyncio.to_thread(end, self._process)
        self._forget_children()

    def _hear(self) -> None:
        """Called by the event loop, which only logs exceptions. So an exception fails all waiting requests
        instead."""
        if self._control is None:
            return
        try:
            report = self._control.recv(64)
            if report:
                self._handle_report(report)
                return
        except BlockingIOError:
            return
        except ConnectionResetError:
            pass
        except Exception as error:  # noqa: BLE001  # reported to all who wait
            self._fault = f"a report of the helper process is unreadable ({type(error).__name__}: {error})"
        asyncio.get_running_loop().remove_reader(self._control)
        self._forget_children()

    def _handle_report(self, report: bytes) -> None:
        what, number, told = report.split()
        if what == b"born":
            born = self._children[int(number)].born
            if not born.done():  # else the waiting task was cancelled
                born.set_result(int(told))
            return
        child = self._children.pop(int(number))
        child.fail_birth("an agent could not be started")
        if not child.dead.done():
            child.dead.set_result(int(told))

    def _forget_children(self) -> None:
        """Give up waiting for reports of how agents ended."""
        for child in self._children.values():
            child.fail_birth("the helper process is gone")
            child.dead.cancel()
        self._children.clear()

    def last_words(self) -> str:
        text = self._log.read_text(errors="replace").strip()
        return text.splitlines()[-1] if text else "it left no message"


def launch(
    control: socket.socket, log: int, keeper: socket.socket | None = None, anchors: Sequence[Path] = ()
) -> subprocess.Popen[bytes]:
    """Start the helper process on its end of the control socket. Its error output goes into `log`."""
    isolating = [] if keeper is None else [str(keeper.fileno()), *map(str, anchors)]
    return subprocess.Popen(
        [sys.executable, "-I", "-S", str(AGENT), "fork-server", str(control.fileno()), *isolating],
        pass_fds=[sock.fileno() for sock in (control, keeper) if sock is not None],
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        cwd="/",
        start_new_session=True,  # the host handles a Ctrl-C at the terminal
    )


def end(process: subprocess.Popen[bytes]) -> None:
    """Wait for a helper process after a hang-up; kill it if it does not end."""
    try:
        process.wait(PATIENCE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def find_bash() -> str:
    """The host's bash by its real path, which exists even where a world hides /run. Raises `BackendUnavailable`."""
    found = shutil.which("bash") or shutil.which("bash", path=os.defpath)
    if found is None:
        raise BackendUnavailable("bash is not installed: worlds run their commands in it; install it")
    return os.path.realpath(found)
