"""Writes a System State Graph as a Plan, with what identifies each operation in the code.

An operation is identified by its structure, and not by its position (`places_of`). A call site that several call
paths reach is one place in the code, and one operation of the plan.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ramify.compiler.estimates import UNMEASURED, Estimates
from ramify.compiler.ir.graph import Graph, Operation, base_id
from ramify.compiler.passes.stages import expected_stages, stage_count
from ramify.compiler.plan import (
    IF_SET,
    MAYBE_EQUAL,
    PICKED,
    STAGES,
    UNORDERED,
    WORLDLESS,
    GraphBreak,
    OpId,
    OpKind,
    Origin,
    Plan,
    PlanBlock,
    PlanOp,
    Site,
)
from ramify.compiler.spec import (
    Adopt,
    Body,
    CallLlm,
    Fork,
    Inlined,
    Item,
    Loop,
    Machine,
    Spec,
    StepCall,
    Unseen,
    parts,
    walk,
)

CATCH_ALL = PlanOp(OpId("break.unseen"), OpKind.BREAK, attrs={"seal": True})


def emit(graph: Graph, spec: Spec, estimates: Estimates = UNMEASURED, passes: tuple[str, ...] = ()) -> Plan:
    """Return the plan of a graph.

    Args:
        graph: The graph after the passes.
        spec: The Spec that it was lowered from.
        estimates: What recorded runs show.
        passes: The names of the passes that have run.
    """
    places = places_of(spec)
    ops = _ops(graph, {(place.kind, place.site): place.origin for place in places}, _worldless(spec))
    breaks = [GraphBreak(CATCH_ALL.id, "anywhere", "calls that the compiler did not see")]
    for op in ops:
        if op.kind is OpKind.BREAK:
            breaks.append(GraphBreak(op.id, op.attrs["where"], op.attrs["reason"]))
    blocks = (PlanBlock(b.id, b.params, tuple(base_id(op.id) for op in b.ops), b.exits) for b in graph.blocks)
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
        stages=stage_count(graph, spec) if STAGES in passes else None,
        expected=expected_stages(graph, spec, estimates) if STAGES in passes else (),
        passes=passes,
        code=spec.code,
        places=len(places),
        patches=spec.patches,
        files=tuple(each for each in spec.files if each[0] in {place.site.file for place in places}),
    )


def _ops(graph: Graph, origins: Mapping[tuple[OpKind, Site], Origin], worldless: frozenset[str]) -> list[PlanOp]:
    """Return one operation for each call site: its first copy, with the bases of all copies."""
    first: dict[OpId, Operation] = {}
    bases: dict[OpId, set[str]] = {}
    orders: dict[OpId, list[Operation]] = {}
    for op in graph.ops():
        name = base_id(op.id)
        first.setdefault(name, op)
        orders.setdefault(name, []).append(op)
        bases.setdefault(name, set()).update(base_id(base) for base in op.attrs.get("base", ()))
    return [
        PlanOp(
            name,
            op.kind,
            op.inputs,
            op.outputs,
            op.site,
            op.step,
            _attrs(op, bases[name], worldless) | _order_of_copies(orders[name]),
            _origin(op, origins),
        )
        for name, op in first.items()
    ]


def _order_of_copies(copies: list[Operation]) -> dict[str, Any]:
    """Return how the calls of a site follow the order of a set, if some of its call paths do."""
    marked = [op.attrs for op in copies if UNORDERED in op.attrs]
    if not marked:
        return {}
    ways = {attrs[UNORDERED] for attrs in marked}
    alike = len(ways) == 1 and len(marked) == len(copies)
    given = sorted({place for attrs in marked for place in attrs.get(IF_SET, ())})
    always = any(IF_SET not in attrs for attrs in marked)
    how = {UNORDERED: ways.pop() if alike or ways == {PICKED} else MAYBE_EQUAL}
    return how if always else {**how, IF_SET: given}


def _origin(op: Operation, origins: Mapping[tuple[OpKind, Site], Origin]) -> Origin | None:
    return None if op.site is None else origins.get((op.kind, op.site))


def _worldless(spec: Spec) -> frozenset[str]:
    """Return the steps whose worlds need not be made."""
    return frozenset(step.name for step in spec.steps if step.worldless)


def _attrs(op: Operation, bases: set[str], worldless: frozenset[str]) -> dict[str, Any]:
    attrs = {name: value for name, value in op.attrs.items() if name not in (UNORDERED, IF_SET)}
    if op.kind is OpKind.RUN and op.step in worldless:
        attrs[WORLDLESS] = True
    if op.fork is not None:
        attrs["fork"] = base_id(op.fork)
    if "base" in attrs:
        attrs["base"] = sorted(bases)
    return attrs


# What identifies an operation in the code


@dataclass(frozen=True, slots=True)
class Place:
    """A place in the workflow's code where an operation stands."""

    kind: OpKind
    site: Site
    callee: str  # the step, or the method of the model call
    origin: Origin


@dataclass(slots=True)
class _CallPaths:
    """The call paths that reach one place."""

    number: int
    callee: str
    paths: list[str] = field(default_factory=list)
    statements: list[int] = field(default_factory=list)
    repeats: bool = False


def places_of(spec: Spec) -> tuple[Place, ...]:
    """Return the places of a workflow in reading order; none for a graph, whose nodes are known by name."""
    if isinstance(spec.body, Machine):
        return ()
    found: dict[tuple[OpKind, Site], _CallPaths] = {}
    counts = [count for count, _ in spec.statements]
    repeated = not counts or any(
        isinstance(item, Unseen) and "calls itself" in item.reason for item in walk(spec.body)
    )
    for index, item in enumerate(spec.body):
        statement = next((i for i, count in enumerate(counts) if index < count), -1)
        for kind, site, callee, path, repeats in _walk_places((item,), "", spec.names_passed, repeats=repeated):
            one = found.setdefault((kind, site), _CallPaths(len(found), callee))
            one.paths.append(path)
            one.statements.append(statement)
            one.repeats = one.repeats or repeats or len(one.paths) > 1
    return tuple(
        Place(kind, site, one.callee, _origin_of(one, kind, spec.statements)) for (kind, site), one in found.items()
    )


def _walk_places(
    body: Body, path: str, names_passed: frozenset[str], *, repeats: bool
) -> Iterator[tuple[OpKind, Site, str, str, bool]]:
    """Yield kind, site, callee, call path and whether it repeats, of each operation.

    `names_passed` are names of functions that code which is not read may call.
    """
    for item in body:
        place = _place(item)
        if place is not None:
            kind, site, callee, source = place
            yield kind, site, callee, f"{path}{kind} {callee}\n{source}", repeats or kind is OpKind.BREAK
        inside, again = path, repeats or isinstance(item, Loop)
        if isinstance(item, Inlined):
            inside = f"{path}in {item.function}\n{item.source}\n"
            again = again or item.repeats or item.function in names_passed
        for _, inner in parts(item):
            yield from _walk_places(inner, inside, names_passed, repeats=again)


def _place(item: Item) -> tuple[OpKind, Site, str, str] | None:
    match item:
        case StepCall(step=step, site=Site() as site):
            return OpKind.RUN, site, step, item.source
        case CallLlm(method=method, site=site):
            return OpKind.CALL_LLM, site, method, item.source
        case Unseen(site=Site() as site):
            return OpKind.BREAK, site, "", item.source
        case Adopt(site=site):
            return OpKind.MERGE, site, "", item.source
        case Fork(site=site):
            return OpKind.FORK, site, "", item.source
        case _:
            return None


def _origin_of(one: _CallPaths, kind: OpKind, statements: tuple[tuple[int, str], ...]) -> Origin:
    text = "\n\n".join([kind, *one.paths])
    identity = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]
    first, last = one.statements[0], max(one.statements)
    through = [statements[i][1] if i >= 0 and one.statements.count(-1) == 0 else "" for i in (first, last)]
    return Origin(one.number, identity, through[0], through[1], one.repeats)
