"""What the page is sent, as plain data: one dataclass per shape, whose fields are the JSON's; and the page's errors.

Times are Unix seconds in fields whose name ends in `_at`, seconds in those that end in `_s`. Text is sent as it was
recorded: the page never interprets it.

WebError
├── CannotListen          the port is taken or not allowed
├── PartsMissing          starlette or uvicorn is not installed
└── NotThere              the run has no such row, state or call; the page shows it
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from functools import cache
from operator import attrgetter
from typing import Any


class WebError(Exception):
    """Any error of the page's server."""


class CannotListen(WebError):
    """No listening socket could be opened."""


class PartsMissing(WebError):
    """The extra `web` is not installed."""


class NotThere(WebError):
    """The run does not have what the page asked for."""


@dataclass(frozen=True, slots=True)
class RunRow:
    """A run in the list."""

    id: str
    name: str
    workflow: str
    workspace: str
    sandbox: str
    status: str  # RunStatus, "interrupted" or "in doubt"
    created_at: float
    updated_at: float
    deadline_s: float | None
    consumed_s: float
    arguments: str
    result: str | None
    error: str | None
    steps: int
    forks: int
    merges: int
    reused: int
    failed: int
    llm_calls: int


@dataclass(frozen=True, slots=True)
class ItemRow:
    """Something that waits for a person. `id`: what an answer names; None if it cannot be answered here."""

    id: str | None
    kind: str  # question, approval, doubt
    run: str
    workflow: str
    branch: str
    question: str
    since: float
    commands: tuple[str, ...]  # each of them resolves it


@dataclass(frozen=True, slots=True)
class AnswerStored:
    id: str
    run: str
    left: int  # open questions of the run


@dataclass(frozen=True, slots=True)
class CallRow:
    """The parts of a model call, in seconds from its arrival; None: not measured."""

    queued_s: float | None
    first_token_s: float | None
    end_s: float
    deadline_s: float | None
    met: bool | None  # None: best effort
    qoe: float | None  # quality of experience of a stream, from 0 to 1; None: no stream
    prompt_tokens: int
    completion_tokens: int
    note: str  # stage, attempts


@dataclass(frozen=True, slots=True)
class MomentRow:
    """A row of the journal, or a model call (`call` is set)."""

    seq: int
    branch: str
    kind: str
    name: str
    summary: str
    started_at: float
    ended_at: float
    status: str
    reused_from: str | None
    call: CallRow | None


@dataclass(frozen=True, slots=True)
class LineRow:
    """A branch. `ended_at` and `forked_at` are sequence numbers of the run."""

    path: str
    parent: str | None
    forked_at: int
    end: str
    ended_at: int | None


@dataclass(frozen=True, slots=True)
class CheckpointRow:
    id: str
    seq: int
    branch: str
    snapshot: str  # the beginning of its id
    parents: tuple[str, ...]
    created_at: float
    label: str


@dataclass(frozen=True, slots=True)
class EffectRow:
    step: str
    branch: str
    attempt: int  # the last attempt at an effect tells its state
    status: str
    key: str  # the idempotency key
    intended_at: float
    settled_at: float | None
    note: str


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of one shape, with the names sent once: of 10,000 rows they would be half of the data."""

    fields: tuple[str, ...]
    rows: tuple[tuple[object, ...], ...]


def table(shape: type, rows: Iterable[object]) -> Table:
    """`shape`: the rows' dataclass, of several fields."""
    names = _names(shape)
    return Table(names, tuple(map(attrgetter(*names), rows)))


@dataclass(frozen=True, slots=True)
class HistoryPage:
    """What is new since `cursor` of the previous page; with `whole`, everything, and earlier rows are void."""

    cursor: str
    whole: bool
    run: RunRow
    moments: Table  # of MomentRow
    lines: Table  # of LineRow
    checkpoints: Table  # of CheckpointRow
    effects: tuple[EffectRow, ...]  # all of them: their statuses change


@dataclass(frozen=True, slots=True)
class FileRow:
    """The change of one path. `patch` is None if it was omitted (`why`)."""

    path: str
    change: str
    size_before: int | None
    size_after: int | None
    added: int | None
    removed: int | None
    patch: str | None
    why: str = ""


@dataclass(frozen=True, slots=True)
class VariableRow:
    name: str
    before: str | None
    after: str | None


@dataclass(frozen=True, slots=True)
class Changes:
    """The differences between two states."""

    files: tuple[FileRow, ...]
    outside: tuple[FileRow, ...]  # outside the workspace: only the first of them, and only named
    outside_count: int
    variables: tuple[VariableRow, ...]
    folder_before: str
    folder_after: str


@dataclass(frozen=True, slots=True)
class Processes:
    tier: str
    dropped: int
    reason: str
    shell_kept: bool


@dataclass(frozen=True, slots=True)
class StateView:
    checkpoint: CheckpointRow
    since: CheckpointRow | None  # what `changes` is counted from
    gone: str  # why the snapshot cannot be read; "" if it can
    layers: int
    folder: str
    environment: Mapping[str, str]
    unset: tuple[str, ...]
    processes: Processes | None
    changes: Changes | None
    channels: Mapping[str, object] | None  # the program's state; None if it is not stored
    moments: tuple[int, ...]  # seqs, since the previous checkpoint of its branch
    effects: tuple[EffectRow, ...]


@dataclass(frozen=True, slots=True)
class KeyRow:
    """A key of the state that differs: JSON, None if it was not set."""

    name: str
    before: str | None
    after: str | None


@dataclass(frozen=True, slots=True)
class DiffView:
    before: CheckpointRow
    after: CheckpointRow
    keys: tuple[KeyRow, ...]
    changes: Changes
    effects_before: tuple[EffectRow, ...]  # only on this side
    effects_after: tuple[EffectRow, ...]


@dataclass(frozen=True, slots=True)
class MessageRow:
    role: str
    content: str


@dataclass(frozen=True, slots=True)
class TokenRow:
    token: str
    logprob: float
    others: tuple[tuple[str, float], ...]


@dataclass(frozen=True, slots=True)
class CallView:
    seq: int
    model: str
    settings: Mapping[str, str]
    messages: tuple[MessageRow, ...]
    answer: str
    finish_reason: str
    tokens: tuple[TokenRow, ...]  # with their probabilities if those were requested


@dataclass(frozen=True, slots=True)
class MomentView:
    """A row of the journal, complete. `result`: JSON, see `History.result_of`."""

    seq: int
    key: str
    op: str
    result: str | None
    error: str | None
    attrs: Mapping[str, str]
    snapshot_in: str | None
    snapshot_out: str | None


@dataclass(frozen=True, slots=True)
class PlanOpRow:
    op: str
    kind: str
    step: str | None
    site: str | None
    effect: str | None
    done: int
    reused: int
    failed: int
    snapshots: int
    predicted_s: float | None
    took_s: float | None


@dataclass(frozen=True, slots=True)
class PlanView:
    passes: tuple[str, ...]
    deadline_s: float | None
    stage_error: float | None  # the median of |predicted - actual| / actual
    operations: tuple[PlanOpRow, ...]
    breaks: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Hit:
    seq: int
    branch: str
    name: str
    where: str  # "name", "result", "message", "answer", …
    excerpt: str


def jsonable(value: object) -> object:
    """For `json.dumps`: dataclasses become objects of their fields, at every level."""
    if value is None or isinstance(value, str | int | float):
        return value.value if isinstance(value, Enum) else value
    if is_dataclass(value) and not isinstance(value, type):
        return {name: jsonable(getattr(value, name)) for name in _names(type(value))}
    if isinstance(value, tuple | list):
        return [item if type(item) in _PLAIN else jsonable(item) for item in value]
    if isinstance(value, Mapping):
        return {str(name): jsonable(item) for name, item in value.items()}
    raise TypeError(f"a {type(value).__name__} cannot be sent to the page")


_PLAIN = frozenset({type(None), bool, int, float, str})  # types of JSON


@cache
def _names(shape: Any) -> tuple[str, ...]:
    return tuple(field.name for field in fields(shape))
