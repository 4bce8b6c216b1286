"""The places in a workflow's code where operations stand, each told by its structure and not by its position.

A call site that several ways of calls lead to is one place, and so one operation.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field

from ramify.compiler.plan import OpKind, Origin, Site
from ramify.compiler.spec import (
    Adopt,
    Body,
    CallLlm,
    Fork,
    Inlined,
    Item,
    Loop,
    Machine,
    Run,
    Spec,
    Unseen,
    parts,
    walk,
)


@dataclass(frozen=True, slots=True)
class Place:
    kind: OpKind
    site: Site
    callee: str
    origin: Origin


@dataclass(slots=True)
class _Found:
    number: int
    callee: str
    ways: list[str] = field(default_factory=list)
    statements: list[int] = field(default_factory=list)
    repeats: bool = False


def places_of(spec: Spec) -> tuple[Place, ...]:
    """In the order in which the code is read. None of a graph, whose nodes are known by name."""
    if isinstance(spec.body, Machine):
        return ()
    found: dict[tuple[OpKind, Site], _Found] = {}
    counts = [count for count, _ in spec.statements]
    again = not counts or any(isinstance(item, Unseen) and "calls itself" in item.reason for item in walk(spec.body))
    for index, item in enumerate(spec.body):
        statement = next((i for i, count in enumerate(counts) if index < count), -1)
        for kind, site, callee, way, repeats in _walk((item,), "", spec.handed, repeats=again):
            one = found.setdefault((kind, site), _Found(len(found), callee))
            one.ways.append(way)
            one.statements.append(statement)
            one.repeats = one.repeats or repeats or len(one.ways) > 1
    return tuple(
        Place(kind, site, one.callee, _origin(one, kind, spec.statements)) for (kind, site), one in found.items()
    )


def _walk(
    body: Body, way: str, handed: frozenset[str], *, repeats: bool
) -> Iterator[tuple[OpKind, Site, str, str, bool]]:
    """`handed`: the names of functions that may be called where nobody sees it."""
    for item in body:
        told = _told(item)
        if told is not None:
            kind, site, callee, source = told
            yield kind, site, callee, f"{way}{kind} {callee}\n{source}", repeats or kind is OpKind.BREAK
        inside, again = way, repeats or isinstance(item, Loop)
        if isinstance(item, Inlined):
            inside, again = (
                f"{way}in {item.function}\n{item.source}\n",
                again or item.again or item.function in handed,
            )
        for _, inner in parts(item):
            yield from _walk(inner, inside, handed, repeats=again)


def _told(item: Item) -> tuple[OpKind, Site, str, str] | None:
    match item:
        case Run(step=step, site=Site() as site):
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


def _origin(one: _Found, kind: OpKind, statements: tuple[tuple[int, str], ...]) -> Origin:
    said = hashlib.sha256("\n\n".join([kind, *one.ways]).encode("utf-8", "surrogatepass")).hexdigest()[:32]
    first, last = one.statements[0], max(one.statements)
    through = [statements[i][1] if i >= 0 and one.statements.count(-1) == 0 else "" for i in (first, last)]
    return Origin(one.number, said, through[0], through[1], one.repeats)
