"""Fetch snapshots from a remote tier into the local store, each object once and verified.

Layers that are there already are not fetched. Threads and processes of a home that want the same object at the same
time fetch it once. The record is written last, under the store's lock, when everything that it names is there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import wait
from dataclasses import dataclass
from itertools import groupby

from ramify.fork_engine import crash_points
from ramify.fork_engine.errors import (
    RemoteObjectAltered,
    RemoteObjectMissing,
    SnapshotCorrupt,
    SnapshotNotFound,
    StoreUnusable,
)
from ramify.fork_engine.filesystem.file_content import digest_bytes
from ramify.fork_engine.layers import Layers
from ramify.fork_engine.remote.formats import (
    MEND,
    ExactReader,
    Member,
    PackedAt,
    RemoteRecord,
    read_manifest,
    write_layer,
)
from ramify.fork_engine.remote.remote_store import RemoteStore
from ramify.fork_engine.store_folder import translate_disk_errors
from ramify.fork_engine.store_parts import Part, needed_by
from ramify.fork_engine.types import LayerId, Snapshot, SnapshotId

_RUN = 32 << 20
"""Bytes of neighbouring members of one object that are fetched with one request."""

_MOST_ROUNDS = 5


@dataclass(frozen=True, slots=True)
class Pulled:
    """What a pull did. snapshots: complete in the local store now. members, bytes: layers, images and blobs
    fetched."""

    snapshots: tuple[Snapshot, ...]
    members: int
    bytes: int


def pull(remote: RemoteStore, ids: Iterable[SnapshotId]) -> Pulled:
    """Fetch these snapshots, unless the local store has them. They are on disk when this returns.

    Raises `RemoteObjectMissing` and `RemoteObjectAltered` if the bucket lacks one or part of one, `StoreUnusable`,
    and other errors of the bucket. What was fetched until then is kept.
    """
    pulling, found = _Pull(remote), []
    with translate_disk_errors(remote.local.root):
        for id in dict.fromkeys(ids):
            found.append(pulling.snapshot(id))
    remote.local.flush()
    return Pulled(tuple(found), pulling.members, pulling.bytes)


class _Pull:
    def __init__(self, remote: RemoteStore) -> None:
        self._remote = remote
        self.members = self.bytes = 0

    def snapshot(self, id: SnapshotId) -> Snapshot:
        local = self._remote.local
        try:
            here = local.get(id)
            if not self._lacking(needed_by(here)):
                return here
        except (SnapshotNotFound, SnapshotCorrupt):
            pass
        self._remote.put_name(id)  # so that nobody's collection condemns the record from now on
        why: RemoteObjectMissing | RemoteObjectAltered | None = None
        for record in self._remote.find(id):
            try:
                return self._from_record(record)
            except RemoteObjectMissing as error:
                why = RemoteObjectMissing(f"{error}. {MEND}")
            except RemoteObjectAltered as error:
                why = error
            # another push of the same state may have its own copy
        assert why is not None
        raise why

    def _from_record(self, record: RemoteRecord) -> Snapshot:
        local = self._remote.local
        needed = needed_by(record.snapshot)
        if needed - record.places.keys():
            raise RemoteObjectAltered(f"the record {record.name} does not say where all its parts are. {MEND}")
        for _ in range(_MOST_ROUNDS):
            self._fetch({one: record.places[one] for one in self._lacking(needed)})
            with local.parts.folder.lock():
                if not self._lacking(needed):
                    try:
                        local.parts.snapshots.load(record.snapshot.id)
                    except (SnapshotNotFound, SnapshotCorrupt):
                        local.parts.snapshots.save(record.snapshot, record.volatile)
                    self._remote.add_places(dict(record.places))
                    return local.get(record.snapshot.id)
        raise StoreUnusable(f"the store {local.root}: what is fetched is deleted again at once. Stop `ramify gc`")

    def _lacking(self, members: Iterable[Member]) -> set[Member]:
        return {one for one in members if not self._is_here(one)}

    def _is_here(self, member: Member) -> bool:
        layers = self._trees(member[0])
        return member[1] in self._remote.local.parts.blobs if layers is None else LayerId(member[1]) in layers

    def _fetch(self, places: dict[Member, PackedAt]) -> None:
        runs = list(_runs(places))
        tasks = [self._remote.pool.submit(self._fetch_run, run) for run in runs]
        try:
            for task in tasks:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            wait(tasks)  # none of them writes into the store after an error

    def _fetch_run(self, run: Sequence[tuple[Member, PackedAt]]) -> None:
        """Fetch neighbouring members of one object with one request."""
        with self._remote.settings.fetching(run[0][0][1]):
            left = [(member, at) for member, at in run if not self._is_here(member)]
            for some in _runs(dict(left)):
                first, last = some[0][1], some[-1][1]
                length = last.offset + last.length - first.offset
                pieces = self._remote.bucket.stream(first.object, first.offset, length)
                reader = ExactReader(pieces, f"{self._remote.bucket.url}/{first.object}")
                for member, at in some:
                    self._store(member, at, reader)
                    crash_points.point("fetched")

    def _store(self, member: Member, at: PackedAt, reader: ExactReader) -> None:
        layers = self._trees(member[0])
        if layers is None:
            data = reader.read(at.length)
            if digest_bytes(data) != member[1]:
                raise reader.altered(f"blob {member[1]} does not match its digest")
            self._remote.local.put_blob(data)
        else:
            self._store_tree(layers, LayerId(member[1]), reader)
        self.members += 1
        self.bytes += at.length

    def _store_tree(self, layers: Layers, id: LayerId, reader: ExactReader) -> None:
        manifest = read_manifest(reader, id)
        with layers.folder.temporary() as aside:
            fs = aside / "layer" / "fs"
            fs.mkdir(parents=True)
            write_layer(fs, manifest, reader)
            with layers.folder.lock():  # only now: a collection need not wait for the network
                if id not in layers:
                    layers.adopt(manifest, fs)

    def _trees(self, part: Part) -> Layers | None:
        return dict(self._remote.local.parts.trees()).get(part)


def _runs(places: dict[Member, PackedAt]) -> Iterator[list[tuple[Member, PackedAt]]]:
    """Yield neighbouring members of the same object together, up to `_RUN` bytes."""
    every = sorted(places.items(), key=lambda one: (one[1].object, one[1].offset))
    for _, of_object in groupby(every, key=lambda one: one[1].object):
        run: list[tuple[Member, PackedAt]] = []
        for member, at in of_object:
            end = run[-1][1].offset + run[-1][1].length if run else 0
            if run and (at.offset != end or end - run[0][1].offset + at.length > _RUN):
                yield run
                run = []
            run.append((member, at))
        if run:
            yield run
