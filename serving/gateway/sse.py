"""Server-sent events, cut out of a byte stream and otherwise left alone: they are passed on as they came."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterable, Mapping
from dataclasses import dataclass

from ramify.serving.protocol.wire import Malformed

DONE = b"[DONE]"
_MAX_EVENT = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Event:
    """One event: its bytes, as they came but for the blank line that ends it, and its data."""

    raw: bytes
    data: bytes  # empty for a comment, such as an engine sends to keep a connection open


def encode(value: Mapping[str, object]) -> bytes:
    """JSON that any server can read: ASCII, so that half a surrogate pair that a client sent goes on as it came.

    Raises ValueError for what JSON cannot say, RecursionError for nesting too deep.
    """
    return json.dumps(value, separators=(",", ":"), allow_nan=False).encode("ascii")


def event(value: Mapping[str, object], name: str | None = None) -> bytes:
    """An event of ours, blank line and all."""
    return (f"event: {name}\n" if name else "").encode() + b"data: " + encode(value) + b"\n\n"


async def events(chunks: AsyncIterable[bytes]) -> AsyncGenerator[list[Event], None]:
    """The events of a stream, those that came together together. What no blank line ends is not given out.

    Raises Malformed for an event without end. Splits at newlines only: JSON may hold a raw U+2028.
    """
    rest = b""
    async for chunk in chunks:
        text = rest + chunk
        if text.endswith(b"\r"):  # its newline may come with the next chunk
            blocks, rest = [], text
        else:
            *blocks, rest = (text.replace(b"\r\n", b"\n") if b"\r" in text else text).split(b"\n\n")
        if len(rest) > _MAX_EVENT:
            raise Malformed(f"an event of the stream is longer than {_MAX_EVENT} bytes")
        if found := [Event(block, _data(block)) for block in blocks if block]:
            yield found


def _data(block: bytes) -> bytes:
    if block.startswith(b"data:") and b"\n" not in block:
        return block[5:].strip()
    return b"\n".join(line[5:].strip() for line in block.split(b"\n") if line.startswith(b"data:"))
