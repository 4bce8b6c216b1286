"""What earlier processes recorded of a run, and which of it this process has reached: replaying the journal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain

from ramify.compiler.plan import OpId, OpKind
from ramify.fork_engine.types import Snapshot, SnapshotId
from ramify.runtime.codec.recorded_layouts import RecordedLayouts, is_same_by_names, names_classes
from ramify.runtime.errors import Diverged
from ramify.runtime.events import Event, LLMDone, Noticed, OpDone
from ramify.runtime.journal.equal_calls import EqualCalls
from ramify.runtime.journal.failures import READ, Followers, tried_again
from ramify.runtime.journal.forked_runs import FORKED
from ramify.runtime.journal.recorded_errors import decoded
from ramify.runtime.journal.recorded_order import RESULTS, RecordedOrder, ends_of_sleeps, is_instead
from ramify.runtime.journal.turns import Turns
from ramify.runtime.records import (
    AGAIN,
    CANCELLED,
    HAPPENED,
    BranchPath,
    CheckpointId,
    EffectRecord,
    EffectStatus,
    LLMRecord,
    OpRecord,
    OpStatus,
    RunId,
    RunRecord,
    checkpoint_id,
)

SEALED_BEFORE = "|BEFORE"
"""The end of the key of a SEAL that was made up for before an operation; what precedes it is the key of that."""


class RecordedRun:
    """Answers for the recorded operations of a run, and keeps track of the keys that this process has reached.

    ops, llm, effects: the recorded rows of the run.
    elsewhere: effects of the runs from which this run was forked, nearest first.
    failed: the failed rows that stand, by key (`ramify.runtime.journal.failures`).
    was_changed: a change of the code was accepted since the run began.
    emit: gets an event for each operation that is served.
    """

    def __init__(
        self,
        run: RunRecord,
        *,
        ops: Sequence[OpRecord],
        llm: Sequence[LLMRecord],
        effects: Sequence[EffectRecord],
        elsewhere: Sequence[EffectRecord],
        failed: Mapping[str, OpRecord],
        was_changed: bool = False,
        emit: Callable[[Event], None],
    ) -> None:
        self._run = run
        self._emit = emit
        self._ops = {row.key: row for row in ops if row.status is OpStatus.DONE}
        self._before = {row.key: row for row in self._ops.values() if row.kind is OpKind.RUN and row.step is not None}
        self._dropped: set[str] = set()  # keys of long results of this process, which are only in the database
        self._asked: set[str] = set()  # keys that this process has reached
        self._earlier = _keys_of(ops, llm, effects)  # keys that earlier processes recorded, with their branches
        self._places_before = {key.rpartition("|")[0] for key in self._earlier}
        self._met_astray: set[str] = set()  # keys that were reached, but in another state than the recorded one
        self._late: dict[BranchPath, list[OpRecord]] = {}  # what was sealed late, by branch
        for row in ops:
            if row.kind is OpKind.SEAL and row.status is OpStatus.DONE and row.key.endswith(SEALED_BEFORE):
                self._late.setdefault(row.branch, []).append(row)
        self._computed = {row.lineage_key: row for row in self._ops.values() if row.lineage_key is not None}
        self._llm = {row.key: row for row in llm}
        self._done_before = frozenset((*self._ops, *self._llm))
        self._failed = dict(failed)
        self._read = {row.key: row.attrs.get(READ, "") for row in ops if row.status is OpStatus.READ}
        self.followers = Followers()
        self._effects = {effect.key: effect for effect in effects}
        self._unmet: dict[str, dict[str, None]] = {}  # keys of effects not reached yet, by branch and operation
        for key in self._effects:
            self._unmet.setdefault("|".join(key.split("|")[:2]), {})[key] = None
        self._elsewhere = elsewhere
        self._recorded = {row.args_digest for row in ops if row.args_digest}
        self._layouts: RecordedLayouts | None = None
        forks = [row for row in ops if row.key == FORKED]  # whatever their status: the run may have gone back
        self.fenced = bool(forks) and forks[-1].attrs.get("for_real") != "yes"
        """Whether irreversible steps of the whole run are restricted as on a branch of a fork."""
        self.stopped: BaseException | None = None
        """Why nothing new begins and the run ends, even if the workflow caught the error: an effect in doubt, a wrong
        reuse hit (decision 005), or open questions (decision 075)."""
        self._seq = max(max((row.seq for row in ops), default=0), max((row.seq for row in llm), default=0))
        self.went_back_at = max((row.started_at for row in ops if row.kind is OpKind.RESTORE), default=0.0)
        """When a person last took the run back to a checkpoint, in Unix seconds; 0: never."""
        self._sleeps = ends_of_sleeps(ops)
        order = RecordedOrder(run, ops, llm, effects, failed, was_changed, self.went_back_at)
        self.turns = Turns(
            order.places(), self.followers.returned, since=order.began, resumed=order.resumed, notice=self.notice
        )
        # the last result handed out before the call, until the call has a row
        self._called_after: dict[str, int] = {}
        self._occurrences: dict[str, dict[str, int]] = {}  # by the first part of the place
        self.equal = EqualCalls(self._before, llm)
        self._places: Counter[tuple[BranchPath, OpId]] = Counter()
        self._last_sealed: dict[BranchPath, int] = {}
        for row in ops:
            seals = row.kind is not OpKind.COMMAND and AGAIN not in row.attrs
            if seals and row.snapshot_out is not None and row.status is not OpStatus.UNDONE:
                self._last_sealed[row.branch] = row.seq
            if (theirs := row.attrs.get("theirs_branch")) is not None and row.status is not OpStatus.UNDONE:
                self._last_sealed[BranchPath(theirs)] = row.seq  # a merge seals the branch that it merges
            if row.kind is OpKind.FORK and row.status is OpStatus.DONE:
                self._places[row.branch, row.op_id] += 1

    def sleeps_until(self, key: str) -> float | None:
        """Return when a sleep ends that an earlier process began, in Unix seconds; None if it is to begin now."""
        return self._sleeps.get(key)

    def notice(self, what: str) -> None:
        """Tell observers something about the run."""
        self._emit(Noticed(self._run.id, what))

    def key(self, *parts: str, acts: bool = True) -> str:
        """Return the key of the next call at this place. Call it in program order: the occurrences are counted.
        `acts`: as for `Followers.called`."""
        place = "|".join(parts)
        if (counted := self._occurrences.get(parts[0])) is None:
            counted = self._occurrences[parts[0]] = {}
        occurrence = counted.get(place, 0)
        counted[place] = occurrence + 1
        key = f"{place}|{occurrence}"
        self._asked.add(key)
        self._called_after[key] = self.turns.handed_out
        self.followers.called(key, acts=acts)
        if self._unmet:
            self._unmet.get("|".join(parts[:2]), {}).pop(key, None)
        return key

    def forget_attempt(self, place: str) -> None:
        """Reset the occurrence counters of calls whose place begins with the part `place`: an attempt of a step."""
        self._occurrences.pop(place, None)

    def forget_below(self, key: str) -> None:
        """Reset the occurrence counters inside a step, its attempts and its inner steps: it starts again."""
        for first in [first for first in self._occurrences if first.startswith(f"{key}|")]:
            del self._occurrences[first]

    def next_place(self, branch: BranchPath, op: OpId) -> int:
        """Return the number of the next fork of that operation on that branch."""
        place = self._places[branch, op]
        self._places[branch, op] += 1
        return place

    def served(self, key: str, at: Snapshot | None = None) -> OpRecord | None:
        """Return the recorded row of an operation if it is still valid, else None.

        It is valid if the branch is `at` the snapshot at which the operation began. Another order of earlier calls
        leads to another state, and then the operation is performed again. A step that changed a world must also run
        again if no later snapshot of its branch contains the change.
        """
        row = self._ops.get(key)
        if row is None:
            return None
        assert key not in self._dropped, "a process asks for a result that it recorded itself"
        if at is not None and row.snapshot_in not in (None, at.id):
            self._met_astray.add(key)
            return None
        lost = row.snapshot_in is not None and row.snapshot_out is None
        if lost and self._last_sealed.get(row.branch, 0) < row.seq:
            return None
        self._emit(OpDone(row, replayed=True))
        return row

    def unused_results(self, *, ended: bool) -> list[tuple[OpRecord, str]]:
        """Return the recorded steps whose results this process did not use, and why. `ended`: the workflow has
        returned, so steps that it has not reached count as unused."""
        fresh = {tuple(key.split("|")[:2]) for key in self._asked - self._before.keys()}
        found = []
        for key, row in self._before.items():
            if key in self._met_astray:
                found.append((row, "its world is in another state"))
            elif ended and key not in self._asked:
                other = (row.branch, row.op_id) in fresh
                found.append((row, "called with other arguments" if other else "no longer called"))
        return found

    def failed(self, key: str, at: Snapshot | None = None) -> Exception | None:
        """Return the recorded error of an operation if it stands; None if the operation is to be tried.

        Raises `Diverged` if the error cannot be raised again, and an irreversible effect followed it.
        """
        row, effect = self._failed.get(key), self._effects.get(key)
        if row is None or CANCELLED in row.attrs or (effect is not None and effect.status in _SETTLED):
            return None
        error = decoded(row.attrs)
        if error is not None and (at is None or row.snapshot_in in (None, at.id)):
            self._emit(OpDone(row, replayed=True))
            return error
        done = (one for one in self._effects.values() if one.status in HAPPENED and one.intended_at >= row.ended_at)
        if (later := next(done, None)) is not None:
            raise self.stop(
                Diverged(
                    f"{row.step or row.op_id} on branch {row.branch} failed ({row.error}), and the workflow went on "
                    f"to the irreversible step {later.step!r}. The failure cannot be raised again: its error was not "
                    "kept, or it began in another state. It is not tried again, since the workflow could then take "
                    f"another way: `ramify resume {self._run.id} --from STATE` goes back to before it"
                )
            )
        return None

    def cancelled_s(self, key: str) -> float | None:
        """Return how many seconds after its beginning an earlier process cancelled the operation; None if it did not,
        or if a person has said whether its effect happened."""
        row, effect = self._failed.get(key), self._effects.get(key)
        if row is None or CANCELLED not in row.attrs or (effect is not None and effect.status in _SETTLED):
            return None
        return float(row.attrs[CANCELLED])

    def read_before(self, key: str) -> str:
        """Return how far earlier processes read a streamed answer that is not recorded: a resume reads the same."""
        row = self._failed.get(key)
        left = "" if row is None else row.attrs.get(READ, "")
        return max(left, self._read.get(key, ""), key=len)

    def stands(self, key: str) -> bool:
        """Whether a failure of the operation is recorded, and stands."""
        return key in self._failed

    def is_answered(self, key: str) -> bool:
        """Whether the model call with that key was answered."""
        return key in self._llm

    def first_answered(self, keys: Iterable[str], most: int) -> list[str]:
        """Return those of these model calls that were answered first, in the order of their answers' rows."""
        return sorted((key for key in keys if key in self._llm), key=lambda key: self._llm[key].seq)[:most]

    def is_recorded(self, key: str) -> bool:
        """Whether a result of the operation, or a failure that stands, is recorded."""
        return key in self._ops or key in self._llm or key in self._failed

    def was_recorded(self, key: str) -> bool:
        """Whether an earlier process recorded the result of that operation."""
        return key in self._done_before

    def ended_with(self, error: BaseException) -> list[OpRecord]:
        """Return the failed rows that do not stand any more, because the run ends with them by raising `error`."""
        if self.stopped is not None:
            return []
        return tried_again(error, self._failed, self.followers, self._happened)

    def effect_after(self, failed: str) -> EffectRecord | None:
        """Return an effect because of which the failure of that key stands; None if there is none."""
        return next((self._effects[key] for key in self.followers.of(failed) if self._happened(key)), None)

    def _happened(self, key: str) -> bool:
        effect = self._effects.get(key)
        return effect is not None and effect.status in HAPPENED

    @property
    def run_id(self) -> RunId:
        return self._run.id

    @property
    def pulse(self) -> tuple[int, int]:
        """A value that changes with each operation that is reached or recorded."""
        return len(self._asked), self._seq

    def stop(self, why: BaseException) -> BaseException:
        """Make the run end with this error, or with an earlier one. Returns the error, for the caller to raise."""
        self.stopped = self.stopped or why
        return why

    def refuse_when_stopped(self) -> None:
        """Raise the error that stopped the run, if any. Call this before a new operation begins."""
        if self.stopped is not None:
            raise self.stopped

    @property
    def has_digests(self) -> bool:
        """Whether earlier processes recorded any digests of arguments."""
        return bool(self._recorded or self._effects)

    def has_digest(self, digest: str) -> bool:
        """Whether earlier processes recorded an operation with that digest of its arguments."""
        if digest in self._recorded:
            return True
        return any(digest[:16] in key for key in self._effects)  # an effect that was begun may have no row yet

    def earlier_texts(self, text: str) -> Iterator[str]:
        """Yield how earlier processes may have encoded a value whose classes have changed since."""
        return self._recorded_layouts.earlier(text) if names_classes(text) else iter(())

    def is_reordered(self, text: str) -> bool:
        """Whether earlier processes recorded a named tuple of the value only with its fields in another order."""
        return self._recorded_layouts.is_reordered(text)

    @property
    def _recorded_layouts(self) -> RecordedLayouts:
        if self._layouts is None:
            results = (row.result_json for row in self._before.values() if row.result_json is not None)
            arguments = (effect.args_json for effect in chain(self._effects.values(), self._elsewhere))
            self._layouts = RecordedLayouts.of(chain((self._run.args_json,), results, arguments))
        return self._layouts

    def _with_arguments(self, effects: Iterable[EffectRecord], given: Iterable[str]) -> EffectRecord | None:
        """Return the first of the effects that has one of these arguments, or None."""
        texts = [text for one in given for text in (one, *self.earlier_texts(one))]
        return next((one for one in effects if any(is_same_by_names(one.args_json, text) for text in texts)), None)

    def has_place(self, *parts: str) -> bool:
        """Whether earlier processes recorded a call at that place (see `key`)."""
        return "|".join(parts) in self._places_before

    def knows(self, key: str) -> bool:
        """Whether the operation with that key was performed, in whatever state."""
        return key in self._ops

    def changed(self, key: str) -> bool:
        """Whether the operation with that key was performed and may have changed its world."""
        row = self._ops.get(key)
        return row is not None and row.snapshot_out != row.snapshot_in

    def sealed_late(self, branch: BranchPath, at: SnapshotId, after: int, key: str) -> OpRecord | None:
        """Return the first row after the number `after` that sealed the branch's state `at` late (`seal_before`).
        None if there is none, or if the operation with that key was recorded before it."""
        rows = (row for row in self._late.get(branch, ()) if row.seq > after and row.snapshot_in == at)
        found = next(rows, None)
        performed = self._ops.get(key) or self._failed.get(key)
        return None if found is None or (performed is not None and performed.seq < found.seq) else found

    def computed(self, lineage_key: str) -> OpRecord | None:
        """Return a row of this run with that lineage key, computed or reused; None if there is none."""
        return self._computed.get(lineage_key)

    def row(self, key: str) -> OpRecord:
        """Return the DONE row with that key."""
        return self._ops[key]

    def checkpoint_of(self, row: OpRecord) -> CheckpointId:
        """Return the id of the checkpoint that a recorded row made."""
        return checkpoint_id(self._run.id, row.seq)

    def served_llm(self, key: str) -> LLMRecord | None:
        row = self._llm.get(key)
        if row is not None:
            self._emit(LLMDone(row, replayed=True))
        return row

    def called_model(self, step_key: str) -> bool:
        """Whether that step made model calls, including reused ones."""
        return any(row.step_key == step_key for row in self._llm.values())

    def effect(self, key: str) -> EffectRecord | None:
        """Return the effect of the step with that key, or None."""
        return self._effects.get(key)

    def effect_like(self, step: str, given: Iterable[str]) -> EffectRecord | None:
        """Return a DONE effect of the same step with the same arguments, in this run or the runs it was forked
        from. `given`: the texts by which the ledger may know them."""
        every = chain(self._effects.values(), self._elsewhere)
        done = (e for e in every if e.step == step and e.status is EffectStatus.DONE)
        return self._with_arguments(done, given)

    def unreached_effect(self, key: str, step: str, given: Iterable[str]) -> EffectRecord | None:
        """Return an effect of the same step with the same arguments that took place, or may have, and that the
        workflow has not reached in this process; None if there is none.

        Effects at the place of `key` do not count, since the calls of one place come in order. Effects of the run
        from which this run was forked do not count either: the fork performs its own.
        """
        place = key.rpartition("|")[0]
        unreached = (
            effect
            for effect in self._effects.values()
            if effect.step == step and effect.status in HAPPENED and effect.key not in self._asked
            if effect.key.rpartition("|")[0] != place
        )
        return self._with_arguments(unreached, given)

    def unreached_effects_at(self, branch: BranchPath, op: OpId) -> Iterator[EffectRecord]:
        """Yield the effects of one operation on one branch that took place, or may have, and that the workflow has
        not reached in this process, because it gave the operation other arguments."""
        found = (self._effects[key] for key in self._unmet.get(f"{branch}|{op}", ()))
        return (effect for effect in found if effect.status in HAPPENED)

    def left_out_effect(self, key: str) -> EffectRecord | None:
        """Return an effect in place of which the workflow could do that of `key`, and that it has not reached."""
        left = (one for one in self.turns.left_out if one not in self._asked and is_instead(one, key))
        return next((self._effects[one] for one in left), None)

    def unreached_steps_at(self, branch: BranchPath, op: OpId) -> Iterator[OpRecord]:
        """Yield what earlier processes recorded of that operation on that branch with other arguments than in this
        process."""
        rows = (row for key, row in self._before.items() if key not in self._asked)
        return (row for row in rows if (row.branch, row.op_id) == (branch, op))

    def is_replayed(self, branch: BranchPath) -> bool:
        """Whether earlier processes recorded operations on a branch, or below it, that are not reached yet."""
        below = f"{branch}/"
        found = (key for key, there in self._earlier.items() if there == branch or there.startswith(below))
        return any(key not in self._asked for key in found)

    def effects_under(self, branch: BranchPath) -> list[EffectRecord]:
        """Return the effects on a branch and below it, in the order of their intents."""
        below = f"{branch}/"
        return [e for e in self._effects.values() if e.branch == branch or e.branch.startswith(below)]


_REACHED = (OpStatus.DONE, OpStatus.ASKED, OpStatus.BEGUN)


def _keys_of(
    ops: Sequence[OpRecord], llm: Sequence[LLMRecord], effects: Sequence[EffectRecord]
) -> dict[str, BranchPath]:
    """Return the keys that a replay of these rows reaches, with their branches."""
    rows = (row for row in ops if row.kind in RESULTS and row.status in _REACHED)
    found = {row.key: row.branch for row in rows}
    found |= {call.key: call.branch for call in llm if call.step_key is None}
    return found | {effect.key: effect.branch for effect in effects if effect.status in HAPPENED}


_SETTLED = (EffectStatus.APPROVED, EffectStatus.AGAIN)
"""A person has said whether the effect happened, which counts for more than the error of then."""
