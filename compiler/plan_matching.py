"""Matches a stored plan with the code as it is now: which operations are the same.

If the digests are equal, operations correspond one to one, in reading order (`current_sites`). If the code changed,
the code in front of the first change is the same, and so are its operations. After the change an operation is
identified by its call, by how its result is used, and by the calls that lead to it, provided that only one operation
has that identity and that it runs once. All others count as not certain: nothing recorded can tell equal calls of a
loop apart, for example.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Iterable, Mapping
from dataclasses import replace
from typing import Any

from ramify.compiler.emit import places_of
from ramify.compiler.ir.graph import base_id
from ramify.compiler.ir.lower import lower
from ramify.compiler.plan import (
    ACCEPTED,
    ADDED,
    CHANGED,
    PARAMETERS_VERSION,
    PLACES_VERSION,
    PLAN_VERSION,
    OpId,
    OpKind,
    Origin,
    Plan,
    PlanOp,
    Site,
)
from ramify.compiler.spec import Spec
from ramify.compiler.step_parameters import carried_over

_ID_ATTRS = ("fork", "during", "forks", "base", "dies")  # attributes that hold ids of operations
_PLACED = (OpKind.RUN, OpKind.CALL_LLM, OpKind.FORK, OpKind.MERGE, OpKind.BREAK)
"""Operations with a place of their own in the code. Others have the site of the operation that they belong to."""


def current_sites(stored: Plan, spec: Spec) -> dict[OpId, Site] | None:
    """Return the sites of a stored plan's operations in code with the same digest, laid out differently.

    Args:
        stored: The plan.
        spec: Read from the code as it is now.

    Returns:
        The site of each operation; None if this compiler reads the code differently from the plan's compiler.
    """
    own = [op for op in stored.ops if op.site is not None and op.kind in _PLACED]
    if stored.version >= PLACES_VERSION:
        places = places_of(spec)
        if len(places) != stored.places:
            return None
        found = {}
        for op in own:
            place = None if op.origin is None else places[op.origin.place]
            if place is None or place.kind is not op.kind or (op.kind is OpKind.RUN and place.callee != op.step):
                return None
            found[op.id] = place.site
        return found
    now = {base_id(op.id): op for op in lower(spec).ops() if op.site is not None and op.kind in _PLACED}
    if {op.id: (op.kind, op.step) for op in own} == {id: (op.kind, op.step) for id, op in now.items()}:
        return {id: op.site for id, op in now.items() if op.site is not None}
    found_now = iter((op.kind, op.site) for op in now.values())
    if all((op.kind, op.site) in found_now for op in own):  # in the same order, with others between them
        return {op.id: op.site for op in own if op.site is not None}
    return None


def relocated(stored: Plan, sites: Mapping[OpId, Site]) -> Plan:
    """Return the plan with its operations at these sites."""
    moved = {(op.site, op.kind): sites[op.id] for op in stored.ops if op.site is not None and op.id in sites}
    if all(before == now for (before, _), now in moved.items()):
        return stored
    by_site = {before: now for (before, _), now in moved.items()}

    def moved_op(op: PlanOp) -> PlanOp:
        if op.site is None:
            return op
        return replace(op, site=sites[op.id] if op.id in sites else by_site.get(op.site))

    return replace(stored, ops=tuple(map(moved_op, stored.ops)), files=())


def adapted_to_new_code(stored: Plan, pairs: Iterable[tuple[PlanOp, PlanOp]], compiled: Plan) -> Plan:
    """Return the plan for code that it was not compiled from.

    Operations that are in both get their current site. The others get none, so that their code runs under the
    catch-all.

    Args:
        stored: The plan.
        pairs: Operations of the stored plan and of the current one that are the same.
        compiled: The plan of the current code.
    """
    now = {old.id: new for old, new in pairs}
    sites = {old.site: new.site for old, new in pairs}

    def adapted(op: PlanOp) -> PlanOp:
        new = now.get(op.id)
        if new is not None:
            return replace(op, site=new.site, origin=new.origin)
        return replace(op, site=None if op.kind in _PLACED else sites.get(op.site), origin=None)

    current: dict[str, Any] = {"code_digest": compiled.code_digest, "code": compiled.code}
    current |= {"patches": compiled.patches, "places": compiled.places, "version": PLAN_VERSION, "files": ()}
    return replace(stored, ops=tuple(map(adapted, stored.ops)), **current)


def certain_pairs(stored: Plan, now: Plan) -> list[tuple[PlanOp, PlanOp]]:
    """Return the operations of both plans that are certainly the same."""
    old, new = placed_operations(stored), placed_operations(now)
    pairs = _in_front(old, new)
    met = ({one.id for one, _ in pairs}, {one.id for _, one in pairs})
    rest_old, rest_new = ([op for op in ops if op.id not in ids] for ops, ids in zip((old, new), met, strict=True))
    sure = [(one, other) for one, other in pairs if not is_behind_change(one, other)]
    by_identity = _by_identity(rest_old), _by_identity(rest_new)
    for identity, (one, *more) in by_identity[0].items():
        others = by_identity[1].get(identity, [])
        if more or len(others) != 1 or one.kind is not others[0].kind or one.step != others[0].step:
            continue
        if not (origin_of(one).repeats or origin_of(others[0]).repeats):
            sure.append((one, others[0]))
    return sure


def placed_operations(plan: Plan) -> list[PlanOp]:
    """Return the operations with a place in the code, in reading order."""
    return sorted((op for op in plan.ops if op.origin is not None), key=lambda op: origin_of(op).place)


def origin_of(op: PlanOp) -> Origin:
    assert op.origin is not None
    return op.origin


def is_behind_change(stored: PlanOp, now: PlanOp) -> bool:
    """Whether the code that leads to an operation has changed, so that it may get other arguments."""
    return origin_of(stored).last != origin_of(now).last


def _in_front(old: Iterable[PlanOp], new: Iterable[PlanOp]) -> list[tuple[PlanOp, PlanOp]]:
    """Return the pairs that are first reached in code that has not changed, nor anything before it."""
    groups: tuple[dict[str, list[PlanOp]], dict[str, list[PlanOp]]] = defaultdict(list), defaultdict(list)
    for group, ops in zip(groups, (old, new), strict=True):
        for op in ops:
            if origin_of(op).first:
                group[origin_of(op).first].append(op)
    found = []
    for through, ones in groups[0].items():
        others = groups[1].get(through, [])
        if [(op.kind, op.step) for op in ones] == [(op.kind, op.step) for op in others]:
            found += list(zip(ones, others, strict=True))
    return found


def _by_identity(ops: Iterable[PlanOp]) -> dict[str, list[PlanOp]]:
    found: dict[str, list[PlanOp]] = defaultdict(list)
    for op in ops:
        found[origin_of(op).identity].append(op)
    return found


def with_recorded_parameters(now: Plan, stored: Plan) -> Plan:
    """Return the current plan with the names of parameters by which a journal under the stored plan knows them."""
    known = {step.name: step.parameters for step in stored.steps}
    steps = (
        replace(step, parameters=_recorded(known[step.name], step.parameters, stored)) if step.name in known else step
        for step in now.steps
    )
    return replace(now, steps=tuple(steps))


def with_current_parameters(stored: Plan, spec: Spec) -> Plan:
    """Return a stored plan with the parameters that steps have in code with the same digest. They keep the names by
    which a journal knows them. Where it is uncertain which is which, the journal goes on with the names of now."""
    found = {step.name: step.parameters for step in spec.steps}
    steps = tuple(
        replace(step, parameters=_recorded(step.parameters, found[step.name], stored)) if step.name in found else step
        for step in stored.steps
    )
    return stored if steps == stored.steps else replace(stored, steps=steps)


def _recorded(then: tuple[str, ...], now: tuple[str, ...], stored: Plan) -> tuple[str, ...]:
    return carried_over(then, now) if stored.version >= PARAMETERS_VERSION else then


def with_stored_ids(
    now: Plan,
    same: Mapping[OpId, OpId],
    taken: Iterable[str],
    catch_all: OpId | None,
    *,
    how: str = ACCEPTED,
    changed: Container[OpId] = (),
) -> Plan:
    """Return the current plan with the ids of the stored plan, so that a journal's results are found.

    Args:
        now: The plan of the code as it is now.
        same: For each operation that is the same: its current id, and its stored one.
        taken: The ids that were ever used. Other operations get new ones.
        catch_all: The id that the catch-all keeps; None: it gets a new one.
        how: The value of the attribute `added` on new operations.
        changed: Current ids of operations that are the same, and reached through code that is not.
    """
    numbers = (int(last) for id in taken if (last := id.rpartition(".")[2]).isdigit())
    number = max(numbers, default=0)
    ids: dict[str, OpId] = {}
    for op in now.ops:
        if op.id in same:
            ids[op.id] = same[op.id]
        elif op.kind is OpKind.ENTER or op.id == "release.root":
            ids[op.id] = op.id
        elif op.id == now.catch_all.id and catch_all is not None:
            ids[op.id] = catch_all
        else:
            number += 1
            ids[op.id] = OpId(f"{op.id.partition('.')[0]}.{number}")

    def named(value: Any) -> Any:
        if isinstance(value, list | tuple):
            return [ids.get(each, each) for each in value]
        return ids.get(value, value) if isinstance(value, str) else value

    def renamed(op: PlanOp) -> PlanOp:
        attrs = {key: named(value) if key in _ID_ATTRS else value for key, value in op.attrs.items()}
        if op.origin is not None and op.id not in same:
            attrs[ADDED] = how
        if op.id in changed:
            attrs[CHANGED] = True
        return replace(op, id=ids[op.id], attrs=attrs)

    return replace(
        now,
        ops=tuple(map(renamed, now.ops)),
        blocks=tuple(replace(b, ops=tuple(ids.get(id, id) for id in b.ops)) for b in now.blocks),
        breaks=tuple(replace(each, op=ids[each.op]) for each in now.breaks),
        expected=tuple(replace(each, op=ids.get(each.op, each.op)) for each in now.expected),
    )
