"""What a replay hands to the workflow, and what it begins again, in the order of the earlier processes."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain

from ramify.compiler.plan import OpKind
from ramify.runtime.journal.failures import undone_ranges
from ramify.runtime.journal.turns import Recorded
from ramify.runtime.records import CANCELLED, HAPPENED, EffectRecord, LLMRecord, OpRecord, OpStatus, RunRecord

RESULTS = (OpKind.RUN, OpKind.FORK, OpKind.MERGE, OpKind.INTERRUPT, OpKind.SLEEP)
IN_TURNS = (*RESULTS, OpKind.RELEASE, OpKind.CALL_LLM)  # the last: a stage of model calls that failed

CALLED_AFTER = "called_after"
"""The attribute of a result: the number of the last one that was handed out before its call. Without it no other was
handed out between the call and the result."""

RESUMED = "resumed"
"""The attribute of the first result of a process that resumed the run: when that was, in Unix seconds."""

UNTIL = "until"
"""The attribute of a row with the status BEGUN: when the sleep ends, in Unix seconds."""


def ends_of_sleeps(ops: Sequence[OpRecord]) -> dict[str, float]:
    """Return when the sleeps end that were begun and are not over, in Unix seconds, by key. One that the workflow
    cancelled is over: if it is not cancelled again, it begins anew, like a step."""
    rows = [row for row in ops if row.kind is OpKind.SLEEP]
    undone, ends = list(undone_ranges(ops)) if rows else [], dict[str, float]()
    for row in rows:
        if any(low < row.seq < high for low, high in undone):
            continue
        if row.status is OpStatus.BEGUN:
            ends[row.key] = float(row.attrs[UNTIL])
        else:
            ends.pop(row.key, None)
    return ends


def is_instead(one: str, other: str) -> bool:
    """Whether, by their keys, a workflow could take one call in place of the other: at another place on the same
    branch. Those of one place may be many, whose order depends on how many processors there are."""
    here, there = one.split("|")[:2], other.split("|")[:2]
    return here[0] == there[0] and here[1] != there[1]


def is_beside(one: str, other: str) -> bool:
    """Whether, by their keys, the calls are of the same place on the same branch."""
    return one.split("|")[:2] == other.split("|")[:2]


@dataclass(frozen=True)
class RecordedOrder:
    """failed: the failed rows that stand, by key. was_changed: a change of the code was accepted since the run began,
    so the workflow may have other timers, and may not make every call again."""

    run: RunRecord
    ops: Sequence[OpRecord]
    llm: Sequence[LLMRecord]
    effects: Sequence[EffectRecord]
    failed: Mapping[str, OpRecord]
    was_changed: bool
    went_back_at: float  # when a person last took the run back to a checkpoint

    @cached_property
    def began(self) -> float:
        """When the first process of the run began, or of the run that it was forked from."""
        return min([self.run.created_at, *(row.started_at for row in self.ops if row.started_at)])

    @property
    def resumed(self) -> list[float]:
        """When earlier processes resumed the run."""
        return [float(row.attrs[RESUMED]) for row in self.ops if RESUMED in row.attrs]

    def places(self) -> list[Recorded]:
        found = list(self._results())
        found += self._only_begun(found)
        return found

    def _results(self) -> Iterator[Recorded]:
        happened = {} if self.was_changed else {one.key for one in self.effects if one.status in HAPPENED}
        done = (row for row in self.ops if row.status is OpStatus.DONE and row.key not in self.failed)
        for row in chain(done, self.failed.values()):  # of a call that was done and then cancelled, the later row
            if row.kind in IN_TURNS:
                after = None if CALLED_AFTER not in row.attrs else int(row.attrs[CALLED_AFTER])
                at, is_effect, what = row.started_at, row.key in happened, row.step or row.kind
                ended, age_s, cancelled = row.ended_at, self._age_s(at), CANCELLED in row.attrs
                yield Recorded(row.key, row.seq, at, ended, age_s, after, False, is_effect, what, cancelled)
        for call in self.llm:
            if call.step_key is None and call.key not in self.failed:
                marks = json.loads(call.tags_json) if CALLED_AFTER in call.tags_json else {}
                after = None if CALLED_AFTER not in marks else int(marks[CALLED_AFTER])
                at = call.started_at
                yield Recorded(call.key, call.seq, at, call.ended_at, self._age_s(at), after, what="the model")

    def _only_begun(self, results: Sequence[Recorded]) -> Iterator[Recorded]:
        """Yield the questions, sleeps and effects that were begun and have no result. The number of an effect is that
        of the last result before it."""
        known = {one.key for one in results}
        begun = (row for row in self.ops if row.status in (OpStatus.ASKED, OpStatus.BEGUN))
        for row in {row.key: row for row in begun}.values():
            at, what = row.started_at, "a sleep" if row.kind is OpKind.SLEEP else "a question"
            if row.key not in known and at > self.went_back_at:
                yield Recorded(row.key, row.seq, at, at, self._age_s(at), only_begun=True, what=what)
        for effect in self.effects:
            at = effect.intended_at
            if effect.status in HAPPENED and effect.key not in known and at > self.went_back_at:
                seq = max((one.seq for one in results if one.ended_at <= at), default=0)
                age_s, required = self._age_s(at), not self.was_changed
                yield Recorded(effect.key, seq, at, at, age_s, only_begun=True, is_effect=required, what=effect.step)

    def _age_s(self, at: float) -> float:
        """Return the greatest age that the process can have had which made a call at that time."""
        if self.was_changed:
            return 0.0
        inherited = at < self.run.created_at  # from the run that this one was forked from
        return at - self.began if inherited else min(at - self.run.created_at, self.run.consumed_s)
