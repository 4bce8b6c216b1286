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
from pathlib import Path

from ramify.sandboxes.errors import BackendUnavailable, SandboxError, WorldDied, WorldStartFailed
from ramify.sandboxes.wire import LENGTHS, Cancel, Failed, Message, Ready, Start, decode, encode

ZYGOTE = Path(__file__).with_name("zygote.py")
STARTS_AT_ONCE = 16  # more would only queue in the helper, and fill its socket
PATIENCE_S = 20.0  # with a helper process that should end or answer
OBITUARY_S = 1.0  # how long a dead world's error waits to hear how it died


class AgentLink:
    """The host's end of one world's socket. One question at a time: the world's lock sees to it."""

    def __init__(
        self,
        helper: Helper,
        exit_code: asyncio.Future[int],
        streams: tuple[asyncio.StreamReader, asyncio.StreamWriter],
    ) -> None:
        self._helper, self._exit_code = helper, exit_code
        self._reader, self._writer = streams
        self.pid = 0  # of the agent, known once it is ready

    async def ask(self, message: Message) -> Message:
        """Raises `WorldDied` where the agent is gone, `SandboxError` where it could not do it."""
        try:
            self._writer.write(encode(message))
            await self._writer.drain()
            head_length, body_length = LENGTHS.unpack(await self._reader.readexactly(LENGTHS.size))
            head, body = await self._reader.readexactly(head_length), await self._reader.readexactly(body_length)
        except (asyncio.IncompleteReadError, OSError) as error:
            raise WorldDied(await self._obituary()) from error
        answer = decode(head, body)
        if isinstance(answer, Failed):
            raise SandboxError(answer.message)
        return answer

    def cancel(self) -> None:
        """Have the command under way killed; its answer still comes."""
        self._writer.write(encode(Cancel()))

    async def close(self) -> None:
        """Hang up, which ends the world, and wait until it has ended."""
        self._writer.close()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()
        await asyncio.wait({self._exit_code}, timeout=OBITUARY_S)

    async def _obituary(self) -> str:
        await asyncio.wait({self._exit_code}, timeout=OBITUARY_S)
        if not self._exit_code.done() or self._exit_code.cancelled():
            return f"the world is gone ({self._helper.last_words()})"
        code = self._exit_code.result()
        how = f"by signal {-code} ({signal.Signals(-code).name})" if code < 0 else f"with exit code {code}"
        return f"the world's first process ended {how}; start from its last snapshot again"


class Helper:
    """One helper process. It ends when this object is closed, or with the host, however the host ends."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._numbers = itertools.count()
        self._starting = asyncio.Semaphore(STARTS_AT_ONCE)
        self._exits: dict[int, asyncio.Future[int]] = {}

    async def start(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs, self._log.open("wb") as log:
            self._process = launch(theirs, log.fileno())
        ours.setblocking(False)
        self._control = ours
        asyncio.get_running_loop().add_reader(ours, self._hear)

    async def spawn(self, start: Start) -> AgentLink:
        """A world's agent, forked and set up. Raises `WorldStartFailed`."""
        async with self._starting:
            return await self._spawn(start)

    async def _spawn(self, start: Start) -> AgentLink:
        if self._control is None:
            raise WorldStartFailed("the backend is not open: use it as `async with backend:`")
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        number = next(self._numbers)
        kind = "plain" if start.view is None else "isolate"
        with theirs:
            try:
                socket.send_fds(self._control, [f"{kind} {number}".encode()], [theirs.fileno()])
            except OSError as error:
                ours.close()
                raise WorldStartFailed(f"the helper process is gone ({self.last_words()})") from error
        self._exits[number] = asyncio.get_running_loop().create_future()
        link = AgentLink(self, self._exits[number], await asyncio.open_unix_connection(sock=ours))
        try:
            answer = await link.ask(start)
        except SandboxError as error:
            await link.close()
            raise WorldStartFailed(f"a world could not be set up: {error}") from error
        except BaseException:
            await link.close()
            raise
        if not isinstance(answer, Ready):
            raise WorldStartFailed(f"a world's agent answered {answer!r} to its start")
        link.pid = answer.pid
        return link

    async def close(self) -> None:
        if self._control is None or self._process is None:
            return
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


def launch(control: socket.socket, log: int) -> subprocess.Popen[bytes]:
    """The helper process on its end of the control socket, what it has to complain about into `log`."""
    return subprocess.Popen(
        [sys.executable, "-I", "-S", str(ZYGOTE), str(control.fileno())],
        pass_fds=[control.fileno()],
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
