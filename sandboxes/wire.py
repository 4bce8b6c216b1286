"""The messages between the host and a world's agent, and how they travel. No logic; stdlib only.

A frame is two lengths, a JSON object that names the message and its fields, and the fields that are bytes, exact,
one after the other. One frame asks, one answers; `Cancel` alone has no answer of its own.
"""

from __future__ import annotations

import json
import socket
import struct
from dataclasses import dataclass, field, fields

LENGTHS = struct.Struct("!IQ")


@dataclass(frozen=True, slots=True)
class View:
    """What an isolated world is built from. Paths are the host's."""

    folder: str  # the world's own folder: holds upper, work and the empty `root`
    store: str  # holds the lower folders
    hidden: list[str]  # covered, so that commands cannot read them
    visible: list[str]  # shown although they lie under a hidden place


@dataclass(frozen=True, slots=True)
class Attach:
    """Mount the tree (again), the shell back in its directory. Paths are the host's, the bottom layer first."""

    lowers: list[str]
    upper: str
    work: str


@dataclass(frozen=True, slots=True)
class Start:
    """The first frame: what the world is. Answered by `Ready` or `Failed`."""

    tree: str  # where commands see the world's tree
    private: str  # the agent's own folder, as the agent sees it
    bash: str
    env: dict[str, str]
    cwd: str  # relative to the tree
    max_output: int
    view: View | None = None  # none: no isolation, the tree is a plain folder
    layers: Attach | None = None


@dataclass(frozen=True, slots=True)
class Ready:
    pid: int  # the agent's, as the host counts


@dataclass(frozen=True, slots=True)
class Failed:
    message: str


@dataclass(frozen=True, slots=True)
class Run:
    command: str
    stdin: bytes = b""
    timeout: float | None = None
    env: dict[str, str] = field(default_factory=dict)
    cwd: str | None = None


@dataclass(frozen=True, slots=True)
class Cancel:
    """Kill what the `Run` under way started; its `Ran` comes as after a timeout."""


@dataclass(frozen=True, slots=True)
class Ran:
    exit_code: int
    stdout: bytes
    stderr: bytes
    duration_s: float
    timed_out: bool
    truncated: bool


@dataclass(frozen=True, slots=True)
class Look:
    """Asks for what a seal records beside the files."""


@dataclass(frozen=True, slots=True)
class Looked:
    env: dict[str, str]
    cwd: str  # absolute, as the world sees it
    others: int  # live processes beside the shell


@dataclass(frozen=True, slots=True)
class Detach:
    """Take the tree's mount away, the shell out of it first. `Done(False)`: something holds it; nothing changed."""


@dataclass(frozen=True, slots=True)
class Freeze:
    """Stop every process but the shell, until `Thaw`."""


@dataclass(frozen=True, slots=True)
class Thaw:
    pass


@dataclass(frozen=True, slots=True)
class Done:
    ok: bool = True


Message = Start | Ready | Failed | Run | Cancel | Ran | Look | Looked | Detach | Attach | Freeze | Thaw | Done
KINDS: dict[str, type[Message]] = {
    kind.__name__: kind
    for kind in (Start, Ready, Failed, Run, Cancel, Ran, Look, Looked, Detach, Attach, Freeze, Thaw, Done)
}


def encode(message: Message) -> bytes:
    plain: dict[str, object] = {}
    blobs: list[tuple[str, int]] = []
    parts: list[bytes] = []
    for f in fields(message):
        value = getattr(message, f.name)
        if isinstance(value, bytes):
            blobs.append((f.name, len(value)))
            parts.append(value)
        else:
            plain[f.name] = value
    head = json.dumps([type(message).__name__, plain, blobs], default=_nested).encode()
    return b"".join((LENGTHS.pack(len(head), sum(map(len, parts))), head, *parts))


def _nested(value: object) -> dict[str, object]:
    if not isinstance(value, View | Attach):
        raise TypeError(f"not a part of a message: {value!r}")
    return {f.name: getattr(value, f.name) for f in fields(value)}


def decode(head: bytes, body: bytes) -> Message:
    kind, values, blobs = json.loads(head)
    at = 0
    for name, length in blobs:
        values[name] = body[at : at + length]
        at += length
    if kind == "Start" and values["view"] is not None:
        values["view"] = View(**values["view"])
        values["layers"] = Attach(**values["layers"])
    return KINDS[kind](**values)


class Link:
    """The agent's end of a world's socket: blocking, a whole frame at a time."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock

    def send(self, message: Message) -> None:
        self.sock.sendall(encode(message))

    def receive(self) -> Message | None:
        """The next message; none where the host hung up."""
        lengths = self._exactly(LENGTHS.size)
        if lengths is None:
            return None
        head_length, body_length = LENGTHS.unpack(lengths)
        head, body = self._exactly(head_length), self._exactly(body_length)
        return None if head is None or body is None else decode(head, body)

    def _exactly(self, length: int) -> bytes | None:
        data = bytearray()
        while len(data) < length:
            chunk = self.sock.recv(min(length - len(data), 1 << 20))
            if not chunk:
                return None
            data += chunk
        return bytes(data)
