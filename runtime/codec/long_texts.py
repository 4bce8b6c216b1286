"""Long encoded texts: their digests in pieces, without parsing or copying their long strings, and when characters
beyond ASCII are written as they are.

A digest is always that of the ASCII form (`\\u00e9`), so it does not depend on how the text was written.
"""

from __future__ import annotations

import binascii
import hashlib
import io
import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from json.encoder import encode_basestring_ascii
from typing import Any

PIECE = 1 << 20
"""The number of characters that are worked on at once. Longer texts are long."""

_BYTES, _BASE64 = 3 << 18, 4 << 18  # three bytes are four characters of base64
_LIFTED = 1 << 16  # the minimal length of a string that is not parsed
_DENSE = 64  # characters for each quote: where there are fewer, most strings are short, and parsing costs less
_MARK = "\\u0000lifted "  # stands for a lifted string, with its number: as it is in the text of a JSON string
_READ = json.JSONDecoder().raw_decode
_IN_PYTHON = "\0lifted "
_STRING = re.compile(r'"(?:[^"\\]++|\\.)*+"')
_PLACE = re.compile(r'"\\u0000lifted (\d+)"')


def pieces_of(text: str) -> Iterator[str]:
    """Yield the text in pieces of `PIECE` characters."""
    for at in range(0, len(text), PIECE):
        yield text[at : at + PIECE]


def ascii_form(piece: str) -> bytes:
    """Return a piece of a JSON text as `json.dumps` writes it with `ensure_ascii`."""
    if piece.isascii() and "\x7f" not in piece:
        return piece.encode()
    escaped: str = encode_basestring_ascii(piece)[1:-1]
    # The quotes and backslashes of the piece are JSON's own, and must not be escaped again. A quote follows its new
    # backslash directly, and a run of backslashes begins with the doubled ones.
    return escaped.replace('\\"', '"').replace("\\\\", "\\").encode()


def sha256_of(texts: Iterable[str]) -> str:
    """Return the sha256 (hex) of the ASCII form of consecutive texts."""
    found = hashlib.sha256()
    for text in texts:
        for piece in pieces_of(text):
            found.update(ascii_form(piece))
    return found.hexdigest()


class OrderUnknown(Exception):
    """The order of items depends on strings that are not at hand."""


def canonical_parts(text: str, canonical: Callable[[str, str | None], str]) -> Iterator[str]:
    """Yield the canonical form of a text in parts. Its long strings are not parsed.

    canonical: returns the canonical form of a text. It also gets the mark that stands for the long strings of this
    text, or None. Where an order depends on a marked string, it raises `OrderUnknown`. Then the whole text is parsed.
    """
    if _MARK in text or len(text) < _DENSE * (text.count('"') - text.count('\\"')):
        yield canonical(text, None)
        return
    rest, lifted = _split(text)
    try:
        whole = canonical(rest, _MARK if lifted else None)
    except OrderUnknown:
        yield canonical(text, None)
        return
    at = 0
    for place in _PLACE.finditer(whole):
        yield whole[at : place.start()]
        begin, end = lifted[int(place[1])]
        for since in range(begin, end, PIECE):
            yield text[since : min(since + PIECE, end)]
        at = place.end()
    yield whole[at:]


def _split(text: str) -> tuple[str, list[tuple[int, int]]]:
    """Return the text with marks in place of its long strings, and where those are. Keys are left in place."""
    rest, lifted, at = list[str](), list[tuple[int, int]](), 0
    begin = text.find('"')
    while begin >= 0:
        end = text.find('"', begin + 1) + 1
        if end == 0 or text[end - 2] == "\\":  # the quote may be escaped
            end = _end_of_string(text, begin)
        if end - begin >= _LIFTED and text[end : end + 1] != ":":
            rest += (text[at:begin], f'"{_MARK}{len(lifted)}"')
            lifted.append((begin, end))
            at = end
        begin = text.find('"', end)
    rest.append(text[at:])
    return "".join(rest), lifted


def _end_of_string(text: str, begin: int) -> int:
    found = _STRING.match(text, begin)
    if found is None:
        raise ValueError(f"the string at character {begin} has no end")
    return found.end()


def mark(number: int) -> str:
    """Return the string that stands for a lifted one."""
    return f"{_IN_PYTHON}{number}"


def has_surrogates(text: str) -> bool:
    """Whether a text contains surrogates, which a database cannot store."""
    try:
        for piece in pieces_of(text):
            piece.encode()
    except UnicodeEncodeError:
        return True
    return False


def is_shorter_in_unicode(value: str) -> bool:
    """Whether a string that is not ASCII takes less memory in JSON with its characters as they are. False if it has
    surrogates: it is written in ASCII."""
    width, beyond = 1, 0
    for piece in pieces_of(value):
        try:
            data = piece.encode("utf-16-le")
        except UnicodeEncodeError:
            return False
        beyond += len(piece) - len(piece.encode("ascii", "ignore"))
        width = max(width, _width(piece, len(data)))
    return width * len(value) < len(value) + 5 * beyond  # é is é or \\u00e9


def _width(piece: str, bytes_of_utf16: int) -> int:
    """Return how many bytes a character of the piece takes in memory."""
    if bytes_of_utf16 > 2 * len(piece):
        return 4
    try:
        piece.encode("latin-1")
    except UnicodeEncodeError:
        return 2
    return 1


def parts_of_string(value: str) -> Iterator[str]:
    """Yield the JSON of a string in parts, in ASCII."""
    yield '"'
    for piece in pieces_of(value):
        yield encode_basestring_ascii(piece)[1:-1]
    yield '"'


def parts_of_base64(value: bytes | bytearray) -> Iterator[str]:
    """Yield the base64 of bytes in parts."""
    for at in range(0, len(value), _BYTES):
        yield binascii.b2a_base64(value[at : at + _BYTES], newline=False).decode("ascii")


def with_bytes(text: str, lifted: Sequence[bytes | bytearray]) -> str | None:
    """Put the base64 of lifted bytes in the places of their marks. None if the value has such a string of its own, or
    lacks a mark."""
    if text.count(_MARK) != len(lifted):
        return None
    whole = ""
    for part in _parts_with_bytes(text, lifted):
        whole += part  # in place, so it needs half the memory of `join`
    return whole


def _parts_with_bytes(text: str, lifted: Sequence[bytes | bytearray]) -> Iterator[str]:
    at = 0
    for place in _PLACE.finditer(text):
        yield text[at : place.start() + 1]
        yield from parts_of_base64(lifted[int(place[1])])
        at = place.end() - 1
    yield text[at:]


def parse(text: str) -> Any:
    """Return `json.loads(text)`. Where the text has long base64, the result has the bytes."""
    if len(text) <= PIECE or '"$":"byte' not in text or _MARK in text:
        return json.loads(text)
    rest, lifted = _split(text)
    return _restored(json.loads(rest), text, lifted)


def _restored(value: Any, text: str, lifted: Sequence[tuple[int, int]]) -> Any:
    if isinstance(value, str):
        return _READ(text, lifted[_number(value)][0])[0] if value.startswith(_IN_PYTHON) else value
    if isinstance(value, list):
        return [_restored(one, text, lifted) for one in value]
    if not isinstance(value, dict):
        return value
    if value.get("$") in ("bytes", "bytearray") and value["v"].startswith(_IN_PYTHON):
        return {**value, "v": _bytes_of(text, *lifted[_number(value["v"])])}
    return {key: _restored(one, text, lifted) for key, one in value.items()}


def _number(mark: str) -> int:
    return int(mark.removeprefix(_IN_PYTHON))


def _bytes_of(text: str, begin: int, end: int) -> bytes:
    """Return the bytes whose base64 is the string at this place, quotes included."""
    found = io.BytesIO()
    for at in range(begin + 1, end - 1, _BASE64):
        found.write(binascii.a2b_base64(text[at : min(at + _BASE64, end - 1)]))
    return found.getvalue()
