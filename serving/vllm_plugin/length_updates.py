"""`LengthUpdates`: receives new length sketches of running requests from the request analyzer, by a local socket.

Each datagram is one prediction as JSON: `{"request_id": …, "length_quantiles": [one value for each level]}`. The
engine never waits: it takes what has arrived, a limited number in each step. A datagram that cannot be read is
counted and ignored; the sketch that came with the request stays in use.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path

from ramify.serving.protocol.length_sketch import LengthSketch

_A_STEP = 64  # datagrams taken in one step
_LARGEST = 65_536  # bytes


class LengthUpdates:
    """Listens at the Unix datagram socket `path`; None: it does nothing."""

    def __init__(self, path: str | None) -> None:
        self.unreadable = 0
        self._path = path
        self._socket: socket.socket | None = None
        if path is not None:
            with contextlib.suppress(FileNotFoundError):  # left by an engine that was killed
                os.unlink(path)  # noqa: PTH108
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            self._socket.setblocking(False)
            self._socket.bind(path)
            Path(path).chmod(0o600)

    def take(self) -> Iterator[tuple[str, LengthSketch]]:
        """Yield what has arrived since the last step: request ids, as clients see them, and their new sketches."""
        if self._socket is None:
            return
        for _ in range(_A_STEP):
            try:
                datagram = self._socket.recv(_LARGEST)
            except BlockingIOError:
                return
            try:
                message = json.loads(datagram)
                yield str(message["request_id"]), LengthSketch.from_wire(message["length_quantiles"])
            except (ValueError, KeyError, TypeError):
                self.unreadable += 1

    def close(self) -> None:
        if self._socket is not None and self._path is not None:
            self._socket.close()
            Path(self._path).unlink(missing_ok=True)
            self._socket = None
