"""What the runtime remembers, as plain data: runs, journal rows, checkpoints, model calls.

`ramify.runtime.store` keeps them; the machine makes them; the command line shows them.
Times are Unix seconds. Digests are sha256, hex.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NewType

from ramify.compiler.plan import OpId, OpKind
from ramify.fork_engine.types import SnapshotId

RunId = NewType("RunId", str)
CheckpointId = NewType("CheckpointId", str)
BranchPath = NewType("BranchPath", str)
"""Where a branch stands: "root", then "/" and op.occurrence.child for each fork on the way: "root/o7.0.3"."""

ROOT = BranchPath("root")


DECORATORS = "decorators"
"""The front end whose runs are in the journal whole; the other is "langgraph"."""


class RunStatus(StrEnum):
    RUNNING = "running"  # whether its process still lives is told by the run's lock, not by this row
    DONE = "done"
    FAILED = "failed"  # a step or the workflow raised; resumable
    CANCELLED = "cancelled"  # Ctrl-C or `ramify cancel`; resumable
    FORKED = "forked"  # by a person from another run, and not begun: to be resumed
    WAITING = "waiting"  # for a person: an answer (`ramify resume RUN --answer`), or a LangGraph thread's breakpoint


LEGAL_TRANSITIONS: Mapping[RunStatus, frozenset[RunStatus]] = {
    RunStatus.RUNNING: frozenset(RunStatus),
    RunStatus.FAILED: frozenset({RunStatus.RUNNING}),
    RunStatus.CANCELLED: frozenset({RunStatus.RUNNING}),
    RunStatus.FORKED: frozenset({RunStatus.RUNNING}),
    RunStatus.WAITING: frozenset({RunStatus.RUNNING}),
    RunStatus.DONE: frozenset({RunStatus.RUNNING}),  # a LangGraph thread that goes on; a replay of a finished run
}


class OpStatus(StrEnum):
    DONE = "done"
    FAILED = "failed"  # recorded to be read by people; never honoured by a resume
    ASKED = "asked"  # a question that waits for its answer, which is a row of its own
    UNASKED = "not asked again"  # a question that the run's newest process did not come to
    UNDONE = "undone"  # it was done, and the run went back to before it: as FAILED


@dataclass(frozen=True, slots=True)
class Settings:
    """How a run was started, so that `ramify resume` can go on in the same way. No secrets."""

    sandbox: str = "namespaces"
    base_url: str | None = None  # without a password; None: the embedded engine, or the program's own client
    model: str | None = None
    client_url: str | None = None  # what a client that the program handed over asks; "" where it does not say
    client_model: str | None = None
    mixed: bool = False  # the run went on with another model: what it was told is no word of either, for others

    @property
    def server(self) -> str | None:
        """The address that is asked. None: the embedded engine; "": nobody knows."""
        return self.base_url if self.client_url is None else self.client_url

    @property
    def whom(self) -> tuple[str | None, ...]:
        """Which model of which server is asked, as far as that was said."""
        own = () if self.client_url is None else (self.client_url, self.client_model)
        return (self.base_url, self.model, *own)


@dataclass(frozen=True, slots=True)
class RunRecord:
    id: RunId
    name: str  # the workflow's name
    workflow: str  # how to find it: "path.py:name" or "module:name"
    frontend: str
    workspace: str  # absolute path of the user's folder
    base_snapshot: SnapshotId
    plan_json: str
    args_json: str  # codec
    settings: Settings
    status: RunStatus
    created_at: float
    updated_at: float
    deadline_s: float | None = None
    consumed_s: float = 0.0  # of the deadline, over all processes that worked on this run
    result_json: str | None = None
    error: str | None = None
    thread_id: str | None = None  # LangGraph's thread, for runs of that front end


AGAIN = "again"
"""The attribute of a LangGraph run's SEAL row that names a lost snapshot: the row's own stands in for it."""


@dataclass(frozen=True, slots=True)
class OpRecord:
    """One performed operation: a row of the journal. `key` is its place in the workflow, the same in every run."""

    run_id: RunId
    seq: int  # order of commit in its run, from 1
    key: str
    op_id: OpId  # the plan's operation
    kind: OpKind
    branch: BranchPath
    status: OpStatus
    step: str | None = None
    args_digest: str = ""
    result_json: str | None = None
    result_digest: str = ""
    snapshot_in: SnapshotId | None = None
    snapshot_out: SnapshotId | None = None  # None: no snapshot was taken after it
    lineage_key: str | None = None  # None: not reusable
    reused_from: str | None = None  # "RUN#seq" of the row that this one took over
    started_at: float = 0.0
    ended_at: float = 0.0
    summary: str = ""  # one line for people
    error: str | None = None
    attrs: Mapping[str, str] = field(default_factory=dict)


class EffectStatus(StrEnum):
    INTENDED = "intended"  # durable before the step starts; without a process that works on it: in doubt
    DONE = "done"
    FAILED = "failed"  # it did not happen: each attempt raised, by its own word, or was cancelled before it began
    IN_DOUBT = "in doubt"  # a crash, a cancel or a timeout came between intent and result
    APPROVED = "approved"  # a person says that it happened; their result stands
    AGAIN = "again"  # a person says that it did not: the next resume does it
    COMPENSATING = "to be compensated"  # the run went back to before it, and its hook has not undone it yet
    COMPENSATED = "compensated"  # its compensation hook undid it


DOUBTFUL = frozenset({EffectStatus.INTENDED, EffectStatus.IN_DOUBT})
"""Of an effect that nobody works on: nobody knows whether it happened."""

HAPPENED = DOUBTFUL | {EffectStatus.DONE, EffectStatus.APPROVED}
"""Of an effect that took place, or may have."""

LEGAL_SETTLEMENTS: Mapping[EffectStatus, frozenset[EffectStatus]] = {
    EffectStatus.INTENDED: frozenset(EffectStatus) - {EffectStatus.COMPENSATING, EffectStatus.COMPENSATED},
    EffectStatus.IN_DOUBT: frozenset(EffectStatus) - {EffectStatus.COMPENSATING, EffectStatus.COMPENSATED},
    EffectStatus.DONE: frozenset({EffectStatus.DONE, EffectStatus.COMPENSATING, EffectStatus.COMPENSATED}),
    EffectStatus.APPROVED: frozenset({EffectStatus.DONE, EffectStatus.AGAIN, EffectStatus.COMPENSATED}),
    EffectStatus.AGAIN: frozenset({EffectStatus.INTENDED, EffectStatus.APPROVED}),
    EffectStatus.FAILED: frozenset({EffectStatus.INTENDED}),
    EffectStatus.COMPENSATING: frozenset({EffectStatus.COMPENSATED}),
    EffectStatus.COMPENSATED: frozenset({EffectStatus.INTENDED}),
}


@dataclass(frozen=True, slots=True)
class EffectRecord:
    """One attempt at an effect on the outside: a row of the ledger. `key` is the journal key of the step; of several
    attempts under one the last tells how the effect stands."""

    run_id: RunId
    key: str
    step: str
    branch: BranchPath
    status: EffectStatus
    idempotency_key: str
    args_json: str  # codec: what reconcile and compensation hooks are given
    result_json: str | None = None
    intended_at: float = 0.0
    settled_at: float | None = None
    note: str = ""  # how its status is known; of an intent: why the attempt before it is in doubt
    attempt: int = 1

    @property
    def lacks_result(self) -> bool:
        """Whether it was done, and what it gave could not be kept: a run that needs it stands still."""
        return self.status is EffectStatus.DONE and self.result_json is None


@dataclass(frozen=True, slots=True)
class AnswerRecord:
    """A person's answer, bound to one question of one run. `key` is the journal key of the question."""

    run_id: RunId
    key: str
    answer_json: str  # codec
    answered_at: float
    answered_by: str = ""  # what took it: "ramify resume", "the local page"


@dataclass(frozen=True, slots=True)
class CheckpointRecord:
    """One atomic record: a branch's snapshot and its place in the journal."""

    id: CheckpointId
    run_id: RunId
    seq: int  # of the journal row that made it; 0 for the base
    branch: BranchPath
    snapshot_id: SnapshotId
    content_key: str
    parents: tuple[CheckpointId, ...]
    created_at: float
    label: str = ""


def checkpoint_id(run: RunId, seq: int) -> CheckpointId:
    return CheckpointId(hashlib.sha256(f"{run}#{seq}".encode()).hexdigest()[:24])


@dataclass(frozen=True, slots=True)
class LLMRecord:
    """One model call that gave a result."""

    run_id: RunId
    seq: int  # shares the journal's numbering
    key: str
    op_id: OpId
    branch: BranchPath
    step_key: str | None  # the journal key of the step that made it; None: the workflow itself
    request_json: str
    request_digest: str
    result_json: str
    result_digest: str
    tags_json: str = "{}"
    reused_from: str | None = None
    started_at: float = 0.0
    ended_at: float = 0.0


@dataclass(frozen=True, slots=True)
class RunUpdate:
    """What one transaction changes of a run's own row. None: left as it is."""

    status: RunStatus | None = None
    result_json: str | None = None
    error: str | None = None
    consumed_s: float | None = None
    deadline_s: float | None = None
    updated_at: float | None = None
    settings: Settings | None = None
    plan_json: str | None = None  # of code that was changed, and accepted
