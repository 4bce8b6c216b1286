"""What an observer hears while a run goes on. Observers only look: an error in one ends the run loudly."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ramify.fork_engine.types import Skipped
from ramify.runtime.records import LLMRecord, OpRecord, RunRecord, RunStatus


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


Event = RunStarted | OpDone | LLMDone | RunEnded
Observer = Callable[[Event], None]
