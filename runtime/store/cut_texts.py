"""Long texts that are shown to people: only their beginning is read, and how long they are.

In place of such a text stands JSON that says so, `{"$": "cut", …}`. Two are equal if the texts are.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Sequence
from typing import Any

from ramify.runtime.store.stored_texts import Digest, to_bytes

CUT = "cut"
"""The kind of the JSON that stands for a long text."""
LONGER = 1 << 16  # bytes
_BEGINNING = 1 << 12  # bytes
_AT_ONCE = 500  # names in one query

Ask = Callable[[str, Sequence[object]], list[dict[str, Any]]]
"""Returns the rows of a query."""


def cut_texts(names: Collection[Digest], ask: Ask, *, on_server: bool) -> dict[Digest, str]:
    """Return what stands for those of these texts that are long."""
    size_of_text = "octet_length(text)" if on_server else "length(CAST(text AS BLOB))"
    found, every = dict[Digest, str](), sorted(names)
    for at in range(0, len(every), _AT_ONCE):
        some = every[at : at + _AT_ONCE]
        for row in ask(_sizes(size_of_text, len(some)), some):
            size = row["keep"] + row["more"] if row["keep"] is not None else row["size"]
            if size > LONGER:
                begins = _beginning(row["digest"], ask)
                told = {"$": CUT, "digest": row["digest"], "bytes": size, "begins": begins}
                found[row["digest"]] = json.dumps(told)
    return found


def _sizes(size_of_text: str, count: int) -> str:
    columns = f"digest, keep, length(tail) - 1 AS more, {size_of_text} AS size"
    return f"SELECT {columns} FROM blobs WHERE digest IN ({', '.join('?' * count)})"


_ROOT = (
    "WITH RECURSIVE chain (name, base, keep) AS (SELECT digest, base, keep FROM blobs WHERE digest = ? UNION ALL "
    "SELECT b.digest, b.base, b.keep FROM blobs AS b JOIN chain ON b.digest = chain.base) "
    f"SELECT substr(text, 1, {_BEGINNING}) AS text, (SELECT min(keep) FROM chain) AS keep FROM blobs "
    "WHERE base IS NULL AND digest IN (SELECT name FROM chain)"
)


def _beginning(name: Digest, ask: Ask) -> str:
    """Return the beginning of a text: what it has in common with the first of its bases."""
    found = ask(_ROOT, [name])
    if not found:
        raise KeyError(f"blob {name}")
    data, keep = to_bytes(found[0]["text"]), found[0]["keep"]
    return data[: _BEGINNING if keep is None else min(keep, _BEGINNING)].decode(errors="ignore")
