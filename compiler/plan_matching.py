"""A plan that was stored, and the code as it is now: which operations are the same.

Equal digests: they correspond one to one, in the order in which the code is read (`current_sites`). Other code: what lies
in front of the first change is the same code, so its operations are the same. After it an operation is known by its
call, by what becomes of its result, and by the calls that lead to it, where only one has that identity and it runs
once. All others are never guessed: equal calls of a loop, say, cannot be told apart by anything recorded.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ramify.compiler.ir.graph import base_id
from ramify.compiler.ir.lower import lower
from ramify.compiler.places import places_of
from ramify.compiler.plan import ACCEPTED, ADDED, PLAN_VERSION, Effect, OpId, OpKind, Origin, Plan, PlanOp, Site
from ramify.compiler.spec import Spec

HARMLESS = frozenset({Effect.PURE, Effect.READONLY, Effect.REVERTIBLE})
"""Steps that may be run again where nobody can tell whether they were: they touch nothing but their world."""

_NAMING = ("fork", "during", "forks", "base", "dies")
_PLACED = (OpKind.RUN, OpKind.CALL_LLM, OpKind.FORK, OpKind.MERGE, OpKind.BREAK)
"""What stands in the code by itself; others stand at the site of the operation that they belong to."""


def current_sites(stored: Plan, spec: Spec) -> dict[OpId, Site] | None:
    """Where the operations of a stored plan stand in its code, as that is laid out now. `spec`: read from the code,
    whose digest is the plan's. None where this compiler reads the code in another way than the plan's did."""
    own = [op for op in stored.ops if op.site is not None and op.kind in _PLACED]
    if stored.version == PLAN_VERSION:
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
    there = iter((op.kind, op.site) for op in now.values())
    if all((op.kind, op.site) in there for op in own):  # in the same order, with more between them
        return {op.id: op.site for op in own if op.site is not None}
    return None


def relocated(stored: Plan, sites: Mapping[OpId, Site]) -> Plan:
    """The plan with its operations at these sites."""
    moved = {(op.site, op.kind): sites[op.id] for op in stored.ops if op.site is not None and op.id in sites}
    if all(before == now for (before, _), now in moved.items()):
        return stored
    by_site = {before: now for (before, _), now in moved.items()}

    def there(op: PlanOp) -> PlanOp:
        if op.site is None:
            return op
        return replace(op, site=sites[op.id] if op.id in sites else by_site.get(op.site))

    return replace(stored, ops=tuple(map(there, stored.ops)), files=())


def adapted_to_new_code(stored: Plan, pairs: Iterable[tuple[PlanOp, PlanOp]], compiled: Plan) -> Plan:
    """The plan for code that it was not compiled from: operations that are in both stand where they stand now, the
    others nowhere, so that what stands there runs under the catch-all. It says that it is of the code as it is."""
    now = {old.id: new for old, new in pairs}
    sites = {old.site: new.site for old, new in pairs}

    def there(op: PlanOp) -> PlanOp:
        new = now.get(op.id)
        if new is not None:
            return replace(op, site=new.site, origin=new.origin)
        return replace(op, site=None if op.kind in _PLACED else sites.get(op.site), origin=None)

    said: dict[str, Any] = {"code_digest": compiled.code_digest, "code": compiled.code}
    said |= {"patches": compiled.patches, "places": compiled.places, "version": PLAN_VERSION, "files": ()}
    return replace(stored, ops=tuple(map(there, stored.ops)), **said)


@dataclass(frozen=True, slots=True)
class Recorded:
    """What a journal holds of one operation."""

    steps: Mapping[str, int] = field(default_factory=dict)  # by the name of the step: how many results, or intents
    others: int = 0  # results that are no steps': model calls, answers, forks
    repeated: bool = False  # two of them with equal arguments, on one branch
    under: Mapping[str, int] = field(default_factory=dict)  # of a fork: steps on its branches


@dataclass(frozen=True, slots=True)
class Line:
    """One operation, for people."""

    what: str
    where: str
    results: int
    why: str = ""

    def __str__(self) -> str:
        many = f" ({self.results} results)" if self.results > 1 else ""
        return f"{self.what} at {self.where}{many}{f': {self.why}' if self.why else ''}"


@dataclass(frozen=True, slots=True)
class Matching:
    """`pairs`: operations of the stored plan and of the one of now that are certainly the same."""

    pairs: tuple[tuple[PlanOp, PlanOp], ...]
    kept: tuple[Line, ...]  # recorded, and taken
    again: tuple[Line, ...]  # recorded, and run again, which is harmless
    aside: tuple[Line, ...]  # recorded, and not called any more
    added: tuple[Line, ...]  # not in the stored plan
    refused: tuple[Line, ...]  # recorded; whether it is the same cannot be told
    catch_all_goes_on: bool = True  # nothing is recorded under the catch-all, or nothing of it may be met again


def certain_pairs(stored: Plan, now: Plan) -> list[tuple[PlanOp, PlanOp]]:
    old, new = _own(stored), _own(now)
    pairs = _in_front(old, new)
    met = ({one.id for one, _ in pairs}, {one.id for _, one in pairs})
    rest_old, rest_new = ([op for op in ops if op.id not in ids] for ops, ids in zip((old, new), met, strict=True))
    sure = [(one, other) for one, other in pairs if _origin(one).last == _origin(other).last]
    by_identity = _by_identity(rest_old), _by_identity(rest_new)
    for identity, (one, *more) in by_identity[0].items():
        others = by_identity[1].get(identity, [])
        if more or len(others) != 1 or one.kind is not others[0].kind or one.step != others[0].step:
            continue
        if not (_origin(one).repeats or _origin(others[0]).repeats):
            sure.append((one, others[0]))
    return sure


def _own(plan: Plan) -> list[PlanOp]:
    """Those that stand in the code, in the order in which it is read."""
    return sorted((op for op in plan.ops if op.origin is not None), key=lambda op: _origin(op).place)


def _origin(op: PlanOp) -> Origin:
    assert op.origin is not None
    return op.origin


def _in_front(old: Iterable[PlanOp], new: Iterable[PlanOp]) -> list[tuple[PlanOp, PlanOp]]:
    """Those that are first come to in code that has not changed, nor anything before it."""
    groups: tuple[dict[str, list[PlanOp]], dict[str, list[PlanOp]]] = defaultdict(list), defaultdict(list)
    for group, ops in zip(groups, (old, new), strict=True):
        for op in ops:
            if _origin(op).first:
                group[_origin(op).first].append(op)
    found = []
    for through, ones in groups[0].items():
        others = groups[1].get(through, [])
        if [(op.kind, op.step) for op in ones] == [(op.kind, op.step) for op in others]:
            found += list(zip(ones, others, strict=True))
    return found


def _by_identity(ops: Iterable[PlanOp]) -> dict[str, list[PlanOp]]:
    found: dict[str, list[PlanOp]] = defaultdict(list)
    for op in ops:
        found[_origin(op).identity].append(op)
    return found


def matching(stored: Plan, now: Plan, recorded: Mapping[str, Recorded]) -> Matching:
    """What is certain between two plans of one workflow, and what becomes of the recorded results."""
    pairs, uncertain = [], dict[OpId, str]()
    for one, other in certain_pairs(stored, now):
        there = recorded.get(one.id)
        if there is not None and there.repeated and _origin(one).last != _origin(other).last:
            uncertain[one.id] = "it was called several times"
        else:
            pairs.append((one, other))
    sure_old, sure_new = {one.id for one, _ in pairs}, {other.id for _, other in pairs}
    free = Counter(op.step or "" for op in _own(now) if op.id not in sure_new)
    names = {_origin(op).identity for op in _own(now) if op.id not in sure_new}
    unknown_then = {s.name for s in now.steps if stored.step(s.name) is None and s.effect not in HARMLESS}
    kept, again, aside, refused = list[Line](), list[Line](), list[Line](), list[Line]()
    for op in stored.ops:
        there = recorded.get(op.id)
        if there is None or (op.origin is None and op.id != stored.catch_all.id):
            continue
        count = sum(there.steps.values()) + there.others
        line = Line(_what(op, there), str(op.site or "no known place"), count)
        if op.id in sure_old:
            kept.append(line)
            continue
        steps = Counter({**there.steps}) + Counter({**there.under})
        risky = [name for name in steps if _effect(name, stored, now) not in HARMLESS]
        if op.kind is OpKind.BREAK:  # what runs there is not known ahead
            may_come = True
        elif op.kind is OpKind.FORK:
            may_come = any(other.step in steps for other in _own(now))
        else:
            may_come = (op.step is not None and free[op.step] > 0) or (
                op.origin is not None and op.origin.identity in names
            )
        other_names = sorted(free.keys() & unknown_then) if op.step is not None and now.step(op.step) is None else []
        if not may_come and risky and other_names:
            refused.append(replace(line, why=_renamed(op.step, other_names)))
        elif not may_come:
            aside.append(line)
        elif risky:
            why = uncertain.get(op.id) or _why(op, risky)
            refused.append(replace(line, why=why))
        else:
            again.append(line)
    known = {op.id for op in stored.ops}
    lost = [id for id, there in recorded.items() if id not in known and (there.steps or there.under)]
    aside += [Line(_named(recorded[id].steps), "code of before", sum(recorded[id].steps.values())) for id in lost]
    added = [Line(op.step or op.kind.lower(), str(op.site), 0) for op in _own(now) if op.id not in sure_new]
    catch_all_met = stored.catch_all.id in recorded
    told = tuple(kept), tuple(again), tuple(aside), tuple(added), tuple(refused)
    return Matching(tuple(pairs), *told, catch_all_goes_on=not catch_all_met)


def _what(op: PlanOp, there: Recorded) -> str:
    if op.step is not None:
        return op.step
    named = _named({**there.steps, **there.under})
    return f"{op.kind.lower()}{f' of {named}' if named else ''}"


def _named(steps: Mapping[str, int]) -> str:
    return ", ".join(sorted(steps))


def _why(op: PlanOp, risky: list[str]) -> str:
    steps = ", ".join(sorted(risky))
    if op.kind is OpKind.BREAK:
        return f"{steps} ran where the compiler did not see it ahead"
    if op.kind is OpKind.FORK:
        return f"{steps} ran on its branches, and whether they are the same cannot be told"
    if op.origin is not None and op.origin.repeats:
        return "it may be called several times, and which call is which cannot be told"
    return "a call like it is in the code, and whether it is the same cannot be told"


def _renamed(step: str | None, others: list[str]) -> str:
    return (
        f"no step has this name any more, and {', '.join(others)} is new: it may be the same under another name. "
        f"If it is, keep the name that it had: `@step(name={step!r})`"
    )


def _effect(step: str, stored: Plan, now: Plan) -> Effect:
    known = [found.effect for plan in (stored, now) if (found := plan.step(step)) is not None]
    risky = [effect for effect in known if effect not in HARMLESS]
    return risky[0] if risky else known[0] if known else Effect.UNKNOWN


def adopted(
    now: Plan, same: Mapping[OpId, OpId], taken: Iterable[str], catch_all: OpId | None, *, how: str = ACCEPTED
) -> Plan:
    """The plan of now, with the ids of before for what is the `same` (of now to before), and ids that were never
    `taken` for all else. `catch_all`: its id goes on; None: it gets one of its own, too."""
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
        attrs = {key: named(value) if key in _NAMING else value for key, value in op.attrs.items()}
        if op.origin is not None and op.id not in same:
            attrs[ADDED] = how
        return replace(op, id=ids[op.id], attrs=attrs)

    return replace(
        now,
        ops=tuple(map(renamed, now.ops)),
        blocks=tuple(replace(b, ops=tuple(ids.get(id, id) for id in b.ops)) for b in now.blocks),
        breaks=tuple(replace(each, op=ids[each.op]) for each in now.breaks),
        expected=tuple(replace(each, op=ids.get(each.op, each.op)) for each in now.expected),
    )
