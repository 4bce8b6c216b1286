"""Three-way merge of the states of shells, which snapshots name as blobs, item by item.

A shell's state is canonical JSON: mappings by name (unexported variables, functions, aliases, traps, options, limits)
and a few values (arguments, directory stack). docs/snapshot-format.md defines it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ramify.fork_engine.manifest import MALFORMED
from ramify.fork_engine.merge.conflicts import ConflictHandler
from ramify.fork_engine.types import Conflict, ConflictKind, MergeStrategy

FORMAT = 2
NAMED = {
    "functions": "function",
    "aliases": "alias",
    "traps": "trap",
    "options": "option",
    "limits": "limit",
    "variables": "variable",
}
"""The mappings that are merged item by item, and the word for one item of each."""

_SCRATCH = ("variables", "attributes")
"""Mappings that commands change as a side effect, such as a loop's counter. They never make a merge fail: ours wins.
"""
_MOST_NAMES = 10
"""How many names a record's reason lists."""


class UnknownShell(ValueError):
    """The bytes are not a shell's state in a format that can be merged."""


Three = tuple[Any, Any, Any]
"""What base, ours and theirs hold for one item; None where it is missing."""


def merge_shells(
    blobs: tuple[bytes, bytes, bytes], env: Mapping[str, str], handler: ConflictHandler
) -> tuple[bytes, str]:
    """Merge base, ours, theirs; b"" is a new shell. Returns (the merged state, what was overridden, for people).

    `env`: the merged exported variables, which replace unexported ones of the same name. Raises `UnknownShell`.
    """
    base, ours, theirs = map(_decoded, blobs)
    merged: dict[str, Any] = {"format": FORMAT}
    gave_way: list[str] = []
    for kind in sorted(base.keys() | ours.keys() | theirs.keys()):
        sides = (base.get(kind), ours.get(kind), theirs.get(kind))
        if any(isinstance(side, dict) for side in sides):
            merged[kind] = _merge_mapping(kind, sides, handler, gave_way)
        else:
            merged[kind] = sides[1] if _both_changed(sides) else _changed_side(sides)
    variables = merged.get("variables", {})
    # without "=" the item is only an attribute
    hidden = [name for name, line in variables.items() if name in env and "=" in line]
    for name in hidden:
        del variables[name]
    notes = [f"both shells changed {_list_names(gave_way)}: ours is kept"] if gave_way else []
    notes += [f"the exported value of {_list_names(hidden)} is kept"] if hidden else []
    return _encoded(merged), "; ".join(notes)


def _list_names(names: list[str]) -> str:
    more = [f"and {len(names) - _MOST_NAMES} more"] if len(names) > _MOST_NAMES else []
    return ", ".join((*names[:_MOST_NAMES], *more))


def _merge_mapping(kind: str, sides: Three, handler: ConflictHandler, gave_way: list[str]) -> dict[str, Any]:
    base, ours, theirs = (side or {} for side in sides)
    found = {}
    for name in sorted(base.keys() | ours.keys() | theirs.keys()):
        items = (base.get(name), ours.get(name), theirs.get(name))
        if not _both_changed(items):
            value = _changed_side(items)
        elif kind in _SCRATCH:
            value = items[1]
            gave_way.append(f"{kind.removesuffix('s')} {name}")
        else:
            value = _resolve_item(f"{NAMED[kind]} {name}", items, handler)
        if value is not None:
            found[name] = value
    return found


def _both_changed(sides: Three) -> bool:
    """Return whether both sides changed it to different things."""
    base, ours, theirs = sides
    return bool(ours != theirs and base not in (ours, theirs))


def _changed_side(sides: Three) -> Any:
    base, ours, theirs = sides
    return theirs if ours == base else ours


def _resolve_item(what: str, sides: Three, handler: ConflictHandler) -> Any:
    base, ours, theirs = sides
    gone = "ours" if ours is None else "theirs" if theirs is None else ""
    detail = f"removed in {gone}, changed in the other" if gone else "changed in both shells"
    conflict = Conflict(what, ConflictKind.PROCESSES, detail)
    answer = handler.answer(conflict, lambda: (_bytes(base), _bytes(ours), _bytes(theirs)))
    if isinstance(answer, bytes) and isinstance(ours or theirs, str):
        return answer.decode("utf-8", "surrogateescape")
    if isinstance(answer, bytes) or answer is MergeStrategy.UNION:
        answer = handler.leave_unresolved(conflict)  # a function has one body: there is no union
    return theirs if answer is MergeStrategy.THEIRS else ours


def _bytes(item: object) -> bytes | None:
    return item.encode("utf-8", "surrogateescape") if isinstance(item, str) else None


def _decoded(blob: bytes) -> Mapping[str, Any]:
    if not blob:
        return {}
    try:
        values: dict[str, Any] = json.loads(blob)
        if values.pop("format") != FORMAT or any(not isinstance(values[kind], dict) for kind in NAMED):
            raise UnknownShell
    except MALFORMED:
        raise UnknownShell from None
    return values


def _encoded(merged: dict[str, Any]) -> bytes:
    """Encode the state; b"" if it equals that of a new shell."""
    if not any(value for kind, value in merged.items() if kind != "format"):
        return b""
    return json.dumps(merged, sort_keys=True, separators=(",", ":")).encode()
