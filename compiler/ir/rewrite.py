"""A graph's blocks in reading order: what nothing reaches left out, straight lines joined, names counted anew."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType

from ramify.compiler.ir.graph import Block, Graph, Operation
from ramify.compiler.ir.ops import sort
from ramify.compiler.plan import OpId, OpKind, ValueId

_NUMBERED = re.compile(r"b\d+")
NO_IDS: Mapping[str, str] = MappingProxyType({})


def tidy(blocks: tuple[Block, ...]) -> tuple[Block, ...]:
    return renumber(straightened(blocks))


def straightened(blocks: tuple[Block, ...]) -> tuple[Block, ...]:
    """As `tidy`, with the names as they were."""
    return tuple(_join_lines(_reading_order(_thread(blocks))))


def swap_values(values: tuple[ValueId, ...], names: dict[ValueId, ValueId]) -> tuple[ValueId, ...]:
    if not names or not values:
        return values
    return tuple([names.get(value, value) for value in values])


def _rename(block: Block, names: dict[ValueId, ValueId], ids: Mapping[str, str] = NO_IDS) -> Block:
    ops = tuple([with_values(op, swap_values(op.inputs, names), swap_values(op.outputs, names)) for op in block.ops])
    exits = tuple([(ids.get(to, to), swap_values(worlds, names)) for to, worlds in block.exits])
    return Block(ids.get(block.id, block.id), swap_values(block.params, names), ops, exits)


def with_values(op: Operation, inputs: tuple[ValueId, ...], outputs: tuple[ValueId, ...]) -> Operation:
    """The operation on other values; itself where they are the same. `replace` would cost half of a compilation."""
    if inputs == op.inputs and outputs == op.outputs:
        return op
    return Operation(op.id, op.kind, inputs, outputs, op.site, op.step, op.attrs)


def _thread(blocks: tuple[Block, ...]) -> tuple[Block, ...]:
    """Ways to a block that does nothing but go on lead straight to where it goes."""
    onward = {
        b.id: b.exits[0][0] for b in blocks[1:] if not b.ops and len(b.exits) == 1 and b.exits[0][1] == b.params
    }

    def end(name: str) -> str:
        seen = {name}
        while name in onward and onward[name] not in seen:
            name = onward[name]
            seen.add(name)
        return name

    def led(block: Block) -> Block:
        exits = tuple({end(to): worlds for to, worlds in block.exits}.items())
        return block if exits == block.exits else replace(block, exits=exits)

    return tuple(map(led, blocks))


def _reading_order(blocks: tuple[Block, ...]) -> list[Block]:
    """Reverse postorder from the entry: a block stands before what follows it, loops aside."""
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


def _join_lines(blocks: list[Block]) -> list[Block]:
    """A block and the only one that follows it, which follows nothing else, are one."""
    leading = Counter(to for block in blocks for to, _ in block.exits)
    by_id = {block.id: block for block in blocks}
    gone: set[str] = set()
    joined: list[Block] = []
    for first in blocks:
        if first.id in gone:
            continue
        block = first
        while len(block.exits) == 1 and leading[block.exits[0][0]] == 1 and block.exits[0][0] != blocks[0].id:
            to, worlds = block.exits[0]
            after = _rename(by_id[to], dict(zip(by_id[to].params, worlds, strict=True)))
            block = replace(block, ops=block.ops + after.ops, exits=after.exits)
            gone.add(to)
        joined.append(block)
    return joined


def renumber(blocks: Iterable[Block]) -> tuple[Block, ...]:
    """Values, and the blocks that have no name of their own, counted in reading order."""
    blocks, names = tuple(blocks), dict[ValueId, ValueId]()
    for block in blocks:
        for value in (*block.params, *(value for op in block.ops for value in op.outputs)):
            names[value] = ValueId(f"{sort(value)}{len(names) + 1}")
    ids = {b.id: f"b{i}" if _NUMBERED.fullmatch(b.id) else b.id for i, b in enumerate(blocks)}
    return tuple([_rename(block, names, ids) for block in blocks])


def threaded(
    blocks: tuple[Block, ...],
    name: str,
    takes: Callable[[Operation], bool],
    before: Callable[[Operation, ValueId], Operation | None] = lambda op, now: None,
) -> Iterator[Block]:
    """The blocks with a chain of values `name` through every operation that `takes` it, and through the ones that
    `before` puts in front of some of them. The new values are to be renumbered."""
    for number, block in enumerate(blocks):
        first = now = ValueId(f"{name}.{number}")
        ops: list[Operation] = []
        for op in block.ops:
            if (put := before(op, now)) is not None:
                ops.append(put)
                now = put.outputs[0]
            if op.kind is OpKind.ENTER or takes(op):
                took = () if op.kind is OpKind.ENTER else (now,)
                now = ValueId(f"{name}.{op.id}")
                op = with_values(op, (*op.inputs, *took), (*op.outputs, now))
            elif op.kind is OpKind.RELEASE and op.fork is None:
                op = with_values(op, (*op.inputs, now), ())
            ops.append(op)
        params = block.params if number == 0 else (*block.params, first)
        exits = tuple([(to, (*worlds, now)) for to, worlds in block.exits])
        yield Block(block.id, params, tuple(ops), exits)


def marked(graph: Graph, name: str, ops: Mapping[OpId, object]) -> Graph:
    """The graph with the attribute `name` on these, each with its JSON value; itself where there are none."""
    if not ops:
        return graph

    def each(op: Operation) -> Operation:
        return replace(op, attrs={**op.attrs, name: ops[op.id]}) if op.id in ops else op

    def of(block: Block) -> Block:
        return replace(block, ops=tuple(map(each, block.ops)))

    return replace(graph, blocks=tuple(map(of, graph.blocks)))
