"""Upload snapshots in the background, after their seal and off the critical path of runs.

A snapshot that waits here is complete in the local store; a kill loses only the upload. `BackgroundPush.errors` keeps
what went wrong, since no caller waits for an upload.
"""

from __future__ import annotations

import threading
from collections import deque
from types import TracebackType
from typing import Self

from ramify.fork_engine.errors import ForkEngineError, RemoteError, SnapshotNotFound
from ramify.fork_engine.gc_pins import Pins
from ramify.fork_engine.remote.push import push
from ramify.fork_engine.remote.remote_store import RemoteStore
from ramify.fork_engine.types import SnapshotId

MOST_AT_ONCE = 64
"""Snapshots that one push takes from the queue: their small layers share objects."""


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
