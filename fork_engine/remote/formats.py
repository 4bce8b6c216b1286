"""What lies in a remote tier: names, records, and layers as streams of bytes (docs/reference/remote-tier.md).

**No name is used twice.** An object or a record has a random part in its name and is never written again. So a mark
for deletion (`condemned/NAME`) is about one content for ever, and a push that sees it uploads a copy of its own under
another name, which no collection can hit by mistake.

**A layer (or process image) as a stream** is its manifest, then the bytes of its files:

    LENGTH MANIFEST FILE…         LENGTH: 8 bytes; MANIFEST: manifest.json as in the store
    FILE = COUNT EXTENT…          COUNT: 4 bytes; files in the order of their paths, a hard link only once
    EXTENT = OFFSET LENGTH BYTES  8 bytes each; what no extent covers is a hole

Numbers are big-endian. The manifest is checked against the layer's id, and each file against the manifest, so that a
stream needs no digest of its own.
"""

from __future__ import annotations

import json
import os
import re
import secrets
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from ramify.fork_engine.errors import RemoteObjectAltered, SnapshotCorrupt
from ramify.fork_engine.filesystem.file_content import HashPool, digest_bytes, digest_fd, segments, write_all
from ramify.fork_engine.filesystem.openat import file
from ramify.fork_engine.filesystem.write import create_file, write_tree
from ramify.fork_engine.layers import LayerReader, Layers
from ramify.fork_engine.manifest import MALFORMED, Manifest, canonical_json
from ramify.fork_engine.manifest import decode as decode_manifest
from ramify.fork_engine.snapshots import decode
from ramify.fork_engine.store_parts import Part
from ramify.fork_engine.types import Entry, EntryKind, LayerId, Snapshot, SnapshotId

FORMAT = 1
MARKER = "ramify-store.json"
OBJECTS, RECORDS, NAMES, CONDEMNED, CLOCK = "objects", "snapshots", "names", "condemned", "clock"
RUNS, CLAIMS = "runs", "claims"

MEND = "`ramify fsck --remote --repair` marks what is damaged; then push it again from a machine that has it"
"""What to do about damage: a push relies on what is there, unless it is marked."""

_MOST_OBJECT = 1 << 62

Member = tuple[Part, str]
"""A layer, process image or blob, by its part of the store and its digest."""


@dataclass(frozen=True, slots=True)
class PackedAt:
    """Where a member's bytes are: an object, and the range in it."""

    object: str
    offset: int
    length: int


@dataclass(frozen=True, slots=True)
class RemoteRecord:
    """A snapshot in a bucket: its record as in a store, and where everything is that it needs."""

    name: str  # of the object that holds this
    snapshot: Snapshot
    record: bytes
    volatile: tuple[str, ...]
    places: Mapping[Member, PackedAt]

    @property
    def objects(self) -> set[str]:
        return {place.object for place in self.places.values()}


def new_object() -> str:
    return f"{OBJECTS}/{secrets.token_hex(16)}"


def new_record(id: SnapshotId) -> str:
    return f"{RECORDS}/{id}/{secrets.token_hex(8)}.json"


def name_of(owner: str, id: SnapshotId) -> str:
    """Return the object by which a home says that it needs a snapshot."""
    return f"{NAMES}/{owner}/{id}"


_GENERATION = re.compile(rf"{RUNS}/[^/]+/(\d{{8,}})\.json")
_RECORD = re.compile(rf"{RECORDS}/[^/]+/[^/]+\.json")
_OBJECT = re.compile(rf"{OBJECTS}/[0-9a-f]+")


def run_object(run: str, generation: int) -> str:
    return f"{RUNS}/{run}/{generation:08}.json"


def generation_of(name: str) -> int | None:
    """Return the generation of an object with the rows of a run. None: it is something else, as a file that a file
    manager left there."""
    found = _GENERATION.fullmatch(name)
    return None if found is None else int(found[1])


def is_record(name: str) -> bool:
    return _RECORD.fullmatch(name) is not None


def encode_record(record: bytes, places: Mapping[Member, PackedAt]) -> bytes:
    spelled = {f"{part.value}/{name}": (at.object, at.offset, at.length) for (part, name), at in places.items()}
    fields = {"format": FORMAT, "record": record.decode("ascii"), "places": spelled}
    return canonical_json({**fields, "check": digest_bytes(canonical_json(fields))})


def decode_record(name: str, data: bytes) -> RemoteRecord:
    """Raises `RemoteObjectAltered`."""
    id = SnapshotId(name.split("/")[1])
    try:
        raw = json.loads(data)
        if raw.pop("check") != digest_bytes(canonical_json(raw)):
            raise ValueError("check")
        if raw["format"] != FORMAT:
            raise RemoteObjectAltered(
                f"the record {name} has format {raw['format']!r}, and this version of Ramify reads {FORMAT}: update "
                "Ramify"
            )
        record = raw["record"].encode("ascii")
        snapshot, volatile = decode(record, id)
        places = {_member(said): _place(*at) for said, at in raw["places"].items()}
    except (*MALFORMED, SnapshotCorrupt):
        raise RemoteObjectAltered(f"the record {name} in the bucket was altered. {MEND}") from None
    return RemoteRecord(name, snapshot, record, volatile, places)


def _member(said: str) -> Member:
    part, _, name = said.partition("/")
    return Part(part), name


def _place(name: object, offset: object, length: object) -> PackedAt:
    """Raises `ValueError` for a place that no push has written."""
    if not isinstance(name, str) or _OBJECT.fullmatch(name) is None:
        raise ValueError(name)
    if type(offset) is not int or type(length) is not int or not 0 <= offset <= offset + length < _MOST_OBJECT:
        raise ValueError(offset, length)
    return PackedAt(name, offset, length)


_CHUNK = 1 << 20


def most_bytes(manifest: Manifest) -> int:
    """Return an upper bound of the stream's length: its length without holes."""
    sizes = sum(20 + entry.size for _, entry in _files(manifest))
    return 8 + len(manifest.encoded) + sizes


def encoded_layer(layers: Layers, id: LayerId) -> Iterator[bytes]:
    """Yield a layer as bytes. Raises `SnapshotCorrupt` before the end if a file differs from the manifest."""
    manifest = layers.manifest(id)
    yield len(manifest.encoded).to_bytes(8, "big") + manifest.encoded
    with LayerReader(layers) as reader:
        for path, entry in _files(manifest):
            parent, name = reader.descent(id).parent(path)
            try:
                with file(name, parent) as fd:
                    yield from _file_bytes(fd, id, path, entry)
            except FileNotFoundError:
                raise SnapshotCorrupt(f"layer {id}: {path} is missing. Run `ramify fsck --repair`") from None


def _file_bytes(fd: int, id: LayerId, path: str, entry: Entry) -> Iterator[bytes]:
    if digest_fd(fd) != entry.digest:
        raise SnapshotCorrupt(f"layer {id}: {path} differs from what was sealed. Run `ramify fsck --repair`")
    status = os.fstat(fd)
    extents = [(start, end) for start, end in segments(fd, status) if end > start]
    yield len(extents).to_bytes(4, "big")
    for start, end in extents:
        yield start.to_bytes(8, "big") + (end - start).to_bytes(8, "big")
        while start < end:
            chunk = os.pread(fd, min(_CHUNK, end - start), start)
            if not chunk:
                raise SnapshotCorrupt(f"layer {id}: {path} became shorter while it was read")
            yield chunk
            start += len(chunk)


def _files(manifest: Manifest) -> Iterator[tuple[str, Entry]]:
    for path in manifest.paths:
        entry = manifest.entries[path]
        if entry.kind is EntryKind.FILE and not entry.link:
            yield path, entry


class ExactReader:
    """Reads exact numbers of bytes from pieces. Raises `RemoteObjectAltered` if they end early."""

    def __init__(self, pieces: Iterable[bytes | memoryview], what: str) -> None:
        self._pieces, self.what = iter(pieces), what
        self._rest = memoryview(b"")

    def read(self, count: int) -> bytes:
        return b"".join(self.chunks(count))

    def number(self, size: int) -> int:
        return int.from_bytes(self.read(size), "big")

    def chunks(self, count: int) -> Iterator[memoryview]:
        while count:
            if not self._rest:
                self._rest = memoryview(next(self._pieces, b""))
                if not self._rest:
                    raise self.altered("it ends early")
            taken, self._rest = self._rest[:count], self._rest[count:]
            count -= len(taken)
            yield taken

    def altered(self, why: str) -> RemoteObjectAltered:
        return RemoteObjectAltered(f"{self.what} in the bucket was altered: {why}. {MEND}")


_MOST_MANIFEST = 4 << 30


def read_manifest(reader: ExactReader, id: LayerId) -> Manifest:
    """Read the manifest at the start of a layer's stream. Raises `RemoteObjectAltered`."""
    length = reader.number(8)
    if length > _MOST_MANIFEST:
        raise reader.altered("its manifest has no sensible length")
    try:
        return decode_manifest(reader.read(length), id)
    except SnapshotCorrupt as error:
        raise reader.altered(str(error).split(". ")[0]) from None


def write_layer(fs: Path, manifest: Manifest, reader: ExactReader) -> None:
    """Fill the empty folder `fs` with the rest of a layer's stream. Each file is verified, while later ones are
    fetched. Raises `RemoteObjectAltered`."""
    pool = HashPool()

    def place(path: str, entry: Entry, parent: int, name: str) -> None:
        create_file(entry, parent, name, lambda fd: _fill(fd, path, entry, reader, pool))

    try:
        write_tree(fs, manifest.entries, manifest.root, place)
        digests = pool.finish()
    finally:
        pool.close()
    for path, entry in _files(manifest):
        if digests[path] != entry.digest:
            raise reader.altered(f"the bytes of {path} do not match its digest")


def _fill(fd: int, path: str, entry: Entry, reader: ExactReader, pool: HashPool) -> None:
    os.ftruncate(fd, entry.size)
    for _ in range(reader.number(4)):
        offset, length = reader.number(8), reader.number(8)
        if offset + length > entry.size:
            raise reader.altered(f"{path} is longer than its manifest says")
        for chunk in reader.chunks(length):
            write_all(fd, chunk, offset)
            offset += len(chunk)
    pool.start(path, fd, entry.size)
