"""Recovery of lost snapshots, the third and fourth of four levels of recovery.

1. Retry: a step that raised is run again from the state where it began, if it is declared so (`steps.py`).
2. Restore: the journal answers for recorded operations, and a world is mounted at the branch's last snapshot
   (`driver.py`, `world_pool.py`).
3. Fetch: a snapshot that this machine lacks is fetched from the home's bucket, if it has one (this module).
4. Lineage: if that snapshot is lost, damaged or evicted, the operations that made it are repeated from the nearest
   complete state (this module). The result must have the recorded content.

Each level is more expensive than the one before, so the first possible one is used. An event reports the level and
the reason. The row of the step that continues records the actual and the predicted seconds.

Lost states of LangGraph threads are recomputed by `langgraph/thread/lost_states.py`, because a resume of a thread
does not call its nodes again.

A recomputed state has other file times, hence another id. The journal continues to name the recorded id; the world
uses the new state, and seals on top of it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from dataclasses import dataclass, field

from ramify.fork_engine.errors import (
    RemoteError,
    RemoteObjectAltered,
    RemoteObjectMissing,
    SnapshotCorrupt,
    SnapshotNotFound,
)
from ramify.fork_engine.gc_pins import Pins
from ramify.fork_engine.store import SnapshotStore
from ramify.fork_engine.types import ContentKey, Snapshot, SnapshotId
from ramify.runtime.errors import Unrecoverable
from ramify.runtime.events import Event, Level, Recovered
from ramify.runtime.records import BranchPath, RunId
from ramify.runtime.worlds.world_pool import Branch, StateOrigin

LOST = (SnapshotNotFound, SnapshotCorrupt)


def missing(snapshots: SnapshotStore, id: SnapshotId) -> SnapshotNotFound | SnapshotCorrupt | None:
    """Return an error if parts of a snapshot are missing, else None. Does not read file contents; `ramify fsck`
    does."""
    try:
        found = snapshots.get(id)
        snapshots.lower_dirs(found)
        snapshots.outside_dirs(found)
    except LOST as error:
        return error
    return None


def stand_in(id: SnapshotId, content_key: str) -> Snapshot:
    """Return a placeholder without layers for a lost snapshot of which only the journal's row is left."""
    return Snapshot(id=id, layers=(), content_key=ContentKey(content_key))


Fetch = Callable[[SnapshotId], Awaitable[Snapshot]]
"""Fetches a snapshot from the home's bucket into the store. Raises `RemoteError`."""


@dataclass(frozen=True, slots=True)
class _Lost:
    """why: why a snapshot is neither here nor in the bucket. by: what the bucket raised."""

    why: str
    by: RemoteError | None = None

    @property
    def may_be_there(self) -> bool:
        """Whether the bucket may have it, and could only not be asked."""
        return self.by is not None and not isinstance(self.by, (RemoteObjectMissing, RemoteObjectAltered))


@dataclass(frozen=True, slots=True)
class Recomputation:
    """The predicted seconds (by the recorded times) and the actual seconds of a recomputation."""

    predicted_s: float
    took_s: float


@dataclass(eq=False, slots=True)
class Recovery:
    """Recomputes lost states of one run. Call `close` when the run ends."""

    run: RunId
    snapshots: SnapshotStore
    pins: Pins
    emit: Callable[[Event], None]
    fetch: Fetch | None = None
    again: dict[BranchPath, Recomputation] = field(default_factory=dict)  # recomputations not recorded in a row yet
    _made_again: dict[SnapshotId, Snapshot] = field(default_factory=dict)
    _kept: ExitStack = field(default_factory=ExitStack)

    def close(self) -> None:
        self._kept.close()

    async def get(self, id: SnapshotId, content_key: str) -> Snapshot:
        """Return the snapshot, or a placeholder if it is lost: it may never be needed."""
        try:
            return await asyncio.to_thread(self.snapshots.get, id)
        except LOST:
            return stand_in(id, content_key)

    async def sealed(self, seal: Callable[[], Awaitable[Snapshot]]) -> Snapshot:
        """Call `seal` and keep its snapshot from garbage collection until the run ends: no row will name it."""
        async with self.pins.held():
            snapshot = await seal()
            self._kept.enter_context(self.pins.keep(snapshot.id))
        return snapshot

    async def whole(self, branch: Branch) -> Snapshot:
        """Return the branch's snapshot, fetched or recomputed if it is lost. Raises `Unrecoverable`, or what the
        bucket raised if it could not be asked: it may have the snapshot.

        Checks that all layers exist, which costs a `stat` for each.
        """
        known = self._made_again.get(branch.snapshot.id)
        if known is not None:
            return known
        found = await self._here_or_fetched(branch.snapshot, branch.path)
        if not isinstance(found, _Lost):
            return found
        try:
            return await self._recompute(branch, found.why)
        except Unrecoverable as error:
            if found.by is not None and found.may_be_there:
                raise found.by from error
            raise error from found.by

    async def _here_or_fetched(self, snapshot: Snapshot, branch: BranchPath) -> Snapshot | _Lost:
        why = await asyncio.to_thread(self._missing, snapshot)
        if why is None:
            return snapshot
        if self.fetch is None:
            return _Lost(why)
        begun = time.perf_counter()
        try:
            found = await self.fetch(snapshot.id)
        except RemoteError as error:
            return _Lost(f"{why}; {error}", error)
        self._made_again[snapshot.id] = found
        self.emit(Recovered(self.run, branch, Level.FETCH, why, time.perf_counter() - begun))
        return found

    async def _recompute(self, branch: Branch, why: str) -> Snapshot:
        begun = time.perf_counter()
        at, steps = await self._nearest_complete(branch, why)
        for made in steps:
            if made.again is None or made.refused:
                reason = made.refused or "nothing in the journal says how it was made"
                raise Unrecoverable(
                    f"snapshot {branch.snapshot.id[:12]} of branch {branch.path} cannot be recovered ({why}): "
                    f"{made.what} would have to be repeated, and {reason}. `ramify fsck` reports what is damaged; "
                    "`ramify resume RUN --from STATE` goes back to a complete state"
                )
            at = await made.again(at)
            self._verify(made, at, branch)
            self._made_again[made.snapshot.id] = at
        took = time.perf_counter() - begun
        self.again[branch.path] = Recomputation(sum(made.seconds for made in steps), took)
        told = f"{why}; repeated: {', '.join(made.what for made in steps)}"
        self.emit(Recovered(self.run, branch.path, Level.LINEAGE, told, took))
        return at

    async def _nearest_complete(self, branch: Branch, why: str) -> tuple[Snapshot, list[StateOrigin]]:
        """Return the newest complete state in the branch's history, and the states after it."""
        steps: list[StateOrigin] = []
        for made in reversed(branch.made):
            known = self._made_again.get(made.snapshot.id, made.snapshot)
            found = await self._here_or_fetched(known, branch.path)
            if not isinstance(found, _Lost):
                return found, steps
            steps.insert(0, made)
        raise Unrecoverable(
            f"snapshot {branch.snapshot.id[:12]} of branch {branch.path} cannot be recovered ({why}), nor can any "
            "state before it, including the workspace: start a new run with `ramify run`"
        )

    def _missing(self, snapshot: Snapshot) -> str | None:
        found = missing(self.snapshots, snapshot.id)
        return None if found is None else str(found)

    def _verify(self, made: StateOrigin, at: Snapshot, branch: Branch) -> None:
        if made.snapshot.content_key and at.content_key != made.snapshot.content_key:
            raise Unrecoverable(
                f"{made.what} on branch {branch.path} was repeated for a lost snapshot, and left other files than "
                f"before (content {at.content_key[:12]}, recorded {made.snapshot.content_key[:12]}): it depends on "
                "more than its arguments and its world. `ramify resume RUN --from STATE` goes back"
            )
