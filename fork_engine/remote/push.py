"""Upload snapshots to a remote tier: their layers, process images and blobs first, then their records.

Small members share an object, large ones have one of their own. What the bucket has already, by what this home knows,
is not uploaded again. A kill leaves objects that no record names; a collection deletes them.

`BackgroundPush` uploads snapshots after their seal and off the critical path of runs. A snapshot that waits there is
complete in the local store; a kill loses only the upload. `BackgroundPush.errors` keeps what went wrong, since no
caller waits for an upload.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self, TypeVar

from ramify.fork_engine import crash_points
from ramify.fork_engine.errors import ForkEngineError, RemoteError, RemoteUnusable, SnapshotNotFound
from ramify.fork_engine.gc_pins import Pins
from ramify.fork_engine.layers import Layers
from ramify.fork_engine.remote import formats
from ramify.fork_engine.remote.formats import Member, PackedAt, encoded_layer, most_bytes
from ramify.fork_engine.remote.remote_store import RemoteStore
from ramify.fork_engine.store_parts import Part, needed_by
from ramify.fork_engine.types import LayerId, SnapshotId

SMALL = 4 << 20
"""Bytes below which a member shares an object with others."""

PACK = 8 << 20
"""Bytes after which an object with small members is full."""

MOST_AT_ONCE = 64
"""Snapshots that one push takes from the queue of `BackgroundPush`: their small layers share objects."""

_MOST_ROUNDS = 5

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Pushed:
    """What a push did. known: snapshots that the bucket had already. bytes: uploaded, without records."""

    snapshots: tuple[SnapshotId, ...]
    known: tuple[SnapshotId, ...]
    objects: int
    bytes: int


@dataclass(slots=True)
class _Uploaded:
    objects: int = 0
    bytes: int = 0
    places: dict[Member, PackedAt] = field(default_factory=dict)


def push(
    remote: RemoteStore,
    ids: Iterable[SnapshotId],
    pins: Pins | None = None,
    *,
    timer: Callable[[], float] = time.monotonic,
) -> Pushed:
    """Upload these snapshots. Each is complete in the bucket, and flushed, when this returns.

    pins: the home's, to keep the snapshots from `ramify gc` meanwhile. timer: monotonic seconds.

    Raises `SnapshotNotFound` and `SnapshotCorrupt` if this machine lacks one, and `RemoteError`; then none of the
    snapshots has a new record that lacks something.
    """
    wanted = list(dict.fromkeys(ids))
    with ExitStack() as kept:
        if pins is not None:
            for id in wanted:
                kept.enter_context(pins.keep(id))
        return _Push(remote, timer).run(wanted)


class _Push:
    def __init__(self, remote: RemoteStore, timer: Callable[[], float]) -> None:
        self._remote, self._timer = remote, timer
        self._done = _Uploaded()
        self._lock = threading.Lock()
        self._sound: set[str] = set()  # objects seen in the bucket in this push

    def run(self, wanted: Sequence[SnapshotId]) -> Pushed:
        local, remote = self._remote.local, self._remote
        needed = {id: sorted(needed_by(local.get(id))) for id in wanted}  # fails before anything is written
        for named in [remote.pool.submit(remote.put_name, id) for id in wanted]:
            named.result()
        for _ in range(_MOST_ROUNDS):
            read_at, marks = self._timer(), remote.condemned()
            known = set(_each(remote.pool.submit(self._recorded, id, marks) for id in wanted))
            todo = [id for id in wanted if id not in known]
            places = self._places({member for id in todo for member in needed[id]}, marks)
            if self._timer() - read_at < remote.marker.grace_s / 2:
                break  # nothing that was relied on can be deleted before the records are written
            self._sound.clear()
        else:
            raise RemoteUnusable(
                f"{remote.bucket.url}: the upload takes longer than half of the bucket's grace period, "
                f"{remote.marker.grace_s:g} s: push fewer states at once, or use a faster connection"
            )
        for id in todo:  # in order, so that a kill leaves the first ones whole
            record = local.parts.snapshots.encoded(id)
            remote.bucket.put(
                formats.new_record(id), formats.encode_record(record, {one: places[one] for one in needed[id]})
            )
            crash_points.point("recorded")
        remote.bucket.flush()
        return Pushed(tuple(todo), tuple(sorted(known)), self._done.objects, self._done.bytes)

    def _recorded(self, id: SnapshotId, marks: dict[str, float]) -> SnapshotId | None:
        return id if any(name not in marks for name in self._remote.record_names(id)) else None

    def _places(self, members: set[Member], marks: dict[str, float]) -> dict[Member, PackedAt]:
        """Return where each member is. What is nowhere, or only in a condemned object, is uploaded."""
        known = {one: at for one in members if (at := self._remote.places.get(one)) is not None}
        objects = {at.object for at in known.values()} - marks.keys()
        asked = [self._remote.pool.submit(self._exists, name) for name in sorted(objects - self._sound)]
        self._sound |= set(_each(asked))
        found = {one: at for one, at in known.items() if at.object in self._sound and at.object not in marks}
        self._upload(sorted(members - found.keys()))
        return found | {one: self._done.places[one] for one in members - found.keys()}

    def _exists(self, name: str) -> str | None:
        return None if self._remote.bucket.info(name) is None else name

    def _upload(self, members: Sequence[Member]) -> None:
        pending: list[Future[None]] = []
        small: list[Member] = []
        room = PACK
        for member in members:
            size = self._most_bytes(member)
            if size >= SMALL:
                pending.append(self._remote.pool.submit(self._put_large, member))
                continue
            if size > room:
                pending.append(self._remote.pool.submit(self._put_pack, small))
                small, room = [], PACK
            small.append(member)
            room -= size
        if small:
            pending.append(self._remote.pool.submit(self._put_pack, small))
        try:
            for one in pending:
                one.result()
        finally:
            for one in pending:
                one.cancel()
        self._remote.add_places({one: self._done.places[one] for one in members})

    def _put_pack(self, members: Sequence[Member]) -> None:
        name, pieces, offset = formats.new_object(), [], 0
        places: dict[Member, PackedAt] = {}
        for member in members:
            data = self._bytes_of(member)
            places[member] = PackedAt(name, offset, len(data))
            pieces.append(data)
            offset += len(data)
        self._remote.bucket.put(name, b"".join(pieces))
        self._uploaded(name, places, offset)

    def _put_large(self, member: Member) -> None:
        name, length = formats.new_object(), 0
        layers = self._trees(member[0])
        if layers is None:
            data = self._bytes_of(member)
            length = len(data)
            self._remote.bucket.put(name, data)
        else:

            def counted() -> Iterable[bytes]:
                nonlocal length
                for piece in encoded_layer(layers, LayerId(member[1])):
                    length += len(piece)
                    yield piece

            self._remote.bucket.put(name, counted())
        self._uploaded(name, {member: PackedAt(name, 0, length)}, length)

    def _uploaded(self, name: str, places: dict[Member, PackedAt], length: int) -> None:
        crash_points.point("uploaded")
        with self._lock:
            self._sound.add(name)
            self._done.places.update(places)
            self._done.objects += 1
            self._done.bytes += length

    def _bytes_of(self, member: Member) -> bytes:
        layers = self._trees(member[0])
        if layers is None:
            return self._remote.local.blob(member[1])
        return b"".join(encoded_layer(layers, LayerId(member[1])))

    def _most_bytes(self, member: Member) -> int:
        layers = self._trees(member[0])
        if layers is None:
            return len(self._remote.local.blob(member[1]))
        return most_bytes(layers.manifest(LayerId(member[1])))

    def _trees(self, part: Part) -> Layers | None:
        """Return the part of the store that holds such trees; None for a blob."""
        return dict(self._remote.local.parts.trees()).get(part)


def _each(found: Iterable[Future[T | None]]) -> list[T]:
    """Return the results that are not None, of futures that are all submitted before the first one is waited for."""
    return [one for future in list(found) if (one := future.result()) is not None]


class BackgroundPush:
    """A context manager with one uploading thread. Leaving it uploads what waits, tries again what failed, and raises
    the first `RemoteError` of what failed again.

    remote: an open remote store, which outlives this. pins: the home's.
    """

    def __init__(self, remote: RemoteStore, pins: Pins | None = None) -> None:
        self._remote, self._pins = remote, pins
        self._queue: deque[SnapshotId] = deque()
        self._seen: set[SnapshotId] = set()
        self._pending: set[SnapshotId] = set()  # queued, or in the batch that is being uploaded
        self._why: dict[SnapshotId, ForkEngineError] = {}  # why the last attempt failed
        self._changed = threading.Condition()
        self._failed_before: list[SnapshotId] = []
        self._closed = False
        self._busy = False
        self.errors: list[ForkEngineError] = []

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._serve, name="ramify-push", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join()
        if self._failed_before:
            self.errors.clear()
            self._upload(list(dict.fromkeys(self._failed_before)))
        failed = next((one for one in self.errors if isinstance(one, RemoteError)), None)
        if error is None and failed is not None:
            raise failed

    def add(self, id: SnapshotId) -> None:
        """Queue a snapshot, unless it was queued before. Costs no I/O."""
        with self._changed:
            if id not in self._seen and not self._closed:
                self._seen.add(id)
                self._pending.add(id)
                self._why.pop(id, None)
                self._queue.append(id)
                self._changed.notify_all()

    def known(self, id: SnapshotId) -> None:
        """The bucket has a snapshot, which another home has uploaded: it is not queued any more."""
        with self._changed:
            self._seen.add(id)
            self._why.pop(id, None)

    def upload(self, id: SnapshotId) -> None:
        """Queue a snapshot, and return once it is in the bucket. Raises `ForkEngineError` if that failed, or if this
        was closed before."""
        self.add(id)
        with self._changed:
            self._changed.wait_for(lambda: id not in self._pending)
            if (why := self._why.get(id)) is not None:
                raise why
            if id not in self._seen:
                raise RemoteError(f"snapshot {id[:12]} was not uploaded: uploads to this bucket were closed before")

    def wait(self) -> None:
        """Return once nothing waits and nothing is being uploaded."""
        with self._changed:
            self._changed.wait_for(lambda: not self._queue and not self._busy)

    def _serve(self) -> None:
        while batch := self._next():
            self._upload(batch)
            with self._changed:
                self._pending.difference_update(set(batch).difference(self._queue))  # one that failed may wait again
                self._changed.notify_all()

    def _upload(self, batch: list[SnapshotId]) -> None:
        try:
            push(self._remote, batch, self._pins)
        except SnapshotNotFound:
            self._one_by_one(batch)  # one of them was deleted since
        except Exception as error:  # noqa: BLE001  # of any kind: the thread goes on, and who waits is told
            self._failed(error, batch)

    def _one_by_one(self, batch: list[SnapshotId]) -> None:
        for id in batch:
            try:
                push(self._remote, [id], self._pins)
            except SnapshotNotFound as error:
                with self._changed:
                    self._why[id] = error
            except Exception as error:  # noqa: BLE001  # as above
                self._failed(error, [id])

    def _failed(self, cause: Exception, batch: list[SnapshotId]) -> None:
        error = cause
        if not isinstance(error, ForkEngineError):  # the local disk is full, or no file can be opened
            error = RemoteError(f"a snapshot could not be uploaded: {type(cause).__name__}: {cause}")
            error.__cause__ = cause
        with self._changed:
            self.errors.append(error)
            self._failed_before += batch
            self._why.update(dict.fromkeys(batch, error))
            self._seen.difference_update(batch)  # a later `add` tries again

    def _next(self) -> list[SnapshotId]:
        with self._changed:
            self._busy = False
            self._changed.notify_all()
            self._changed.wait_for(lambda: bool(self._queue) or self._closed)
            batch = [self._queue.popleft() for _ in range(min(MOST_AT_ONCE, len(self._queue)))]
            self._busy = bool(batch)
            return batch
