"""`GatewayMessages`: what the gateway tells the scheduler beside its requests, by a local socket.

Each datagram is one message as JSON. `{"request_id": …, "length_quantiles": [one value for each level]}` is a new
prediction of a running request's length, by the request analyzer. `{"compound_id": …, "branches": […]}` says that no
call will continue these branches of a workflow; without `branches`, that the workflow is over. The engine never
waits: it takes what has arrived, a limited number in each step. It counts what it cannot read, and ignores it.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from ramify.serving.protocol.length_sketch import LengthSketch

_A_STEP = 64  # datagrams taken in one step
_LARGEST = 65_536  # bytes


@dataclass(frozen=True, slots=True)
class NewSketch:
    """A request will probably be as long as this."""

    request_id: str  # as clients see it
    sketch: LengthSketch


@dataclass(frozen=True, slots=True)
class Release:
    """No call will continue these branches of a workflow; of None, the whole workflow."""

    compound_id: str
    branches: tuple[str, ...] | None


class GatewayMessages:
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

    def take(self) -> Iterator[NewSketch | Release]:
        """Yield what has arrived since the last step."""
        if self._socket is None:
            return
        for _ in range(_A_STEP):
            try:
                datagram = self._socket.recv(_LARGEST)
            except BlockingIOError:
                return
            try:
                yield _message(json.loads(datagram))
            except (ValueError, KeyError, TypeError, RecursionError):
                self.unreadable += 1

    def close(self) -> None:
        if self._socket is not None and self._path is not None:
            self._socket.close()
            Path(self._path).unlink(missing_ok=True)
            self._socket = None


def _message(said: Mapping[str, object]) -> NewSketch | Release:
    """Raises ValueError, KeyError or TypeError for anything else."""
    if "compound_id" not in said:
        return NewSketch(str(said["request_id"]), LengthSketch.from_wire(said["length_quantiles"]))  # type: ignore[arg-type]
    compound_id, branches = said["compound_id"], said.get("branches")
    if not isinstance(compound_id, str) or not isinstance(branches, list | None):
        raise TypeError("a workflow's id is a string, and its branches are a list")
    return Release(compound_id, None if branches is None else tuple(map(str, branches)))
