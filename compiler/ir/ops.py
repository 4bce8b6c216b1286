"""The operations' signatures: which worlds each takes and makes. What each means stands at `OpKind`.

A world (`w`) is one; a family (`ws`) is all branches of one fork, operated on as one value. Values are named for what
they are: `w3`, `ws4`.
"""

from __future__ import annotations

from ramify.compiler.plan import OpKind, ValueId

WORLD, FAMILY = "w", "ws"


def sort(value: ValueId) -> str:
    return FAMILY if value.startswith(FAMILY) else WORLD


# Each operation's legal (inputs, outputs), where `x` stands for one sort, w or ws, the same throughout.
SIGNATURES: dict[OpKind, tuple[tuple[str, str], ...]] = {
    OpKind.ENTER: (("", "w"),),
    OpKind.RUN: (("x", "x"), ("", "")),
    OpKind.CALL_LLM: (("", ""),),
    OpKind.SEAL: (("x", "x"),),
    OpKind.FORK: (("x", "x ws"),),
    OpKind.MERGE: (("x ws", "x ws"),),
    OpKind.RELEASE: (("x", ""),),
    OpKind.BREAK: (("x", "x"),),
}


def fits(kind: OpKind, inputs: tuple[ValueId, ...], outputs: tuple[ValueId, ...]) -> bool:
    taken, made = " ".join(map(sort, inputs)), " ".join(map(sort, outputs))
    return any(
        (taken, made) == (left.replace("x", one), right.replace("x", one))
        for left, right in SIGNATURES[kind]
        for one in (WORLD, FAMILY)
    )
