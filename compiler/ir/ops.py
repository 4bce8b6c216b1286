"""The operations' signatures: which worlds each takes and makes. What each means stands at `OpKind`.

A world (`w`) is one; a family (`ws`) is all branches of one fork, operated on as one value; a version of the channels
(`c`) and what was done to the outside (`e`) are values too. Values are named for what they are: `w3`, `ws4`, `c5`.
"""

from __future__ import annotations

from functools import cache

from ramify.compiler.ir.graph import CHANNELS, EFFECTS
from ramify.compiler.plan import OpKind, ValueId

WORLD, FAMILY = "w", "ws"


def sort(value: ValueId) -> str:
    first = value[0]
    return first if first != WORLD else FAMILY if value[1:2] == "s" else WORLD


# Each operation's legal (worlds in, worlds out), where `x` stands for one sort, w or ws, the same throughout.
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
# Which of the other chains, c then e, may stand behind the worlds of each: in as well as out, but at the two ends.
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
    return _fits(kind, tuple(map(sort, inputs)), tuple(map(sort, outputs)))


@cache
def _fits(kind: OpKind, inputs: tuple[str, ...], outputs: tuple[str, ...]) -> bool:
    taken, chains_in = _parted(inputs)
    made, chains_out = _parted(outputs)
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


def _parted(sorts: tuple[str, ...]) -> tuple[str, str]:
    """The sorts of the worlds, which come first, and of the chains behind them."""
    worlds = [one for one in sorts if one not in (CHANNELS, EFFECTS)]
    return " ".join(worlds), "".join(sorts[len(worlds) :])
