"""Never twice: finding what was computed before in an equal state, and putting its change onto a branch.

**The big idea.** An operation that is declared deterministic has a lineage key: a digest of its code, its inputs, the
content of the world that it begins in, and a print of what else it can see (`prints.py`). Equal keys, equal results:
in another branch, in another run, after a crash. What was computed stands in the journal; a hit commits a row that
names its source, and stacks the source's layers onto the branch.

Lookup goes by levels. Those that stand ask for the exact state, of this run and then of all. Another will ask for the
state that an operation *read*; its place is `Reuse.levels`, and a `Question` says all that it needs.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from ramify.fork_engine.errors import SnapshotCorrupt, SnapshotNotFound
from ramify.fork_engine.store import SnapshotStore
from ramify.fork_engine.types import Snapshot, SnapshotId
from ramify.runtime.codec import codec
from ramify.runtime.errors import WrongReuse
from ramify.runtime.journal.journal import Journal
from ramify.runtime.records import LLMRecord, OpRecord, RunRecord, Settings
from ramify.runtime.reuse.single_flight import SingleFlight
from ramify.runtime.store import RunStore
from ramify.runtime.worlds.gc_pins import Pins
from ramify.serving.types import ChatRequest, ChatResult


@dataclass(frozen=True, slots=True)
class Question:
    """What is about to be computed, and where. `operation` is a digest of all but the world's state."""

    operation: str
    state: Snapshot

    @property
    def lineage_key(self) -> str:
        return codec.digest([self.operation, self.state.content_key])


class Sampler:
    """The checking mode: which hits are computed again all the same."""

    def __init__(self, share: float, chance: random.Random | None = None) -> None:
        self._share = share
        self._chance = chance or random.Random()

    def hit(self) -> bool:
        """Whether to check the hit at hand."""
        return self._share > 0 and self._chance.random() < self._share


class Level(Protocol):
    """One way to find what answers a question."""

    async def find(self, question: Question) -> OpRecord | None: ...


class OwnRunLookup:
    """What this run has computed in a state of equal content: most of what branches share, and no question asked of
    the database."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    async def find(self, question: Question) -> OpRecord | None:
        return self._journal.computed(question.lineage_key)


class AllRunsLookup:
    """What any run has computed in a state of equal content."""

    def __init__(self, store: RunStore) -> None:
        self._store = store

    async def find(self, question: Question) -> OpRecord | None:
        return await self._store.reusable(question.lineage_key)


ASKED = "asked"
"""The attribute of a step's row that says which model it asked (`model_of`)."""


def model_of(run: RunRecord, settings: Settings) -> str:
    """Which model a run asks under these settings. Where a server's is not named, it may be another one tomorrow: the
    run's own. So it is where the user handed over a client, which may ask anybody, and where the run began with
    another one: some of its answers are that one's."""
    named = settings.server is None or (settings.model is not None and settings.server != "")
    return codec.digest(list(settings.whom)) if named and not run.settings.mixed else f"of run {run.id}"


class Reuse:
    """The reuse of one run. `environment`: the print of its worlds; None where no print covers what they see.

    `model`: which one its steps ask (`model_of`). `check` says which hits are computed again and compared.
    """

    def __init__(
        self,
        store: RunStore,
        journal: Journal,
        snapshots: SnapshotStore,
        locks: Path,
        environment: str | None,
        model: str,
        check: Sampler,
    ) -> None:
        self.environment = environment
        self._model = model
        self.pins = Pins(locks)
        self._journal = journal
        self.levels: Sequence[Level] = (OwnRunLookup(journal), AllRunsLookup(store))
        self._snapshots = snapshots
        self.flights = SingleFlight(locks)
        self.to_be_checked = check.hit

    def close(self) -> None:
        self.flights.close()

    def alone(self, question: Question) -> AbstractAsyncContextManager[None]:
        """Nobody else computes the answer inside: ask then whether somebody has."""
        return self.flights.alone(question.lineage_key)

    async def find(self, question: Question) -> OpRecord | None:
        """The row that answers, None where it must be computed. Hold a pin from here to the commit that names it."""
        for level in self.levels:
            found = await level.find(question)
            if found is not None and found.attrs.get(ASKED, self._model) == self._model:
                return found
        return None

    def asked(self, step_key: str) -> dict[str, str]:
        """What the row of a step says of the model that it asked; nothing where it asked none."""
        return {ASKED: self._model} if self._journal.called_model(step_key) else {}

    async def applied(self, source: OpRecord, onto: Snapshot) -> Snapshot | None:
        """The state after taking `source` over in a state of equal content; None where its snapshots are gone.

        Costs the layers that the source added, not what they hold. What is stacked is not flushed: the commit of the
        row that names it does that, once for all that commit together.
        """
        if source.snapshot_out is None or source.snapshot_in is None:
            return None
        if source.snapshot_out == source.snapshot_in:
            return onto
        return await asyncio.to_thread(self._stacked, source.snapshot_in, source.snapshot_out, onto)

    def compare(
        self, source: OpRecord, what: str, result_digest: str, was: Snapshot | None, now: Snapshot | None
    ) -> None:
        """Hold what was computed again against what was taken for equal. Raises `WrongReuse`, and stops the run."""
        differs = []
        if source.result_digest != result_digest:
            differs.append("its result")
        if was is not None and now is not None and was.content_key != now.content_key:
            differs.append("what it leaves in the world")
        if differs:
            raise self._journal.stop(
                WrongReuse(
                    f"{what} was declared to be reusable, but computed again it differs from row "
                    f"{source.run_id}#{source.seq} in {' and in '.join(differs)}: it depends on something else than "
                    "its arguments and its world. Make it deterministic, or take reuse=True away"
                )
            )

    def _stacked(self, before: SnapshotId, after: SnapshotId, onto: Snapshot) -> Snapshot | None:
        try:
            theirs = self._snapshots.get(after)
            if before == onto.id:
                return theirs
            if not onto.layers:
                return None  # a stand-in for a state that is lost
            stacked = self._snapshots.graft(onto, self._snapshots.get(before), theirs, flush=False)
        except (SnapshotNotFound, SnapshotCorrupt):
            return None
        return stacked if stacked is not None and stacked.content_key == theirs.content_key else None


class Answers:
    """What the model calls of one run may be answered from. `asked`: the user wants reuse at any temperature."""

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
        """Whether an equal call may stand for this one."""
        return self._asked or (honours_seed and request.temperature == 0 and request.seed is not None)

    def alone(self, request: ChatRequest) -> AbstractAsyncContextManager[None]:
        """Nobody else sends the same inside."""
        return self._flights.alone(codec.digest(["llm", self._scope(request), request]))

    async def find(self, request: ChatRequest) -> LLMRecord | None:
        """The newest equal call that the same model of the same server answered."""
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
    """What is wrong where the model says something else now."""
    before: ChatResult = codec.decode(source.result_json)
    if before.text == result.text:
        return None
    return WrongReuse(
        f"model call {source.run_id}#{source.seq} was asked again to check its reuse, and the answer differs: "
        "the server does not honour the seed. Run without reuse of model calls"
    )
