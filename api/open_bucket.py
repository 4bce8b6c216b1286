"""The home's bucket while a `Runtime` is open: states of runs are uploaded after they are sealed, and fetched when a
branch needs one that this machine lacks."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from ramify import paths
from ramify.fork_engine.gc_pins import Pins
from ramify.fork_engine.store import SnapshotStore
from ramify.fork_engine.types import Snapshot, SnapshotId
from ramify.runtime.events import Event, OpDone, RunStarted
from ramify.sandboxes.host.concurrency import finish_before_cancelling

if TYPE_CHECKING:
    from ramify.fork_engine.remote.push import BackgroundPush
    from ramify.fork_engine.remote.remote_store import RemoteStore


class OpenBucket:
    """An async context manager. url: the bucket, which is made a store if it is empty; the home remembers it.

    Entering raises `RemoteError`. Leaving uploads what waits, and raises the first `RemoteError` of an upload that
    failed twice: the runs are stored, and `ramify push` repeats their uploads.
    """

    def __init__(self, home: Path, snapshots: SnapshotStore, url: str | Path) -> None:
        self._home, self._snapshots, self._url = home, snapshots, url
        self._stack = ExitStack()
        self._fetching: dict[SnapshotId, asyncio.Task[Snapshot]] = {}

    async def __aenter__(self) -> Self:
        try:
            self._remote, self._uploads = await finish_before_cancelling(asyncio.to_thread(self._open))
        except asyncio.CancelledError:
            await asyncio.to_thread(self._stack.close)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.gather(*self._fetching.values(), return_exceptions=True)
        await asyncio.to_thread(self._stack.__exit__, kind, error, trace)

    def observe(self, event: Event) -> None:
        """Queue the states that an event of a run names. Costs no I/O."""
        if isinstance(event, RunStarted):
            self._uploads.add(event.run.base_snapshot)
        elif isinstance(event, OpDone) and not event.replayed:
            if event.row.snapshot_out is not None:
                self._uploads.add(event.row.snapshot_out)
            if "ours" in event.row.attrs:  # what a merge began with
                self._uploads.add(SnapshotId(event.row.attrs["ours"]))

    @property
    def url(self) -> str:
        return self._remote.bucket.url

    @property
    def store_id(self) -> str:
        """The id in the bucket's marker."""
        return self._remote.marker.store

    async def upload(self, id: SnapshotId) -> None:
        """Upload a snapshot, and return once the bucket has it. Raises `ForkEngineError`."""
        await asyncio.to_thread(self._uploads.upload, id)

    def known(self, id: SnapshotId) -> None:
        """Another home has uploaded this state: it is not queued here."""
        self._uploads.known(id)

    async def fetch(self, id: SnapshotId) -> Snapshot:
        """Fetch a snapshot into the store; who needs the same one waits for the same fetch. Raises `RemoteError`."""
        if id not in self._fetching:
            self._fetching[id] = asyncio.create_task(asyncio.to_thread(self._pull, id))
            self._fetching[id].add_done_callback(lambda _: self._fetching.pop(id, None))
        return await asyncio.shield(self._fetching[id])

    def _pull(self, id: SnapshotId) -> Snapshot:
        from ramify.fork_engine.remote.pull import pull

        return pull(self._remote, [id]).snapshots[0]

    def _open(self) -> tuple[RemoteStore, BackgroundPush]:
        from ramify.fork_engine.remote.push import BackgroundPush
        from ramify.fork_engine.remote.remote_store import RemoteStore

        with ExitStack() as stack:
            opening = RemoteStore(self._snapshots, paths.remote(self._home), self._url, create=True)
            remote = stack.enter_context(opening)
            uploads = stack.enter_context(BackgroundPush(remote, Pins(paths.locks(self._home))))
            self._stack = stack.pop_all()
        return remote, uploads
