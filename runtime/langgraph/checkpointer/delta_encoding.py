"""How a serialised value is stored as its difference to a value that the database holds. Pure functions.

A channel's value grows: a list of messages gets one more with each step. Serialised, it is the old bytes followed by
new ones (after a header that counts the elements), so only what follows the common prefix is stored, with a reference
to the old value. Most new bytes were stored once before, as the write of the task that made them: they are compressed
with that write as the dictionary. So a database grows only with what is new, whatever the type of the value.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ramify.runtime.store.stored_texts import common, compress, expand

ValueId = int

WORTH_SHARING = 64  # bytes of a common prefix: a reference takes about as much space as fewer


class Serialised(NamedTuple):
    """A value as LangGraph's serialiser wrote it."""

    kind: str
    data: bytes

    @property
    def digest(self) -> bytes:
        made = hashlib.blake2b(self.kind.encode() + b"\0", digest_size=16)
        made.update(self.data)
        return made.digest()


class Packed(NamedTuple):
    """A value as stored: `head`, then the first `keep` bytes of the base's payload, then the tail.

    `words` are the values whose concatenated bytes are the dictionary with which the tail was compressed.
    """

    kind: str
    tail: bytes
    head: bytes = b""
    base: ValueId | None = None
    keep: int = 0
    compressed: bool = False
    words: tuple[ValueId, ...] = ()


def split(value: Serialised) -> tuple[bytes, bytes]:
    """Split off the header that counts the elements of a msgpack array; other values have an empty header."""
    first = value.data[0] if value.kind == "msgpack" and value.data else 0
    length = 1 if 0x90 <= first <= 0x9F else {0xDC: 3, 0xDD: 5}.get(first, 0)
    return value.data[:length], value.data[length:]


def pack(
    value: Serialised,
    base: tuple[ValueId, Serialised] | None = None,
    words: Sequence[tuple[ValueId, bytes]] = (),
) -> Packed:
    head, payload = split(value)
    keep, base_id = 0, None
    if base is not None:
        keep = common(split(base[1])[1], payload)
        base_id = base[0] if keep >= WORTH_SHARING else None
    if base_id is None:
        head, payload, keep = b"", value.data, 0
    tail = payload[keep:]
    squeezed = compress(tail, b"".join(data for _, data in words))
    if squeezed is not None:
        return Packed(value.kind, squeezed, head, base_id, keep, True, tuple(id for id, _ in words))
    return Packed(value.kind, tail, head, base_id, keep)


def unpack(id: ValueId, packed: Mapping[ValueId, Packed]) -> Serialised:
    """Rebuild a value from its chain of bases. Raises `KeyError` if a link is missing."""
    value = packed[id]
    chain = [value]
    while chain[-1].base is not None:
        chain.append(packed[chain[-1].base])
    pieces: list[bytes] = []
    length = 0
    for at, link in enumerate(reversed(chain)):
        tail = _tail(link, packed)
        if at == 0 and len(chain) > 1:  # the root is stored whole; the others count from its payload
            tail = split(Serialised(link.kind, tail))[1]
        while length > link.keep:
            last = pieces.pop()
            length -= len(last)
            if length < link.keep:
                pieces.append(last[: link.keep - length])
                length = link.keep
        pieces.append(tail)
        length += len(tail)
    return Serialised(value.kind, value.head + b"".join(pieces))


def _tail(link: Packed, packed: Mapping[ValueId, Packed]) -> bytes:
    if not link.compressed:
        return link.tail
    return expand(link.tail, b"".join(unpack(word, packed).data for word in link.words))
