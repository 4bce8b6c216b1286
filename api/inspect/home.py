"""The folder in which runs are kept: its database, its snapshots, and the runs and states that a text names."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from ramify import paths
from ramify.runtime.errors import RunError, RunNotFound, StoreError
from ramify.runtime.journal import refs
from ramify.runtime.records import (
    DOUBTFUL,
    CheckpointId,
    CheckpointRecord,
    EffectStatus,
    Lease,
    RunId,
    RunRecord,
    RunStatus,
)
from ramify.runtime.store.run_locks import is_held, is_worked_on

if TYPE_CHECKING:
    from ramify.fork_engine.store import SnapshotStore
    from ramify.inspect.history import History
    from ramify.runtime.store import RunStore
    from ramify.runtime.store.reader import Reader

T = TypeVar("T")

INTERRUPTED = "interrupted"


@dataclass(frozen=True)
class Home:
    """The runs below one folder. `database_given`: a database elsewhere, as the user named it."""

    folder: Path
    clock: Callable[[], float] = time.time
    database_given: str | None = None

    def read(self, query: Callable[[Reader], Coroutine[Any, Any, T]], *, whole: bool = True) -> T:
        """The result of `query` on the database, without an event loop. If not `whole`, of long arguments and results
        only the beginning is read, which is enough to show them.

        Raises `RunNotFound` if there is no database yet: a command that only reads creates nothing.
        """
        self._require_runs()
        from ramify.runtime.store.reader import at_once, reading

        gc.disable()  # the rows stay alive: searching them for garbage would take a quarter of the time
        try:
            with reading(self.database, cuts=not whole) as reader:
                return at_once(query(reader))
        finally:
            gc.freeze()
            gc.enable()

    @property
    def database(self) -> str | Path:
        return paths.database(self.folder, self.database_given)

    @property
    def location(self) -> str | Path:
        """Where the runs are, for messages."""
        return self.database_given or self.folder

    @property
    def has_runs(self) -> bool:
        """False if the database is a file that does not exist: a command that only reads creates none."""
        from ramify.runtime.store.address import parse

        file = parse(self.database).file
        return file is None or os.path.exists(file)  # noqa: PTH110  # Path.exists raises if the folder is not readable

    def require_usable(self) -> None:
        """Raises `StoreError` if no run can be stored here, so that nobody is told "no runs yet" instead."""
        from ramify.runtime.store.address import parse

        file = parse(self.database).file
        if file is None or (why := _unusable(file.absolute().parent)) is None:
            return
        if self.database_given is None and file.parent == self.folder:
            raise StoreError(
                f"the home {self.folder} cannot be used: {why}. Name another one: --home DIR or $RAMIFY_HOME"
            )
        raise StoreError(
            f"the database {file} cannot be used: {why}. Name another one: --database or $RAMIFY_DATABASE"
        )

    @asynccontextmanager
    async def store(self) -> AsyncIterator[RunStore]:
        """The database, open for writing. Raises `RunNotFound` if there is none yet."""
        self._require_runs()
        from ramify.runtime.store import RunStore

        async with RunStore(self.database, clock=self.clock) as store:
            yield store

    @asynccontextmanager
    async def store_or_reader(self) -> AsyncIterator[RunStore | Reader]:
        """The database for a browser that stays open: a `Reader` if the folder is read-only."""
        from ramify.runtime.store.address import parse

        file = parse(self.database).file
        if file is None or os.access(file.parent, os.W_OK):
            async with self.store() as store:
                yield store
            return
        self._require_runs()
        from ramify.runtime.store.reader import reading

        with reading(self.database) as reader:
            yield reader

    def _require_runs(self) -> None:
        if not self.has_runs:
            self.require_usable()
            raise RunNotFound(f"no runs yet in {self.location}: start one with `ramify run FILE.py:NAME`")

    def snapshots(self) -> SnapshotStore:
        from ramify.fork_engine.store import SnapshotStore

        return SnapshotStore(paths.snapshots(self.folder))

    def find(self, text: str) -> refs.Place:
        """The state that `text` names. Raises `RunNotFound` and `AmbiguousRef`."""
        return self.read(lambda store: find_state(store, text), whole=False)

    def status(self, run: RunRecord, leases: Mapping[RunId, Lease] | None = None) -> str:
        """The status to show for a run. `leases`: if they were read already.

        "interrupted" if the row says running and no process works on it, unless the run is a LangGraph thread with
        nothing left to run. "in doubt" if the run ended with an effect of unknown outcome that is still unresolved.
        """
        if run.status is RunStatus.FAILED and (run.error or "").startswith(("EffectInDoubt: ", "ResultNotKept: ")):
            return EffectStatus.IN_DOUBT.value if self._has_doubts(run) else run.status.value
        if run.status is not RunStatus.RUNNING or self._is_worked_on(run, leases):
            return run.status.value
        if run.thread_id is not None:
            from ramify.runtime.langgraph.thread.stored_thread import has_ended

            if has_ended(self.database, run):
                return RunStatus.DONE.value
        return INTERRUPTED

    def _is_worked_on(self, run: RunRecord, leases: Mapping[RunId, Lease] | None) -> bool:
        locks = paths.locks(self.folder)
        if is_held(locks, run.id):
            return True
        if leases is None:
            leases = self.read(lambda store: store.leases([run.id], self.clock()), whole=False)
        return is_worked_on(locks, run.id, leases.get(run.id))

    def _has_doubts(self, run: RunRecord) -> bool:
        from ramify.runtime.store.reader import at_once, reading

        with reading(self.database, cuts=True) as reader:
            return any(effect.status in DOUBTFUL or effect.lacks_result for effect in at_once(reader.effects(run.id)))


def _unusable(folder: Path) -> str | None:
    """Why nothing can be stored in a folder; None if it exists or could be created. Leaves nothing behind."""
    import tempfile  # only needed if the home was not found

    there = next(one for one in (folder, *folder.parents) if os.path.lexists(one))
    try:
        if there == folder:
            os.scandir(folder).close()
        else:  # os.access says yes to root everywhere; /proc and read-only disks refuse all the same
            Path(tempfile.mkdtemp(prefix=".ramify-", dir=there)).rmdir()
    except OSError as error:
        return f"{there}: {error.strerror}"
    return None


async def find_state(store: RunStore | Reader, text: str) -> refs.Place:
    """The state that `text` names. Reads the checkpoints of all runs only if no run has that name."""
    runs = await store.runs()
    run = refs.find_run(refs.parse(text), runs)
    if run is not None:
        return refs.resolve(text, runs, await store.checkpoints(run.id))
    every: list[CheckpointRecord] = []
    for one in runs:
        every += await store.checkpoints(one.id)
    return refs.resolve(text, runs, every, await store.live_snapshots())


async def find_state_with_history(
    store: RunStore | Reader, text: str, known: History | None = None
) -> tuple[refs.Place, History | None]:
    """The state that `text` names, and the history of its run; None for a snapshot that no run has.

    `known`: a history that was read already; it is used if it is of that run. Each row is read once.
    """
    from ramify.inspect.history import read

    async def history(run: RunRecord) -> History:
        return known if known is not None and known.run.id == run.id else await read(store, run.id)

    runs = await store.runs()
    run = refs.find_run(refs.parse(text), runs)
    if run is not None:
        mine = await history(run)
        return refs.resolve(text, runs, mine.checkpoints), mine
    place = await find_state(store, text)
    return place, None if place.run is None else await history(place.run)


async def find_run(store: RunStore | Reader, text: str) -> RunRecord | None:
    """The run that `text` names; None if it names a state of a run."""
    ref = refs.parse(text)
    return refs.find_run(ref, await store.runs()) if ref.is_whole_run else None


async def require_run(store: RunStore | Reader, text: str) -> RunRecord:
    """The run that `text` names. Raises `RunNotFound`."""
    run = await find_run(store, text)
    if run is None:
        raise RunNotFound(f"no run begins with {text!r}: `ramify ls` lists the runs")
    return run


async def require_checkpoint(store: RunStore | Reader, text: str) -> CheckpointId:
    """The checkpoint that `text` names. Raises `RunError` if it names a snapshot of no run, and as `find_state`."""
    place = await find_state(store, text)
    if place.checkpoint is None:
        raise RunError(f"{text} is not a checkpoint: `ramify log` lists them")
    return place.checkpoint.id
