"""What an observer hears while a run goes on. Observers only look: an error in one ends the run loudly."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from ramify.compiler.plan import OpId
from ramify.fork_engine.types import Skipped
from ramify.runtime.records import BranchPath, LLMRecord, OpRecord, RunId, RunRecord, RunStatus


@dataclass(frozen=True, slots=True)
class RunStarted:
    run: RunRecord
    resumed: bool
    skipped: tuple[Skipped, ...] = ()  # what of the workspace a snapshot cannot hold


@dataclass(frozen=True, slots=True)
class OpDone:
    """An operation was performed and committed, or taken over (`row.reused_from`)."""

    row: OpRecord
    replayed: bool = False  # served from this run's own journal, on resume


@dataclass(frozen=True, slots=True)
class LLMDone:
    row: LLMRecord
    replayed: bool = False


@dataclass(frozen=True, slots=True)
class RunEnded:
    run: RunRecord
    status: RunStatus


class Level(StrEnum):
    """How a run came by what it needs to go on, the cheapest first."""

    RETRY = "retried in place"
    RESTORE = "restored"
    LINEAGE = "computed again"


@dataclass(frozen=True, slots=True)
class Recovered:
    """What a branch goes on from, and why from there: something went wrong, or the run was ended and is resumed."""

    run: RunId
    branch: BranchPath
    level: Level
    why: str
    took_s: float


@dataclass(frozen=True, slots=True)
class Noticed:
    """What people should know of a run, which goes on all the same."""

    run: RunId
    what: str


@dataclass(frozen=True, slots=True)
class PrefixHinted:
    """An idle engine has read, or would not, what the run's first model call begins with. Nothing rests on it."""

    run: RunId
    op_id: OpId  # that call's
    why: str  # it was not read; "": it was
    took_s: float


Event = RunStarted | OpDone | LLMDone | Recovered | Noticed | PrefixHinted | RunEnded
Observer = Callable[[Event], None]
