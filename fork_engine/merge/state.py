"""Three-way merge of what a snapshot holds beside its files: variables, working directory, processes, shells.

A variable is set, unset, or as the world started. A value changed on one side only is taken from there. Processes of
one side continue in the merge; if both sides have live processes of their own, that is a conflict, because two
memories cannot be merged.

The states of two shells, which snapshots name as blobs, are merged item by item. A shell's state is canonical JSON:
mappings by name (unexported variables, functions, aliases, traps, options, limits) and a few values (arguments,
directory stack). docs/snapshot-format.md defines it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from ramify.fork_engine.manifest import MALFORMED
from ramify.fork_engine.merge.conflicts import ConflictHandler
from ramify.fork_engine.snapshots import Blobs
from ramify.fork_engine.types import Conflict, ConflictKind, MergeStrategy, Processes, ProcessTier, Snapshot

FORMAT = 2  # of a shell's state
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

Value = tuple[bool, str] | None
"""(whether a variable is set, its value), or None if it is as the world started."""

_LIVE = (ProcessTier.COMMANDS, ProcessTier.REPL, ProcessTier.CRIU, ProcessTier.TREE)
_OTHER_SHELLS = "two shells in a format that cannot be merged"


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
    answer = handler.answer(conflict, lambda: (_item_bytes(base), _item_bytes(ours), _item_bytes(theirs)))
    if isinstance(answer, bytes) and isinstance(ours or theirs, str):
        return answer.decode("utf-8", "surrogateescape")
    if isinstance(answer, bytes) or answer is MergeStrategy.UNION:
        answer = handler.leave_unresolved(conflict)  # a function has one body: there is no union
    return theirs if answer is MergeStrategy.THEIRS else ours


def _item_bytes(item: object) -> bytes | None:
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


@dataclass(frozen=True, slots=True)
class MergedState:
    env: dict[str, str]
    env_unset: tuple[str, ...]
    cwd: str
    processes: Processes
    made: bytes = b""  # a composed shell state, to be stored as a blob and named in `processes`


def merge_states(
    base: Snapshot, ours: Snapshot, theirs: Snapshot, handler: ConflictHandler, blobs: Blobs
) -> MergedState:
    sides = (base, ours, theirs)
    values = [_values(side) for side in sides]
    env: dict[str, str] = {}
    unset: list[str] = []
    for name in sorted({name for side in values for name in side}):
        merged = _merge_value(name, (values[0].get(name), values[1].get(name), values[2].get(name)), handler)
        if merged is not None and merged[0]:
            env[name] = merged[1]
        elif merged is not None:
            unset.append(name)
    where = _merge_value("cwd", ((True, base.cwd), (True, ours.cwd), (True, theirs.cwd)), handler)
    cwd = where[1] if where is not None else ""
    state = MergedState(env, tuple(unset), cwd, _merge_processes(sides, handler))
    return _merge_named_shells(_merge_shell(state, sides, handler, blobs), sides, handler)


def _values(side: Snapshot) -> dict[str, Value]:
    return {**dict.fromkeys(side.env_unset, (False, "")), **{name: (True, value) for name, value in side.env.items()}}


def _merge_value(name: str, at: tuple[Value, Value, Value], handler: ConflictHandler) -> Value:
    base, ours, theirs = at
    if ours == theirs or theirs == base:
        return ours
    if ours == base:
        return theirs
    conflict = Conflict(name, ConflictKind.ENV, f"{_described(ours)} in ours, {_described(theirs)} in theirs")
    answer = handler.answer(conflict, lambda: (_bytes(base), _bytes(ours), _bytes(theirs)))
    if isinstance(answer, bytes):
        return (True, answer.decode("utf-8", "surrogateescape"))
    if answer is MergeStrategy.UNION:
        answer = handler.leave_unresolved(conflict)  # a variable has one value: there is no union
    return theirs if answer is MergeStrategy.THEIRS else ours


def _described(value: Value) -> str:
    return "as at the start" if value is None else repr(value[1]) if value[0] else "unset"


def _bytes(value: Value) -> bytes | None:
    return value[1].encode("utf-8", "surrogateescape") if value is not None and value[0] else None


def _merge_processes(sides: tuple[Snapshot, Snapshot, Snapshot], handler: ConflictHandler) -> Processes:
    """Merge the processes, without the shells' states."""
    base, ours, theirs = (replace(side.processes, shell="", shells=()) for side in sides)
    if ours == theirs:
        return replace(ours, reason=_join_reasons(ours.reason, theirs.reason))
    if theirs == base:
        return ours
    if ours == base:
        return theirs
    live = [one for one in (ours, theirs) if one.tier in _LIVE]
    dropped = max(ours.dropped, theirs.dropped)
    if not live:
        tier = ProcessTier.NONE if ours.tier is theirs.tier is ProcessTier.NONE else ProcessTier.DROPPED
        return Processes(tier, dropped=dropped, reason=_join_reasons(ours.reason, theirs.reason))
    if len(live) == 1 and base.tier not in _LIVE:
        return replace(live[0], dropped=dropped, reason=_join_reasons(live[0].reason, ours.reason, theirs.reason))
    conflict = Conflict(
        "processes", ConflictKind.PROCESSES, f"{ours.tier.value} in ours, {theirs.tier.value} in theirs"
    )
    answer = handler.answer(conflict, lambda: (None, None, None))
    if answer is MergeStrategy.UNION and all(one.tier is ProcessTier.COMMANDS for one in (ours, theirs)):
        more = tuple(command for command in theirs.commands if command not in ours.commands)
        reason = _join_reasons(ours.reason, theirs.reason)
        return replace(ours, commands=ours.commands + more, dropped=dropped, reason=reason)
    if isinstance(answer, bytes) or answer is MergeStrategy.UNION:
        answer = handler.leave_unresolved(conflict)
    return theirs if answer is MergeStrategy.THEIRS else ours


def _merge_shell(
    merged: MergedState, sides: tuple[Snapshot, Snapshot, Snapshot], handler: ConflictHandler, blobs: Blobs
) -> MergedState:
    """Add the shell of the side that changed it, or the merge of both."""
    base, ours, theirs = (side.processes.shell for side in sides)
    ran = merged.processes
    one = ours if ours == theirs or theirs == base else theirs if ours == base else None
    if one == "":
        return replace(merged, processes=replace(ran, shell=""))
    try:
        read = [blobs.get(shell) if shell else b"" for shell in (base, ours, theirs)]
        made, gave_way = merge_shells((read[0], read[1], read[2]), merged.env, handler)
    except UnknownShell:
        if one is None:
            return replace(merged, processes=_choose_shell(ran, ours, theirs, handler))
        return replace(merged, processes=replace(ran, shell=one))
    return replace(merged, made=made, processes=replace(ran, reason=_join_reasons(ran.reason, gave_way)))


def _merge_named_shells(
    merged: MergedState, sides: tuple[Snapshot, Snapshot, Snapshot], handler: ConflictHandler
) -> MergedState:
    """Add the named shells: each of the side that changed it. One that both changed is not merged: the strategy
    chooses, else a new one starts."""
    base, ours, theirs = (dict(side.processes.shells) for side in sides)
    ran, kept = merged.processes, {}
    for name in sorted({*base, *ours, *theirs}):
        was, here, there = base.get(name, ""), ours.get(name, ""), theirs.get(name, "")
        if here == there or there == was:
            kept[name] = here
        elif here == was:
            kept[name] = there
        else:
            both = f"both sides changed the shell {name!r}"
            kept[name], note = _choice(f"shell {name}", both, here, there, handler)
            ran = replace(ran, reason=_join_reasons(ran.reason, note))
    return replace(merged, processes=replace(ran, shells=tuple((name, one) for name, one in kept.items() if one)))


def _choose_shell(ran: Processes, ours: str, theirs: str, handler: ConflictHandler) -> Processes:
    """Choose between two shells that cannot be merged: the one that the strategy names, else a new one. `reason`
    records it."""
    kept, note = _choice("shell", _OTHER_SHELLS, ours, theirs, handler)
    note = f"{note}, with the variables and directory of both"
    return replace(ran, shell=kept, reason=_join_reasons(ran.reason, note))


def _choice(path: str, why: str, ours: str, theirs: str, handler: ConflictHandler) -> tuple[str, str]:
    """The shell that the strategy names, "" for a new one; and a note of it."""
    conflict = Conflict(path, ConflictKind.PROCESSES, why)
    answer = handler.answer(conflict, lambda: (None, None, None), default=MergeStrategy.UNION)
    if isinstance(answer, bytes):
        answer = handler.leave_unresolved(conflict)  # a shell's state cannot be given as bytes
    kept = {MergeStrategy.OURS: ours, MergeStrategy.THEIRS: theirs}.get(answer, "")
    return kept, f"{why}: {answer.value} is kept" if kept else f"{why}: a new one starts"


def _join_reasons(*reasons: str) -> str:
    """Join the reasons, each once, so that none hides another."""
    return "; ".join(dict.fromkeys(reason for reason in reasons if reason))
