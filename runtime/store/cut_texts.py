"""Long texts that are shown to people: only their beginning is read, and how long they are.

In place of such a text stands JSON that says so, `{"$": "cut", …}`. Two are equal if the texts are.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, NamedTuple

from ramify.runtime.store.stored_texts import SQUEEZED, Digest, to_bytes

CUT = "cut"
"""The kind of the JSON that stands for a long text."""
LONGER = 1 << 16  # bytes
_BEGINNING = 1 << 12  # bytes
_AT_ONCE = 500  # names in one query

Ask = Callable[[str, Sequence[object]], list[dict[str, Any]]]
"""Returns the rows of a query."""


class _Stored(NamedTuple):
    """How a text is stored. keep: the bytes that it has in common with its base."""

    base: Digest | None
    keep: int | None


def cut_texts(names: Collection[Digest], ask: Ask, *, on_server: bool) -> dict[Digest, str]:
    """Return what stands for those of these texts that are long.

    `exact`: whether a text has just these `bytes`. It has more if it ends with compressed bytes, which are not read.
    """
    size_of_text = "octet_length(text)" if on_server else "length(CAST(text AS BLOB))"
    stored, long = dict[Digest, _Stored](), dict[Digest, dict[str, Any]]()
    for some in _batches(names):
        for row in ask(_query(f"{_HOW}, {size_of_text} AS size", some), some):
            name, keep = row["digest"], row["keep"]
            stored[name] = _Stored(row["base"], keep)
            size = row["size"] if keep is None else keep + row["more"]
            if size > LONGER:
                exact = keep is None or bytes(row["first"]) != SQUEEZED
                long[name] = {"$": CUT, "digest": name, "bytes": size, "exact": exact}
    beginnings = _beginnings(long, stored, ask)
    return {name: json.dumps({**told, "begins": beginnings[name]}) for name, told in long.items()}


_HOW = "digest, base, keep, length(tail) - 1 AS more, substr(tail, 1, 1) AS first"
_CHAINS = (
    "WITH RECURSIVE chain (name) AS ({} UNION "
    "SELECT b.base FROM blobs AS b JOIN chain ON b.digest = chain.name WHERE b.base IS NOT NULL) "
    "SELECT digest, base, keep FROM blobs WHERE digest IN (SELECT name FROM chain)"
)


def _batches(names: Collection[Digest]) -> Iterator[list[Digest]]:
    ordered = sorted(names)
    return (ordered[at : at + _AT_ONCE] for at in range(0, len(ordered), _AT_ONCE))


def _query(columns: str, names: Sequence[Digest]) -> str:
    return f"SELECT {columns} FROM blobs WHERE digest IN ({', '.join('?' * len(names))})"


def _beginnings(names: Collection[Digest], stored: dict[Digest, _Stored], ask: Ask) -> dict[Digest, str]:
    """Return the beginning of each text: what it has in common with the first of its bases. Raises `KeyError` if one
    is missing."""
    bases = {one.base for one in stored.values() if one.base is not None}
    for some in _batches(bases - stored.keys()):
        for row in ask(_CHAINS.format(_query("digest", some)), some):
            stored[row["digest"]] = _Stored(row["base"], row["keep"])
    shared = _firsts(names, stored)
    begins = dict[Digest, bytes]()
    for some in _batches({root for root, _ in shared.values()}):
        for row in ask(_query(f"digest, substr(text, 1, {_BEGINNING}) AS text", some), some):
            if not isinstance(row["text"], str):
                raise TypeError(f"blob {row['digest']} is no text")
            begins[row["digest"]] = to_bytes(row["text"])
    return {name: begins[root][:keep].decode(errors="ignore") for name, (root, keep) in shared.items()}


def _firsts(names: Collection[Digest], stored: dict[Digest, _Stored]) -> dict[Digest, tuple[Digest, int]]:
    """Return the first base of each text, and how many bytes of it, at most a beginning, the text begins with."""
    found = dict[Digest, tuple[Digest, int]]()
    for name in names:
        chain = dict[Digest, int]()
        at = name
        while at not in found:
            if at in chain:
                raise ValueError(f"blob {at} is a base of itself")
            base, keep = stored[at]
            chain[at] = _BEGINNING if keep is None else min(keep, _BEGINNING)
            if base is None:
                found[at] = at, _BEGINNING
                break
            at = base
        root, least = found[at]
        for each, shared in reversed(chain.items()):
            least = min(least, shared)
            found[each] = root, least
    return {name: found[name] for name in names}
