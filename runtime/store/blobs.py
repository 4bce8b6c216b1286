"""The table `blobs`: long texts by content, each stored once, and a growing text as a difference to its
predecessor. SQLite gets a text of many megabytes in pieces: it would copy the whole text several times."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from sqlalchemy import Connection, bindparam, select

from ramify.runtime.records import RunId
from ramify.runtime.store import plain_queries, rows, tables
from ramify.runtime.store.cut_texts import cut_texts
from ramify.runtime.store.stored_texts import Digest, Named, Packed, pack, packed_in_pieces, to_bytes, unpack

_RUNS, _TEXTS, _LONGEST = 64, 8, 1 << 20  # cached: runs, texts per run, characters per text at most
_AT_ONCE = 500  # names in one query: SQLite takes 32766, PostgreSQL 65535


class RecentTexts:
    """The last texts that the rows of each run name, as bases for new texts. Only the committing thread uses it.

    A base must be named by a committed row of the same run, whose lease this process has. Then nobody else deletes
    it, and each commit checks the lease.
    """

    def __init__(self) -> None:
        self._runs: OrderedDict[RunId, OrderedDict[Digest, bytes]] = OrderedDict()

    def packed(self, run: RunId | None, found: Named) -> tuple[Digest, Packed]:
        text, name, beginnings = found
        there = self._runs.get(run) if run is not None else None
        if not there or not tables.LONG <= len(text) <= 2 * _LONGEST:  # a base covers less than half of a longer one
            return name, Packed(text, beginnings=beginnings)
        return name, pack(text, to_bytes(text), reversed(there.items()))

    def named(self, run: RunId | None, texts: Iterable[Named]) -> None:
        """Add texts that committed rows of that run name. This process has its lease."""
        if run is None:
            return
        there = self._runs.setdefault(run, OrderedDict())
        self._runs.move_to_end(run)
        for text, name, _ in texts:
            if tables.LONG <= len(text) <= _LONGEST:
                there[name] = to_bytes(text)
                there.move_to_end(name)
        while len(there) > _TEXTS:
            there.popitem(last=False)
        while len(self._runs) > _RUNS:
            self._runs.popitem(last=False)

    def names(self, run: RunId) -> list[Digest]:
        """Return the names of a run's texts."""
        return list(self._runs.get(run, ()))

    def keep(self, run: RunId, names: Collection[Digest]) -> None:
        """Drop all texts of a run but these."""
        there = self._runs[run]
        for name in there.keys() - names:
            del there[name]

    def forget(self, run: RunId) -> None:
        """Drop the texts of a run that begins, perhaps under the id of a deleted one, or whose plan is replaced."""
        self._runs.pop(run, None)


def are_long(texts: Mapping[Digest, Packed]) -> bool:
    """Whether one of the texts is written in pieces."""
    return any(one.beginnings for one in texts.values())


def in_rows(texts: Mapping[Digest, Packed]) -> Iterator[dict[str, Any]]:
    """Yield the rows of texts, in the order of their names, so that two writers of the same texts do not deadlock."""
    return (_row(name, texts[name]) for name in sorted(texts))


def put_in_pieces(texts: Mapping[Digest, Packed], insert: Callable[[dict[str, Any]], bool]) -> None:
    """Write texts, long ones as several rows. `insert`: writes a row unless it is there, and returns whether it did.

    The row of a whole text comes first. If it is there, in whatever form, nothing refers to further pieces.
    """
    for whole in sorted(texts):
        packed = texts[whole]
        if not packed.beginnings:
            insert(_row(whole, packed))
            continue
        for name, piece in packed_in_pieces(packed.text, packed.beginnings):
            if not insert(_row(name, piece)):
                break


def _row(name: Digest, packed: Packed) -> dict[str, Any]:
    whole = packed.base is None
    return {
        "digest": name,
        "text": packed.text,
        "base": packed.base,
        "keep": None if whole else packed.keep,
        "tail": None if whole else packed.tail,
    }


def load(connection: Connection, names: Collection[Digest]) -> Mapping[Digest, str]:
    """Return texts by digest. Raises `KeyError` for a missing text, `ValueError` for one that was altered."""
    return rows.unaltered(unpack(names, family(connection, names)))


def family(connection: Connection, names: Collection[Digest]) -> dict[Digest, Packed]:
    """Return these texts and all of their bases. Usually the bases are among the texts, and one query is enough."""
    found: dict[Digest, Packed] = {}
    _fetch_these(connection, names, found)
    missing = {one.base for one in found.values() if one.base is not None} - found.keys()
    while missing:
        _fetch_chains(connection, sorted(missing)[:_AT_ONCE], found)
        missing = {name for name in missing if name not in found}
    return found


def cut(connection: Connection, names: Collection[Digest]) -> dict[Digest, str]:
    """Return what stands for those of these texts that are long (`cut_texts`)."""
    on_server = connection.dialect.name == "postgresql"
    return cut_texts(names, partial(plain, connection), on_server=on_server)


def plain(connection: Connection, query: str, values: Sequence[object]) -> list[dict[str, Any]]:
    """Return the rows of a plain query."""
    mark = "?" if connection.dialect.name == "sqlite" else "%s"
    result = connection.exec_driver_sql(query.replace("?", mark), tuple(values))
    return plain_queries.as_rows(tuple(result.keys()), result.all())


def _fetch_these(connection: Connection, names: Collection[Digest], found: dict[Digest, Packed]) -> None:
    ordered = sorted(names)
    for at in range(0, len(ordered), _AT_ONCE):
        some = ordered[at : at + _AT_ONCE]
        for row in plain(connection, plain_queries.texts(len(some)), some):
            found[row["digest"]] = _packed(row["text"], row["base"], row["keep"], row["tail"])


def _fetch_chains(connection: Connection, names: Sequence[Digest], found: dict[Digest, Packed]) -> None:
    for one in connection.execute(_CHAINS, {"names": names}):
        found[one.digest] = _packed(one.text, one.base, one.keep, one.tail)
    if lost := set(names) - found.keys():
        raise KeyError(f"blob {min(lost)}")


def _packed(text: str, base: Digest | None, keep: int, tail: bytes) -> Packed:
    return Packed(text) if base is None else Packed("", base, keep, bytes(tail))


def _chains(*columns: Any) -> Any:
    """Return the query for these columns of the texts of `names` and of all of their bases."""
    blobs = tables.blobs
    start = select(blobs.c.digest, blobs.c.base).where(blobs.c.digest.in_(bindparam("names", expanding=True)))
    chain = start.cte("chain", recursive=True)
    chain = chain.union(select(blobs.c.digest, blobs.c.base).join(chain, blobs.c.digest == chain.c.base))
    return select(*columns).where(blobs.c.digest.in_(select(chain.c.digest)))


_CHAINS = _chains(tables.blobs)
_BASES = _chains(tables.blobs.c.digest, tables.blobs.c.base)


def delete_unused(connection: Connection, named: Collection[Digest], columns: Iterable[Any]) -> None:
    """Delete those of these texts, and of their bases, that no row and no other text refers to any more.

    `columns`: all columns that name a text.
    """
    candidates = _bases(connection, named)
    kept: set[Digest] = set()
    ordered = sorted(candidates)
    for at in range(0, len(ordered), _AT_ONCE):
        some = ordered[at : at + _AT_ONCE]
        for column in columns:
            kept.update(connection.execute(select(column).where(column.in_(some))).scalars())
    blobs = tables.blobs
    for name, base in connection.execute(select(blobs.c.digest, blobs.c.base).where(blobs.c.base.is_not(None))):
        if base in candidates and name not in candidates:
            kept.add(base)
    waiting = list(kept)
    while waiting:
        base_of = candidates.get(waiting.pop())
        if base_of is not None and base_of not in kept:
            kept.add(base_of)
            waiting.append(base_of)
    unused = sorted(candidates.keys() - kept)
    for at in range(0, len(unused), _AT_ONCE):
        connection.execute(blobs.delete().where(blobs.c.digest.in_(unused[at : at + _AT_ONCE])))


def _bases(connection: Connection, names: Collection[Digest]) -> dict[Digest, Digest | None]:
    """Return the base of each of these texts and of all of their bases; None for a whole text. The texts themselves,
    which may be long, are not read."""
    found: dict[Digest, Digest | None] = {}
    left = sorted(names)
    while left:
        for name, base in connection.execute(_BASES, {"names": left[:_AT_ONCE]}):
            found[name] = base
        left = [name for name in left[_AT_ONCE:] if name not in found]
    return found
