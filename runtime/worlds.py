"""Live worlds, made when a step needs one and let go when too many stand idle.

A branch is only a snapshot until something runs on it: a fork of a hundred costs nothing before its first step,
and a resumed run mounts only what it really goes on with.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from ramify.fork_engine.types import Snapshot
from ramify.runtime.errors import BranchReleased, StateLost
from ramify.runtime.records import BranchPath, CheckpointId
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
        self._idle: dict[BranchPath, Branch] = {}  # in order of last use
        self._live: dict[BranchPath, Branch] = {}

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
        self._idle.pop(branch.path, None)
        if branch.world is not None:
            if not branch.unsealed and branch.world.snapshot.id != branch.snapshot.id:
                await branch.world.rollback(branch.snapshot)
            return branch.world, None
        backend = await self._backend()
        begun = self._timer()
        branch.world = await backend.materialise(branch.snapshot, self._spec)
        self._live[branch.path] = branch
        return branch.world, self._timer() - begun

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
            self._idle[branch.path] = branch
        while len(self._idle) > self._max_idle:
            oldest = next(iter(self._idle.values()))
            await self.drop(oldest)

    async def drop(self, branch: Branch) -> None:
        """End the branch's world. What is not sealed is lost, and the branch remembers that."""
        self._idle.pop(branch.path, None)
        self._live.pop(branch.path, None)
        world, branch.world = branch.world, None
        branch.lost, branch.unsealed = branch.lost or branch.unsealed, False
        if world is not None:
            await world.close()

    async def close(self) -> None:
        """End every world; none is made after this."""
        self._closed = True
        for branch in list(self._live.values()):
            await self.drop(branch)
