"""System State Graph to Plan."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ramify.compiler.estimates import UNMEASURED, Estimates
from ramify.compiler.ir.graph import Graph, Operation, base_id
from ramify.compiler.passes.stages import expected_stages
from ramify.compiler.places import places_of
from ramify.compiler.plan import STAGES, Block, GraphBreak, OpId, OpKind, Origin, Plan, PlanOp, Site
from ramify.compiler.spec import CallLlm, Machine, Spec, walk

CATCH_ALL = PlanOp(OpId("break.unseen"), OpKind.BREAK, attrs={"seal": True})
MOST_STAGES = 64  # a count that grows beyond this goes round a loop


def emit(graph: Graph, spec: Spec, estimates: Estimates = UNMEASURED, passes: tuple[str, ...] = ()) -> Plan:
    places = places_of(spec)
    ops = _ops(graph, {(place.kind, place.site): place.origin for place in places})
    breaks = [GraphBreak(CATCH_ALL.id, "anywhere", "calls that the compiler did not see")]
    for op in ops:
        if op.kind is OpKind.BREAK:
            breaks.append(GraphBreak(op.id, op.attrs["where"], op.attrs["reason"]))
    blocks = (Block(b.id, b.params, tuple(base_id(op.id) for op in b.ops), b.exits) for b in graph.blocks)
    return Plan(
        workflow=spec.workflow,
        name=spec.name,
        frontend=spec.frontend,
        code_digest=spec.code_digest,
        steps=graph.steps,
        ops=(CATCH_ALL, *ops),
        blocks=tuple(blocks),
        breaks=tuple(breaks),
        deadline_s=spec.deadline_s,
        stages=_stages(graph, spec) if STAGES in passes else None,
        expected=expected_stages(graph, spec, estimates) if STAGES in passes else (),
        passes=passes,
        code=spec.code,
        places=len(places),
        patches=spec.patches,
        files=tuple(each for each in spec.files if each[0] in {place.site.file for place in places}),
    )


def _ops(graph: Graph, origins: Mapping[tuple[OpKind, Site], Origin]) -> list[PlanOp]:
    """One for each call site: of its copies the first, with the bases of all."""
    first: dict[OpId, Operation] = {}
    bases: dict[OpId, set[str]] = {}
    for op in graph.ops():
        name = base_id(op.id)
        first.setdefault(name, op)
        bases.setdefault(name, set()).update(base_id(base) for base in op.attrs.get("base", ()))
    return [
        PlanOp(name, op.kind, op.inputs, op.outputs, op.site, op.step, _attrs(op, bases[name]), _origin(op, origins))
        for name, op in first.items()
    ]


def _origin(op: Operation, origins: Mapping[tuple[OpKind, Site], Origin]) -> Origin | None:
    return None if op.site is None else origins.get((op.kind, op.site))


def _attrs(op: Operation, bases: set[str]) -> Mapping[str, Any]:
    attrs = dict(op.attrs)
    if op.fork is not None:
        attrs["fork"] = base_id(op.fork)
    if "base" in attrs:
        attrs["base"] = sorted(bases)
    return attrs


def _stages(graph: Graph, spec: Spec) -> int | None:
    """How many stages of model calls every path has. Not known where paths differ or go round a loop, where a step
    calls the model itself, behind a graph break, or where nodes are opaque."""
    unseen = any(op.kind is OpKind.BREAK for op in graph.ops()) or any(step.calls_llm for step in spec.steps)
    if unseen or isinstance(spec.body, Machine) or not any(isinstance(item, CallLlm) for item in walk(spec.body)):
        return None
    counts: dict[str, set[int]] = {graph.blocks[0].id: {0}}
    todo, ends = [graph.blocks[0]], set[int]()
    while todo:
        block = todo.pop()
        own = sum(op.kind is OpKind.CALL_LLM for op in block.ops)
        after = {count + own for count in counts[block.id]}
        if max(after) > MOST_STAGES:
            return None
        if not block.exits:
            ends |= after
        for to, _ in block.exits:
            if not after <= counts.setdefault(to, set()):
                counts[to] |= after
                todo.append(graph.by_id[to])
    return ends.pop() if len(ends) == 1 else None
