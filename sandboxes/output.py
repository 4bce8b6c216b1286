"""What a world's commands print. Stdlib only: the agent uses it."""

from __future__ import annotations

import array
import fcntl
import os
import termios

from ramify.sandboxes.private import Private

CHUNK = 1 << 16


class Output:
    """One of the two streams: a pipe that outlives commands and shells.

    What a background process writes while no command runs is read and dropped, so that it never blocks.
    """

    def __init__(self, private: Private, name: str, limit: int) -> None:
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
        """Take what is there now, and no more: a process that never stops writing must not hold us."""
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
