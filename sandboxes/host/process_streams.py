"""The host's ends of a process's streams, on the event loop: bounded memory, and a slow reader stops the writer."""

from __future__ import annotations

import array
import asyncio
import fcntl
import os
import termios
from collections import deque
from collections.abc import AsyncIterator

from ramify.sandboxes.errors import InputClosed

CHUNK = 1 << 16
MOST_HELD = 1 << 18  # bytes read ahead of the reader


class OutputStream:
    """Bytes from a descriptor, which it takes over. One reader at a time, or `collect`."""

    def __init__(self, descriptor: int, *, ends_with_process: bool = True) -> None:
        """`ends_with_process`: it ends with its process even if something else holds the other end."""
        self._descriptor = descriptor
        self._ends_with_process = ends_with_process
        self._loop = asyncio.get_running_loop()
        self._held: deque[bytes] = deque()
        self._size = 0
        self._room: int | None = None  # bytes to keep while everything is collected
        self._left: int | None = None  # bytes that are still to come once the process has ended
        self._ended = self._reading = False
        self._more = asyncio.Event()
        self.truncated = False
        os.set_blocking(descriptor, False)
        self._resume()

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        data = await self.read()
        if not data:
            raise StopAsyncIteration
        return data

    async def read(self) -> bytes:
        """The next bytes, b"" at the end."""
        while not self._held and not self._ended:
            self._more.clear()
            await self._more.wait()
        if not self._held:
            return b""
        data = self._held.popleft()
        self._size -= len(data)
        if not self._ended and self._size < MOST_HELD:
            self._resume()
            if self._left is not None:
                self._read_rest()
        return data

    def collect(self, most: int) -> None:
        """From now on keep the first `most` bytes, and read and drop what follows."""
        self._room = most - self._size

    async def collected(self) -> bytes:
        """What `collect` kept, once the stream has ended."""
        while not self._ended:
            self._more.clear()
            await self._more.wait()
        data = b"".join(self._held)
        self._held.clear()
        return data

    def discard(self) -> None:
        """Drop what comes from now on, until `collect`."""
        self._held.clear()
        self._size, self._room, self.truncated = 0, 0, False

    def collected_now(self) -> bytes:
        """What `collect` kept and what waits to be read now; the stream goes on."""
        if self._descriptor >= 0 and not self._ended:
            waiting = array.array("i", [0])
            fcntl.ioctl(self._descriptor, termios.FIONREAD, waiting)
            self._left = waiting[0]
            while self._left and self._read_once(last=False):
                pass
            self._left = None
        data = b"".join(self._held)
        self._held.clear()
        return data

    def process_ended(self) -> None:
        """End the stream after what its process has written. What its background processes write is dropped."""
        if self._ended or not self._ends_with_process or self._left is not None:
            return
        waiting = array.array("i", [0])
        fcntl.ioctl(self._descriptor, termios.FIONREAD, waiting)
        self._left = waiting[0]
        self._read_rest()

    def close(self) -> None:
        """Close the descriptor; readers get what was read and the end."""
        self._pause()
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
        self._end()

    def drop_rest(self) -> None:
        """Give up reading. Background processes that still write are not stopped by that."""
        self._held.clear()
        self._end()
        if self._descriptor >= 0:
            self._resume()

    # The event loop's calls

    def _ready(self) -> None:
        if self._ended:
            self._drop()
        else:
            self._read_once()

    def _drop(self) -> None:
        try:
            if os.read(self._descriptor, CHUNK):
                return
        except BlockingIOError:
            return
        except OSError:
            pass
        self.close()

    def _read_rest(self) -> None:
        while self._left and not self._ended and self._size < MOST_HELD:
            if not self._read_once():
                break
        if self._left == 0 and not self._ended:
            self._end()

    def _read_once(self, *, last: bool = True) -> bool:
        """Whether something was read. `last`: the stream ends with the bytes that are left."""
        try:
            data = os.read(self._descriptor, CHUNK if self._left is None else min(CHUNK, self._left))
        except BlockingIOError:
            return False
        except OSError:  # EIO: a terminal whose last user has gone
            data = b""
        if not data:
            self.close()
            return False
        if self._left is not None:
            self._left -= len(data)
        self._take(data)
        if self._left == 0 and last:
            self._end()
        return True

    def _take(self, data: bytes) -> None:
        if self._room is not None:
            kept = data[: self._room]
            self.truncated = self.truncated or len(kept) < len(data)
            self._room -= len(kept)
            if kept:
                self._held.append(kept)
            return
        self._held.append(data)
        self._size += len(data)
        self._more.set()
        if self._size >= MOST_HELD:
            self._pause()

    def _end(self) -> None:
        self._ended = True
        self._more.set()

    def _resume(self) -> None:
        if not self._reading and self._descriptor >= 0:
            self._loop.add_reader(self._descriptor, self._ready)
            self._reading = True

    def _pause(self) -> None:
        if self._reading:
            self._loop.remove_reader(self._descriptor)
            self._reading = False


class InputStream:
    """Bytes to a descriptor, which it takes over."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._loop = asyncio.get_running_loop()
        self._turn = asyncio.Lock()
        self._waiting: asyncio.Future[None] | None = None
        os.set_blocking(descriptor, False)

    async def write(self, data: bytes) -> None:
        """Returns when the kernel has taken all of it. Raises `InputClosed`."""
        async with self._turn:
            left = memoryview(data)
            while left:
                if self._descriptor < 0:
                    raise InputClosed("the process's input is closed: nothing more can be written to it")
                try:
                    left = left[os.write(self._descriptor, left) :]
                except BlockingIOError:
                    await self._writable()
                except OSError as error:
                    raise InputClosed(
                        f"the process has ended or closed its input, with {len(left)} bytes not taken"
                    ) from error

    async def _writable(self) -> None:
        due: asyncio.Future[None] = self._loop.create_future()
        descriptor = self._descriptor
        self._loop.add_writer(descriptor, self._release)
        self._waiting = due
        try:
            await due
        finally:
            if self._descriptor == descriptor:
                self._loop.remove_writer(descriptor)

    def close(self) -> None:
        if self._descriptor < 0:
            return
        self._loop.remove_writer(self._descriptor)
        os.close(self._descriptor)
        self._descriptor = -1
        self._release()

    def _release(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)
