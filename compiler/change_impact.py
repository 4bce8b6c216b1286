"""The impact of a change of code: which parts changed, and which operations read what the changed steps write.

The second follows from the channels and files that steps read and write, as far as these are known.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ramify.compiler.plan import STEPS, CodePart, OpId, Plan, PlanOp

ANYTHING = "anything"


def changed_parts(was: Iterable[CodePart], now: Iterable[CodePart]) -> tuple[CodePart, ...]:
    """Return the parts of the code that were changed, added or removed; changed ones as they are now."""
    before, after = ({(part.name, part.where.partition(":")[0]): part for part in each} for each in (was, now))
    return tuple(
        after.get(key, before.get(key))  # type: ignore[misc]  # one of them has it
        for key in sorted(before.keys() | after.keys())
        if key not in before or key not in after or before[key].digest != after[key].digest
    )


def affected_operations(plan: Plan, steps: Iterable[str]) -> dict[OpId, tuple[str, ...]]:
    """Return the later operations that read what changed steps write, directly or through other operations.

    Values that the workflow's own code passes from step to step are not considered.

    Args:
        plan: The plan.
        steps: The names of the steps that changed.

    Returns:
        For each operation, the channels and paths that it reads; `(ANYTHING,)` if they are not known.
    """
    changed = set(steps)
    found: dict[OpId, tuple[str, ...]] = {}
    todo = [op for op in plan.ops if op.kind in STEPS and op.step in changed]
    while todo:
        writer = todo.pop()
        for op in _after(plan, writer):
            if op.step in changed or op.id in found or op.kind not in STEPS:
                continue
            shared = _shared(writer, op)
            if shared:
                found[op.id] = shared
                todo.append(op)
    return found


def _shared(writer: PlanOp, reader: PlanOp) -> tuple[str, ...]:
    """Return what one operation reads that the other writes; `(ANYTHING,)` if that is not known."""
    pairs = (
        [(writer.attrs.get("writes"), reader.attrs.get("reads"))] if "c" in _sorts(writer) & _sorts(reader) else []
    )
    if "w" in _sorts(writer) & _sorts(reader):
        pairs.append((_files(writer).get("writes"), _files(reader).get("reads")))
    named: set[str] = set()
    for writes, reads in pairs:
        if writes == [] or reads == []:
            continue
        if writes is None or reads is None:
            return (ANYTHING,)
        named |= set(writes) & set(reads)
    return tuple(sorted(named))


def _files(op: PlanOp) -> Mapping[str, Any]:
    found: Mapping[str, Any] = op.attrs.get("files", {})
    return found


def _sorts(op: PlanOp) -> set[str]:
    return {value[0] for value in op.inputs}


def _after(plan: Plan, op: PlanOp) -> list[PlanOp]:
    """Return the operations that may run after this one, without itself."""
    blocks = {block.id: block for block in plan.blocks}
    starts = [block for block in plan.blocks if op.id in block.ops]
    later = [name for block in starts for name in block.ops[block.ops.index(op.id) + 1 :]]
    todo, seen = [to for block in starts for to, _ in block.exits], set[str]()
    while todo:
        block = blocks[todo.pop()]
        if block.id not in seen:
            seen.add(block.id)
            later += block.ops
            todo += [to for to, _ in block.exits]
    return [plan.op(name) for name in dict.fromkeys(later) if name != op.id]
