"""Which steps a change of the workflow's own code may affect: of what it uses between its steps, those that come
after a use, in its text or in a loop around it. Whether one is on another arm is not looked at."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping

from ramify.compiler.frontend.code import Codes, Key
from ramify.compiler.frontend.sources import Definition, Function
from ramify.compiler.frontend.syntax import statements_of
from ramify.compiler.frontend.uses import Place


def follow(codes: Codes, workflow: Function, helpers: Mapping[Definition, Function]) -> str:
    """The digest of a workflow and of all that it uses but its steps. Its parts are marked with what may follow."""
    root = codes.part(workflow)
    named = codes.closure([root], into_steps=False)
    apart = [each for each in helpers.values() if not _is_within(each, codes, named)]  # only an object leads there
    starts = [root, *map(codes.part, apart)]
    keys = codes.closure(starts, into_steps=False)
    uses = {key: codes.closure([key], into_steps=False) for key in keys}
    steps = {key: _steps(codes, uses[key]) for key in keys}
    for part in keys:
        found = set(steps[part]) if part in starts else set[str]()
        for key in keys:
            found |= _after(codes, key, part, uses, steps)
        codes.used_by.setdefault(part, set()).update(found)
    return codes.digest(starts, into_steps=False)


def digests_through(codes: Codes, workflow: Function) -> tuple[str, ...]:
    """Of each statement of a workflow: the digest of the code up to its end, with all that it uses but steps."""
    if isinstance(workflow.node, ast.Lambda):
        return ()
    root = codes.part(workflow)
    written = codes.written([root], into_steps=False)
    head, *statements = statements_of(workflow.node)
    written.write(root, head)
    found = []
    for pieces in statements:
        written.write(root, pieces)
        found.append(written.digest()[:32])
    return tuple(found)


def _after(
    codes: Codes, key: Key, part: Key, uses: Mapping[Key, set[Key]], steps: Mapping[Key, set[str]]
) -> set[str]:
    """The steps that may come after `key` uses `part`. Where a function of its own does, that one says what follows
    inside it."""
    named = codes.uses(key)
    there = [(use, to) for use, to in named if part in uses.get(to, ())]
    if not there:
        return set()
    first = min(use.first for use, _ in there)
    loops = frozenset[Place]().union(*(use.loops for use, _ in there))
    (use, to), *others = [each for each in there if each[0].first == first]
    skipped = None if others or to == part or use.loops else use
    found = set[str]()
    for use, to in named:
        if use is not skipped and (use.last >= first or not loops.isdisjoint(use.loops)):
            found |= {codes.steps[to]} if to in codes.steps else steps[to]
    return found


def _steps(codes: Codes, parts: Iterable[Key]) -> set[str]:
    return {codes.steps[to] for part in parts for _, to in codes.uses(part) if to in codes.steps}


def _is_within(helper: Function, codes: Codes, keys: Iterable[Key]) -> bool:
    """Whether its text is that of a part, or inside it."""
    first, last = helper.node.lineno, helper.node.end_lineno or helper.node.lineno
    return any(
        part.module.path == helper.path and node.lineno <= first and last <= (node.end_lineno or 0)
        for part in (codes.parts[key] for key in keys)
        for node in part.nodes
        if isinstance(node, ast.stmt | ast.Lambda)
    )
