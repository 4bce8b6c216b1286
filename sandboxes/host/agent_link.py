"""The host's end of a world's socket: one question, one answer, and how a world that is gone came to its end."""

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
from ramify.sandboxes.agent.messages import LENGTHS, Cancel, Failed, Message, Run, decode, encode
from ramify.sandboxes.errors import SandboxError, UsedAfterFork, WorldDied
from ramify.sandboxes.linux.cgroups import Group
from ramify.sandboxes.linux.resource_limits import Bounds

PATIENCE_S = 20.0  # with a world that was hung up on
EXIT_REASON_WAIT_S = 1.0  # how long a dead world's error waits to hear how it died


class Answer(asyncio.Future[Message]):
    """One that is waited for to its end: a task that is cancelled meanwhile goes on once it is there.

    That is asyncio's own rule for a future that refuses: `Task.cancel` asks it first, and else cancels the task at
    its next step. A task of its own for every question, shielded, costs as much as the question.
    """

    def __init__(self, hasten: Callable[[], None]) -> None:
        super().__init__()
        self._hasten = hasten

    def cancel(self, msg: object | None = None) -> bool:
        if not self.done():
            self._hasten()
        return False


class Line(asyncio.Protocol):
    """Frames over a socket. Answers come in the order of the questions.

    The event loop only logs what a protocol's callback raises. So whatever goes wrong in one of these ends the
    connection, and each question that waits fails with the reason.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._heard = bytearray()
        self._due: deque[asyncio.Future[Message]] = deque()
        self._transport: asyncio.Transport | None = None
        self.last_words = ""  # of an agent that ended by itself
        self._fault: BaseException | None = None  # why this end hung up
        self._owner = os.getpid()
        self._ended = asyncio.get_running_loop().create_future()
        close_in_children(sock.fileno())

    @classmethod
    async def over(cls, sock: socket.socket) -> Self:
        """`sock` is the line's from now on, if this does not fail."""
        _, line = await asyncio.get_running_loop().create_unix_connection(lambda: cls(sock), sock=sock)
        return line

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # By what it does: other loops' transports (uvloop's) are no subclasses of asyncio's.
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        try:
            self._read(data)
        except Exception as error:  # noqa: BLE001  # told to whoever waits
            self._fault = error
            self._fail_all()
            if self._transport is not None:
                self._transport.abort()

    def _read(self, data: bytes) -> None:
        self._heard += data
        while len(self._heard) >= LENGTHS.size:
            head, body = LENGTHS.unpack_from(self._heard)
            begin = LENGTHS.size + head
            if len(self._heard) < begin + body:
                return
            answer = decode(bytes(self._heard[LENGTHS.size : begin]), bytes(self._heard[begin : begin + body]))
            del self._heard[: begin + body]
            if not self._due:  # nobody asked: it says why it ends
                self._heard.clear()
                self.last_words = answer.message if isinstance(answer, Failed) else ""
                return
            due = self._due.popleft()
            if not due.done():  # else whoever asked was cancelled
                due.set_result(answer)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._fault = self._fault or exc
        hang_up(self._sock)  # the event loop closes it next, which no other end sees while a child has a copy
        self._fail_all()
        if not self._ended.done():
            self._ended.set_result(None)

    def _fail_all(self) -> None:
        while self._due:
            due = self._due.popleft()
            if not due.done():
                due.set_exception(self._lost())

    @property
    def unreadable(self) -> str:
        """What was wrong with what the other end sent, where that is why this end hung up; else ""."""
        if self._fault is None or isinstance(self._fault, OSError):
            return ""
        return f"{type(self._fault).__name__}: {self._fault}"

    def _lost(self) -> ConnectionResetError:
        why = self.unreadable
        error = ConnectionResetError(
            f"the other end sent what cannot be read: {why}" if why else f"the other end hung up ({self._fault})"
        )
        error.__cause__ = self._fault
        return error

    def ask(self, message: Message, due: asyncio.Future[Message], passing: Sequence[int] = ()) -> None:
        """`due` is told the answer. Raises `ConnectionResetError` where nobody will answer."""
        refuse_in_child(self._owner, "the world", UsedAfterFork)
        data = encode(message)
        if self._transport is None or self._transport.is_closing():
            raise self._lost()
        if passing:  # nothing waits in the transport: the last question was answered
            socket.send_fds(self._sock, [data[: LENGTHS.size]], list(passing))
            data = data[LENGTHS.size :]
        self._due.append(due)
        self._transport.write(data)

    def say(self, message: Message) -> None:
        """What has no answer of its own; nothing where nobody listens."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(encode(message))

    async def close(self) -> None:
        if os.getpid() != self._owner:
            return  # a forked child's copy: its parent closes it
        if self._transport is not None:
            self._transport.close()
            # Its end comes through the event loop, unless that loop has lost the transport.
            await asyncio.wait({self._ended}, timeout=PATIENCE_S)


class ExitReporter(Protocol):
    """Who knows why worlds end."""

    def last_words(self) -> str: ...


class AgentLink:
    """The host's end of one world's socket. One question at a time: the world's lock sees to it."""

    _group: asyncio.Future[Group] | None = None  # the world's control group, soon

    def __init__(self, helper: ExitReporter, exit_code: asyncio.Future[int], line: Line) -> None:
        self._helper, self._exit_code, self._line = helper, exit_code, line
        self.pid = 0  # of the agent, known once it is ready

    def hold(self, group: asyncio.Future[Group], bounds: Bounds) -> None:
        """With these limits, soon; meanwhile it runs, watched by its agent alone."""

        async def limit() -> Group:
            held = await group
            with suppress(OSError):  # then its agent goes on watching alone
                await asyncio.to_thread(held.limit, bounds)
            return held

        self._group = asyncio.ensure_future(limit())

    @property
    def counts(self) -> bool:
        """Whether `out_of_memory` is known at once."""
        return self._group is None or self._group.done()

    async def out_of_memory(self) -> int:
        """How many of the world's processes the kernel has killed for memory, where the world has a control group."""
        if self._group is None:
            return 0
        if not self._group.done():
            await asyncio.wait({self._group})  # a command may end sooner than the group is known here
        return 0 if self._group.exception() is not None else self._group.result().out_of_memory()

    async def ask(
        self, message: Message, passing: Sequence[int] = (), hasten: Callable[[], None] | None = None
    ) -> Message:
        """Raises `WorldDied` where the agent is gone, `SandboxError` where it could not do it.

        Descriptors in `passing` go along and stay the caller's to close. With `hasten` the answer is waited for even
        where the task is cancelled, after that was called.
        """
        due = asyncio.get_running_loop().create_future() if hasten is None else Answer(hasten)
        try:
            self._line.ask(message, due, passing)
            answer = await due
        except OSError as error:
            raise WorldDied(await self._why_lost()) from error
        if isinstance(answer, Failed):
            raise SandboxError(answer.message)
        return answer

    async def _why_lost(self) -> str:
        if self._line.unreadable:
            return (
                f"the world's first process sent an answer that cannot be read ({self._line.unreadable}), so the "
                "world was ended; start from its last snapshot again"
            )
        return await self._exit_reason()

    def cancel(self) -> None:
        """Have the command under way killed; its answer still comes."""
        self._line.say(Cancel())

    async def close(self) -> None:
        """Hang up, which ends the world, and wait until it has ended."""
        await self._line.close()
        await asyncio.wait({self._exit_code}, timeout=PATIENCE_S)
        if self._group is not None:
            await asyncio.wait({self._group})
            if self._group.exception() is None:  # else there is none, and the world was watched by its agent alone
                await asyncio.to_thread(self._group.result().remove)

    async def _exit_reason(self) -> str:
        await asyncio.wait({self._exit_code}, timeout=EXIT_REASON_WAIT_S)
        if not self._exit_code.done() or self._exit_code.cancelled():
            return f"the world is gone ({self._helper.last_words()})"
        code = self._exit_code.result()
        if self._line.last_words:
            return f"the world's first process ended: {self._line.last_words}"
        if code == -signal.SIGKILL and await self.out_of_memory():
            return "the world ran out of the memory that it may use; start from its last snapshot again, with more"
        how = f"by signal {-code} ({signal.Signals(-code).name})" if code < 0 else f"with exit code {code}"
        return f"the world's first process ended {how}; start from its last snapshot again"


class LazyAgentLink(AgentLink):
    """The link of a world whose agent starts with the first question: a fork that nobody uses costs a mount."""

    def __init__(self, begin: Callable[[], Awaitable[AgentLink]]) -> None:
        self._begin = begin
        self._link: AgentLink | None = None
        self._cancelled = self._closed = False
        self.pid = 0

    async def ask(
        self, message: Message, passing: Sequence[int] = (), hasten: Callable[[], None] | None = None
    ) -> Message:
        """As an `AgentLink`; raises `WorldStartFailed` too."""
        self._cancelled = False
        link = self._link or await self.start()
        if self._cancelled and isinstance(message, Run):  # while it started
            message = replace(message, timeout=0.0)
        return await link.ask(message, passing, hasten)

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

    @property
    def counts(self) -> bool:
        return self._link is None or self._link.counts

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
