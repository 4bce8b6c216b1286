"""What a run's journal holds of each operation of its plan."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ramify.compiler.plan import OpId, OpKind
from ramify.runtime.records import HAPPENED, EffectRecord, LLMRecord, OpRecord, OpStatus

if TYPE_CHECKING:
    from ramify.compiler.change_impact import RecordedResults


def ids_of(ops: Sequence[OpRecord], llm: Sequence[LLMRecord], effects: Sequence[EffectRecord]) -> set[str]:
    return {row.op_id for row in ops} | {row.op_id for row in llm} | {_op_of(effect.key) for effect in effects}


def _op_of(key: str) -> OpId:
    return OpId(key.split("|")[1])


def recorded_results(
    ops: Sequence[OpRecord], llm: Sequence[LLMRecord], effects: Sequence[EffectRecord]
) -> Mapping[str, RecordedResults]:
    """What the journal holds, by the ids of operations. Imports the compiler."""
    from ramify.compiler.change_impact import RecordedResults

    steps: dict[str, Counter[str]] = defaultdict(Counter)
    under: dict[str, Counter[str]] = defaultdict(Counter)
    others, repeated = Counter[str](), set[str]()
    done = [row for row in ops if row.status is OpStatus.DONE]
    keys = {row.key for row in done}
    results = [(row.key, row.op_id, row.branch, row.step or "") for row in done if row.kind is OpKind.RUN]
    results += [
        (effect.key, _op_of(effect.key), effect.branch, effect.step)
        for effect in effects
        if effect.key not in keys and effect.status in HAPPENED
    ]
    for key, op, branch, step in results:
        steps[op][step] += 1
        for fork in _forks_of(branch):
            under[fork][step] += 1
        if _is_repeated(key):
            repeated.add(op)
    asked = (OpKind.FORK, OpKind.MERGE, OpKind.INTERRUPT)
    more = [(row.key, row.op_id) for row in done if row.kind in asked]
    more += [(call.key, call.op_id) for call in llm if call.step_key is None]
    for key, op in more:
        others[op] += 1
        if _is_repeated(key):
            repeated.add(op)
    every = {*steps, *under, *others}
    return {
        op: RecordedResults(dict(steps.get(op, {})), others[op], op in repeated, dict(under.get(op, {})))
        for op in every
    }


def _is_repeated(key: str) -> bool:
    last = key.rpartition("|")[2]
    return last.isdigit() and int(last) > 0


def _forks_of(branch: str) -> list[str]:
    """The forks that a branch lies under: its path names each with its place and the number of the branch."""
    return [part.rsplit(".", 2)[0] for part in branch.split("/")[1:]]
