"""The log of the connections that a world made or tried to make: in memory, and for a named world in files.

The log is bounded. What was allowed and what was refused have separate bounds, so that no flood of refused attempts
drives out the record of a connection that was made. It holds no path, header or content.
"""

from __future__ import annotations

import json
import math
import os
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from ramify import paths

KEPT = 4096  # connections of each kind in memory
FILE_BYTES = 2 << 20  # of one file; there are two of each kind, the current and the one before
_LONGEST = 300  # characters of a text that a world chose


class Outcome(StrEnum):
    OPEN = "open"
    DONE = "done"
    REFUSED = "refused"  # by the policy
    FAILED = "failed"  # allowed, but the host could not be reached, or the connection broke off
    CUT = "cut"  # allowed, and then not any more; or the world ended


@dataclass(frozen=True, slots=True)
class Connection:
    """One connection, or one request of a proxy connection that carries several."""

    id: str
    at: float  # Unix seconds
    protocol: str  # connect, http, socks5, forward
    host: str
    port: int
    outcome: Outcome
    why: str = ""
    address: str = ""  # that the connection went to
    sent: int = 0  # bytes from the world
    received: int = 0  # bytes to the world
    seconds: float = 0.0


class ConnectionLog:
    """The connections of one world. clock: Unix seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._count = 0
        self._began = f"{clock():.6f}"
        self._made: deque[Connection] = deque(maxlen=KEPT)
        self._refused: deque[Connection] = deque(maxlen=KEPT)
        self._open: dict[str, Connection] = {}
        self._files: ConnectionFiles | None = None

    def keep_in(self, files: ConnectionFiles) -> None:
        """Write what comes from now on into files, too."""
        self._files = files

    def begin(self, protocol: str, host: str, port: int) -> Connection:
        self._count += 1
        now = self._clock()
        return Connection(f"{self._began}-{self._count}", now, protocol, _short(host), port, Outcome.OPEN)

    def opened(self, one: Connection) -> None:
        """It is allowed and goes on."""
        self._open[one.id] = one
        self._write(one)

    def ended(self, one: Connection) -> Connection:
        """It has ended, as its outcome says."""
        self._open.pop(one.id, None)
        done = replace(one, why=_short(one.why), seconds=round(max(0.0, self._clock() - one.at), 3))
        (self._refused if done.outcome is Outcome.REFUSED else self._made).append(done)
        self._write(done)
        return done

    def all(self) -> list[Connection]:
        """The last connections, oldest first."""
        return sorted([*self._made, *self._refused, *self._open.values()], key=lambda one: one.at)

    def _write(self, one: Connection) -> None:
        if self._files is not None:
            self._files.append(one)


class ConnectionFiles:
    """Two bounded files of JSON lines for each kind. `place`: their path without an ending. A connection has a line
    when it begins and one when it ends; the later one counts."""

    def __init__(self, place: Path) -> None:
        self._place = place

    def append(self, one: Connection) -> None:
        """Never raises: a full disk must not cost the world its connection; `read` shows what was kept."""
        path = self._path(one.outcome is Outcome.REFUSED)
        with suppress(OSError):
            paths.make_private(path.parent)
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            try:
                os.write(handle, json.dumps(asdict(one)).encode() + b"\n")
                full = os.fstat(handle).st_size > FILE_BYTES
            finally:
                os.close(handle)
            if full:
                path.replace(_before(path))

    def read(self) -> list[Connection]:
        """The connections in the files, oldest first. Half a line, of a crash, is left out."""
        found: dict[str, Connection] = {}
        for refused in (False, True):
            current = self._path(refused)
            for path in (_before(current), current):
                for one in _lines(path):
                    found[one.id] = one
        return sorted(found.values(), key=lambda one: one.at)

    def remove(self) -> None:
        for refused in (False, True):
            current = self._path(refused)
            for path in (current, _before(current)):
                path.unlink(missing_ok=True)

    def _path(self, refused: bool) -> Path:
        return self._place.with_name(f"{self._place.name}.{'refused' if refused else 'connections'}")


def _before(path: Path) -> Path:
    return path.with_name(f"{path.name}.before")


def _lines(path: Path) -> Iterator[Connection]:
    try:
        text = path.read_text(errors="replace")
    except FileNotFoundError:
        return
    for line in text.splitlines():
        try:
            said: dict[str, Any] = json.loads(line)
            one = Connection(**{**said, "outcome": Outcome(said["outcome"])})
        except (ValueError, TypeError, KeyError, RecursionError):
            continue
        if _has_types(one):  # the home may come from somebody else
            yield one


def _has_types(one: Connection) -> bool:
    numbers = (one.at, one.seconds, one.port, one.sent, one.received)
    texts = (one.id, one.protocol, one.host, one.why, one.address)
    return all(isinstance(value, str) for value in texts) and all(
        isinstance(value, int | float) and math.isfinite(value) for value in numbers
    )


def _short(text: str) -> str:
    """A text that a world chose, bounded, and without what acts on a terminal."""
    safe = "".join(c if " " <= c <= "~" else "?" for c in text[:_LONGEST])
    return safe if len(text) <= _LONGEST else safe[:-1] + "~"
