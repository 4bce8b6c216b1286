"""Three levels of recovery, and which one is taken.

Retry in place: a step that raised is run again from its entry state, where it says so (`steps.py`). Restore and
replay: the journal answers for what was done, and a world is mounted at the branch's last snapshot (`driver.py`,
`worlds.py`). Lineage: that snapshot is lost or damaged, or a collection let go of it; then what made it is done again
from the nearest state that is whole, and what comes out must have the content that was recorded. The cheapest that is
right is the lowest that can be done: each holds what the next would compute. An event says which it was and why, and
the row of the step that goes on holds what it took beside what was predicted, for it and for the next level.

Of a LangGraph thread nothing is called again on a resume: `langgraph/lineage.py` makes its lost states.

A state that was made again has other times, so another id. The journal goes on naming the recorded one; the world
stands on the new one, and what is sealed on top of it is whole.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ramify.fork_engine.errors import SnapshotCorrupt, SnapshotNotFound
from ramify.fork_engine.store import SnapshotStore
from ramify.fork_engine.types import ContentKey, Snapshot, SnapshotId
from ramify.runtime.errors import Unrecoverable
from ramify.runtime.events import Event, Level, Recovered
from ramify.runtime.records import BranchPath, RunId
from ramify.runtime.worlds.gc_pins import Pins

if TYPE_CHECKING:
    from ramify.runtime.worlds.world_pool import Branch

LOST = (SnapshotNotFound, SnapshotCorrupt)


@dataclass(frozen=True, slots=True)
class Made:
    """A state of a branch, and what makes it again from the one before. `again` is None for the workspace."""

    snapshot: Snapshot
    what: str  # for people
    again: Callable[[Snapshot], Awaitable[Snapshot]] | None = None
    refused: str = ""  # why it must not be done again
    seconds: float = 0.0  # what making it took when it was recorded


def missing(snapshots: SnapshotStore, id: SnapshotId) -> SnapshotNotFound | SnapshotCorrupt | None:
    """What is not there of a snapshot; None where all is. Bytes are not read: `ramify fsck` does that."""
    try:
        found = snapshots.get(id)
        snapshots.lower_dirs(found)
        snapshots.outside_dirs(found)
    except LOST as error:
        return error
    return None


def stand_in(id: SnapshotId, content_key: str) -> Snapshot:
    """A snapshot of which only the journal's words are left: it has no layers."""
    return Snapshot(id=id, layers=(), content_key=ContentKey(content_key))


@dataclass(frozen=True, slots=True)
class Again:
    """States were computed again: what that was predicted to take, by the recorded times, and what it took."""

    predicted_s: float
    took_s: float


@dataclass(eq=False, slots=True)
class Recovery:
    """The states that one run lost and made again. `close` when the run is over."""

    run: RunId
    snapshots: SnapshotStore
    pins: Pins
    emit: Callable[[Event], None]
    again: dict[BranchPath, Again] = field(default_factory=dict)  # not written down yet, by the branch
    _made_again: dict[SnapshotId, Snapshot] = field(default_factory=dict)
    _kept: ExitStack = field(default_factory=ExitStack)

    def close(self) -> None:
        self._kept.close()

    async def get(self, id: SnapshotId, content_key: str) -> Snapshot:
        """The snapshot, or a stand-in where it is gone: it may never be needed."""
        try:
            return await asyncio.to_thread(self.snapshots.get, id)
        except LOST:
            return stand_in(id, content_key)

    async def sealed(self, seal: Callable[[], Awaitable[Snapshot]]) -> Snapshot:
        """What `seal` gives, kept from collections while the run lasts: no row will name it."""
        async with self.pins.held():
            snapshot = await seal()
            self._kept.enter_context(self.pins.keep(snapshot.id))
        return snapshot

    async def whole(self, branch: Branch) -> Snapshot:
        """The state of the branch as it can be mounted. Raises `Unrecoverable`.

        A snapshot that was never replaced is returned as it is: whether its layers are there costs a look at each.
        """
        known = self._made_again.get(branch.snapshot.id)
        if known is not None:
            return known
        why = await asyncio.to_thread(self._missing, branch.snapshot)
        return branch.snapshot if why is None else await self._again(branch, why)

    async def _again(self, branch: Branch, why: str) -> Snapshot:
        begun = time.perf_counter()
        at, steps = await self._nearest(branch, why)
        for made in steps:
            if made.again is None or made.refused:
                reason = made.refused or "nothing in the journal says how it was made"
                raise Unrecoverable(
                    f"snapshot {branch.snapshot.id[:12]} of branch {branch.path} cannot be brought back ({why}): "
                    f"{made.what} would have to be done again, and {reason}. `ramify fsck` tells what is damaged; "
                    "`ramify resume RUN --from STATE` goes back to a state that is whole"
                )
            at = await made.again(at)
            self._verify(made, at, branch)
            self._made_again[made.snapshot.id] = at
        took = time.perf_counter() - begun
        self.again[branch.path] = Again(sum(made.seconds for made in steps), took)
        told = f"{why}; done again: {', '.join(made.what for made in steps)}"
        self.emit(Recovered(self.run, branch.path, Level.LINEAGE, told, took))
        return at

    async def _nearest(self, branch: Branch, why: str) -> tuple[Snapshot, list[Made]]:
        """The newest whole state in the branch's history, and what came after it."""
        steps: list[Made] = []
        for made in reversed(branch.made):
            whole = self._made_again.get(made.snapshot.id, made.snapshot)
            if await asyncio.to_thread(self._missing, whole) is None:
                return whole, steps
            steps.insert(0, made)
        raise Unrecoverable(
            f"snapshot {branch.snapshot.id[:12]} of branch {branch.path} cannot be brought back ({why}), nor can any "
            "state before it, the workspace's own included: start anew with `ramify run`"
        )

    def _missing(self, snapshot: Snapshot) -> str | None:
        found = missing(self.snapshots, snapshot.id)
        return None if found is None else str(found)

    def _verify(self, made: Made, at: Snapshot, branch: Branch) -> None:
        if made.snapshot.content_key and at.content_key != made.snapshot.content_key:
            raise Unrecoverable(
                f"{made.what} on branch {branch.path} was done again for a lost snapshot, and left other files than "
                f"before (content {at.content_key[:12]}, recorded {made.snapshot.content_key[:12]}): it depends on "
                "something else than its arguments and its world. `ramify resume RUN --from STATE` goes back"
            )
