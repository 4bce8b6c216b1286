"""The host's end of a world's socket: requests, replies, and reports of how a world ended."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Protocol, Self, cast

from ramify.fork_engine.close_on_fork import close_in_children, hang_up, refuse_in_child
from ramify.sandboxes.agent.framing import LENGTHS, decode, encode
from ramify.sandboxes.agent.messages import Cancel, Failed, Leave, Message, Run, Thaw
from ramify.sandboxes.errors import SandboxError, UsedAfterFork, WorldDied
from ramify.sandboxes.linux.cgroups import Group
from ramify.sandboxes.linux.resource_limits import Bounds

PATIENCE_S = 20.0  # for a world to end after a hang-up
AGAIN_S = 0.001  # between two attempts to send to an agent whose socket is full
EXIT_REASON_WAIT_S = 1.0  # how long a dead world's error waits for its exit code


class ReplyFuture(asyncio.Future[Message]):
    """A reply that is awaited to its end: a task cancelled meanwhile is only cancelled once the reply has arrived.

    This uses asyncio's own rule: `Task.cancel` first asks the future that the task awaits, and if that refuses, the
    task goes on. Shielding a separate task for each request would cost as much as the request itself.
    """

    def __init__(self, on_cancel: Callable[[], None]) -> None:
        super().__init__()
        self._on_cancel = on_cancel

    def cancel(self, msg: object | None = None) -> bool:
        if not self.done():
            self._on_cancel()
        return False


class MessageStream(asyncio.Protocol):
    """Messages over a socket. Replies come in the order of the requests.

    The event loop only logs exceptions of a protocol's callbacks. So an error in one of them closes the connection,
    and every waiting request fails with that error as the reason.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._received = bytearray()
        self._waiting: deque[asyncio.Future[Message]] = deque()
        self._transport: asyncio.Transport | None = None
        self.last_words = ""  # the error of an agent that ended by itself
        self._fault: BaseException | None = None  # why this end closed the connection
        self._owner = os.getpid()
        self._ended = asyncio.get_running_loop().create_future()
        self._drained = asyncio.Event()  # the transport holds nothing that was not sent yet
        self._drained.set()
        close_in_children(sock.fileno())

    @classmethod
    async def over(cls, sock: socket.socket) -> Self:
        """Connect to `sock`, which belongs to the line from now on, unless this fails."""
        _, stream = await asyncio.get_running_loop().create_unix_connection(lambda: cls(sock), sock=sock)
        return stream

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Not checked by type: other loops' transports (uvloop's) are no subclasses of asyncio's.
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=0)

    def pause_writing(self) -> None:
        self._drained.clear()

    def resume_writing(self) -> None:
        self._drained.set()

    def data_received(self, data: bytes) -> None:
        try:
            self._read(data)
        except Exception as error:  # noqa: BLE001  # reported to all who wait
            self._fault = error
            self._fail_all()
            if self._transport is not None:
                self._transport.abort()

    def _read(self, data: bytes) -> None:
        self._received += data
        while len(self._received) >= LENGTHS.size:
            head, body = LENGTHS.unpack_from(self._received)
            begin = LENGTHS.size + head
            if len(self._received) < begin + body:
                return
            answer = decode(bytes(self._received[LENGTHS.size : begin]), bytes(self._received[begin : begin + body]))
            del self._received[: begin + body]
            if not self._waiting:  # not a reply: the agent says why it ends
                self._received.clear()
                self.last_words = answer.message if isinstance(answer, Failed) else ""
                return
            due = self._waiting.popleft()
            if not due.done():  # else the requester was cancelled
                due.set_result(answer)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._drained.set()
        self._fault = self._fault or exc
        hang_up(self._sock)  # the event loop closes it, but a forked child's copy would keep it open
        self._fail_all()
        if not self._ended.done():
            self._ended.set_result(None)

    def _fail_all(self) -> None:
        while self._waiting:
            due = self._waiting.popleft()
            if not due.done():
                due.set_exception(self._lost())

    @property
    def unreadable(self) -> str:
        """What was wrong with the other end's data, if that is why this end closed the connection; else ""."""
        if self._fault is None or isinstance(self._fault, OSError):
            return ""
        return f"{type(self._fault).__name__}: {self._fault}"

    def _lost(self) -> ConnectionResetError:
        why = self.unreadable
        error = ConnectionResetError(
            f"the other end sent unreadable data: {why}" if why else f"the other end hung up ({self._fault})"
        )
        error.__cause__ = self._fault
        return error

    def ask(self, message: Message, due: asyncio.Future[Message]) -> None:
        """Send a request; `due` gets the reply. Raises `ConnectionResetError` if nobody will reply, and `TypeError`
        for what cannot be sent."""
        transport, data = self._open_transport(), encode(message)
        self._waiting.append(due)
        transport.write(data)

    async def pass_on(
        self, message: Message, passing: Sequence[int], due: asyncio.Future[Message] | None = None
    ) -> None:
        """As `ask`, with descriptors, which the caller closes. Without `due` there is no reply."""
        data = encode(message)
        while True:
            await self._drained.wait()  # the descriptors go past the transport's queue
            transport = self._open_transport()
            try:
                data = data[socket.send_fds(self._sock, [data], list(passing)) :]
                break
            except BlockingIOError:  # the agent has not read yet
                await asyncio.sleep(AGAIN_S)
        if due is not None:
            self._waiting.append(due)
        if data:  # more than the socket took at once
            transport.write(data)

    @property
    def is_open(self) -> bool:
        """Whether a request can be sent."""
        return self._transport is not None and not self._transport.is_closing()

    def _open_transport(self) -> asyncio.Transport:
        refuse_in_child(self._owner, "the world", UsedAfterFork)
        if self._transport is None or not self.is_open:
            raise self._lost()
        return self._transport

    def send(self, message: Message) -> None:
        """Send a message without a reply; do nothing if the connection is gone."""
        if self._transport is not None and self.is_open:
            self._transport.write(encode(message))

    async def close(self) -> None:
        if os.getpid() != self._owner:
            return  # a forked child's copy: its parent closes it
        if self._transport is not None:
            self._transport.close()
            # the event loop reports the end, unless it has lost the transport
            await asyncio.wait({self._ended}, timeout=PATIENCE_S)


class ExitReporter(Protocol):
    """Knows why worlds end."""

    def last_words(self) -> str: ...


class AgentLink:
    """The host's end of one world's socket. One request at a time: the world's lock ensures that."""

    _group: asyncio.Future[Group] | None = None  # the world's control group, once it exists

    def __init__(self, helper: ExitReporter, exit_code: asyncio.Future[int], stream: MessageStream) -> None:
        self._helper, self._exit_code, self._stream = helper, exit_code, stream
        self.pid = 0  # the agent's, known once it is ready
        self.made: list[tuple[str, int, int]] = []  # as in `Ready`
        self._resumed: asyncio.Future[Message] | None = None

    @property
    def lives(self) -> bool:
        return self._stream.is_open and not self._exit_code.done()

    def apply_limits(self, group: asyncio.Future[Group], bounds: Bounds) -> None:
        """Apply these limits to the control group once it exists. Meanwhile only the agent watches the world."""

        async def limit() -> Group:
            held = await group
            with suppress(OSError):  # the agent goes on watching alone
                await asyncio.to_thread(held.limit, bounds)
            return held

        self._group = asyncio.ensure_future(limit())

    @property
    def kills_are_known(self) -> bool:
        """Whether `out_of_memory` returns at once."""
        return self._group is None or self._group.done()

    async def out_of_memory(self) -> int:
        """How many of the world's processes the kernel killed for memory, if the world has a control group."""
        if self._group is None:
            return 0
        if not self._group.done():
            await asyncio.wait({self._group})  # a command may end before the group is known here
        return 0 if self._group.exception() is not None else self._group.result().out_of_memory()

    async def ask(
        self, message: Message, passing: Sequence[int] = (), on_cancel: Callable[[], None] | None = None
    ) -> Message:
        """Send a request and return the reply. Raises `WorldDied` if the agent is gone, `SandboxError` if it failed.

        The caller closes the descriptors in `passing`, which are sent along. With `on_cancel`, a cancelled task calls
        it and still waits for the reply.
        """
        due = asyncio.get_running_loop().create_future() if on_cancel is None else ReplyFuture(on_cancel)
        try:
            if passing:
                await self._stream.pass_on(message, passing, due)
            else:
                self._stream.ask(message, due)
            answer = await due
        except OSError as error:
            raise WorldDied(await self._loss_reason()) from error
        if isinstance(answer, Failed):
            raise SandboxError(answer.message)
        return answer

    def resume(self) -> None:
        """Let a world that stands still go on, without waiting for it: `resumed` does."""
        self._resumed = asyncio.ensure_future(self.ask(Thaw()))
        self._resumed.add_done_callback(lambda done: done.cancelled() or done.exception())  # it is asked for later

    async def resumed(self) -> None:
        """Wait until the world goes on. Raises as `ask` does."""
        if self._resumed is None:
            self.resume()
        assert self._resumed is not None
        await asyncio.shield(self._resumed)

    async def post(self, message: Message, passing: Sequence[int]) -> None:
        """Send a message that has no reply, with descriptors, which the caller closes. Raises `WorldDied`."""
        try:
            await self._stream.pass_on(message, passing)
        except OSError as error:
            raise WorldDied(await self._loss_reason()) from error

    async def loss_reason(self) -> str:
        """Why the world's agent has ended, for people."""
        return await self._loss_reason()

    async def _loss_reason(self) -> str:
        if self._stream.unreadable:
            return (
                f"the world's first process sent an unreadable reply ({self._stream.unreadable}), so the "
                "world was ended; start again from its last snapshot"
            )
        return await self._exit_reason()

    def cancel(self) -> None:
        """Have the current command killed; its reply still comes."""
        self._stream.send(Cancel())

    async def leave(self) -> None:
        """Wait until all processes of the world have ended. Its agent, with its mounts, ends by `close`."""
        try:
            await self.ask(Leave())
        except SandboxError:  # it has died, or one of them hangs: wait for the end of all
            await self.close()

    async def close(self) -> None:
        """Hang up, which ends the world, and wait until it has ended."""
        await self._stream.close()
        await asyncio.wait({self._exit_code}, timeout=PATIENCE_S)
        if self._group is not None:
            await asyncio.wait({self._group})
            if self._group.exception() is None:  # else there is none, and only the agent watched the world
                await asyncio.to_thread(self._group.result().remove)

    async def _exit_reason(self) -> str:
        await asyncio.wait({self._exit_code}, timeout=EXIT_REASON_WAIT_S)
        if not self._exit_code.done() or self._exit_code.cancelled():
            return f"the world is gone ({self._helper.last_words()})"
        code = self._exit_code.result()
        if self._stream.last_words:
            return f"the world's first process ended: {self._stream.last_words}"
        if code == -signal.SIGKILL and await self.out_of_memory():
            return "the world exceeded its memory limit; start again from its last snapshot, with a higher limit"
        how = f"by signal {-code} ({signal.Signals(-code).name})" if code < 0 else f"with exit code {code}"
        return f"the world's first process ended {how}; start again from its last snapshot"


class LazyAgentLink(AgentLink):
    """The link of a world whose agent starts with the first request: an unused fork costs only a mount."""

    def __init__(self, begin: Callable[[], Awaitable[AgentLink]]) -> None:
        self._begin = begin
        self._link: AgentLink | None = None
        self._cancelled = self._closed = False
        self._starting = asyncio.Lock()
        self.pid = 0

    async def ask(
        self, message: Message, passing: Sequence[int] = (), on_cancel: Callable[[], None] | None = None
    ) -> Message:
        """As `AgentLink.ask`; also raises `WorldStartFailed`."""
        self._cancelled = False
        link = self._link or await self.start()
        if self._cancelled and isinstance(message, Run):  # while the agent started
            message = replace(message, timeout=0.0)
        return await link.ask(message, passing, on_cancel)

    async def post(self, message: Message, passing: Sequence[int]) -> None:
        """As `AgentLink.post`; also raises `WorldStartFailed`."""
        link = self._link or await self.start()
        await link.post(message, passing)

    async def loss_reason(self) -> str:
        return "the world was closed" if self._link is None else await self._link.loss_reason()

    async def start(self) -> AgentLink:
        """Start the agent, unless it runs. Raises `WorldStartFailed`, `WorldDied`."""
        async with self._starting:
            if self._link is not None:
                return self._link
            if self._hung_up():
                raise WorldDied("the world was closed")
            link = await self._begin()
            if self._hung_up():
                await link.close()
                raise WorldDied("the world was closed while it started")
            self._link, self.pid = link, link.pid
            return link

    @property
    def kills_are_known(self) -> bool:
        return self._link is None or self._link.kills_are_known

    async def out_of_memory(self) -> int:
        return 0 if self._link is None else await self._link.out_of_memory()

    def _hung_up(self) -> bool:
        return self._closed

    async def leave(self) -> None:
        self._closed = True
        if self._link is not None:
            await self._link.leave()

    def cancel(self) -> None:
        self._cancelled = True
        if self._link is not None:
            self._link.cancel()

    async def close(self) -> None:
        self._closed = True
        if self._link is not None:
            await self._link.close()
