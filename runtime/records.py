"""The records that the runtime stores, as plain data: runs, journal rows, checkpoints, model calls, effects, answers.

`ramify.runtime.store` stores them, the execution makes them, the command line shows them. Times are Unix seconds.
Digests are sha256 in hex. Fields named `*_json` hold texts of `ramify.runtime.codec`, unless they say otherwise.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from operator import attrgetter
from typing import Any, NewType

from ramify.compiler.plan import OpId, OpKind
from ramify.fork_engine.types import SnapshotId

RunId = NewType("RunId", str)
CheckpointId = NewType("CheckpointId", str)
BranchPath = NewType("BranchPath", str)
"""The path of a branch: "root", then "/" and operation.occurrence.child for each fork: "root/o7.0.3"."""

ROOT = BranchPath("root")


DECORATORS = "decorators"
"""The front end of the decorators, whose runs are completely in the journal. The other front end is "langgraph"."""


class RunStatus(StrEnum):
    """The status of a run."""

    RUNNING = "running"  # the run's lock, not this row, says whether its process still lives
    DONE = "done"
    FAILED = "failed"  # a step or the workflow raised; resumable
    CANCELLED = "cancelled"  # Ctrl-C or `ramify cancel`; resumable
    FORKED = "forked"  # made by `ramify fork` from another run, and not begun: resume it
    WAITING = "waiting"  # for a person: an answer (`ramify resume RUN --answer`), or a LangGraph breakpoint


LEGAL_TRANSITIONS: Mapping[RunStatus, frozenset[RunStatus]] = {
    RunStatus.RUNNING: frozenset(RunStatus),
    RunStatus.FAILED: frozenset({RunStatus.RUNNING}),
    RunStatus.CANCELLED: frozenset({RunStatus.RUNNING}),
    RunStatus.FORKED: frozenset({RunStatus.RUNNING}),
    RunStatus.WAITING: frozenset({RunStatus.RUNNING}),
    RunStatus.DONE: frozenset({RunStatus.RUNNING}),  # a LangGraph thread that continues; a replay of a finished run
}


class OpStatus(StrEnum):
    """The status of a journal row."""

    DONE = "done"
    FAILED = "failed"  # recorded for people to read; a resume does not use it
    ASKED = "asked"  # an open question; its answer is another row
    BEGUN = "begun"  # a sleep that lasts until a recorded time; its end is another row
    UNASKED = "not asked again"  # a question that the run's newest process did not reach
    READ = "read"  # how far a streamed answer was read before an effect or a question; the answer is another row
    UNDONE = "undone"  # it was done, and the run went back to before it: treated as FAILED


@dataclass(frozen=True, slots=True)
class Settings:
    """How a run was started, so that `ramify resume` can continue in the same way. Contains no secrets."""

    sandbox: str = "namespaces"
    base_url: str | None = None  # without a password; None: the embedded engine, or the program's own client
    model: str | None = None
    client_url: str | None = None  # the address of a client that the program passed; "" if it has none
    client_model: str | None = None
    mixed: bool = False  # the run continued with another model, so its answers are not reused for either

    @property
    def server(self) -> str | None:
        """The address of the model server. None: the embedded engine. "": unknown."""
        return self.base_url if self.client_url is None else self.client_url

    @property
    def whom(self) -> tuple[str | None, ...]:
        """The model and server that are used, as far as they are known."""
        own = () if self.client_url is None else (self.client_url, self.client_model)
        return (self.base_url, self.model, *own)


@dataclass(frozen=True, slots=True)
class RunRecord:
    """A run."""

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
    consumed_s: float = 0.0  # seconds of the deadline used, over all processes that worked on this run
    result_json: str | None = None
    error: str | None = None
    thread_id: str | None = None  # the LangGraph thread, for runs of that front end


AGAIN = "again"
"""The attribute of a LangGraph run's SEAL row that names a lost snapshot, which the row's own snapshot replaces."""

WARM = "warm"
"""The attribute of a SEAL or MERGE row: what the sandbox keeps ready for forks of its snapshot, and why."""

STANDS = "stands"
"""The attribute of a failed row: "yes" if a resume raises its error again, "no" once a run has ended with it. Rows of
versions before 0.2 have none."""

CANCELLED = "cancelled"
"""The attribute of a failed row whose call the workflow cancelled: how many seconds after its process had begun. A
timer of the workflow fires no later than that in another process, which has the results before it at once."""


@dataclass(slots=True)
class OpRecord:
    """A row of the journal: one performed operation. `key`: its place in the workflow, equal in every replay.

    Only who makes one changes it. It is not frozen, since every step makes one: that would take ten times as long."""

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
    lineage_key: str | None = None  # digest of everything the result depends on; None: not reusable
    reused_from: str | None = None  # "RUN#seq" of the row whose result was reused
    started_at: float = 0.0
    ended_at: float = 0.0
    summary: str = ""  # one line for people
    error: str | None = None
    attrs: Mapping[str, str] = field(default_factory=dict)

    def numbered(self, seq: int) -> OpRecord:
        """Return the row with this number. One that has none gets it in place, before anybody else sees it: every row
        needs that, and a copy takes as long as to make the row."""
        if self.seq:
            return OpRecord(self.run_id, seq, *_AFTER_SEQ(self))
        self.seq = seq
        return self


_AFTER_SEQ = attrgetter(*[each.name for each in fields(OpRecord)][2:])


class EffectStatus(StrEnum):
    """The status of an effect."""

    INTENDED = "intended"  # durable before the step starts; if no process works on the run, it is in doubt
    DONE = "done"
    FAILED = "failed"  # it did not happen: each attempt raised, or was cancelled before it began
    IN_DOUBT = "in doubt"  # a crash, a cancel or a timeout came between intent and result
    APPROVED = "approved"  # a person says that it happened, and gave its result
    AGAIN = "again"  # a person says that it did not happen: the next resume performs it
    COMPENSATING = "to be compensated"  # the run went back to before it, and its hook has not undone it yet
    COMPENSATED = "compensated"  # its compensation hook undid it


DOUBTFUL = frozenset({EffectStatus.INTENDED, EffectStatus.IN_DOUBT})
"""An effect with this status, in a run on which no process works, has an unknown outcome."""

HAPPENED = DOUBTFUL | {EffectStatus.DONE, EffectStatus.APPROVED}
"""An effect with this status took place, or may have."""

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
    """One attempt at an effect: a row of the ledger. `key`: the journal key of the step. The last attempt with a key
    has the current status of the effect."""

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
    note: str = ""  # how its status is known; for an intent: why the previous attempt is in doubt
    attempt: int = 1

    @property
    def lacks_result(self) -> bool:
        """Whether it was performed but its result could not be stored: a run that needs the result stops."""
        return self.status is EffectStatus.DONE and self.result_json is None


VOID = "|void|"
"""Part of the key of a void answer: its run went back to before the question, or its interrupt has consumed it."""


@dataclass(frozen=True, slots=True)
class AnswerRecord:
    """A person's answer to one question of one run. `key`: the journal key of the question."""

    run_id: RunId
    key: str
    answer_json: str  # codec
    answered_at: float
    answered_by: str = ""  # the command or page that took it: "ramify resume", "the local page"


@dataclass(frozen=True, slots=True)
class CheckpointRecord:
    """A branch's snapshot and its place in the journal, committed together."""

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
    """Return the id of the checkpoint that row `seq` of a run makes."""
    return CheckpointId(hashlib.sha256(f"{run}#{seq}".encode()).hexdigest()[:24])


@dataclass(frozen=True, slots=True)
class LLMRecord:
    """A model call that was answered."""

    run_id: RunId
    seq: int  # shares the journal's numbering
    key: str
    op_id: OpId
    branch: BranchPath
    step_key: str | None  # the journal key of the step that made it; None if the workflow itself did
    request_json: str
    request_digest: str
    result_json: str
    result_digest: str
    tags_json: str = "{}"
    reused_from: str | None = None
    started_at: float = 0.0
    ended_at: float = 0.0


@dataclass(frozen=True, slots=True)
class RunRows:
    """All rows of one run. effects: the last attempt of each; attempts: the earlier ones."""

    run: RunRecord
    ops: tuple[OpRecord, ...] = ()
    llm: tuple[LLMRecord, ...] = ()
    checkpoints: tuple[CheckpointRecord, ...] = ()
    effects: tuple[EffectRecord, ...] = ()
    attempts: tuple[EffectRecord, ...] = ()
    answers: tuple[AnswerRecord, ...] = ()


@dataclass(frozen=True, slots=True)
class RunUpdate:
    """A change of a run's row. None: leave the column as it is."""

    status: RunStatus | None = None
    result_json: str | None = None
    error: str | None = None
    consumed_s: float | None = None
    deadline_s: float | None = None
    updated_at: float | None = None
    settings: Settings | None = None
    plan_json: str | None = None  # the plan of changed code that was accepted


@dataclass(frozen=True, slots=True)
class Lease:
    """Who works on a run, or did last. owner: the id of its committer; None if nobody works on it, "ended" if another
    process ended it. token: grows with each owner. age_s: seconds since it was renewed; after lasts_s, another
    process may take it. lock_folder: identifies the folder of its file lock; may be empty."""

    run: RunId
    owner: str | None
    token: int
    host: str
    pid: int
    taken_at: float
    renewals: int
    lasts_s: float
    age_s: float
    is_asked_to_stop: bool
    lock_folder: str

    @property
    def is_alive(self) -> bool:
        """Whether its owner works on the run, as far as is known."""
        return self.owner is not None and self.age_s <= self.lasts_s

    @classmethod
    def of_row(cls, row: Mapping[str, Any]) -> Lease:
        """Return the lease of a row of `leases.leases_query`."""
        return cls(
            RunId(row["run_id"]),
            row["owner"],
            int(row["token"]),
            row["host"],
            int(row["pid"]),
            row["taken_at"],
            int(row["renewals"]),
            row["lasts_s"],
            row["age_s"],
            bool(row["is_asked_to_stop"]),
            row["lock_folder"],
        )
