"""The live worlds of a run: created when a step needs one, and closed when too many are idle.

A branch is only a snapshot until a step runs on it. So a fork into a hundred branches costs nothing before the first
step, and a resumed run mounts only the worlds with which it continues.

The sandbox backend is told of the run's plan (`WarmStates`): which states are forked next, and which nothing names
any more. A backend keeps agents and shells ready where forks are made next, and ends what waits at a state that no
later operation can go back to. The plan says both; memory may allow less, which the backend decides and says. What
was decided is in the row of the state (`WARM`), for `ramify explain`.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from ramify.compiler.plan import OpKind, Plan, PlanOp
from ramify.fork_engine import crash_points
from ramify.fork_engine.types import Snapshot, SnapshotId
from ramify.runtime.errors import BranchReleased, StateLost
from ramify.runtime.records import WARM, BranchPath, CheckpointId, RunRecord
from ramify.sandboxes.contract import Backend, Foreseeing, World, WorldSpec
from ramify.sandboxes.errors import WorldDied
from ramify.worlds.world_spec import DEFAULT_MOUNT, world_spec


@dataclass(frozen=True, slots=True)
class StateOrigin:
    """A state of a branch, and how to recompute it from the state before. `again` is None for the workspace."""

    snapshot: Snapshot
    what: str  # what made it, for messages
    again: Callable[[Snapshot], Awaitable[Snapshot]] | None = None
    refused: str = ""  # why it must not be repeated
    seconds: float = 0.0  # how long it took when it was recorded


@dataclass(eq=False, slots=True)
class Branch:
    """A branch: its current snapshot and checkpoint and, while steps run on it, its live world."""

    path: BranchPath
    snapshot: Snapshot  # its last sealed state
    checkpoint: CheckpointId
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)  # one step at a time
    world: World | None = None
    unsealed: bool = False  # a step ran without a SEAL after it: the world has changes that the snapshot lacks
    lost: bool = False  # … and that world is gone
    owes: int = 0  # the number of the last step that the journal answered for without the state after it
    released: bool = False  # its fork has ended
    adopted: set[BranchPath] = field(default_factory=set)  # branches below it that were merged into it
    made: list[StateOrigin] = field(default_factory=list)  # its states so far, and how to recompute each
    served_s: float = 0.0  # seconds of the steps that the journal answered for since it last had a world

    def stands(self, made: StateOrigin) -> None:
        """Move the branch to a new state."""
        self.snapshot, self.owes = made.snapshot, 0
        if not self.made or self.made[-1].snapshot.id != made.snapshot.id:
            self.made.append(made)

    def was_at(self, state: SnapshotId | None) -> bool:
        """Whether it is or was in that state."""
        return any(made.snapshot.id == state for made in self.made)


class RecoversStates(Protocol):
    """Recomputes the lost state of a branch (`ramify.runtime.worlds.recovery.Recovery`)."""

    async def whole(self, branch: Branch) -> Snapshot: ...


class ReadyWorlds:
    """Worlds that were forked in advance (preforked), all from one snapshot."""

    def __init__(self, snapshot: Snapshot, made: asyncio.Future[list[World]]) -> None:
        self.snapshot, self.made = snapshot, made
        self._over = False

    async def take(self) -> World | None:
        """Return one of the worlds, after they are made; None if none is left or making them failed."""
        if not self.made.done():
            await asyncio.wait([self.made])
        if self._over or self.made.cancelled() or self.made.exception() is not None or not self.made.result():
            return None
        return self.made.result().pop()

    async def close(self) -> int:
        """Close the worlds that nobody took; return how many there were."""
        self._over = True
        await asyncio.wait([self.made])
        if self.made.cancelled() or self.made.exception() is not None:
            return 0
        left = self.made.result()
        for world in left:
            await world.close()
        return len(left)


class WorldPool:
    """The live worlds of a run. Keeps at most `max_idle` idle worlds, and closes the least recently used first."""

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
        self._ready: dict[BranchPath, ReadyWorlds] = {}  # by the branch that will be forked
        self._opened: Backend | None = None  # once a world was needed
        self.warm: WarmStates | None = None  # tells the backend of the plan
        self.recovery: RecoversStates | None = None  # recomputes lost snapshots; without it they are an error

    async def state(self, branch: Branch) -> Snapshot:
        """Return the branch's snapshot, recomputed if it is lost. Raises `Unrecoverable`."""
        return branch.snapshot if self.recovery is None else await self.recovery.whole(branch)

    async def fresh(self, snapshot: Snapshot) -> World:
        """Return a new world that belongs to no branch. The caller closes it."""
        return await (await self._backend()).materialise(snapshot, self._spec)

    @property
    def spec(self) -> WorldSpec:
        """The specification of the worlds."""
        return self._spec

    async def acquire(self, branch: Branch) -> tuple[World, float | None]:
        """Return the branch's live world, and the seconds that making it took (None if it existed already).

        Raises `BranchReleased` after the end of its fork or run, and `StateLost` if its unsealed changes are gone.
        """
        self.refuse_ended(branch)
        self._idle.pop(branch, None)
        if branch.world is not None:
            if not branch.unsealed and branch.world.snapshot.id != branch.snapshot.id:
                await branch.world.rollback(await self.state(branch))
            return branch.world, None
        begun = self._timer()
        branch.world = await self._take_ready(branch)
        if branch.world is None:
            state = await self.state(branch)
            backend = self._opened = await self._backend()
            begun = self._timer()
            branch.world = await backend.materialise(state, self._spec)
        crash_points.point("world made")
        self._live[branch] = None
        return branch.world, self._timer() - begun

    def refuse_ended(self, branch: Branch) -> None:
        """Raise as `acquire` does, if no step may run on the branch any more."""
        if branch.released or self._closed:
            raise BranchReleased(f"branch {branch.path} was released: its fork, or its run, has ended")
        if branch.lost:
            raise StateLost(
                f"branch {branch.path} had changes of steps that the plan does not SEAL, and a step failed after "
                "them, so its state is gone. Resume the run (the steps are run again), or add a SEAL to the plan"
            )

    async def make_ready(self, branch: Branch, n: int) -> float:
        """Fork `n` worlds from the branch's snapshot in advance, for the children of its next fork. Returns the
        seconds that it took.

        Worlds that were made for an earlier fork of the branch and not taken are closed. Raises as `Backend.fork`
        does.
        """
        await self.end_ready(branch.path)
        if self._closed or branch.released:
            return 0.0
        state = await self.state(branch)
        backend = self._opened = await self._backend()
        begun = self._timer()
        ready = ReadyWorlds(branch.snapshot, asyncio.ensure_future(backend.fork(state, self._spec, n)))
        self._ready[branch.path] = ready
        await asyncio.shield(ready.made)
        return self._timer() - begun

    async def end_ready(self, branch: BranchPath) -> int:
        """Close the worlds that were made for a fork of this branch and not taken; return how many there were."""
        ready = self._ready.pop(branch, None)
        return 0 if ready is None else await ready.close()

    async def _take_ready(self, branch: Branch) -> World | None:
        """Return a world that the parent branch made in advance from this branch's snapshot, or None."""
        parent = BranchPath(branch.path.rpartition("/")[0])
        ready = self._ready.get(parent)
        return None if ready is None or ready.snapshot.id != branch.snapshot.id else await ready.take()

    def made(self, op: PlanOp, branch: BranchPath, state: Snapshot) -> Mapping[str, str]:
        """An operation made this state. Returns attributes of its row: what is kept ready for forks of it."""
        return {} if self.warm is None else self.warm.made(self._opened, op, branch, state)

    def forked(self, op: PlanOp, base: SnapshotId, width: int) -> None:
        """A fork of this state begins."""
        if self.warm is not None:
            self.warm.forked(op, base, width)

    def released(self, base: SnapshotId, branches: Sequence[BranchPath]) -> None:
        """The branches of a fork have ended."""
        if self.warm is not None:
            self.warm.released(self._opened, base, branches)

    async def rest(self, branch: Branch) -> None:
        """After a step, make the branch's world idle, unless it has unsealed changes or background processes."""
        world = branch.world
        if world is None or branch.unsealed:
            return
        try:
            busy = await world.background_processes()
        except WorldDied:
            await self.drop(branch)  # all of its changes are sealed: the next step makes a new world
            return
        if not busy:
            self._idle[branch] = None
        while len(self._idle) > self._max_idle:
            await self.drop(next(iter(self._idle)))

    async def drop(self, branch: Branch) -> None:
        """Close the branch's world. If it has unsealed changes, the branch is marked as lost."""
        self._idle.pop(branch, None)
        self._live.pop(branch, None)
        world, branch.world = branch.world, None
        branch.lost, branch.unsealed = branch.lost or branch.unsealed, False
        if world is not None:
            await world.close()

    async def close(self) -> None:
        """Close all worlds; no world is made after this."""
        self._closed = True
        for branch in list(self._live):
            await self.drop(branch)
        for path in list(self._ready):
            await self.end_ready(path)


def spec_of_run(record: RunRecord) -> WorldSpec:
    """Return how the run's worlds look inside: this machine, with this process's Python first in PATH, no secrets."""
    return world_spec(Path(record.workspace) if record.workspace else DEFAULT_MOUNT)


NOTHING = "nothing: no fork of it follows, so its world goes on"
_GUESS = 4  # branches of a fork whose number is not known


class WarmStates:
    """The states of one run, as its backend should know them. `spec`: of the run's worlds.

    A state that is released too early only costs the time to prepare it again.
    """

    def __init__(self, plan: Plan, spec: WorldSpec) -> None:
        self._plan, self._spec = plan, spec
        self._made: dict[SnapshotId, tuple[BranchPath, frozenset[str]]] = {}  # where each state dies
        self._bases: Counter[SnapshotId] = Counter()  # of forks that are not released
        self._dead: set[SnapshotId] = set()  # such bases that only their forks still need
        self._widths: Counter[str] = Counter()  # of the forks so far, the largest of each operation

    def made(self, backend: object, op: PlanOp, branch: BranchPath, state: Snapshot) -> Mapping[str, str]:
        """A state was made by this operation. Returns what is kept ready, as attributes of its row.

        backend: the open one; None if no world was needed yet.
        """
        if not isinstance(backend, Foreseeing):
            return {}
        gone = [id for id, (of, ends) in self._made.items() if of == branch and op.id in ends and id != state.id]
        self._release(backend, gone)
        self._made[state.id] = branch, frozenset(op.attrs.get("dies", ()))
        fork = self._fork_after(op)
        if fork is None:
            return {WARM: NOTHING}
        width = self._width(fork)
        kept = backend.foresee(state, self._spec, width)
        said = f"{kept.places} for the {width} worlds of {fork.id}, which follows"
        return {WARM: f"{said}; {kept.why_no_more}" if kept.why_no_more else said}

    def forked(self, op: PlanOp, base: SnapshotId, width: int) -> None:
        """A fork begins: each of its branches may go back to its base."""
        self._widths[op.id] = max(self._widths[op.id], width)
        self._bases[base] += 1

    def released(self, backend: object, base: SnapshotId, branches: Sequence[BranchPath]) -> None:
        """The branches of a fork have ended: nothing goes back to their states."""
        self._bases[base] -= 1
        below = tuple(f"{branch}/" for branch in branches)
        if isinstance(backend, Foreseeing):
            gone = [id for id, (of, _) in self._made.items() if below and f"{of}/".startswith(below)]
            self._release(backend, [*gone, *self._dead.intersection({base})])

    def _release(self, backend: Foreseeing, gone: list[SnapshotId]) -> None:
        self._dead.update(id for id in gone if self._bases[id] > 0)
        gone = [id for id in dict.fromkeys(gone) if self._bases[id] <= 0]
        self._dead.difference_update(gone)
        for id in gone:
            self._made.pop(id, None)
        if gone:
            backend.forget(gone)

    def _fork_after(self, op: PlanOp) -> PlanOp | None:
        """The fork that is made of the state, if one is."""
        if (ahead := self._plan.after(op, OpKind.PREFORK)) is not None:
            return next((one for one in self._plan.ops if one.id in ahead.attrs.get("forks", ())), None)
        return self._plan.after(op, OpKind.FORK)

    def _width(self, fork: PlanOp) -> int:
        if self._widths[fork.id]:
            return self._widths[fork.id]
        planned = [op.attrs["width"] for op in self._plan.ops if fork.id in op.attrs.get("forks", ())]
        return int(planned[0]) if planned else _GUESS
