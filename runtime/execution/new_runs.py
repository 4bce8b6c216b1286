"""New runs of workflows that are written with the decorators: their workspace is imported, and their first rows are
written."""

from __future__ import annotations

import asyncio
import secrets
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from ramify import paths
from ramify.compiler.plan import Plan
from ramify.fork_engine.gc_pins import Pins
from ramify.fork_engine.store import SnapshotStore
from ramify.fork_engine.types import Imported, Skipped, Snapshot
from ramify.runtime.codec import codec
from ramify.runtime.events import Event
from ramify.runtime.execution.model_calls import LLMProvider
from ramify.runtime.journal.journal import base_checkpoint
from ramify.runtime.records import CheckpointRecord, RunId, RunRecord, RunStatus, Settings
from ramify.runtime.store import RunStore
from ramify.runtime.store.run_locks import hold_new_run
from ramify.runtime.worlds.recovery import Fetch, missing
from ramify.sandboxes.contract import Backend

if TYPE_CHECKING:
    from ramify.runtime.execution.placed_steps import Places


@dataclass(frozen=True, slots=True)
class Services:
    """The services that runs use. The caller opens and closes them; all of its runs share them."""

    store: RunStore
    snapshots: SnapshotStore
    backend: Callable[[], Awaitable[Backend]]  # started when the first world is needed
    llm: LLMProvider
    locks: Path
    clock: Callable[[], float]
    emit: Callable[[Event], None]
    settings: Settings
    check_reuse: float = 0.0  # the share of reuse hits that are recomputed and compared, 0 to 1
    reuse_answers: bool = False  # reuse the answers of equal model calls at any temperature
    fetch: Fetch | None = None  # from the home's bucket
    places: Callable[[RunRecord], Places | None] | None = None  # where steps of branches may run


def new_run_id() -> RunId:
    return RunId(secrets.token_hex(6))


@dataclass(frozen=True, slots=True)
class Launch:
    """A run to start: its plan, arguments, workspace folder and deadline."""

    plan: Plan
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    workspace: Path | None
    deadline_s: float | None
    run_id: RunId | None = None  # None: a new one
    thread_id: str | None = None  # LangGraph's


@dataclass(frozen=True, slots=True)
class NewRun:
    """A run with its base checkpoint. skipped: the files of the workspace that a snapshot cannot hold."""

    record: RunRecord
    snapshot: Snapshot
    checkpoint: CheckpointRecord
    skipped: tuple[Skipped, ...]


async def create(services: Services, launch: Launch) -> tuple[RunRecord, tuple[Skipped, ...]]:
    """Import the workspace and write the run's first rows, after which it can be resumed.

    Returns the run's row, and the files that a snapshot cannot hold.
    """
    async with Pins(services.locks).held():  # until a row names the imported snapshot
        new = await _new_run(services, launch)
        await services.store.create_run(new.record, new.checkpoint)
    return new.record, new.skipped


@asynccontextmanager
async def begun(services: Services, launch: Launch) -> AsyncIterator[NewRun]:
    """As `create`; in this block, this process holds the run, and nobody else has worked on it before."""
    async with AsyncExitStack() as held:
        async with Pins(services.locks).held():
            new = await _new_run(services, launch)
            await held.enter_async_context(hold_new_run(services.locks, services.store, new.record, new.checkpoint))
        yield new


async def _new_run(services: Services, launch: Launch) -> NewRun:
    what = f"workflow {launch.plan.name!r}: arguments"
    args_json = codec.encode([list(launch.args), launch.kwargs], what, unicode=True)
    workspace = paths.expanded(launch.workspace).resolve() if launch.workspace else None
    imported = await _imported(services, workspace)
    base = imported.snapshot
    now = services.clock()
    record = RunRecord(
        id=launch.run_id or new_run_id(),
        name=launch.plan.name,
        workflow=launch.plan.workflow,
        frontend=launch.plan.frontend,
        workspace=str(workspace or ""),
        base_snapshot=base.id,
        plan_json=launch.plan.to_json(),
        args_json=args_json,
        settings=services.settings,
        status=RunStatus.RUNNING,
        created_at=now,
        updated_at=now,
        deadline_s=launch.deadline_s,
        thread_id=launch.thread_id,
    )
    return NewRun(record, base, base_checkpoint(record.id, base, now), imported.skipped)


_empty: WeakKeyDictionary[SnapshotStore, Imported] = WeakKeyDictionary()
"""Empty workspaces, which this process imports once. A collection may delete them."""


async def _imported(services: Services, workspace: Path | None) -> Imported:
    """Import a workspace. The caller holds the pins."""
    snapshots = services.snapshots
    if workspace is not None:  # it may contain the database, which commands must not see
        return await asyncio.to_thread(snapshots.import_tree, workspace, without=services.store.address.files)
    kept = _empty.get(snapshots)
    if kept is None or missing(snapshots, kept.snapshot.id) is not None:
        kept = _empty[snapshots] = await asyncio.to_thread(_import_nothing, snapshots)
    return kept


def _import_nothing(snapshots: SnapshotStore) -> Imported:
    with tempfile.TemporaryDirectory(prefix="ramify-empty-") as empty:
        return snapshots.import_tree(Path(empty))
