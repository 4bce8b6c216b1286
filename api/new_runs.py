"""What a new run starts from: its arguments, its workspace, its deadline and the plan that it runs under; or a
checkpoint of another run, for a fork, and two for a merge."""

from __future__ import annotations

import asyncio
import inspect
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ramify import paths
from ramify.code_changes import is_from_current_files, placed
from ramify.compiler.declarations import WorkflowInfo
from ramify.compiler.plan import Plan
from ramify.fork_engine.gc_pins import Pins
from ramify.fork_engine.store import SnapshotStore
from ramify.fork_engine.types import MergeStrategy, Resolver, Snapshot, SnapshotId
from ramify.inspect.checkpoint_graph import ancestry
from ramify.runtime.codec.return_types import refuse_unstorable_return
from ramify.runtime.durations import Duration, seconds, shown
from ramify.runtime.errors import BadArguments, PlanMismatch, RunError, RunNotFound
from ramify.runtime.estimates.recorded_runs import RecentRuns, learned
from ramify.runtime.execution.new_runs import Launch, new_run_id
from ramify.runtime.journal.forked_runs import FORKED, ForkedRun, ThreadCopy, fork_run, merge_base
from ramify.runtime.records import CheckpointId, CheckpointRecord, RunRecord
from ramify.runtime.store import RunStore
from ramify.runtime.worlds.recovery import missing

if TYPE_CHECKING:
    from ramify.decorators import Workflow


async def launch_of(
    store: RunStore,
    recent: RecentRuns,
    workflow: Workflow[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    *,
    workspace: str | Path | None,
    deadline: Duration | None,
    plan: Plan | None,
) -> tuple[Launch, dict[str, str]]:
    """Return a run to start, and the digests of steps that changed since a given plan was made.

    Without a plan the workflow is compiled, with the durations of its recorded runs. Raises `BadArguments` and
    `PlanMismatch`.
    """
    info = _info_of(workflow)
    if plan is not None and not isinstance(plan, Plan):
        raise TypeError(f"plan={shown(plan)} is no plan: give what Plan.from_json(text) returns, or leave it out")
    try:
        inspect.signature(workflow.__wrapped__).bind(*args, **kwargs)
    except TypeError as error:
        raise BadArguments(f"{info.name}{inspect.signature(workflow.__wrapped__)}: {error}") from None
    refuse_unstorable_return(workflow.__wrapped__, f"workflow {info.name!r}")
    folder = workspace if workspace is not None else workflow.workspace
    code: dict[str, str] = {}
    if plan is None:
        seen = await learned(store, info.ref, folder, recent=recent)
        plan = workflow.plans().plan(
            workflow, ref=info.ref, deadline_s=info.deadline_s, estimates=seen, by_files=folder is not None
        )
    else:
        plan, code = _checked(plan, workflow)
    if plan.name != info.name:
        raise PlanMismatch(f"the plan is for {plan.name!r}, not for {info.name!r}")
    limit = seconds(deadline) if deadline is not None else (workflow.deadline_s or plan.deadline_s)
    where = None if folder is None else Path(folder)
    return Launch(plan, args, dict(kwargs), where, limit), code


def _info_of(workflow: object) -> WorkflowInfo:
    """Raises `TypeError` for what is no workflow."""
    info = getattr(workflow, "__ramify_workflow__", None)
    if isinstance(info, WorkflowInfo):
        return info
    name = getattr(workflow, "__qualname__", None)
    mend = "put @workflow on it" if inspect.isfunction(workflow) else "give a function under @workflow"
    raise TypeError(f"{shown(workflow) if name is None else name} is not a workflow: {mend}")


def _checked(given: Plan, workflow: Workflow[..., Any]) -> tuple[Plan, dict[str, str]]:
    """Check a plan that was made by hand like one from a file."""
    plan = Plan.from_json(given.to_json())
    reuses = any(step.reuse for step in plan.steps)  # reuse compares the code that runs, not the plan's
    if plan.name == workflow.__ramify_workflow__.name and (reuses or not is_from_current_files(plan)):
        plan, found = placed(plan, workflow)
        return plan, found.digests
    return plan, {}


@dataclass(frozen=True, slots=True)
class RunForks:
    """Creates runs from checkpoints of others, in one home."""

    home: Path
    database: str | Path
    store: RunStore
    snapshots: SnapshotStore
    clock: Callable[[], float]

    async def fork(self, checkpoint_id: str, files: Path | None, for_real: bool) -> tuple[RunRecord, str | None]:
        """See `Runtime.fork`. Returns the new run, and why the checkpoint's state is lost, if it is."""
        async with Pins(paths.locks(self.home)).held():  # until a row names the snapshots that are imported here
            at = await self.store.checkpoint(CheckpointId(checkpoint_id))
            record = await self.store.run(at.run_id)
            edited = None if files is None else await asyncio.to_thread(self._edited, at.snapshot_id, files)
            lost = None if files is not None else await asyncio.to_thread(missing, self.snapshots, at.snapshot_id)
            new = new_run_id()
            thread = self._thread_copy(record, at)
            fork = await fork_run(
                self.store, record, at, new, clock=self.clock, edited=edited, for_real=for_real, thread=thread
            )
        return fork, None if lost is None else str(lost)

    async def merge(
        self, ours: str, theirs: str, base: str | None, strategy: MergeStrategy | Resolver, for_real: bool
    ) -> RunRecord:
        """See `Runtime.merge`."""
        async with Pins(paths.locks(self.home)).held():  # until a row names the snapshots that are merged here
            mine, other = [await self.store.checkpoint(CheckpointId(id)) for id in (ours, theirs)]
            record = await self.store.run(mine.run_id)
            if base is None:
                base = merge_base(await self._ancestry(mine), await self._ancestry(other))
            if base is None:
                raise RunError(f"checkpoints {mine.id} and {other.id} have no common ancestor: name a base")
            ids = (SnapshotId(base), mine.snapshot_id, other.snapshot_id)
            three = [self.snapshots.get(id) for id in ids]
            merged = await asyncio.to_thread(self.snapshots.merge, *three, strategy=strategy)
            return await fork_run(
                self.store,
                record,
                mine,
                new_run_id(),
                clock=self.clock,
                edited=merged,
                theirs=other,
                for_real=for_real,
                thread=self._thread_copy(record, mine),
            )

    def _thread_copy(self, record: RunRecord, at: CheckpointRecord) -> ThreadCopy | None:
        if record.thread_id is None:
            return None
        from ramify.runtime.langgraph.thread.thread_fork import fork_thread

        async def copy(fork: ForkedRun) -> str:
            return await asyncio.to_thread(fork_thread, self.database, record, at, fork)

        return copy

    async def _ancestry(self, of: CheckpointRecord) -> list[CheckpointRecord]:
        """A checkpoint and its ancestors, also in the run that its run was forked from.

        If the fork's state was edited, the checkpoint that it was forked at is an ancestor that both sides know.
        """
        found = ancestry(await self.store.checkpoints(of.run_id), of)
        forks = [row for row in await self.store.ops(of.run_id) if row.key == FORKED and row.seq <= of.seq]
        for row in forks[-1:]:
            with suppress(RunNotFound):  # deleted since
                origin = await self.store.checkpoint(CheckpointId(row.attrs["from_checkpoint"]))
                found += await self._ancestry(origin)
        return found

    def _edited(self, id: SnapshotId, files: Path) -> Snapshot:
        """The snapshot with the files of a folder in place of its own: their differences, merged into it."""
        before = self.snapshots.get(id)
        with tempfile.TemporaryDirectory(prefix="ramify-fork-", dir=self.home) as scratch:
            copy = Path(scratch) / "files"
            self.snapshots.materialise(before, copy)
            plain = self.snapshots.import_tree(copy, image=before.image).snapshot
        edited = self.snapshots.import_tree(paths.expanded(files).resolve(), image=before.image).snapshot
        return self.snapshots.merge(plain, before, edited)
