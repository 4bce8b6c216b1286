"""Reuse of results: find an earlier result for an equal operation in an equal state, and apply it to a branch.

**The big idea.** An operation that is declared deterministic has a lineage key: a digest of its code, its inputs, the
content of its world, and a fingerprint of everything else that it can see (`fingerprints.py`). Equal keys mean equal
results: in another branch, in another run, after a crash. The results are in the journal. A hit commits a row that
names its source row, and stacks the layers of the source onto the branch. The lookup searches this run first, then
all runs.

Model calls are reused as well (`Answers`): the same model, messages, sampling parameters and seed give the same
answer. That holds at temperature 0 with a seed that the server honours, or at any temperature if the user asks for
it. Answers are reused across runs only if the model is named, because "default" may be another model tomorrow.

If several branches or processes need the same result at the same time, one computes it (`SingleFlight`). The branches
of a run wait by futures. Processes wait by locks on the bytes of one file, one byte per key. The kernel releases the
locks when their process ends in whatever way, so there is nothing to clean up. They are open file description locks
(fcntl(2)), which also exclude two runs of one process from each other.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import random
import struct
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Protocol

from ramify import paths
from ramify.fork_engine.close_on_fork import close_lock, open_lock
from ramify.fork_engine.errors import SnapshotCorrupt, SnapshotNotFound
from ramify.fork_engine.gc_pins import Pins
from ramify.fork_engine.store import SnapshotStore
from ramify.fork_engine.types import Snapshot, SnapshotId
from ramify.runtime.codec import codec
from ramify.runtime.errors import WrongReuse
from ramify.runtime.journal.journal import Journal
from ramify.runtime.records import LLMRecord, OpRecord, RunRecord, Settings
from ramify.runtime.store import RunStore
from ramify.serving.types import ChatRequest, ChatResult


@dataclass(frozen=True, slots=True)
class ReuseQuery:
    """An operation that is about to run, and its state. `operation`: a digest of everything except the world's
    state."""

    operation: str
    state: Snapshot

    @property
    def lineage_key(self) -> str:
        return codec.digest([self.operation, self.state.content_key])


class Sampler:
    """Chooses at random which hits are recomputed to check them. `share`: their share, 0 to 1."""

    def __init__(self, share: float, chance: random.Random | None = None) -> None:
        self._share = share
        self._chance = chance or random.Random()

    def hit(self) -> bool:
        """Whether to check the current hit."""
        return self._share > 0 and self._chance.random() < self._share


class ReuseLookup(Protocol):
    """One source of earlier results."""

    async def find(self, query: ReuseQuery) -> OpRecord | None: ...


class OwnRunLookup:
    """Results of this run in a state of equal content. Needs no database query, and finds most of what branches
    share."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    async def find(self, query: ReuseQuery) -> OpRecord | None:
        return self._journal.computed(query.lineage_key)


class AllRunsLookup:
    """Results of any run in a state of equal content."""

    def __init__(self, store: RunStore) -> None:
        self._store = store

    async def find(self, query: ReuseQuery) -> OpRecord | None:
        return await self._store.reusable(query.lineage_key)


ASKED = "asked"
"""The attribute of a step's row that names the model it called (`model_of`)."""


def model_of(run: RunRecord, settings: Settings) -> str:
    """Return an identifier of the model that a run calls with these settings.

    The identifier is specific to the run if the server's model is not named (it may be another model tomorrow), if
    the user passed a client of unknown address, or if the run began with another model.
    """
    named = settings.server is None or (settings.model is not None and settings.server != "")
    return codec.digest(list(settings.whom)) if named and not run.settings.mixed else f"of run {run.id}"


class Reuse:
    """Finds and applies earlier results for one run.

    seen: returns the fingerprint of its worlds; None if no fingerprint covers what they see.
    model: the identifier of the model that its steps call (`model_of`).
    check: chooses the hits that are recomputed and compared.
    """

    def __init__(
        self,
        store: RunStore,
        journal: Journal,
        snapshots: SnapshotStore,
        locks: Path,
        seen: Callable[[], str | None],
        model: str,
        check: Sampler,
    ) -> None:
        self._seen = seen
        self._model = model
        self.pins = Pins(locks)
        self._journal = journal
        self.levels: Sequence[ReuseLookup] = (OwnRunLookup(journal), AllRunsLookup(store))
        self._snapshots = snapshots
        self.flights = SingleFlight(locks)
        self.to_be_checked = check.hit

    @cached_property
    def environment(self) -> str | None:
        """The fingerprint of what the run's worlds see, as it was when the first reusable step was called."""
        return self._seen()

    def close(self) -> None:
        self.flights.close()

    def alone(self, query: ReuseQuery) -> AbstractAsyncContextManager[None]:
        """Hold the operation: while this block runs, nobody else computes it. Call `find` first inside the block."""
        return self.flights.alone(query.lineage_key)

    async def find(self, query: ReuseQuery) -> OpRecord | None:
        """Return the row with the earlier result, None if it must be computed. Hold a pin from here to the commit of
        the row that names it."""
        for level in self.levels:
            found = await level.find(query)
            if found is not None and found.attrs.get(ASKED, self._model) == self._model:
                return found
        return None

    def asked(self, step_key: str) -> dict[str, str]:
        """Return the row attribute with the model that a step called; empty if it called none."""
        return {ASKED: self._model} if self._journal.called_model(step_key) else {}

    async def applied(self, source: OpRecord, onto: Snapshot) -> Snapshot | None:
        """Return the state after applying the change of `source` onto a state of equal content; None if its snapshots
        are lost.

        The cost depends on the number of layers that the source added, not on their size. The new snapshot is not
        flushed: the commit of the row that names it does that, once for all rows of the transaction.
        """
        if source.snapshot_out is None or source.snapshot_in is None:
            return None
        if source.snapshot_out == source.snapshot_in:
            return onto
        return await asyncio.to_thread(self._stacked, source.snapshot_in, source.snapshot_out, onto)

    def compare(
        self, source: OpRecord, what: str, result_digest: str, was: Snapshot | None, now: Snapshot | None
    ) -> None:
        """Compare a recomputed result with the reusable one. Raises `WrongReuse`, and stops the run, if they
        differ."""
        differs = []
        if source.result_digest != result_digest:
            differs.append("its result")
        if was is not None and now is not None and was.content_key != now.content_key:
            differs.append("the files that it leaves")
        if differs:
            raise self._journal.stop(
                WrongReuse(
                    f"{what} was declared to be reusable, but when it was recomputed it differed from row "
                    f"{source.run_id}#{source.seq} in {' and in '.join(differs)}: it depends on more than "
                    "its arguments and its world. Make it deterministic, or remove reuse=True"
                )
            )

    def _stacked(self, before: SnapshotId, after: SnapshotId, onto: Snapshot) -> Snapshot | None:
        try:
            theirs = self._snapshots.get(after)
            if before == onto.id:
                return theirs
            if not onto.layers:
                return None  # a placeholder for a lost state
            stacked = self._snapshots.graft(onto, self._snapshots.get(before), theirs, flush=False)
        except (SnapshotNotFound, SnapshotCorrupt):
            return None
        return stacked if stacked is not None and stacked.content_key == theirs.content_key else None


class Answers:
    """Finds earlier answers for the model calls of one run. `asked`: the user wants reuse at any temperature."""

    def __init__(
        self,
        store: RunStore,
        run: RunRecord,
        settings: Settings,
        flights: SingleFlight,
        check: Sampler,
        *,
        asked: bool,
    ) -> None:
        self._store, self._run, self._settings, self._flights = store, run, settings, flights
        self._asked = asked
        self.to_be_checked = check.hit

    def reusable(self, request: ChatRequest, *, honours_seed: bool) -> bool:
        """Whether the result of an equal call may be used for this request."""
        return self._asked or (honours_seed and request.temperature == 0 and request.seed is not None)

    def alone(self, request: ChatRequest) -> AbstractAsyncContextManager[None]:
        """Hold the request: while this block runs, nobody else sends an equal one."""
        return self._flights.alone(codec.digest(["llm", self._scope(request), request]))

    async def find(self, request: ChatRequest) -> LLMRecord | None:
        """Return the newest equal call that the same model on the same server answered, or None."""
        scope = self._scope(request)
        for row, run_id, settings in await self._store.equal_calls(codec.encode(request)):
            if run_id == self._run.id or (scope == ["model", *settings.whom] and not settings.mixed):
                return row
        return None

    def _scope(self, request: ChatRequest) -> list[str | None]:
        named = self._settings.model is not None or request.model != "default"
        if not named or self._settings.server == "" or self._run.settings.mixed:
            return ["run", self._run.id]
        return ["model", *self._settings.whom]


def compare_answers(source: LLMRecord, result: ChatResult) -> WrongReuse | None:
    """Return an error if the model's new answer differs from the recorded one."""
    before: ChatResult = codec.decode(source.result_json)
    if before.text == result.text:
        return None
    return WrongReuse(
        f"model call {source.run_id}#{source.seq} was repeated to check its reuse, and the answer differs: "
        "the server does not honour the seed. Run without reuse of model calls"
    )


_FILE = "flights"
_BYTES = 1 << 62
_FLOCK = struct.Struct("hhqqi4x")  # struct flock: l_type, l_whence, l_start, l_len, l_pid
_FIRST_S, _LONGEST_S = 0.005, 0.1  # seconds between two attempts to get the lock of another process


class SingleFlight:
    """The keys that one run computes at the moment. Opens its file when first used; `close` releases all locks."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / _FILE
        self._fd: int | None = None
        self._flying: dict[str, asyncio.Future[None]] = {}

    @asynccontextmanager
    async def alone(self, key: str) -> AsyncIterator[None]:
        """Hold `key`: while this block runs, nobody else computes it. Look first whether somebody has."""
        while (flying := self._flying.get(key)) is not None:
            await asyncio.wait([flying])
        mine = self._flying[key] = asyncio.get_running_loop().create_future()
        try:
            await self._lock(key)
            try:
                yield
            finally:
                self._set(key, fcntl.F_UNLCK)
        finally:
            del self._flying[key]
            mine.set_result(None)

    def close(self) -> None:
        if self._fd is not None:
            with suppress(OSError):  # unlock explicitly: a forked child may hold a copy of the descriptor
                fcntl.fcntl(self._fd, fcntl.F_OFD_SETLK, _FLOCK.pack(fcntl.F_UNLCK, os.SEEK_SET, 0, 0, 0))
            close_lock(self._fd)
            self._fd = None

    async def _lock(self, key: str) -> None:
        pause = _FIRST_S
        while not self._set(key, fcntl.F_WRLCK):
            await asyncio.sleep(pause)
            pause = min(pause * 1.5, _LONGEST_S)

    def _set(self, key: str, kind: int) -> bool:
        if self._fd is None:
            paths.make_private(self._path.parent)
            self._fd = open_lock(self._path, os.O_RDWR | os.O_CREAT)
        asked = _FLOCK.pack(kind, os.SEEK_SET, int(key[:16], 16) % _BYTES, 1, 0)
        try:
            fcntl.fcntl(self._fd, fcntl.F_OFD_SETLK, asked)
        except OSError as error:
            if error.errno in (errno.EAGAIN, errno.EACCES):
                return False
            raise
        return True
