"""Write encoded values as JSON, in parts: so the text of a long value is made without a second one."""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Iterator
from itertools import islice
from json.encoder import encode_basestring, encode_basestring_ascii
from typing import Any

from ramify.runtime.codec.canonical import base64_of
from ramify.runtime.codec.long_texts import PIECE, parts_of_base64, parts_of_string

_IN_PLACE = 33 << 20  # bytes: C libraries extend a longer string without a copy
_GROWS = 4  # a part has at most so many times the items of the part before
_DEEP = 16  # in containers that are nested more deeply, parts are not divided
_DIVIDED = 4096  # items that are looked at one by one


class _LongBytes(Exception):
    """The items of a part hold long bytes."""


def _short_base64(leaf: object) -> str:
    if type(leaf) is bytes and len(leaf) > PIECE:
        raise _LongBytes
    return base64_of(leaf)


def written(encoded: Any, *, unicode: bool = False, in_order: bool = False) -> str:
    """Return an encoded value as one text. unicode: characters beyond ASCII stay. in_order: objects are sorted."""
    text: str = _dump(unicode, in_order, base64_of)(encoded)
    return text


def written_in_parts(encoded: Any, *, unicode: bool = False) -> str:
    """Return `written(encoded, unicode=unicode)`. It needs hardly more memory than the text."""
    parts, held, size = parts_of(encoded, unicode=unicode), list[str](), 0
    for part in parts:
        held.append(part)
        size += sys.getsizeof(part)
        if size > _IN_PLACE:
            break
    whole = "".join(held)
    held.clear()
    for part in parts:
        whole += part  # in place, so it needs half the memory of `join`
    return whole


def parts_of(encoded: Any, *, unicode: bool = False, in_order: bool = False) -> Iterator[str]:
    """Yield the text of `written` in parts of about `PIECE` characters."""
    return _Parts(unicode=unicode, in_order=in_order).of(encoded, 0)


@functools.cache
def _dump(unicode: bool, in_order: bool, default: Any) -> Any:
    how = {"ensure_ascii": not unicode, "sort_keys": in_order, "check_circular": False}  # it has no cycle
    return json.JSONEncoder(separators=(",", ":"), default=default, **how).encode


class _Parts:
    def __init__(self, *, unicode: bool, in_order: bool) -> None:
        self._in_order, self._left = in_order, _DIVIDED
        self._dump, self._dump_short = (_dump(unicode, in_order, each) for each in (base64_of, _short_base64))
        self._string = encode_basestring if unicode else encode_basestring_ascii

    def of(self, encoded: Any, depth: int) -> Iterator[str]:
        kind = type(encoded)
        if kind is bytes:
            yield '"'
            yield from parts_of_base64(encoded)
            yield '"'
        elif kind is str and len(encoded) > PIECE:
            yield from parts_of_string(encoded, self._string)
        elif kind in (list, dict) and encoded and self._left > 0 and depth < _DEEP:
            yield from self._of_items(encoded, depth + 1)
        else:
            yield self._dump(encoded)

    def _of_items(self, encoded: Any, depth: int) -> Iterator[str]:
        """Yield the parts of a list or an object. How many items are a part depends on the length of the one
        before."""
        is_list = type(encoded) is list
        names = iter(sorted(encoded) if self._in_order and not is_list else encoded)
        yield "[" if is_list else "{"
        at, some = 0, 1
        while at < len(encoded):
            if at:
                yield ","
            found = encoded[at : at + some] if is_list else {name: encoded[name] for name in islice(names, some)}
            at += len(found)
            length = 1
            for part in self._of_some(found, depth):
                length += len(part)
                yield part
            some = max(1, min(some * _GROWS, some * PIECE // length))
        yield "]" if is_list else "}"

    def _of_some(self, found: Any, depth: int) -> Iterator[str]:
        """Yield the text of some items, without the brackets around them."""
        if len(found) > 1:
            try:
                yield self._dump_short(found)[1:-1]
                return
            except _LongBytes:
                pass
        is_list = type(found) is list
        for number, each in enumerate(found if is_list else found.items()):
            self._left -= 1
            comma = "," if number else ""
            if is_list:
                yield comma
                yield from self.of(each, depth)
            else:
                yield f"{comma}{self._string(each[0])}:"
                yield from self.of(each[1], depth)
