"""The host's side of a process that runs beside a world's shell: its streams, its socket to the agent, its end."""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
import socket
import struct
import termios
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace

from ramify.fork_engine.close_on_fork import close_in_children, hang_up
from ramify.sandboxes.agent.framing import decode_packet, encode
from ramify.sandboxes.agent.messages import (
    Message,
    ProcessEnded,
    ProcessRefused,
    ProcessStarted,
    SignalProcess,
    StartProcess,
)
from ramify.sandboxes.agent.started_processes import USER_FORBIDDEN, USER_UNKNOWN
from ramify.sandboxes.contract import Limit
from ramify.sandboxes.errors import (
    CommandRefused,
    ForbiddenUser,
    InputClosed,
    SandboxError,
    UnknownUser,
    WorldDied,
)
from ramify.sandboxes.host.agent_link import AgentLink
from ramify.sandboxes.host.concurrency import finish_before_cancelling
from ramify.sandboxes.host.process_streams import InputStream, OutputStream
from ramify.sandboxes.linux import kernel
from ramify.sandboxes.process_contract import TerminalSize

MOST_PACKET = 1 << 16
REFUSED = {USER_UNKNOWN: UnknownUser, USER_FORBIDDEN: ForbiddenUser}
KILLED = 128 + signal.SIGKILL


class ProcessLine:
    """The socket on which the agent tells how a process began and ended. The process ends with it."""

    def __init__(self, sock: socket.socket, lost: Callable[[], Awaitable[str]]) -> None:
        """`lost`: why the world ended, once the socket is closed at the other end."""
        self._sock, self._lost = sock, lost
        self._loop = asyncio.get_running_loop()
        self.began: asyncio.Future[Message] = self._loop.create_future()
        self.ended: asyncio.Future[ProcessEnded | None] = self._loop.create_future()  # None: the world has ended
        self.terminal = -1  # the terminal's master; whoever takes it closes it
        sock.setblocking(False)
        close_in_children(sock.fileno())
        self._loop.add_reader(sock.fileno(), self._hear)

    def _hear(self) -> None:
        """Called by the event loop, which only logs exceptions: any of them ends the line."""
        try:
            packet, passed = kernel.receive_descriptors(self._sock, MOST_PACKET, 1)
        except BlockingIOError:
            return
        except OSError:
            packet, passed = b"", []
        if passed:
            self.terminal = passed[0]
        try:
            message = decode_packet(packet) if packet else None
        except (ValueError, KeyError, TypeError, struct.error):
            message = None
        if isinstance(message, ProcessStarted | ProcessRefused) and not self.began.done():
            self.began.set_result(message)
            return
        self._end(message if isinstance(message, ProcessEnded) else None)

    def _end(self, how: ProcessEnded | None) -> None:
        if self._sock.fileno() >= 0:
            self._loop.remove_reader(self._sock.fileno())
            hang_up(self._sock)
            self._sock.close()
        if not self.ended.done():
            self.ended.set_result(how)
        if not self.began.done():
            self.began.set_result(ProcessRefused("", ""))

    def tell(self, message: SignalProcess) -> None:
        with suppress(OSError):  # it has ended
            self._sock.send(encode(message), socket.MSG_NOSIGNAL)

    async def died(self) -> WorldDied:
        return WorldDied(await self._lost())

    def hang_up(self) -> None:
        """End the process, without waiting for that. Closes its terminal if nobody took that."""
        self._end(None)
        if self.terminal >= 0:
            os.close(self.terminal)
            self.terminal = -1


class LiveProcess:
    """A process in a world: the `Process` of the contract."""

    def __init__(
        self,
        line: ProcessLine,
        stdout: OutputStream,
        stderr: OutputStream,
        stdin: InputStream | None,
        terminal: int,
        killed_for_memory: Callable[[], Awaitable[bool]],
        forget: Callable[[LiveProcess], None],
    ) -> None:
        """`terminal`: a descriptor of its master, which `stdin` owns; -1 without one."""
        began = line.began.result()
        assert isinstance(began, ProcessStarted)
        self._line, self.stdout, self.stderr, self._stdin = line, stdout, stderr, stdin
        self._pid = began.pid
        self._terminal = terminal
        self._killed_for_memory, self._forget = killed_for_memory, forget
        # of a shell's script and reports; whoever drives it takes them
        self.shell_ends: tuple[int, int] | None = None
        self._limit = Limit.NONE
        self._killed = self._closed = False
        line.ended.add_done_callback(self._at_end)

    def when_ended(self, call: Callable[[], None]) -> None:
        """Call this once the process or its world has ended."""
        self._line.ended.add_done_callback(lambda _: call())

    def _at_end(self, _: asyncio.Future[ProcessEnded | None]) -> None:
        for stream in (self.stdout, self.stderr):
            stream.process_ended()

    @property
    def pid(self) -> int:
        return self._pid

    @property
    def returncode(self) -> int | None:
        ended = self._line.ended
        if not ended.done():
            return None
        told = ended.result()
        return KILLED if told is None else told.exit_code

    @property
    def limit(self) -> Limit:
        return self._limit

    async def write_stdin(self, data: bytes | str) -> None:
        if self._stdin is None:
            raise InputClosed("the process was started without an input: start it with stdin=True")
        await self._stdin.write(data.encode() if isinstance(data, str) else data)

    def close_stdin(self) -> None:
        if self._stdin is not None and self._terminal < 0:
            self._stdin.close()

    def send_signal(self, number: int, *, group: bool = True) -> None:
        if not 0 < number <= 64:
            raise ValueError(f"there is no signal {number}")
        self._line.tell(SignalProcess(number, group))

    async def kill(self) -> None:
        await finish_before_cancelling(self._kill())

    async def _kill(self) -> None:
        if not self._line.ended.done():
            self._killed = True
            self._line.tell(SignalProcess())
            await asyncio.wait({self._line.ended})

    async def wait(self) -> int:
        told = await asyncio.shield(self._line.ended)
        if told is None:
            if self._closed:
                return KILLED
            raise await self._line.died()
        if self._limit is Limit.NONE:
            self._limit = Limit(told.limit)
            if told.exit_code == KILLED and not told.limit and not self._killed:
                self._limit = Limit.MEMORY if await self._killed_for_memory() else Limit.NONE
        return told.exit_code

    def resize(self, size: TerminalSize) -> None:
        if self._terminal < 0:
            raise ValueError("the process has no terminal")
        if not self._closed:
            fcntl.ioctl(self._terminal, termios.TIOCSWINSZ, struct.pack("HHHH", size.rows, size.columns, 0, 0))

    async def close(self) -> None:
        if self._closed:
            return
        try:
            if not self._line.ended.done():
                await self.kill()
        finally:
            self._closed = True
            self._line.hang_up()
            if self._stdin is not None:
                self._stdin.close()
            for stream in (self.stdout, self.stderr):
                stream.drop_rest()
            self._forget(self)

    def abandon(self) -> None:
        """Close everything at once, as the world has ended."""
        self._line.hang_up()
        if self._stdin is not None:
            self._stdin.close()
        for stream in (self.stdout, self.stderr):
            stream.close()


async def start_process(
    link: AgentLink,
    message: StartProcess,
    *,
    stdin: bool,
    killed_for_memory: Callable[[], Awaitable[bool]],
    forget: Callable[[LiveProcess], None],
) -> LiveProcess:
    """Start a process by its world's agent. `killed_for_memory`: whether the kernel has done so meanwhile. `forget`
    is called when the process was closed. Raises `CommandRefused`, `WorldDied`."""
    theirs: list[int] = []
    ours: list[int] = []
    try:
        here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        theirs.append(there.detach())
        line = ProcessLine(here, link.loss_reason)
        if not message.rows:
            _make_pipes(theirs, ours, stdin=stdin)
            if message.control:
                _add_pipe(ours, theirs)
        await _begin(link, replace(message, passed=len(theirs)), theirs, line)
        if message.rows:
            master, line.terminal = line.terminal, -1
            typed = os.dup(master)
            screen, nothing = OutputStream(master, ends_with_process=False), OutputStream(_ended_pipe())
            return LiveProcess(line, screen, nothing, InputStream(typed), typed, killed_for_memory, forget)
        out, err, *inputs = ours
        ours.clear()
        given = InputStream(inputs[0]) if inputs and not message.control else None
        made = LiveProcess(line, OutputStream(out), OutputStream(err), given, -1, killed_for_memory, forget)
        made.shell_ends = (inputs[0], inputs[1]) if message.control else None
        return made
    finally:
        for descriptor in (*theirs, *ours):
            os.close(descriptor)


async def _begin(link: AgentLink, message: StartProcess, theirs: list[int], line: ProcessLine) -> None:
    """Have the agent start a process, and wait until it has. If it does not, or we are cancelled, none is left."""
    try:
        await link.post(message, theirs)
    except BaseException:
        line.hang_up()
        raise
    while theirs:
        os.close(theirs.pop())
    try:
        began = await asyncio.shield(line.began)
        if isinstance(began, ProcessRefused):
            raise REFUSED.get(began.kind, CommandRefused)(began.message) if began.kind else await line.died()
        if message.rows and line.terminal < 0:
            raise SandboxError("the world's agent sent no terminal")
    except BaseException:
        try:
            line.tell(SignalProcess())
            await asyncio.wait({line.ended})
        finally:  # even if the caller is cancelled again
            line.hang_up()
        raise


def _make_pipes(theirs: list[int], ours: list[int], *, stdin: bool) -> None:
    """Append the process's ends (stdout, stderr, stdin) to `theirs`, and ours to `ours`."""
    for _ in ("stdout", "stderr"):
        _add_pipe(ours, theirs)
    if stdin:
        _add_pipe(theirs, ours)


def _add_pipe(readers: list[int], writers: list[int]) -> None:
    read, write = os.pipe()
    readers.append(read)
    writers.append(write)
    for end in (read, write):
        close_in_children(end)


def _ended_pipe() -> int:
    """What a stream is read from that has nothing: a terminal has one output."""
    read, write = os.pipe()
    os.close(write)
    return read
