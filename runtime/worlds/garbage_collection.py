"""Garbage collection of snapshots (`ramify gc`): which snapshots are live, which are deleted, and in which order.

A snapshot is live if a row of the journal names it. Without a budget, exactly the others are deleted. With a
budget in bytes, snapshots that can be recomputed are evicted as well, cheapest first: by the seconds of recomputation
per byte that is freed. Candidates are the states that commands left for reuse, and the states between the first and
the last of a finished run. A run that can continue keeps the states that its plan says it may need (`dead_states`). A
LangGraph thread keeps all of its states, because recomputing them needs its checkpoints, which are not read here.

**Safety.** Decisions and deletions happen under a lock that waits for every process that is between a seal and its
commit (`fork_engine/gc_pins.py`). Snapshots younger than a grace period are kept as well, for front ends that hold no
pins. An
eviction is first marked durably: the rows still name the snapshot, and `ramify fsck` must not report it as lost.
After a kill, the next collection deletes the marked snapshots. An evicted snapshot that is needed again is fetched or
recomputed (`recovery.py`). Its mark stays until no row names it.
"""

from __future__ import annotations

import heapq
import os
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from ramify import paths
from ramify.compiler.plan import OpId, OpKind, Plan
from ramify.fork_engine import crash_points
from ramify.fork_engine.errors import SnapshotCorrupt, SnapshotNotFound
from ramify.fork_engine.gc_pins import Pins
from ramify.fork_engine.store import SnapshotStore
from ramify.fork_engine.types import SnapshotId
from ramify.runtime.records import ROOT, CheckpointRecord, EffectRecord, OpRecord, OpStatus, RunRecord, RunStatus
from ramify.runtime.store import RunStore
from ramify.runtime.store.engines import sync_folder

if TYPE_CHECKING:
    from ramify.runtime.store.reader import Reader

_MAKES_NONE = (OpKind.FORK, OpKind.RELEASE, OpKind.PREFORK, OpKind.COMMAND)  # a command's state belongs to its step
Dies = dict[OpId, frozenset[str]]


def dead_states(plan: Plan, ops: Sequence[OpRecord]) -> set[SnapshotId]:
    """Return the snapshots that the rest of the run does not need; none if the plan has no liveness information.

    The plan says where each snapshot dies, the journal what was done. A snapshot that several rows made is dead if it
    is dead for each of them. A snapshot on which a fork is based is dead after the fork's release.
    """
    dies: Dies = {op.id: frozenset(op.attrs.get("dies", ())) for op in plan.ops}
    done = [row for row in ops if row.status is OpStatus.DONE]
    keys = {row.key for row in done}
    needed, dead = set[SnapshotId](), set[SnapshotId]()
    for row in done:
        if row.kind is OpKind.FORK and f"{row.key}|RELEASE" not in keys:
            needed.update(id for id in (row.snapshot_in, row.snapshot_out) if id is not None)
        if row.snapshot_out in (None, row.snapshot_in) or row.kind in _MAKES_NONE:
            continue
        ends = dies.get(row.op_id, frozenset()) if row.kind is not OpKind.RUN else _of_its_seal(row, done, dies)
        if any(later.seq > row.seq and later.op_id in ends and _ends(later, row) for later in done):
            dead.add(row.snapshot_out)
        else:
            needed.add(row.snapshot_out)
    return dead - needed


def _of_its_seal(row: OpRecord, done: Sequence[OpRecord], dies: Dies) -> frozenset[str]:
    """Return where the state of a step's row dies: the plan says it for the SEAL that made the state."""
    seal = next((one for one in done if one.key == f"{row.key}|SEAL"), None)
    return frozenset() if seal is None else dies.get(seal.op_id, frozenset())


def _ends(later: OpRecord, row: OpRecord) -> bool:
    """Whether `later` recorded a new state on the row's branch, or released the fork to which the branch belongs."""
    if later.branch == row.branch:
        return later.snapshot_out is not None or later.kind is OpKind.RELEASE
    return later.kind is OpKind.RELEASE and row.branch.startswith(f"{later.branch}/")


GRACE_S = 300.0
"""Age in seconds below which a snapshot is kept even if no row names it yet."""


@dataclass(frozen=True, slots=True)
class RunHistory:
    """The rows of one run."""

    run: RunRecord
    ops: Sequence[OpRecord]
    checkpoints: Sequence[CheckpointRecord]
    effects: Sequence[EffectRecord] = ()


@dataclass(frozen=True, slots=True)
class Candidate:
    """A snapshot that can be recomputed from `parent` in `seconds`."""

    id: SnapshotId
    parent: SnapshotId
    seconds: float


@dataclass(slots=True)
class LiveStates:
    """The snapshots that rows name: `roots` must stay, `candidates` may be evicted under a budget."""

    roots: set[SnapshotId] = field(default_factory=set)
    candidates: dict[SnapshotId, Candidate] = field(default_factory=dict)

    @property
    def all(self) -> set[SnapshotId]:
        return self.roots | self.candidates.keys()

    def stay(self, ids: set[SnapshotId]) -> None:
        """Make these snapshots roots."""
        self.roots |= ids
        for id in ids & self.candidates.keys():
            del self.candidates[id]

    def may_go(self, ids: set[SnapshotId]) -> None:
        """Make these roots candidates for eviction: the bucket has them, so they need no recomputation."""
        self.roots -= ids
        self.candidates |= {id: Candidate(id, id, 0.0) for id in ids}


@dataclass(frozen=True, slots=True)
class Eviction:
    """A snapshot that is evicted under a budget."""

    id: SnapshotId
    frees: int  # bytes that only this snapshot held
    seconds: float  # time to recompute it


@dataclass(frozen=True, slots=True)
class Collected:
    """The result of a collection, or of a dry run."""

    snapshots: int  # number of snapshots deleted
    bytes: int  # bytes freed; in a dry run, estimated from the sizes of files
    kept: int  # number of snapshots kept
    held: int  # bytes of the layers, blobs and process images that are kept
    evicted: tuple[Eviction, ...] = ()
    budget: int | None = None
    young: int = 0  # number of unnamed snapshots still in their grace period

    @property
    def within_budget(self) -> bool:
        return self.budget is None or self.held <= self.budget


def living(histories: Iterable[RunHistory]) -> LiveStates:
    """Return the snapshots that the rows of all runs name, divided into roots and candidates for eviction."""
    found = LiveStates()
    for history in histories:
        _add(found, history)
    found.stay(found.roots)
    return found


def _add(found: LiveStates, history: RunHistory) -> None:
    run = history.run
    found.roots.add(run.base_snapshot)
    whole = run.status is not RunStatus.DONE or run.frontend != "decorators"
    roots = [one for one in history.checkpoints if one.branch == ROOT]
    last = max(roots, key=lambda one: one.seq, default=None)
    if last is not None:
        found.roots.add(last.snapshot_id)
    dead = _dead(history) if whole else frozenset[SnapshotId]()
    once = {effect.key for effect in history.effects}  # effects are not repeated to recompute a snapshot
    for row in history.ops:
        named = [id for id in (row.snapshot_in, row.snapshot_out) if id is not None]
        if (whole and row.snapshot_out not in dead) or row.status is not OpStatus.DONE or row.key in once:
            found.roots.update(id for id in named if id not in dead)
        elif row.snapshot_in is not None and row.snapshot_out not in (None, row.snapshot_in):
            _add_candidate(found, row, row.snapshot_in, SnapshotId(str(row.snapshot_out)))
    if whole:
        found.roots.update(one.snapshot_id for one in history.checkpoints if one.snapshot_id not in dead)
    # Snapshots that no repeatable operation made are roots.
    named_here = {id for row in history.ops for id in (row.snapshot_in, row.snapshot_out) if id is not None}
    named_here |= {one.snapshot_id for one in history.checkpoints}
    # "ours": the state of a node's world before it merged a fork of it. Recomputing the merge needs it, and no other
    # row names it.
    named_here |= {SnapshotId(row.attrs["ours"]) for row in history.ops if "ours" in row.attrs}
    found.roots |= named_here - found.candidates.keys()


def _dead(history: RunHistory) -> frozenset[SnapshotId]:
    """Return the states that a run which can continue will not need, by its plan and its journal."""
    if history.run.frontend != "decorators" or not history.ops:
        return frozenset()
    return frozenset(dead_states(Plan.from_json(history.run.plan_json), history.ops))


def _add_candidate(found: LiveStates, row: OpRecord, parent: SnapshotId, id: SnapshotId) -> None:
    if row.reused_from is not None or row.kind is OpKind.SEAL:
        if id not in found.candidates:
            found.candidates[id] = Candidate(id, parent, 0.0)  # the row of the step, or of the source, has the cost
        return
    known = found.candidates.get(id)
    seconds = max(0.0, row.ended_at - row.started_at)
    if known is None or seconds > known.seconds:
        found.candidates[id] = Candidate(id, parent, seconds)


def choose(
    alive: LiveStates, objects: Mapping[SnapshotId, Collection[str]], sizes: Mapping[str, int], budget: int
) -> list[Eviction]:
    """Choose candidates to evict until at most `budget` bytes are held: fewest seconds per byte first.

    `objects`: the layers, blobs and process images that each snapshot holds. Greedy. The size of an object is divided
    by the number of snapshots that hold it, because it is deleted only with the last of them. The seconds
    of a state include those of evicted states from which it would be recomputed.
    """
    users = Counter(one for id in alive.all for one in set(objects.get(id, ())))
    needed = {one for id in alive.roots for one in objects.get(id, ())}
    held = sum(sizes[one] for one in users)
    gone: dict[SnapshotId, Eviction] = {}
    queue: list[tuple[float, SnapshotId]] = []

    def put(id: SnapshotId) -> None:
        share = sum(sizes[one] / users[one] for one in set(objects.get(id, ())) - needed)
        if share > 0:
            heapq.heappush(queue, (_recomputation_seconds(id, alive.candidates, gone) / share, id))

    for id in alive.candidates:
        put(id)
    while held > budget and queue:
        score, id = heapq.heappop(queue)
        if id in gone:
            continue
        put(id)  # its share and cost may have changed since it was queued: take it only if it is still first
        if queue[0] != (score, id):
            continue
        frees = sum(sizes[one] for one in set(objects[id]) if users[one] == 1)
        gone[id] = Eviction(id, frees, _recomputation_seconds(id, alive.candidates, gone))
        held -= frees
        users.subtract(set(objects[id]))
        users += Counter()  # drops objects without holders
    return list(gone.values())


def _recomputation_seconds(
    id: SnapshotId, candidates: Mapping[SnapshotId, Candidate], gone: Mapping[SnapshotId, Eviction]
) -> float:
    """Return the seconds to recompute a snapshot from the nearest state that is not evicted."""
    at, seen = candidates[id], {id}
    total = at.seconds
    while at.parent in gone and at.parent not in seen:
        seen.add(at.parent)
        at = candidates[at.parent]
        total += at.seconds
    return total


class EvictionMarks:
    """Marks of evicted snapshots, which rows still name: one empty file each."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def all(self) -> set[SnapshotId]:
        return {SnapshotId(path.name) for path in self._folder.iterdir()} if self._folder.is_dir() else set()

    def add(self, ids: Iterable[SnapshotId]) -> None:
        """Durable when this returns."""
        paths.make_private(self._folder)
        for id in ids:
            os.close(os.open(self._folder / id, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
        sync_folder(self._folder)

    def drop(self, ids: Iterable[SnapshotId]) -> None:
        for id in ids:
            (self._folder / id).unlink(missing_ok=True)


async def histories(reader: Reader) -> list[RunHistory]:
    """Return what decides about snapshots, of all runs. Arguments and results are not read."""
    return [RunHistory(*rows) for rows in await reader.without_texts()]


def _histories_in(store: RunStore) -> list[RunHistory]:
    from ramify.runtime.store.reader import at_once, reading

    with reading(store.address) as reader:
        return at_once(histories(reader))


async def collect(
    store: RunStore | None,
    snapshots: SnapshotStore,
    pins: Pins,
    marks: EvictionMarks,
    *,
    budget: int | None = None,
    dry_run: bool = False,
    grace_s: float = GRACE_S,
    named: Callable[[], set[SnapshotId]] = set,
    in_bucket: Collection[SnapshotId] = (),
    wait: bool = True,
) -> Collected:
    """Delete snapshots that no row names and, for a budget in bytes, those that are cheapest to recompute.

    `store`: None for a home without runs. `named`: asked under the lock for snapshots to keep beside those that rows
    name. `in_bucket`: snapshots that can be fetched again. For a budget, those that only finished runs name are
    deleted before what has to be recomputed. Safe to repeat after a kill. Blocks the event loop while it waits for
    the lock, so call it in a process of its own. wait: False raises `BlockingIOError` instead of waiting.
    """
    with pins.collecting(wait=wait):
        every, kept = [] if store is None else _histories_in(store), pins.kept() | named()
        alive = living(every)
        alive.stay(kept)
        marked = marks.all()
        stale = marked - alive.all
        for id in marked & alive.candidates.keys():
            del alive.candidates[id]
        if budget is not None and in_bucket:
            needed = kept | living(one for one in every if one.run.status is not RunStatus.DONE).all
            alive.may_go((alive.roots - needed) & set(in_bucket))
            marked -= alive.candidates.keys()  # they were fetched again
        objects, sizes = _objects(snapshots, alive.all - (marked - alive.roots))  # a marked root may be here again
        evicted = [] if budget is None else choose(alive, objects, sizes, budget)
        keep = alive.all - {one.id for one in evicted} - (marked - alive.roots)
        still_held = {one for id in keep for one in objects.get(id, ())}
        held = sum(sizes[one] for one in still_held)
        if dry_run:
            gone = set(snapshots.present(older_than_s=grace_s)) - keep
            freed = sum(size for one, size in _objects(snapshots, gone)[1].items() if one not in still_held)
            young = len(set(snapshots.present()) - keep - gone)
            return Collected(len(gone), freed, len(keep), held, tuple(evicted), budget, young)
        marks.add(one.id for one in evicted)
        crash_points.point("marked")
        removed, freed = snapshots.delete_unreachable(keep, grace_s=grace_s)
        marks.drop(stale)
        young = len(set(snapshots.present()) - keep)
        return Collected(removed, freed, len(keep), held, tuple(evicted), budget, young)


def _objects(
    snapshots: SnapshotStore, ids: Iterable[SnapshotId]
) -> tuple[dict[SnapshotId, frozenset[str]], dict[str, int]]:
    """Return the layers, blobs and process images of each snapshot, and the bytes of each of them. Snapshots that are
    missing or damaged are left out; `ramify fsck` reports them."""
    objects: dict[SnapshotId, frozenset[str]] = {}
    sizes: dict[str, int] = {}
    for id in ids:
        try:
            needed = snapshots.bytes_needed(snapshots.get(id))
        except (SnapshotNotFound, SnapshotCorrupt):
            continue
        objects[id] = frozenset(needed)
        sizes |= needed
    return objects, sizes
