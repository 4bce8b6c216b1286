"""Live worlds, made when a step needs one and let go when too many stand idle.

A branch is only a snapshot until something runs on it: a fork of a hundred costs nothing before its first step,
and a resumed run mounts only what it really goes on with.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from ramify.fork_engine import crash_points
from ramify.fork_engine.types import Snapshot
from ramify.runtime.errors import BranchReleased, StateLost
from ramify.runtime.records import BranchPath, CheckpointId
from ramify.runtime.worlds.recovery import Made, Recovery
from ramify.sandboxes.contract import Backend, World, WorldSpec
from ramify.sandboxes.errors import WorldDied


@dataclass(eq=False, slots=True)
class Branch:
    """A line of checkpoints and, while something runs on it, its live world."""

    path: BranchPath
    snapshot: Snapshot  # where it stands: its last sealed state
    checkpoint: CheckpointId
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)  # a world is linear: one step at a time
    world: World | None = None
    unsealed: bool = False  # a step ran after which the plan seals nothing: the world holds more than the snapshot
    lost: bool = False  # … and that world is gone
    released: bool = False  # its fork is over
    adopted: set[BranchPath] = field(default_factory=set)  # branches below whose work it has
    made: list[Made] = field(default_factory=list)  # its states so far, and how each is made again
    served_s: float = 0.0  # what the steps took that the journal answered for since a world last stood here

    def stands(self, made: Made) -> None:
        """It stands at a new state."""
        self.snapshot = made.snapshot
        if not self.made or self.made[-1].snapshot.id != made.snapshot.id:
            self.made.append(made)


class Ready:
    """Worlds that were forked before anybody asked for them, all on one snapshot."""

    def __init__(self, snapshot: Snapshot, made: asyncio.Future[list[World]]) -> None:
        self.snapshot, self.made = snapshot, made
        self._over = False

    async def take(self) -> World | None:
        """One of them, waited for while they are being made; None where there is none left, or none was made."""
        if not self.made.done():
            await asyncio.wait([self.made])
        if self._over or self.made.cancelled() or self.made.exception() is not None or not self.made.result():
            return None
        return self.made.result().pop()

    async def close(self) -> int:
        """End those that nobody took: how many."""
        self._over = True
        await asyncio.wait([self.made])
        if self.made.cancelled() or self.made.exception() is not None:
            return 0
        left = self.made.result()
        for world in left:
            await world.close()
        return len(left)


class WorldPool:
    """Keeps at most `max_idle` idle worlds alive; the least recently used go first."""

    def __init__(
        self,
        backend: Callable[[], Awaitable[Backend]],
        spec: WorldSpec,
        *,
        max_idle: int = 8,
        timer: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._backend = backend
        self._spec = spec
        self._max_idle = max_idle
        self._timer = timer
        self._closed = False
        self._idle: dict[Branch, None] = {}  # in order of last use
        self._live: dict[Branch, None] = {}
        self._ready: dict[BranchPath, Ready] = {}  # by the branch that will be forked
        self.recovery: Recovery | None = None  # brings back what is lost; without one that is an error

    async def state(self, branch: Branch) -> Snapshot:
        """The branch's snapshot as it can be mounted. Raises `Unrecoverable`."""
        return branch.snapshot if self.recovery is None else await self.recovery.whole(branch)

    async def fresh(self, snapshot: Snapshot) -> World:
        """A world that is on no branch. The caller closes it."""
        return await (await self._backend()).materialise(snapshot, self._spec)

    @property
    def spec(self) -> WorldSpec:
        """How the worlds look from inside."""
        return self._spec

    async def acquire(self, branch: Branch) -> tuple[World, float | None]:
        """The branch's live world, and the seconds that making it took (None where it stood already).

        Raises `BranchReleased` once its fork or the run is over, and `StateLost` where its unsealed state is gone.
        """
        if branch.released or self._closed:
            raise BranchReleased(f"branch {branch.path} was released: its fork, or its run, is over")
        if branch.lost:
            raise StateLost(
                f"branch {branch.path} held changes of steps that the plan does not SEAL, and a step failed after "
                "them, so its state is gone. Resume the run (they are run again), or put a SEAL into the plan"
            )
        self._idle.pop(branch, None)
        if branch.world is not None:
            if not branch.unsealed and branch.world.snapshot.id != branch.snapshot.id:
                await branch.world.rollback(await self.state(branch))
            return branch.world, None
        begun = self._timer()
        branch.world = await self._take_ready(branch)
        if branch.world is None:
            state = await self.state(branch)
            backend = await self._backend()
            begun = self._timer()
            branch.world = await backend.materialise(state, self._spec)
        crash_points.point("world made")
        self._live[branch] = None
        return branch.world, self._timer() - begun

    async def make_ready(self, branch: Branch, n: int) -> float:
        """Fork `n` worlds at the branch's snapshot, for the children of a fork to come; the seconds that it took.

        What was made ready for an earlier fork of the branch and not taken is ended. Raises as `Backend.fork` does.
        """
        await self.end_ready(branch.path)
        if self._closed or branch.released:
            return 0.0
        state = await self.state(branch)
        backend = await self._backend()
        begun = self._timer()
        ready = Ready(branch.snapshot, asyncio.ensure_future(backend.fork(state, self._spec, n)))
        self._ready[branch.path] = ready
        await asyncio.shield(ready.made)
        return self._timer() - begun

    async def end_ready(self, branch: BranchPath) -> int:
        """End the worlds that were made ready for a fork of this branch and not taken: how many."""
        ready = self._ready.pop(branch, None)
        return 0 if ready is None else await ready.close()

    async def _take_ready(self, branch: Branch) -> World | None:
        """A world made ready on this branch's snapshot, by the branch that it was forked from."""
        parent = BranchPath(branch.path.rpartition("/")[0])
        ready = self._ready.get(parent)
        return None if ready is None or ready.snapshot.id != branch.snapshot.id else await ready.take()

    async def rest(self, branch: Branch) -> None:
        """The branch's step is over: its world may be let go, unless it holds what no snapshot does."""
        world = branch.world
        if world is None or branch.unsealed:
            return
        try:
            busy = await world.background_processes()
        except WorldDied:
            await self.drop(branch)  # all that it held is sealed: the next step makes it anew
            return
        if not busy:
            self._idle[branch] = None
        while len(self._idle) > self._max_idle:
            await self.drop(next(iter(self._idle)))

    async def drop(self, branch: Branch) -> None:
        """End the branch's world. What is not sealed is lost, and the branch remembers that."""
        self._idle.pop(branch, None)
        self._live.pop(branch, None)
        world, branch.world = branch.world, None
        branch.lost, branch.unsealed = branch.lost or branch.unsealed, False
        if world is not None:
            await world.close()

    async def close(self) -> None:
        """End every world; none is made after this."""
        self._closed = True
        for branch in list(self._live):
            await self.drop(branch)
        for path in list(self._ready):
            await self.end_ready(path)
