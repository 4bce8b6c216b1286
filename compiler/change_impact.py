"""What of a plan's code has changed, and which operations may meet what other steps do, by the sets that they read
and write."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ramify.compiler.plan import STEPS, CodePart, OpId, Plan, PlanOp

ANYTHING = "anything"


def changed_parts(was: Iterable[CodePart], now: Iterable[CodePart]) -> tuple[CodePart, ...]:
    """The parts that are other ones, new or gone, as they are where they still are."""
    before, after = ({(part.name, part.where.partition(":")[0]): part for part in each} for each in (was, now))
    return tuple(
        after.get(key, before.get(key))  # type: ignore[misc]  # one of them has it
        for key in sorted(before.keys() | after.keys())
        if key not in before or key not in after or before[key].digest != after[key].digest
    )


def readers(plan: Plan, steps: Iterable[str]) -> dict[OpId, tuple[str, ...]]:
    """For steps that changed: the operations after them that read what they write, or what such a reader writes in
    turn, each with what. Arguments that the workflow's own code hands from step to step are not seen."""
    changed = set(steps)
    found: dict[OpId, tuple[str, ...]] = {}
    todo = [op for op in plan.ops if op.kind in STEPS and op.step in changed]
    while todo:
        writer = todo.pop()
        for op in _after(plan, writer):
            if op.step in changed or op.id in found or op.kind not in STEPS:
                continue
            met = _met(writer, op)
            if met:
                found[op.id] = met
                todo.append(op)
    return found


def _met(writer: PlanOp, reader: PlanOp) -> tuple[str, ...]:
    """What one reads that the other writes; (ANYTHING,) where that cannot be told."""
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
    """What may happen after it, itself aside."""
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
