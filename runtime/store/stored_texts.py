"""How a long text is written against one that the database holds already. Pure.

A run's values grow: a list of messages, returned by each step, sent with each model call, gets one more each time. As
text it is the old one and some more, so only what follows the common beginning is kept, and the old one's name. What
follows is compressed, with the old text as the dictionary: the end of the JSON is in it, too, and what is like it.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

Digest = str

WORTH_SHARING = 160  # bytes of a common beginning: a reference costs about as much as fewer
WORTH_PACKING, WORTH_PACKING_WITH_WORDS = 200, 48  # bytes to be compressed
LEVEL, LEVEL_WITH_WORDS = 1, 6  # zlib's: with a dictionary it pays to look for the long match
WINDOW = 32768  # that zlib looks back at most: it takes a quarter of a megabyte for it, so less where less will do
_LOOKAHEAD = 262  # bytes of its window that zlib keeps for itself
_RAW, _SQUEEZED = b"\0", b"\1"  # the first byte of a tail


@dataclass(frozen=True, slots=True)
class Packed:
    """A text whole, or `keep` bytes of its base's and a tail."""

    text: str
    base: Digest | None = None
    keep: int = 0
    tail: bytes = b""


def pack(text: str, data: bytes, bases: Iterable[tuple[Digest, bytes]]) -> Packed:
    """`data`: the text's bytes; `bases`: what it may be written against. The one it shares most with is taken."""
    keep, base, old = 0, None, b""
    for digest, other in bases:
        if len(other) > keep and len(data) > keep and (shared := common(other, data)) > keep:
            keep, base, old = shared, digest, other
    if base is None or keep < WORTH_SHARING:
        return Packed(text)
    squeezed = compress(data[keep:], old[-WINDOW:])
    return Packed("", base, keep, _RAW + data[keep:] if squeezed is None else _SQUEEZED + squeezed)


def unpack(wanted: Iterable[Digest], packed: Mapping[Digest, Packed]) -> dict[Digest, str]:
    """The texts of these names. Raises `KeyError` for one that is not there, or whose base is not."""
    whole: dict[Digest, bytes] = {}
    return {digest: from_bytes(_bytes(digest, packed, whole)) for digest in wanted}


def _bytes(digest: Digest, packed: Mapping[Digest, Packed], whole: dict[Digest, bytes]) -> bytes:
    chain: list[tuple[Digest, Packed]] = []
    at: Digest | None = digest
    while at is not None and at not in whole:
        chain.append((at, packed[at]))
        at = packed[at].base
    for name, link in reversed(chain):
        whole[name] = to_bytes(link.text) if link.base is None else _joined(whole[link.base], link)
    return whole[digest]


def _joined(base: bytes, link: Packed) -> bytes:
    mark, tail = link.tail[:1], link.tail[1:]
    return base[: link.keep] + (tail if mark == _RAW else expand(tail, base[-WINDOW:]))


def to_bytes(text: str) -> bytes:
    """Lone surrogates count as they are."""
    return text.encode("utf-8", "surrogatepass")


def from_bytes(data: bytes) -> str:
    return data.decode("utf-8", "surrogatepass")


def compress(data: bytes, dictionary: bytes = b"") -> bytes | None:
    """None where it would not get smaller."""
    if len(data) < (WORTH_PACKING_WITH_WORDS if dictionary else WORTH_PACKING):
        return None
    level = LEVEL_WITH_WORDS if dictionary else LEVEL
    bits = min(15, max(9, (len(data) + len(dictionary) + _LOOKAHEAD).bit_length()))  # that span all of it
    squeezer = zlib.compressobj(level, zlib.DEFLATED, -bits, min(8, bits - 7), zdict=dictionary[-WINDOW:])
    squeezed = squeezer.compress(data) + squeezer.flush()
    return squeezed if len(squeezed) < len(data) else None


def expand(data: bytes, dictionary: bytes = b"") -> bytes:
    """Raises `zlib.error` where the bytes are not what was written."""
    return zlib.decompressobj(-15, zdict=dictionary[-WINDOW:]).decompress(data)


def common(one: bytes, other: bytes) -> int:
    """The length of their common beginning, by halving: comparing slices is what C does fast."""
    low, high = 0, min(len(one), len(other))
    if one[:high] == other[:high]:
        return high
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


ESCAPED = "\x01"


def written(text: str) -> str:
    """What no database holds (a surrogate from a name that is not UTF-8, a NUL) becomes escapes behind a mark;
    all else stays as it is, readable by other tools."""
    return text if _storable(text) else escaped(text)


def escaped(text: str) -> str:
    return ESCAPED + text.encode("unicode_escape").decode("ascii")


def unescape_text(text: str) -> str:
    """What `written` was given."""
    if not text.startswith(ESCAPED):
        return text
    return text[1:].encode("ascii").decode("unicode_escape")


def _storable(text: str) -> bool:
    if text.isascii():
        return "\0" not in text and not text.startswith(ESCAPED)
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return "\0" not in text and not text.startswith(ESCAPED)
