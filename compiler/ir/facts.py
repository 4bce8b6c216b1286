"""What holds of a world on some way to it, as sets of operations: the questions that verifier and passes share."""

from __future__ import annotations

from ramify.compiler.ir.graph import Facts, Graph, Operation, propagate
from ramify.compiler.ir.ops import FAMILY, sort
from ramify.compiler.plan import OpKind, ValueId

_NONE: Facts = frozenset()


def forks(graph: Graph) -> dict[ValueId, Facts]:
    """The FORKs whose branches a family may be."""

    def transfer(op: Operation, given: tuple[Facts, ...]) -> tuple[Facts, ...]:
        return (*given, frozenset({op.id})) if op.kind is OpKind.FORK else _same(op, given)

    return {value: found for value, found in propagate(graph, transfer).items() if sort(value) == FAMILY}


def unsealed(graph: Graph) -> dict[ValueId, Facts]:
    """The operations that may have changed a world since it was last sealed. A graph break counts: its steps seal,
    but other code in it may have written as well."""

    def transfer(op: Operation, given: tuple[Facts, ...]) -> tuple[Facts, ...]:
        if op.kind in (OpKind.RUN, OpKind.BREAK):
            return tuple(before | {op.id} for before in given)
        return tuple(_NONE for _ in op.outputs)

    return propagate(graph, transfer)


def bases(graph: Graph) -> dict[ValueId, Facts]:
    """The operations that may have recorded the snapshot which a world stands on. After a FORK that is the FORK: what
    it stands on itself is for it to say."""

    def transfer(op: Operation, given: tuple[Facts, ...]) -> tuple[Facts, ...]:
        if op.kind is OpKind.RUN:
            return _same(op, given)
        return tuple(frozenset({op.id}) for _ in op.outputs)

    return propagate(graph, transfer)


def _same(op: Operation, given: tuple[Facts, ...]) -> tuple[Facts, ...]:
    """Each output holds what the input at its place held; an output without one holds nothing."""
    return (*given, *(_NONE for _ in op.outputs))[: len(op.outputs)]
