"""Helpers that rewrite a System State Graph: rename values, set attributes, thread a chain, put blocks in order.

Passes insert operations with provisional values, and then call `renumber`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType

from ramify.compiler.ir.graph import Block, Graph, Operation, sort
from ramify.compiler.plan import OpId, OpKind, ValueId

_NUMBERED = re.compile(r"b\d+")
_NO_IDS: Mapping[str, str] = MappingProxyType({})


def swap_values(values: tuple[ValueId, ...], names: dict[ValueId, ValueId]) -> tuple[ValueId, ...]:
    """Return the values, with those in `names` replaced."""
    if not names or not values:
        return values
    return tuple([names.get(value, value) for value in values])


def with_values(op: Operation, inputs: tuple[ValueId, ...], outputs: tuple[ValueId, ...]) -> Operation:
    """Return an operation on other values. Faster than `replace`, which would take half of a compilation."""
    if inputs == op.inputs and outputs == op.outputs:
        return op
    return Operation(op.id, op.kind, inputs, outputs, op.site, op.step, op.attrs)


def marked(graph: Graph, name: str, ops: Mapping[OpId, object]) -> Graph:
    """Return the graph with the attribute `name` set on these operations, each to its JSON value."""
    if not ops:
        return graph

    def mark(op: Operation) -> Operation:
        return replace(op, attrs={**op.attrs, name: ops[op.id]}) if op.id in ops else op

    blocks = tuple(replace(block, ops=tuple(map(mark, block.ops))) for block in graph.blocks)
    return replace(graph, blocks=blocks)


def threaded(
    blocks: tuple[Block, ...],
    name: str,
    takes: Callable[[Operation], bool],
    before: Callable[[Operation, ValueId], Operation | None] = lambda op, now: None,
) -> Iterator[Block]:
    """Yield the blocks with a chain of values through them, such as the versions of the channels.

    ENTER begins the chain and the last RELEASE ends it. Each block takes it as its last parameter and passes it on,
    so the operations that take it run in the order of the graph. The new values must be renumbered.

    Args:
        blocks: The blocks of a graph.
        name: The prefix of the chain's values.
        takes: Whether an operation takes the chain.
        before: An operation to insert in front of another one. It takes the chain's current value.
    """
    for number, block in enumerate(blocks):
        first = now = ValueId(f"{name}.{number}")
        ops: list[Operation] = []
        for op in block.ops:
            if (inserted := before(op, now)) is not None:
                ops.append(inserted)
                now = inserted.outputs[0]
            if op.kind is OpKind.ENTER or takes(op):
                taken = () if op.kind is OpKind.ENTER else (now,)
                now = ValueId(f"{name}.{op.id}")
                op = with_values(op, (*op.inputs, *taken), (*op.outputs, now))
            elif op.kind is OpKind.RELEASE and op.fork is None:
                op = with_values(op, (*op.inputs, now), ())
            ops.append(op)
        params = block.params if number == 0 else (*block.params, first)
        exits = tuple([(to, (*worlds, now)) for to, worlds in block.exits])
        yield Block(block.id, params, tuple(ops), exits)


# The order and the names of blocks


def normalised(blocks: tuple[Block, ...]) -> tuple[Block, ...]:
    """Return the reachable blocks in reading order, with sequences joined and names counted anew."""
    return renumber(ordered(blocks))


def ordered(blocks: tuple[Block, ...]) -> tuple[Block, ...]:
    """As `normalised`, but with unchanged names."""
    return tuple(_join_sequences(_reading_order(_skip_empty(blocks))))


def renumber(blocks: Iterable[Block]) -> tuple[Block, ...]:
    """Return the blocks with values, and blocks without a name of their own, counted in reading order."""
    blocks, names = tuple(blocks), dict[ValueId, ValueId]()
    for block in blocks:
        for value in (*block.params, *(value for op in block.ops for value in op.outputs)):
            names[value] = ValueId(f"{sort(value)}{len(names) + 1}")
    ids = {b.id: f"b{i}" if _NUMBERED.fullmatch(b.id) else b.id for i, b in enumerate(blocks)}
    return tuple([_rename(block, names, ids) for block in blocks])


def _rename(block: Block, names: dict[ValueId, ValueId], ids: Mapping[str, str] = _NO_IDS) -> Block:
    ops = tuple([with_values(op, swap_values(op.inputs, names), swap_values(op.outputs, names)) for op in block.ops])
    exits = tuple([(ids.get(to, to), swap_values(worlds, names)) for to, worlds in block.exits])
    return Block(ids.get(block.id, block.id), swap_values(block.params, names), ops, exits)


def _skip_empty(blocks: tuple[Block, ...]) -> tuple[Block, ...]:
    """Redirect exits to a block without operations to the block that follows it."""
    onward = {
        b.id: b.exits[0][0] for b in blocks[1:] if not b.ops and len(b.exits) == 1 and b.exits[0][1] == b.params
    }

    def end(name: str) -> str:
        seen = {name}
        while name in onward and onward[name] not in seen:
            name = onward[name]
            seen.add(name)
        return name

    def redirected(block: Block) -> Block:
        exits = tuple({end(to): worlds for to, worlds in block.exits}.items())
        return block if exits == block.exits else replace(block, exits=exits)

    return tuple(map(redirected, blocks))


def _reading_order(blocks: tuple[Block, ...]) -> list[Block]:
    """Return the reachable blocks in reverse postorder: a block comes before its successors, except in loops."""
    by_id = {block.id: block for block in blocks}
    done: list[Block] = []
    seen = {blocks[0].id}
    stack = [(blocks[0], iter(reversed(blocks[0].exits)))]
    while stack:
        block, exits = stack[-1]
        for to, _ in exits:
            if to not in seen:
                seen.add(to)
                stack.append((by_id[to], iter(reversed(by_id[to].exits))))
                break
        else:
            done.append(block)
            stack.pop()
    return done[::-1]


def _join_sequences(blocks: list[Block]) -> list[Block]:
    """Join each block with its only successor, if that has no other predecessor."""
    predecessors = Counter(to for block in blocks for to, _ in block.exits)
    by_id = {block.id: block for block in blocks}
    gone: set[str] = set()
    joined: list[Block] = []
    for first in blocks:
        if first.id in gone:
            continue
        block = first
        while len(block.exits) == 1 and predecessors[block.exits[0][0]] == 1 and block.exits[0][0] != blocks[0].id:
            to, worlds = block.exits[0]
            after = _rename(by_id[to], dict(zip(by_id[to].params, worlds, strict=True)))
            block = replace(block, ops=block.ops + after.ops, exits=after.exits)
            gone.add(to)
        joined.append(block)
    return joined
