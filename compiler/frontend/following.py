"""Which steps a change of the workflow's own code may affect: of what it uses between its steps, those that come after
a use, in its text or in a loop around it. Whether one is on another arm is not looked at."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ramify.compiler.frontend.code import Codes, Key
from ramify.compiler.frontend.sources import Definition, Function


def follow(codes: Codes, workflow: Function, helpers: Mapping[Definition, Function]) -> str:
    """The digest of a workflow and of all that it uses but its steps, whose parts are marked with what may follow."""
    root = codes.part(workflow)
    named = codes.closure([root], into_steps=False)
    seen = {node for key in named for node in codes.parts[key].nodes}
    # a helper inside another function is part of that one; one that only an object leads to is named by no part
    own = [codes.part(each) for node, each in helpers.items() if node not in seen and not _is_inside(each, codes, named)]
    keys = codes.closure([root, *own], into_steps=False)
    reach = {key: _steps(codes, [key]) for key in keys}
    leads = {key: codes.closure([key], into_steps=False) for key in keys}
    for part in keys:
        found = set(reach[root]) if part == root or part in own else set[str]()
        for key in keys:
            uses = codes.uses(key)
            for use, to in uses:
                if part not in leads.get(to, ()):
                    continue
                later = (e for e, (other, _) in enumerate(uses) if other.may_follow(use))
                for e in later:
                    other, target = uses[e]
                    if other is not use or to == part or use.loops:
                        found |= _reached(codes, reach, target)
        codes.used_by.setdefault(part, set()).update(found)
    return codes.digest(keys)


def _is_inside(helper: Function, codes: Codes, keys: Iterable[Key]) -> bool:
    """Whether its text is part of another's."""
    first, last = helper.node.lineno, helper.node.end_lineno or helper.node.lineno
    return any(
        path == helper.path and getattr(node, "lineno", last) <= first and last <= (getattr(node, "end_lineno", 0) or 0)
        for path, name in keys
        for node in codes.parts[path, name].nodes
    )


def _steps(codes: Codes, starts: list[Key]) -> set[str]:
    found = codes.closure(starts, into_steps=False)
    return {codes.steps[to] for key in found for _, to in codes.uses(key) if to in codes.steps}


def _reached(codes: Codes, reach: Mapping[Key, set[str]], key: Key) -> set[str]:
    return {codes.steps[key]} if key in codes.steps else reach.get(key, set())
