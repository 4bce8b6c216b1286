"""The signature of each operation: which values it takes and makes. Their meaning is documented at `OpKind`.

Values are named for their sort: `w3` is a world; `ws4` is a family, that is, all branches of one fork, which are
operated on as one value; `c5` is a version of the channels; `e6` is a value in the chain of effects on the outside.
"""

from __future__ import annotations

from functools import cache

from ramify.compiler.ir.graph import CHANNELS, EFFECTS
from ramify.compiler.plan import OpKind, ValueId

WORLD, FAMILY = "w", "ws"


def sort(value: ValueId) -> str:
    """Return the sort of a value: "w", "ws", "c" or "e"."""
    first = value[0]
    return first if first != WORLD else FAMILY if value[1:2] == "s" else WORLD


# The permitted worlds of each operation: (in, out). `x` stands for one sort, w or ws, the same on both sides.
SIGNATURES: dict[OpKind, tuple[tuple[str, str], ...]] = {
    OpKind.ENTER: (("", "w"),),
    OpKind.RUN: (("x", "x"), ("", "")),
    OpKind.CALL_TOOL: (("x", "x"), ("", "")),
    OpKind.CALL_LLM: (("", ""),),
    OpKind.SEAL: (("x", "x"),),
    OpKind.FORK: (("x", "x ws"),),
    OpKind.MERGE: (("x ws", "x ws"),),
    OpKind.RESTORE: (("x", "x"),),
    OpKind.INTERRUPT: (("", ""),),
    OpKind.RELEASE: (("x", ""),),
    OpKind.BREAK: (("x", "x"),),
    OpKind.BARRIER: (("", ""),),
    OpKind.PREFORK: (("x", "x"),),
}
# The chains, c then e, that each may take behind its worlds, and then also makes; ENTER only makes, RELEASE only
# takes.
CHAINS: dict[OpKind, str] = {
    OpKind.ENTER: "ce",
    OpKind.RUN: "ce",
    OpKind.CALL_TOOL: "ce",
    OpKind.MERGE: "c",
    OpKind.RELEASE: "ce",
    OpKind.BREAK: "ce",
    OpKind.BARRIER: "e",
}


def fits(kind: OpKind, inputs: tuple[ValueId, ...], outputs: tuple[ValueId, ...]) -> bool:
    """Return whether an operation of this kind may take and make these values."""
    return _fits(kind, tuple(map(sort, inputs)), tuple(map(sort, outputs)))


@cache
def _fits(kind: OpKind, inputs: tuple[str, ...], outputs: tuple[str, ...]) -> bool:
    taken, chains_in = _split(inputs)
    made, chains_out = _split(outputs)
    allowed = CHAINS.get(kind, "")
    carried = chains_in if kind is OpKind.RELEASE else chains_out
    ends = (kind is OpKind.ENTER and not chains_in) or (kind is OpKind.RELEASE and not chains_out)
    if carried not in ("", "c", "e", "ce") or not set(carried) <= set(allowed):
        return False
    if not ends and chains_in != chains_out:
        return False
    if kind is OpKind.RELEASE and chains_in and taken != WORLD:
        return False  # the chains end with the root world
    return any(
        (taken, made) == (left.replace("x", one), right.replace("x", one))
        for left, right in SIGNATURES[kind]
        for one in (WORLD, FAMILY)
    ) and (kind is not OpKind.BARRIER or carried == EFFECTS)


def _split(sorts: tuple[str, ...]) -> tuple[str, str]:
    """Return the sorts of the worlds, which come first, and those of the chains behind them."""
    worlds = [one for one in sorts if one not in (CHANNELS, EFFECTS)]
    return " ".join(worlds), "".join(sorts[len(worlds) :])
