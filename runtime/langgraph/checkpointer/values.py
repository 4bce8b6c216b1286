"""Values by content: each is stored once per thread, as its difference to another value, and read with all values it
needs.

A channel's value grows: a list of messages gets one more with each step. Serialised, it is the old bytes followed by
new ones (after a header that counts the elements), so only what follows the common prefix is stored, with a reference
to the old value. Most new bytes were stored once before, as the write of the task that made them: they are compressed
with that write as the dictionary. So a database grows only with what is new, whatever the type of the value. `pack`
and `unpack` do this; they are pure.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict, deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from sqlalchemy import Connection, Dialect, Select, bindparam, select, text

from ramify.runtime.langgraph.checkpointer.statements import VALUES_AT_ONCE, PendingRows, Prepared, Statements
from ramify.runtime.langgraph.checkpointer.tables import threads, upsert, values
from ramify.runtime.store.engines import driver_errors
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


ThreadId = int

_KNOWN = 4096  # digests remembered
_RECALLED = 1024  # values of a thread that another process wrote
_RESERVED = 256
_AT_ONCE = 512  # ids in one query: SQLite takes 32766, PostgreSQL 65535


class New(NamedTuple):
    """A value to store, and what it may be stored against: an older value, and the values of a dictionary."""

    value: Serialised
    base: tuple[ValueId, Serialised] | None = None
    words: Sequence[tuple[ValueId, bytes]] = ()

    def packed(self) -> Packed:
        return pack(self.value, self.base, self.words)


class Values:
    """Stores values; used by the committing thread alone. It remembers ids, so call `forget` after a rollback.
    Optimistic inserts wait in `rows`."""

    def __init__(self, statements: Statements, rows: PendingRows | None = None) -> None:
        self._statements = statements
        self._rows = rows
        self._reserved: deque[ValueId] = deque()
        self._threads: dict[str, ThreadId] = {}
        self._known: OrderedDict[tuple[ThreadId, bytes], ValueId] = OrderedDict()
        self._plain: set[ValueId] = set()

    def forget(self) -> None:
        self._threads.clear()
        self._known.clear()
        self._plain.clear()

    def thread(self, connection: Connection, name: str) -> ThreadId:
        """Return the number of a thread; a new thread gets one now."""
        if name not in self._threads:
            connection.execute(upsert(connection, threads).values(name=name).on_conflict_do_nothing())
            self._threads[name] = connection.execute(select(threads.c.id).where(threads.c.name == name)).scalar_one()
        return self._threads[name]

    def put(self, connection: Connection, thread: ThreadId, value: Serialised) -> ValueId:
        """Return the id of a value; store it now if the thread does not have it."""
        return self.put_all(connection, thread, [New(value)])[0]

    def put_all(self, connection: Connection, thread: ThreadId, given: Sequence[New]) -> list[ValueId]:
        """Return the ids of values in their order; store now those that the thread does not have."""
        digests = [new.value.digest for new in given]
        ids = {digest: id for digest in digests if (id := self._known.get((thread, digest))) is not None}
        missing = {digest: new for digest, new in zip(digests, given, strict=True) if digest not in ids}
        ordered = sorted(missing)  # a fixed order for all writers: two that store the same values do not deadlock
        for at in range(0, len(ordered), VALUES_AT_ONCE):
            some = ordered[at : at + VALUES_AT_ONCE]
            packed = {digest: missing[digest].packed() for digest in some}
            rows = [(thread, digest, *_columns(packed[digest])) for digest in some]
            if self._rows is not None and self._rows.optimistic:
                written = self._as_new(connection, self._rows, rows, packed.values())
            else:
                written = self._written(connection, thread, rows)
            self._plain.update(
                id for digest, id in written.items() if not (packed[digest].words or packed[digest].base)
            )
            ids |= written
        for digest, id in ids.items():
            self._known[thread, digest] = id
            self._known.move_to_end((thread, digest))
        while len(self._known) > _KNOWN:
            self._plain.discard(self._known.popitem(last=False)[1])
        return [ids[digest] for digest in digests]

    def _written(
        self, connection: Connection, thread: ThreadId, found: Sequence[Sequence[Any]]
    ) -> dict[bytes, ValueId]:
        """Store values; return digest to id. A value that existed was stored by another process, or by this one long
        ago."""
        ids = self._statements.put_values(connection, [row[1] for row in found], found)
        for digest in (row[1] for row in found if row[1] not in ids):
            row = self._statements.find_value(connection, thread, digest).fetchone()
            assert row is not None, "a transaction sees what kept its row from being written"
            ids[digest] = int(row[0])
        return ids

    def _as_new(
        self, connection: Connection, to: PendingRows, found: Sequence[Sequence[Any]], packed: Iterable[Packed]
    ) -> dict[bytes, ValueId]:
        """Store values of which none is known to exist, without waiting for an answer."""
        newest = max((id for one in packed for id in (one.base or 0, *one.words)), default=0)
        ids = {row[1]: self._next(connection, newest) for row in found}
        to.put(self._statements.put_new_values(len(found)), *(each for row in found for each in (ids[row[1]], *row)))
        return ids

    def _next(self, connection: Connection, above: ValueId) -> ValueId:
        """Return the next id of a reserved range. A value's id has to be greater than the ids of the values it
        needs."""
        if not self._reserved or self._reserved[0] <= above:
            taken = text(f"SELECT nextval(pg_get_serial_sequence('{values.name}', 'id')) FROM generate_series(1, :n)")
            self._reserved = deque(sorted(connection.execute(taken, {"n": _RESERVED}).scalars()))
        return self._reserved.popleft()

    def recall(self, connection: Connection, thread: ThreadId) -> None:
        """Remember the newest values of a thread."""
        newest = select(values.c.digest, values.c.id).where(values.c.thread == thread)
        for digest, id in connection.execute(newest.order_by(values.c.id.desc()).limit(_RECALLED)):
            self._known[thread, bytes(digest)] = id

    def is_plain(self, id: ValueId) -> bool:
        """Tell whether the value is known to need no other value, so that it can serve as a dictionary."""
        return id in self._plain


def load(connection: Connection, wanted: Iterable[ValueId]) -> dict[ValueId, Serialised]:
    """Return the values of these ids. Raises `KeyError` if one does not exist."""
    ids = set(wanted)
    packed = closure(connection, ids)
    return {id: unpack(id, packed) for id in ids}


def closure(connection: Connection, wanted: Collection[ValueId]) -> dict[ValueId, Packed]:
    """Return these values and all that they need: bases up to the root, in one query, and dictionaries."""
    found: dict[ValueId, Packed] = {}
    missing = set(wanted)
    with driver_errors(connection):
        while missing:
            some = sorted(missing)[:_AT_ONCE]
            room = 1 << (len(some) - 1).bit_length()  # few different lengths, so that each is prepared once
            ask = _chains(connection.dialect, room)
            for id, *columns in ask(connection, *some, *some[-1:] * (room - len(some))).fetchall():
                found[id] = _packed(*columns)
            missing.difference_update(some)
            missing |= {word for one in found.values() for word in one.words} - found.keys()
    return found


def _chains(dialect: Dialect, count: int) -> Prepared:
    """Return the statement that finds that many values with all their bases."""
    if (dialect.name, count) not in _CHAINS:
        names = [f"id_{at}" for at in range(count)]
        _CHAINS[dialect.name, count] = Prepared(_of_ids(names), dialect, names)
    return _CHAINS[dialect.name, count]


_CHAINS: dict[tuple[str, int], Prepared] = {}


def _of_ids(names: Sequence[str]) -> Select[Any]:
    ids = [bindparam(name, type_=values.c.id.type) for name in names]
    chain = select(values.c.id, values.c.base).where(values.c.id.in_(ids)).cte("chain", recursive=True)
    chain = chain.union(select(values.c.id, values.c.base).join(chain, values.c.id == chain.c.base))
    read = (values.c[name] for name in ("id", "kind", "tail", "head", "base", "keep", "compressed", "words"))
    return select(*read).where(values.c.id.in_(select(chain.c.id)))


_COLUMNS = ("kind", "head", "base", "keep", "compressed", "words", "tail")


def _columns(packed: Packed) -> tuple[Any, ...]:
    """Return the columns of a packed value."""
    words = ",".join(map(str, packed.words))
    return (packed.kind, packed.head, packed.base, packed.keep, packed.compressed, words, packed.tail)


def _packed(
    kind: str, tail: bytes, head: bytes, base: ValueId | None, keep: int, compressed: bool, words: str
) -> Packed:
    standing_on = tuple(int(word) for word in words.split(",") if word)
    return Packed(kind, bytes(tail), bytes(head), base, keep, bool(compressed), standing_on)


def reachable(connection: Connection, wanted: Collection[ValueId]) -> set[ValueId]:
    """Return all ids that these values need, including their own."""
    return set(closure(connection, wanted))


def insert_copies(
    connection: Connection, target: ThreadId, found: Mapping[ValueId, Packed], digests: Mapping[ValueId, bytes]
) -> dict[ValueId, ValueId]:
    """Copy values of another thread to `target`, each after the values it needs; return old id to new id."""
    renamed: dict[ValueId, ValueId] = {}
    for id in sorted(found):  # a value's id is always greater than those it needs
        packed = found[id]
        row = {"thread": target, "digest": digests[id], **dict(zip(_COLUMNS, _columns(packed), strict=True))}
        row["base"] = None if packed.base is None else renamed[packed.base]
        row["words"] = ",".join(str(renamed[word]) for word in packed.words)
        put = upsert(connection, values).values(row).on_conflict_do_nothing().returning(values.c.id)
        new = connection.execute(put).scalar()
        if new is None:
            same = select(values.c.id).where(values.c.thread == target, values.c.digest == digests[id])
            new = connection.execute(same).scalar_one()
        renamed[id] = int(new)
    return renamed
