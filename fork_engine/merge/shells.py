"""Three-way merge of what shells know: the blobs that snapshots name, item by item.

A shell's state is canonical JSON: mappings by name (variables that are not exported, functions, aliases, traps,
options, limits) and a few values (arguments, the directories gone through). docs/snapshot-format.md has it.
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
"""The mappings whose items are merged each by itself, and what one of them is called."""

_SCRATCH = ("variables", "attributes")
"""What commands leave by the way, as a loop's counter. No merge fails on it, nor on the values: ours stands."""
_TOLD = 10
"""So many names a record lists."""


class UnknownShell(ValueError):
    """Bytes that are no shell's state of a format that is merged here."""


Three = tuple[Any, Any, Any]
"""What base, ours and theirs say of one item; None where one has it not."""


def merge_shells(
    blobs: tuple[bytes, bytes, bytes], env: Mapping[str, str], settler: ConflictHandler
) -> tuple[bytes, str]:
    """Base, ours, theirs, each b"" for a fresh shell: (the merged state, what gave way, for people).

    `env`: the merged variables that are exported; of them no shell keeps a value to itself. Raises `UnknownShell`.
    """
    base, ours, theirs = map(_decoded, blobs)
    merged: dict[str, Any] = {"format": FORMAT}
    gave_way: list[str] = []
    for kind in sorted(base.keys() | ours.keys() | theirs.keys()):
        sides = (base.get(kind), ours.get(kind), theirs.get(kind))
        if any(isinstance(side, dict) for side in sides):
            merged[kind] = _by_name(kind, sides, settler, gave_way)
        else:
            merged[kind] = sides[1] if _both_changed(sides) else _changed(sides)
    variables = merged.get("variables", {})
    hidden = [name for name, line in variables.items() if name in env and "=" in line]  # else an attribute alone
    for name in hidden:
        del variables[name]
    told = [f"both shells changed {_some(gave_way)}: ours stands"] if gave_way else []
    told += [f"of {_some(hidden)} the exported value stands"] if hidden else []
    return _encoded(merged), "; ".join(told)


def _some(names: list[str]) -> str:
    more = [f"and {len(names) - _TOLD} more"] if len(names) > _TOLD else []
    return ", ".join((*names[:_TOLD], *more))


def _by_name(kind: str, sides: Three, settler: ConflictHandler, gave_way: list[str]) -> dict[str, Any]:
    base, ours, theirs = (side or {} for side in sides)
    found = {}
    for name in sorted(base.keys() | ours.keys() | theirs.keys()):
        items = (base.get(name), ours.get(name), theirs.get(name))
        if not _both_changed(items):
            value = _changed(items)
        elif kind in _SCRATCH:
            value = items[1]
            gave_way.append(f"{kind.removesuffix('s')} {name}")
        else:
            value = _settled(f"{NAMED[kind]} {name}", items, settler)
        if value is not None:
            found[name] = value
    return found


def _both_changed(sides: Three) -> bool:
    """To different things."""
    base, ours, theirs = sides
    return bool(ours != theirs and base not in (ours, theirs))


def _changed(sides: Three) -> Any:
    base, ours, theirs = sides
    return theirs if ours == base else ours


def _settled(what: str, sides: Three, settler: ConflictHandler) -> Any:
    base, ours, theirs = sides
    gone = "ours" if ours is None else "theirs" if theirs is None else ""
    detail = f"gone in {gone}, changed in the other" if gone else "changed in both shells"
    conflict = Conflict(what, ConflictKind.PROCESSES, detail)
    answer = settler.answer(conflict, lambda: (_bytes(base), _bytes(ours), _bytes(theirs)))
    if isinstance(answer, bytes) and isinstance(ours or theirs, str):
        return answer.decode("utf-8", "surrogateescape")
    if isinstance(answer, bytes) or answer is MergeStrategy.UNION:
        answer = settler.leave(conflict)  # no function is two
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
    """b"" for one that a fresh shell equals."""
    if not any(value for kind, value in merged.items() if kind != "format"):
        return b""
    return json.dumps(merged, sort_keys=True, separators=(",", ":")).encode()
