"""How a serialised value is written against what the database holds already. Pure.

A channel's value grows: a list of messages gets one more a step. Serialised it is the old bytes and some new ones
(after a header that counts the elements), so only what follows the common beginning is written, and a reference to
the old value. And what is new has mostly been written once before, as the write of the task that made it: it is
compressed with that as the dictionary. So a database grows with what is new, whatever the type of the value.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ramify.runtime.store.stored_texts import common, compress, expand

ValueId = int

WORTH_SHARING = 64  # bytes of a common beginning: a reference costs about as much as fewer


class Serialised(NamedTuple):
    """What LangGraph's serializer made of a value."""

    kind: str
    data: bytes

    @property
    def digest(self) -> bytes:
        made = hashlib.blake2b(self.kind.encode() + b"\0", digest_size=16)
        made.update(self.data)
        return made.digest()


class Packed(NamedTuple):
    """A value as it lies in the database: `head`, then `keep` bytes of the base's payload, then the tail.

    `words` are the values whose bytes, one after the other, are the dictionary that the tail was compressed with.
    """

    kind: str
    tail: bytes
    head: bytes = b""
    base: ValueId | None = None
    keep: int = 0
    compressed: bool = False
    words: tuple[ValueId, ...] = ()


def split(value: Serialised) -> tuple[bytes, bytes]:
    """The header that counts a msgpack array's elements, and the elements; no header for anything else."""
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
    """A value out of its chain of bases. Raises `KeyError` for a link that is missing."""
    value = packed[id]
    chain = [value]
    while chain[-1].base is not None:
        chain.append(packed[chain[-1].base])
    pieces: list[bytes] = []
    length = 0
    for at, link in enumerate(reversed(chain)):
        tail = _tail(link, packed)
        if at == 0 and len(chain) > 1:  # the root is whole; those above it count from its payload
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
