"""The host's client of the mount server: mount trees, hand them out, unmount them."""

from __future__ import annotations

import asyncio
import os
import socket
from collections import deque
from collections.abc import Sequence
from pathlib import Path

from ramify.fork_engine.close_on_fork import hang_up, refuse_in_child
from ramify.sandboxes.agent.mount_server import (
    BIGGEST,
    FEW,
    PLACES,
    CloneFolder,
    CloneMount,
    LayerEntry,
    MakeLayer,
    MountOverlays,
    MountReply,
    MountRequest,
    Overlay,
    ReplaceMount,
    Unmount,
    pack,
    unpack,
)
from ramify.sandboxes.errors import TOO_MANY_FILES, SandboxError, UsedAfterFork, WorldStartFailed

MOST_GIVEN = 32  # descriptors beside one answer

Reply = tuple[MountReply, list[int]]


class MountServerClient:
    """A connection to a mount server, used by several tasks at once. Replies come in the order of the requests."""

    def __init__(self) -> None:
        self._sock: socket.socket | None = None
        self._sending = asyncio.Lock()
        self._due: deque[asyncio.Future[Reply]] = deque()
        self._pid = 0
        self._owner = os.getpid()

    def open(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self._sock, self._owner = sock, os.getpid()
        asyncio.get_running_loop().add_reader(sock, self._hear)

    def close(self) -> None:
        if self._sock is not None:
            self._lost()

    @property
    def gone(self) -> bool:
        return self._sock is None

    def path(self, point: str) -> Path:
        """The path of a kept tree in this process, after the first mount."""
        return Path(f"/proc/{self._pid}/root{PLACES}/{point}")

    async def mount(self, lowers: Sequence[str], overlays: Sequence[Overlay]) -> list[int]:
        """Mount overlays over one stack, the bottom first. Returns descriptors of those that are not kept; the caller
        closes them.

        Raises `WorldStartFailed`; then the caller unmounts those that were mounted.
        """
        given: list[int] = []
        for first in range(0, len(overlays), FEW):
            answer, descriptors = await self._ask(MountOverlays(list(lowers), list(overlays[first : first + FEW])))
            given += descriptors
            if answer.error:
                for descriptor in given:
                    os.close(descriptor)
                raise WorldStartFailed(f"a tree of {len(lowers)} layers could not be mounted: {answer.error}")
        return given

    async def clone(self, point: str) -> int:
        """A descriptor of a kept tree, to be attached in a world. Raises `SandboxError`."""
        answer, given = await self._ask(CloneMount(point))
        if answer.error:
            raise SandboxError(f"a tree could not be passed to its world: {answer.error}")
        return given[0]

    async def replace(self, point: str, aside: str, by: str = "") -> None:
        """Give a kept tree the name `aside`, and the tree `by` its name. Raises `SandboxError`."""
        answer, _ = await self._ask(ReplaceMount(point, aside, by))
        if answer.error:
            raise SandboxError(f"a tree could not be moved to its world: {answer.error}")

    async def clone_folder(self, path: Path) -> int:
        """A descriptor of a folder of the host, read-only, for a world's agent. Raises `SandboxError`."""
        answer, given = await self._ask(CloneFolder(str(path)))
        if answer.error:
            raise SandboxError(f"{path.name} could not be passed to its world: {answer.error}")
        return given[0]

    async def make_layer(self, point: str, entries: Sequence[LayerEntry]) -> None:
        """Create a folder at the mount server, "@point" in a stack. Raises `WorldStartFailed`."""
        answer, _ = await self._ask(MakeLayer(point, list(entries)))
        if answer.error:
            raise WorldStartFailed(f"the lowest layer of a world could not be made: {answer.error}")

    async def unmount(self, point: str, *, lazily: bool = False) -> bool:
        """Unmount a kept tree; False if this process has something open in it. Also True if the mount server is
        gone. Raises `SandboxError`."""
        try:
            answer, _ = await self._ask(Unmount(point, lazily))
        except WorldStartFailed:
            return True
        if answer.error:
            raise SandboxError(f"a tree could not be unmounted: {answer.error}")
        return answer.ok

    async def _ask(self, request: MountRequest) -> Reply:
        """Send a request and wait for the reply. Raises `WorldStartFailed` if the mount server is gone."""
        refuse_in_child(self._owner, "the backend", UsedAfterFork)
        loop = asyncio.get_running_loop()
        due: asyncio.Future[Reply] = loop.create_future()
        async with self._sending:
            if self._sock is None:
                raise WorldStartFailed("the helper process is gone: close the backend and open it again")
            data = pack(request)
            try:
                while True:
                    try:
                        self._sock.send(data)
                        break
                    except BlockingIOError:  # hundreds of requests wait
                        await asyncio.sleep(0.001)
            except OSError as error:
                raise WorldStartFailed(f"the helper process is gone ({error})") from error
            self._due.append(due)
        return await due

    def _hear(self) -> None:
        """Called by the event loop, which only logs exceptions. So an exception fails all waiting requests
        instead."""
        if self._sock is None:
            return
        try:
            self._receive(self._sock)
        except Exception as error:  # noqa: BLE001  # reported to all who wait
            self._lost(f"a reply of the helper process is unreadable ({type(error).__name__}: {error})")

    def _receive(self, sock: socket.socket) -> None:
        """Take one reply from the socket and give it to the request that waits for it."""
        try:
            data, given, flags, _ = socket.recv_fds(sock, BIGGEST, MOST_GIVEN, socket.MSG_CMSG_CLOEXEC)
        except BlockingIOError:
            return
        except ConnectionResetError:
            data, given, flags = b"", [], 0
        if not data:
            self._lost()
            return
        try:
            answer = unpack(data)
            if not isinstance(answer, MountReply):
                raise TypeError(f"{type(answer).__name__} is not a reply")
            due = self._due.popleft()
        except BaseException:
            for descriptor in given:
                os.close(descriptor)
            raise
        self._pid = answer.pid
        if not due.done() and not flags & socket.MSG_CTRUNC:
            due.set_result((answer, given))
            return
        for descriptor in given:
            os.close(descriptor)
        if not due.done():  # else the caller was cancelled
            due.set_exception(WorldStartFailed(TOO_MANY_FILES))

    def _lost(self, why: str = "the helper process ended") -> None:
        assert self._sock is not None
        asyncio.get_running_loop().remove_reader(self._sock)
        hang_up(self._sock)
        self._sock.close()
        self._sock = None
        while self._due:
            due = self._due.popleft()
            if not due.done():
                due.set_exception(WorldStartFailed(f"{why}: close the backend and open it again"))
