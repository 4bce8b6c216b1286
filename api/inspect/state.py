"""One state of a run: what made it, and what differs from the state before it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from ramify.compiler.plan import OpKind
from ramify.fork_engine.errors import SnapshotNotFound
from ramify.fork_engine.types import Change, Snapshot, SnapshotId
from ramify.inspect.history import History, Moment
from ramify.runtime.records import CheckpointRecord, EffectRecord, OpStatus, RunId

if TYPE_CHECKING:
    from ramify.fork_engine.store import SnapshotStore
    from ramify.inspect.patch import FilePatch

Channels = Mapping[str, object]
"""Names to JSON values."""


class Missing(Enum):
    """The absence of a value, where None is one."""

    MISSING = "missing"


MISSING = Missing.MISSING


@dataclass(frozen=True, slots=True)
class Variable:
    """An environment variable of the world's shell that differs. None: not set, or as the world started with."""

    name: str
    before: str | None
    after: str | None


@dataclass(frozen=True)
class StateDiff:
    """The differences between two snapshots."""

    snapshots: SnapshotStore
    before: Snapshot
    after: Snapshot

    @cached_property
    def files(self) -> tuple[Change, ...]:
        """Sorted by path. Raises `SnapshotCorrupt`, `SnapshotNotFound`."""
        return tuple(self.snapshots.changes(self.before, self.after))

    @cached_property
    def outside(self) -> tuple[Change, ...]:
        """Changes outside the workspace, with absolute paths, sorted by path. Their contents are not compared: an
        installed package may be thousands of files. Raises as `files`."""
        return tuple(self.snapshots.outside_changes(self.before, self.after))

    @cached_property
    def patches(self) -> tuple[FilePatch, ...]:
        from ramify.inspect.patch import patches

        return tuple(patches(self.snapshots, self.files, self.before, self.after))

    @property
    def variables(self) -> tuple[Variable, ...]:
        """Environment variables that differ, sorted by name."""
        old, new = self.before.env, self.after.env
        names = sorted({*old, *new, *self.before.env_unset, *self.after.env_unset})
        told = (Variable(name, old.get(name), new.get(name)) for name in names)
        unset = {*self.before.env_unset} ^ {*self.after.env_unset}
        return tuple(one for one in told if one.before != one.after or one.name in unset)

    @property
    def moved(self) -> bool:
        """Whether the shell is in another folder."""
        return self.before.cwd != self.after.cwd


@dataclass(frozen=True)
class State:
    """A checkpoint of a run. `since`: its first parent; None for the workspace's own checkpoint.

    `database`: where the run is stored, for `channels`.
    """

    history: History
    checkpoint: CheckpointRecord
    snapshot: Snapshot
    since: CheckpointRecord | None
    change: StateDiff | None
    database: str | Path | None = None

    @cached_property
    def channels(self) -> Channels | None:
        """The program's state there: the channels of a LangGraph thread, or the results of the steps on its branch.

        The journal does not hold a workflow's variables. None if the thread's saver stores its channels elsewhere, or
        if the graph had no state yet.
        """
        if self.history.run.thread_id is not None:
            return _of_thread(self.history, self.checkpoint, self.database)
        return _of_steps(self.history, self.checkpoint)

    @property
    def made(self) -> Moment | None:
        """The moment that the checkpoint was taken after."""
        return self.history.made_by(self.checkpoint)

    @cached_property
    def moments(self) -> tuple[Moment, ...]:
        """The steps and model calls of its branch since the previous checkpoint there, in order."""
        branch, upto = self.checkpoint.branch, self.checkpoint.seq
        states = (one.seq for one in self.history.checkpoints if one.branch == branch and one.seq < upto)
        before = max(states, default=0)
        return tuple(one for one in self.history.moments if one.branch == branch and before < one.seq <= upto)

    @property
    def calls(self) -> tuple[Moment, ...]:
        return tuple(one for one in self.moments if one.llm is not None)

    @property
    def effects(self) -> tuple[EffectRecord, ...]:
        """All effects outside that had happened by then, anywhere in the run."""
        done = {row.key for row in self.history.ops if row.seq <= self.checkpoint.seq and row.status is OpStatus.DONE}
        return tuple(one for one in self.history.effects if one.key in done)


def state_at(
    history: History,
    snapshots: SnapshotStore,
    checkpoint: CheckpointRecord,
    database: str | Path | None = None,
) -> State:
    """The state at a checkpoint. Raises `SnapshotNotFound` if the snapshot was deleted."""
    since = next((history.by_id[one] for one in checkpoint.parents if one in history.by_id), None)
    run = history.run.id
    snapshot = snapshot_of(run, snapshots, checkpoint.snapshot_id)
    before = None if since is None else snapshot_of(run, snapshots, since.snapshot_id)
    change = None if before is None else StateDiff(snapshots, before, snapshot)
    return State(history, checkpoint, snapshot, since, change, database)


def snapshot_of(run: RunId, snapshots: SnapshotStore, id: SnapshotId) -> Snapshot:
    """A snapshot of a run. Raises `SnapshotNotFound`, which says how to get it: another machine may have made it."""
    try:
        return snapshots.get(id)
    except SnapshotNotFound as error:
        raise SnapshotNotFound(f"{error}: if the home's bucket has it, `ramify pull {run}` fetches it") from None


def changed_channels(before: Channels | None, after: Channels | None) -> list[tuple[str, object, object]]:
    """The keys that differ, by name, with their values: `MISSING` on a side without one.

    None and `MISSING` are equal here: a step that returns nothing changes files, not the state.
    """
    old, new = before or {}, after or {}
    both = ((name, old.get(name, MISSING), new.get(name, MISSING)) for name in sorted({*old, *new}))
    return [(name, was, now) for name, was, now in both if _known(was) != _known(now)]


def _known(value: object) -> object:
    return None if value is MISSING else value


def _of_thread(history: History, at: CheckpointRecord, database: str | Path | None) -> Channels | None:
    from ramify.runtime.langgraph.errors import NoStateThere, ThreadElsewhere
    from ramify.runtime.langgraph.thread.stored_thread import channels_at

    if database is None:
        return None
    try:
        return channels_at(database, history.run, at, history.ops)
    except (NoStateThere, ThreadElsewhere):
        return None


def _of_steps(history: History, at: CheckpointRecord) -> Channels:
    """The last result of each step on the branch and those above it, as recorded; without steps that return None."""
    from ramify.runtime.journal.forked_runs import journal_as_of

    paths = _upwards(at.branch)
    rows = (row for row in journal_as_of(history.ops, at.seq) if row.branch in paths and row.status is OpStatus.DONE)
    results = {row.step: json.loads(row.result_json or "null") for row in rows if row.step and row.kind is OpKind.RUN}
    return {step: result for step, result in results.items() if result is not None}


def _upwards(branch: str) -> set[str]:
    parts = branch.split("/")
    return {"/".join(parts[: at + 1]) for at in range(len(parts))}
