"""The agent's own folder in its world: files and named pipes that it shares with its shell. Stdlib only.

Commands have the agent's uid, so they can replace this folder and everything in it. The agent can reach what they
cannot: a link to `/proc/self/fd/N` would lead it through its own descriptors to the host's files. So it holds the
folder by a descriptor, creates every file anew, follows no links and never waits for the other end of a pipe.
"""

from __future__ import annotations

import array
import contextlib
import errno
import fcntl
import os
import stat
import termios


class PrivateFolder:
    """The agent's folder. Opened before the first command runs."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._folder = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)

    def path(self, name: str) -> str:
        """The path for commands, which may find something else there."""
        return f"{self._path}/{name}"

    def write(self, name: str, data: bytes) -> None:
        self.remove(name)
        with os.fdopen(self._open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "wb") as file:
            file.write(data)

    def pipe(self, name: str) -> tuple[int, int]:
        """The read end and the write end of a new named pipe."""
        self.remove(name)
        os.mkfifo(name, 0o600, dir_fd=self._folder)
        ends: list[int] = []
        try:
            for flags in (os.O_RDONLY, os.O_WRONLY):  # in this order: the write end needs a reader
                ends.append(self._open(name, flags | os.O_NONBLOCK))
                if not stat.S_ISFIFO(os.fstat(ends[-1]).st_mode):
                    raise OSError(errno.EEXIST, "a command replaced it", self.path(name))
        except OSError:
            for end in ends:
                os.close(end)
            raise
        for end in ends:
            os.set_blocking(end, True)
        return ends[0], ends[1]

    def remove(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name, dir_fd=self._folder)

    def close(self) -> None:
        os.close(self._folder)

    def _open(self, name: str, flags: int) -> int:
        return os.open(name, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=self._folder)


CHUNK = 1 << 16


class OutputPipe:
    """One of the two output streams: a pipe that outlives commands and shells.

    Output of background processes while no command runs is read and dropped, so that they never block.
    """

    def __init__(self, private: PrivateFolder, name: str, limit: int) -> None:
        self.read_end, self.write_end = private.pipe(name)
        os.set_blocking(self.read_end, False)
        self._limit = limit
        self._kept = bytearray()
        self.truncated = False
        self.wanted = False

    def begin(self) -> None:
        self.drain()
        self._kept, self.truncated, self.wanted = bytearray(), False, True

    def end(self) -> bytes:
        self.drain()
        self.wanted = False
        kept, self._kept = bytes(self._kept), bytearray()
        return kept

    def drain(self) -> None:
        """Read what is there now, and no more: a process that never stops writing must not stall us."""
        waiting = array.array("i", [0])
        fcntl.ioctl(self.read_end, termios.FIONREAD, waiting)
        left = waiting[0]
        while left > 0:
            left -= self.take()

    def take(self) -> int:
        data = os.read(self.read_end, CHUNK)
        if self.wanted:
            room = self._limit - len(self._kept)
            self._kept += data[:room]
            self.truncated = self.truncated or len(data) > room
        return len(data)
