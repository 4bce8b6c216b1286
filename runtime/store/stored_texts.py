"""How texts are stored in the database: escaped if needed, and long ones as a difference to another text. Pure.

The values of a run grow: a list of messages that each step returns gets one more message each time. As text it is the
old text with an addition. So only the digest of the old text (the base), the length of the common beginning, and the
rest (the tail) are stored. The tail is compressed with the old text as the dictionary.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

Digest = str

PIECE = 1 << 20  # characters: longer texts are written in pieces
WORTH_SHARING = 160  # minimal length of a common beginning in bytes: a reference costs about as much
WORTH_PACKING, WORTH_PACKING_WITH_WORDS = 200, 48  # minimal bytes to compress, without and with a dictionary
LEVEL, LEVEL_WITH_WORDS = 1, 6  # zlib levels: with a dictionary, searching for long matches pays off
WINDOW = 32768  # zlib's largest window, which costs 256 KB of memory: smaller ones are used if they suffice
_LOOKAHEAD = 262  # bytes of its window that zlib reserves
_RAW, SQUEEZED = b"\0", b"\1"  # the first byte of a tail: not compressed, compressed


class TextMissing(KeyError):
    """A text that a row or another text names is not there: it was deleted meanwhile, or the database is damaged."""


class Named(NamedTuple):
    """A text and the digest that names it. beginnings: of a long text, the name and the number of bytes of each
    beginning that is stored as a text of its own, and of the whole text."""

    text: str
    name: Digest
    beginnings: tuple[tuple[Digest, int], ...] = ()


def named(text: str) -> Named:
    """Return the text with its name. It is digested once."""
    if len(text) <= PIECE:
        return Named(text, hashlib.sha256(to_bytes(text)).hexdigest())
    found, size = hashlib.sha256(), 0
    beginnings: list[tuple[Digest, int]] = []
    for at in range(0, len(text), PIECE):
        data = to_bytes(text[at : at + PIECE])
        found.update(data)
        size += len(data)
        beginnings.append((found.hexdigest(), size))
    return Named(text, found.hexdigest(), tuple(beginnings))


@dataclass(frozen=True, slots=True)
class Packed:
    """A whole text, or the first `keep` bytes of a base and a tail. beginnings: of a whole text, see `Named`."""

    text: str
    base: Digest | None = None
    keep: int = 0
    tail: bytes = b""
    beginnings: tuple[tuple[Digest, int], ...] = ()


def pack(text: str, data: bytes, bases: Iterable[tuple[Digest, bytes]]) -> Packed:
    """Pack a text against the base with the longest common beginning. `data`: the text's bytes. `bases`:
    candidates."""
    keep, base, old = 0, None, b""
    for digest, other in bases:
        if len(other) > keep and len(data) > keep and (shared := common(other, data)) > keep:
            keep, base, old = shared, digest, other
    if base is None or keep < WORTH_SHARING:
        return Packed(text)
    squeezed = compress(data[keep:], old[-WINDOW:])
    return Packed("", base, keep, _RAW + data[keep:] if squeezed is None else SQUEEZED + squeezed)


def packed_in_pieces(text: str, beginnings: Sequence[tuple[Digest, int]]) -> Iterator[tuple[Digest, Packed]]:
    """Yield a long text as a chain of texts, each of which continues the one after it; the first one is the whole
    text. So a database never gets more than a piece at once. beginnings: see `Named`."""
    for number in range(len(beginnings) - 1, 0, -1):
        name, (base, keep) = beginnings[number][0], beginnings[number - 1]
        tail = _RAW + to_bytes(text[number * PIECE : (number + 1) * PIECE])
        yield name, Packed("", base, keep, tail)
    yield beginnings[0][0], Packed(text[:PIECE])


def unpack(wanted: Iterable[Digest], packed: Mapping[Digest, Packed]) -> dict[Digest, str]:
    """Return the texts of these digests. Raises `KeyError` if a text or one of its bases is missing."""
    names, whole = set(wanted), dict[Digest, bytes]()
    return {
        digest: one.text if (one := packed[digest]).base is None else from_bytes(_bytes(digest, packed, whole, names))
        for digest in names
    }


def _bytes(
    digest: Digest, packed: Mapping[Digest, Packed], whole: dict[Digest, bytes], wanted: Collection[Digest]
) -> bytes | bytearray:
    """Return the bytes of a text. `whole`: gets those of its bases that other wanted texts may have too."""
    chain: list[tuple[Digest, Packed]] = []
    at: Digest | None = digest
    while at is not None and at not in whole:
        chain.append((at, packed[at]))
        at = packed[at].base
    made = bytearray() if at is None else bytearray(whole[at])
    for name, link in reversed(chain):
        if link.base is None:
            made += to_bytes(link.text)
        else:
            _continue(made, link)
        if name != digest and (name in wanted or len(made) <= PIECE):
            whole[name] = bytes(made)
    if len(made) <= PIECE:
        whole[digest] = bytes(made)
    return made


def _continue(base: bytearray, link: Packed) -> None:
    """Turn the bytes of a base into those of the text."""
    tail = memoryview(link.tail)[1:] if link.tail[:1] == _RAW else expand(link.tail[1:], bytes(base[-WINDOW:]))
    del base[link.keep :]
    base += tail


def to_bytes(text: str) -> bytes:
    """Return the text as UTF-8; lone surrogates are encoded as they are."""
    return text.encode("utf-8", "surrogatepass")


def from_bytes(data: bytes | bytearray) -> str:
    return data.decode("utf-8", "surrogatepass")


def compress(data: bytes, dictionary: bytes = b"") -> bytes | None:
    """Return the compressed data, or None if it would not get smaller."""
    if len(data) < (WORTH_PACKING_WITH_WORDS if dictionary else WORTH_PACKING):
        return None
    level = LEVEL_WITH_WORDS if dictionary else LEVEL
    bits = min(15, max(9, (len(data) + len(dictionary) + _LOOKAHEAD).bit_length()))  # a window that spans all of it
    squeezer = zlib.compressobj(level, zlib.DEFLATED, -bits, min(8, bits - 7), zdict=dictionary[-WINDOW:])
    squeezed = squeezer.compress(data) + squeezer.flush()
    return squeezed if len(squeezed) < len(data) else None


def expand(data: bytes, dictionary: bytes = b"") -> bytes:
    """Decompress. Raises `zlib.error` if the data is damaged."""
    return zlib.decompressobj(-15, zdict=dictionary[-WINDOW:]).decompress(data)


def common(one: bytes, other: bytes) -> int:
    """Return the length of the common beginning, by bisection: comparing slices is fast in C."""
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
    """Return the text as it is stored: escaped behind a mark if a database cannot store it (a surrogate from a file
    name that is not UTF-8, a NUL), otherwise unchanged and readable by other tools."""
    return text if _storable(text) else escaped(text)


def escaped(text: str) -> str:
    return ESCAPED + text.encode("unicode_escape").decode("ascii")


def unescape_text(text: str) -> str:
    """Return the text that was given to `written`."""
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
