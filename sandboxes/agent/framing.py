"""Messages as frames, and the agent's end of the socket that carries them. Stdlib only.

A frame is two lengths, a JSON object with the message's name and fields, and then the fields that are bytes, in
order.
"""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Sequence
from dataclasses import fields

from ramify.sandboxes.agent.messages import KINDS, Message, View
from ramify.sandboxes.linux import kernel
from ramify.sandboxes.linux.resource_limits import Bounds

LENGTHS = struct.Struct("!IQ")
MOST_PASSED = 16  # descriptors sent with one message
MOST_TAKEN = 1 << 16  # bytes read from the socket at once
NAMES = {kind: tuple(f.name for f in fields(kind)) for kind in KINDS.values()}
_CHECKED = {"str": str, "bytes": bytes, "int": int}
TYPES = {kind: {f.name: _CHECKED[str(f.type)] for f in fields(kind) if f.type in _CHECKED} for kind in KINDS.values()}
"""Fields whose type is checked, since users give some of their values: an agent that got another one would end."""


def encode(message: Message) -> bytes:
    """One frame. Raises `TypeError` for a field of another type than its own."""
    plain: dict[str, object] = {}
    blobs: list[tuple[str, int]] = []
    parts: list[bytes] = []
    types = TYPES[type(message)]
    for name in NAMES[type(message)]:
        value = getattr(message, name)
        if name in types and not isinstance(value, types[name]):
            raise TypeError(f"{name} is to be of type {types[name].__name__}, and is a {type(value).__name__}")
        if isinstance(value, bytes):
            blobs.append((name, len(value)))
            parts.append(value)
        else:
            plain[name] = value
    head = json.dumps([type(message).__name__, plain, blobs], default=_nested).encode()
    return b"".join((LENGTHS.pack(len(head), sum(map(len, parts))), head, *parts))


def _nested(value: object) -> dict[str, object]:
    if not isinstance(value, View | Bounds):
        raise TypeError(f"not part of a message: {value!r}")
    return {f.name: getattr(value, f.name) for f in fields(value)}


def decode(head: bytes, body: bytes) -> Message:
    """The message of a frame's two parts."""
    kind, values, blobs = json.loads(head)
    at = 0
    for name, length in blobs:
        values[name] = body[at : at + length]
        at += length
    if kind == "Start":
        values["bounds"] = Bounds(**values["bounds"])
    if kind == "Start" and values["view"] is not None:
        values["view"] = View(**values["view"])
    return KINDS[kind](**values)


def decode_packet(packet: bytes) -> Message:
    """The message of a whole frame."""
    head, body = LENGTHS.unpack_from(packet)
    begin = LENGTHS.size + head
    return decode(packet[LENGTHS.size : begin], packet[begin : begin + body])


class Link:
    """The agent's end of a world's socket (also the probe's): blocking, one whole frame at a time."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self._heard = bytearray()
        self.passed: list[int] = []  # descriptors sent along; the message's handler takes and closes them

    def send(self, message: Message, passing: Sequence[int] = ()) -> None:
        data = encode(message)
        if passing:
            data = data[socket.send_fds(self.sock, [data], list(passing)) :]
        self.sock.sendall(data)

    @property
    def waiting(self) -> bool:
        """Whether more than the last message has arrived: then the socket may not announce it again."""
        return len(self._heard) > 0

    def receive(self) -> Message | None:
        """The next message; None if the host hung up."""
        if not self._hold(LENGTHS.size):
            return None
        head_length, body_length = LENGTHS.unpack_from(self._heard)
        begin, end = LENGTHS.size + head_length, LENGTHS.size + head_length + body_length
        if not self._hold(end):
            return None
        message = decode(bytes(self._heard[LENGTHS.size : begin]), bytes(self._heard[begin:end]))
        del self._heard[:end]
        return message

    def _hold(self, length: int) -> bool:
        while len(self._heard) < length:
            chunk, passed = kernel.receive_descriptors(self.sock, MOST_TAKEN, MOST_PASSED)
            self.passed += passed
            if not chunk:
                return False
            self._heard += chunk
        return True
