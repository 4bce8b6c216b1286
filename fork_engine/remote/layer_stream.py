"""A layer (or process image) as a stream of bytes: its manifest, then the bytes of its files.

    LENGTH MANIFEST FILE…         LENGTH: 8 bytes; MANIFEST: manifest.json as in the store
    FILE = COUNT EXTENT…          COUNT: 4 bytes; files in the order of their paths, a hard link only once
    EXTENT = OFFSET LENGTH BYTES  8 bytes each; what no extent covers is a hole

Numbers are big-endian. The manifest is checked against the layer's id, and each file against the manifest, so that a
stream needs no digest of its own.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from ramify.fork_engine.errors import RemoteObjectAltered, SnapshotCorrupt
from ramify.fork_engine.filesystem.file_content import HashPool, digest_fd, segments, write_all
from ramify.fork_engine.filesystem.openat import file
from ramify.fork_engine.filesystem.write import create_file, write_tree
from ramify.fork_engine.layers import LayerReader, Layers
from ramify.fork_engine.manifest import Manifest, decode
from ramify.fork_engine.types import Entry, EntryKind, LayerId

_CHUNK = 1 << 20


def most_bytes(manifest: Manifest) -> int:
    """Return an upper bound of the stream's length: its length without holes."""
    sizes = sum(20 + entry.size for _, entry in _files(manifest))
    return 8 + len(manifest.encoded) + sizes


def encoded(layers: Layers, id: LayerId) -> Iterator[bytes]:
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
        return RemoteObjectAltered(
            f"{self.what} in the bucket was altered: {why}. `ramify fsck --remote` lists what is damaged; push it "
            "again from a machine that has it"
        )


_MOST_MANIFEST = 4 << 30


def read_manifest(reader: ExactReader, id: LayerId) -> Manifest:
    """Read the manifest at the start of a layer's stream. Raises `RemoteObjectAltered`."""
    length = reader.number(8)
    if length > _MOST_MANIFEST:
        raise reader.altered("its manifest has no sensible length")
    try:
        return decode(reader.read(length), id)
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
