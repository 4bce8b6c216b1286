"""Server-sent events, cut out of a byte stream and otherwise unchanged, because they are passed on as they came."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterable, Mapping
from dataclasses import dataclass

from ramify.serving.protocol.wire import Malformed

DONE = b"[DONE]"
_MAX_EVENT = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Event:
    """One event: its bytes without the blank line that ends it, and its data."""

    raw: bytes
    data: bytes  # empty for a comment, which an engine may send to keep a connection open


def encode(value: Mapping[str, object]) -> bytes:
    """JSON that any server can read. It is ASCII, so that half a surrogate pair from a client passes unchanged.

    Raises ValueError for a value that JSON does not have, and RecursionError for nesting that is too deep.
    """
    return json.dumps(value, separators=(",", ":"), allow_nan=False).encode("ascii")


def event(value: Mapping[str, object], name: str | None = None) -> bytes:
    """The bytes of one event, with its blank line."""
    return (f"event: {name}\n" if name else "").encode() + b"data: " + encode(value) + b"\n\n"


async def events(chunks: AsyncIterable[bytes]) -> AsyncGenerator[list[Event], None]:
    """Yield the events of a stream, grouped as they came. An event without a closing blank line is not yielded.

    It splits at newlines only: JSON may hold a raw U+2028. `null` is left out: llama.cpp's streams for several
    prompts begin with it. Raises Malformed for an event without end.
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
        if found := [Event(block, data) for block in blocks if block and (data := _data(block)) != b"null"]:
            yield found


def _data(block: bytes) -> bytes:
    if block.startswith(b"data:") and b"\n" not in block:
        return block[5:].strip()
    return b"\n".join(line[5:].strip() for line in block.split(b"\n") if line.startswith(b"data:"))
