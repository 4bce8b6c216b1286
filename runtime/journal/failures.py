"""Failures of a run: which of them a resume raises again, and which it tries again.

A workflow that catches a failure goes on because of it: it calls another provider, or tries once more. So a recorded
failure *stands*: a resume raises it again, and the workflow takes the branch that it took. Otherwise an irreversible
step that fails, and a second one in its place, could both be performed.

A failure with which the run ended is tried again. Which one that is, the error of the workflow tells: the nearest
recorded failure in its chain of causes, or several in a group. So are failures after which the workflow called
nothing more, such as the last one before `raise GaveUp`, or the second one in a `gather`. But if an irreversible
effect followed a failure, the failure stands all the same: the effect may be there because of it.

A step or model call that the workflow cancelled, by a timeout or because another one was first, is recorded in the
same way. A resume does not begin it: it waits to be cancelled again. When a run has failed, cancelled calls are begun
again unless an irreversible effect followed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from weakref import WeakKeyDictionary

from ramify.compiler.plan import OpKind
from ramify.runtime.journal.recorded_errors import RAISED
from ramify.runtime.records import (
    CANCELLED,
    STANDS,
    BranchPath,
    CheckpointId,
    EffectRecord,
    LLMRecord,
    OpRecord,
    OpStatus,
    checkpoint_id,
)

READ = "read"
"""The attribute of a row of a streamed model call without an answer: the text that the workflow had read by then."""


def standing_failures(
    ops: Sequence[OpRecord], llm: Sequence[LLMRecord], effects: Sequence[EffectRecord], *, all_caught: bool
) -> dict[str, OpRecord]:
    """Return the failed rows that a replay of these rows raises again, by key.

    all_caught: the run waits for a person, so its workflow has caught all of them (needed for old rows only).
    """
    undone = [(low, high) for low, high in _undone(ops) if high > low]
    begun = [row.started_at for row in ops] + [call.started_at for call in llm] + [one.intended_at for one in effects]
    last = max(begun, default=0.0)
    found: dict[str, OpRecord] = {}
    for row in ops:
        if row.status is OpStatus.DONE:
            found.pop(row.key, None)
        elif row.status is OpStatus.FAILED and not any(low < row.seq < high for low, high in undone):
            old = STANDS not in row.attrs and RAISED in row.attrs
            if row.attrs.get(STANDS) == "yes" or (old and (all_caught or last > row.ended_at)):
                found[row.key] = row
            else:
                found.pop(row.key, None)
    for call in llm:
        cancelled = found.get(call.key)
        if cancelled is not None and CANCELLED in cancelled.attrs and cancelled.seq < call.seq:
            del found[call.key]  # a later process was not told to cancel it, and got the answer
    return found


def _undone(ops: Sequence[OpRecord]) -> Iterator[tuple[int, int]]:
    """Yield the numbers between which rows do not count, because the run went back."""
    restored = [row for row in ops if row.kind is OpKind.RESTORE and "to" in row.attrs]
    ids = {checkpoint_id(row.run_id, row.seq): row.seq for row in ops} if restored else {}
    for row in restored:
        yield ids.get(CheckpointId(row.attrs["to"]), 0), row.seq


@dataclass(frozen=True, slots=True)
class RaisedBy:
    """The operation that raised an error: the error's attribute `__ramify_step__`. `step`: None for model calls."""

    key: str
    step: str | None
    branch: BranchPath


def raised_by(error: BaseException) -> RaisedBy | None:
    """Return the operation that raised the error; None if none did."""
    found = getattr(error, "__ramify_step__", None)
    return found if isinstance(found, RaisedBy) else None


@dataclass(frozen=True, slots=True)
class _Told:
    """A failure that the workflow was told in this process."""

    key: str
    task: asyncio.Task[object] | None
    calls: int  # how many calls came before it


@dataclass(frozen=True, slots=True)
class _Call:
    key: str
    task: asyncio.Task[object] | None
    knows: int  # how many of the failures so far may be why the workflow makes this call


class Followers:
    """Which calls of a workflow may follow from which failures.

    A call follows from the failures of its own task, and from all before it. A task that goes straight from the
    result of one operation to the next knows no more of other tasks' failures than before: one customer's steps do
    not follow from another's.
    """

    def __init__(self) -> None:
        self._told: list[_Told] = []
        self._left: list[_Told] = []
        self._calls: list[_Call] = []
        self._knows: WeakKeyDictionary[asyncio.Task[object], int] = WeakKeyDictionary()
        self._straight: asyncio.Task[object] | None = None
        self._given: int | None = None

    @property
    def known(self) -> int:
        """How many failures the workflow was told so far."""
        return len(self._told)

    @contextmanager
    def knowing(self, known: int) -> Iterator[None]:
        """Mark the calls in this block: the runtime makes them, and they do not follow from failures after the first
        `known`. The block must not await."""
        self._given = known
        try:
            yield
        finally:
            self._given = None

    def told(self, error: BaseException, by: RaisedBy) -> None:
        """Note that the workflow gets this error from one of its operations, or has cancelled that."""
        error.__ramify_step__ = by  # type: ignore[attr-defined]
        self._told.append(_Told(by.key, _task(), len(self._calls)))

    def left(self, key: str) -> None:
        """Note that the workflow stopped reading a streamed answer: it had enough, or an error ends its loop."""
        self._left.append(_Told(key, _task(), len(self._calls)))

    def returned(self) -> None:
        """Note that an operation returns to the running task now."""
        if self._told:
            self._straight = _task()
            asyncio.get_running_loop().call_soon(self._suspended)

    def _suspended(self) -> None:
        self._straight = None

    def called(self, key: str) -> None:
        """Note that the running task calls an operation."""
        if not self._told and not self._left:
            return
        task, knows = _task(), len(self._told)
        if self._given is not None:
            knows = self._given
        elif task is not None:
            if task is self._straight:
                knows = self._knows.get(task, 0)
            self._knows[task] = knows
        self._calls.append(_Call(key, task, knows))

    def of(self, key: str) -> set[str]:
        """Return the keys of the calls that may follow from the failure of `key`."""
        found = set()
        for place, one in enumerate(self._told):
            if one.key == key:
                later = self._calls[one.calls :]
                found |= {c.key for c in later if c.knows > place or (c.task is not None and c.task is one.task)}
        return found

    def ended_with(self, error: BaseException) -> Collection[str]:
        """Return the keys of the failures with which the workflow ended, in raising `error`."""
        return {*_causes(error, set()), *(one.key for one in self._told if not self.of(one.key))}

    def cancelled(self, rows: Mapping[str, OpRecord]) -> list[str]:
        """Return the keys of the calls that the workflow cancelled in this process."""
        return [one.key for one in self._told if one.key in rows and CANCELLED in rows[one.key].attrs]

    def left_last(self) -> list[str]:
        """Return the keys of the streamed answers after which the workflow called nothing more: it may have left them
        because of an error."""
        return [one.key for one in self._left if one.calls == len(self._calls)]

    def has_caught(self, error: BaseException) -> bool:
        """Whether the workflow, which ended by raising `error`, caught failures and called something after each."""
        return bool(self._told) and not self.ended_with(error)


def _task() -> asyncio.Task[object] | None:
    try:
        return asyncio.current_task()
    except RuntimeError:  # a thread of a workflow that is not async
        return None


def _causes(error: BaseException | None, seen: set[int]) -> list[str]:
    if error is None or id(error) in seen:
        return []
    seen.add(id(error))
    if (by := raised_by(error)) is not None:
        return [by.key]
    if isinstance(error, BaseExceptionGroup):
        return [found for one in error.exceptions for found in _causes(one, seen)]
    return _causes(error.__cause__, seen) or _causes(error.__context__, seen)


def tried_again(
    error: BaseException, rows: Mapping[str, OpRecord], followers: Followers, happened: Callable[[str], bool]
) -> list[OpRecord]:
    """Return the failed rows that do not stand any more, because the run ended by raising `error`.

    rows: the failed rows that stand. happened: whether the step with that key had, or may have had, an effect.
    """
    keys = {*followers.ended_with(error), *followers.cancelled(rows), *followers.left_last()}
    ended = (rows[key] for key in sorted(keys) if key in rows)
    free = (row for row in ended if not any(happened(key) for key in followers.of(row.key)))
    return [replace(row, attrs={**row.attrs, STANDS: "no"}) for row in free]
