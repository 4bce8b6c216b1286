"""Events that a running workflow sends to observers. Observers only read: an error in an observer ends the run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from ramify.compiler.plan import OpId
from ramify.fork_engine.types import Skipped
from ramify.runtime.records import BranchPath, LLMRecord, OpRecord, RunId, RunRecord, RunStatus


@dataclass(frozen=True, slots=True)
class RunStarted:
    """A process starts or resumes a run."""

    run: RunRecord
    resumed: bool
    skipped: tuple[Skipped, ...] = ()  # files of the workspace that a snapshot cannot hold


@dataclass(frozen=True, slots=True)
class OpDone:
    """An operation was performed and committed, or its result was reused (`row.reused_from`)."""

    row: OpRecord
    replayed: bool = False  # served from this run's own journal, on resume


@dataclass(frozen=True, slots=True)
class LLMDone:
    """A model call was answered and committed, or its answer was reused."""

    row: LLMRecord
    replayed: bool = False  # served from this run's own journal, on resume


@dataclass(frozen=True, slots=True)
class RunEnded:
    """The run ended in this process."""

    run: RunRecord
    status: RunStatus


class Level(StrEnum):
    """The levels of recovery, cheapest first."""

    RETRY = "retried in place"
    RESTORE = "restored"
    FETCH = "fetched"  # from the home's bucket
    LINEAGE = "computed again"


@dataclass(frozen=True, slots=True)
class Recovered:
    """A branch continues after a failure or a resume: at which level of recovery, and why."""

    run: RunId
    branch: BranchPath
    level: Level
    why: str
    took_s: float


@dataclass(frozen=True, slots=True)
class Noticed:
    """A message for people about a run that continues."""

    run: RunId
    what: str


@dataclass(frozen=True, slots=True)
class PrefixHinted:
    """An idle engine was asked to read the beginning of the run's first model call in advance."""

    run: RunId
    op_id: OpId  # the operation of that call
    why: str  # why the engine did not read it; "" if it did
    took_s: float


Event = RunStarted | OpDone | LLMDone | Recovered | Noticed | PrefixHinted | RunEnded
Observer = Callable[[Event], None]
