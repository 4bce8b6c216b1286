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

from ramify.runtime.codec.canonical import OrderUnknown, canonical
from ramify.runtime.codec.object_parts import TAG

PIECE = 1 << 20
"""The number of characters that are worked on at once. Longer texts are long."""

_BYTES, _BASE64 = 3 << 18, 4 << 18  # three bytes are four characters of base64
_LIFTED = 1 << 16  # the minimal length of a string that is not parsed
_DENSE = 64  # characters for each quote: where there are fewer, most strings are short, and parsing costs less
_MARK = "\\u0000lifted "  # stands for a lifted string, with its number: as it is in the text of a JSON string
_CANONICAL = json.JSONEncoder(separators=(",", ":"), sort_keys=True).encode
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


def sha256_of_ascii(texts: Iterable[str]) -> str:
    """Return the sha256 (hex) of consecutive texts in ASCII."""
    found = hashlib.sha256()
    for text in texts:
        found.update(text.encode("ascii"))
    return found.hexdigest()


def digest_text(text: str) -> str:
    """Return the sha256 (hex) of a text made by `encode`, independent of the order of dict entries. Its long strings
    are not parsed."""
    if "{" not in text:  # it is its own canonical form
        return sha256_of([text])
    if len(text) <= PIECE:
        return sha256_of_ascii([_canonical_text(text, None)])
    return sha256_of(_canonical_parts(text))


def _canonical_text(text: str, mark: str | None) -> str:
    """Return the canonical form of a text. `mark`: in a text whose long strings are replaced by it."""
    value = json.loads(text)
    return _CANONICAL(canonical(value, mark) if f'"{TAG}":' in text else value)


def _canonical_parts(text: str) -> Iterator[str]:
    """Yield the canonical form of a text in parts. If an order depends on a long string, the whole text is parsed."""
    if _MARK in text or _is_dense(text):
        yield _canonical_text(text, None)
        return
    rest, lifted = _split(text)
    try:
        whole = _canonical_text(rest, _MARK if lifted else None)
    except OrderUnknown:
        yield _canonical_text(text, None)
        return
    at = 0
    for place in _PLACE.finditer(whole):
        yield whole[at : place.start()]
        begin, end = lifted[int(place[1])]
        for since in range(begin, end, PIECE):
            yield text[since : min(since + PIECE, end)]
        at = place.end()
    yield whole[at:]


def _is_dense(text: str) -> bool:
    """Whether most strings of a text are short, so that it takes less time to parse them than to look at each."""
    return len(text) < _DENSE * (text.count('"') - text.count('\\"'))


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


def has_surrogates(text: str) -> bool:
    """Whether a text contains surrogates, which a database cannot store."""
    try:
        for piece in pieces_of(text):
            piece.encode()
    except UnicodeEncodeError:
        return True
    return False


def width_and_more(value: str) -> tuple[int, int] | None:
    """Return how many bytes a character of a string takes in memory, and how many more characters its ASCII form in
    JSON has. None if the string has surrogates, which a database cannot store."""
    width, more = 1, 0
    for piece in pieces_of(value):
        if piece.isascii():
            continue
        try:
            latin = piece.encode("latin-1")
            more += 5 * (len(piece.encode()) - len(latin))  # é is é or \\u00e9
        except UnicodeEncodeError:
            try:
                size = len(piece.encode("utf-16-le"))
            except UnicodeEncodeError:
                return None
            width = max(width, 4 if size > 2 * len(piece) else 2)
            more += 3 * size - len(piece) - 5 * len(piece.encode("ascii", "ignore"))
    return width, more


def parts_of_string(value: str, write: Callable[[str], str]) -> Iterator[str]:
    """Yield the JSON of a string in parts. write: returns that of a piece."""
    yield '"'
    for piece in pieces_of(value):
        yield write(piece)[1:-1]
    yield '"'


def parts_of_base64(value: bytes | bytearray) -> Iterator[str]:
    """Yield the base64 of bytes in parts."""
    for at in range(0, len(value), _BYTES):
        yield binascii.b2a_base64(value[at : at + _BYTES], newline=False).decode("ascii")


def parse(text: str) -> Any:
    """Return `json.loads(text)`. Where the text has long base64, the result has the bytes."""
    if len(text) <= PIECE or '"$":"byte' not in text or _MARK in text or _is_dense(text):
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
