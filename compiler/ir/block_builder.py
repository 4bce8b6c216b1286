"""Builds a graph block by block: new values, stable ids for operations, worlds passed on by parameters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from ramify.compiler.ir.graph import COPY, FAMILY, WORLD, Block, Operation, sort
from ramify.compiler.plan import OpId, OpKind, Site, ValueId


class OpenBlock:
    """A block under construction.

    `worlds` are the open ones: the root world, then the branches of each open fork, outermost first.
    """

    def __init__(self, name: str, params: tuple[ValueId, ...]) -> None:
        self.name, self.params = name, params
        self.worlds = list(params)
        self.ops: list[Operation] = []
        self.exits: dict[str, tuple[ValueId, ...]] = {}
        self.entered = False

    def freeze(self) -> Block:
        return Block(self.name, self.params, tuple(self.ops), tuple(self.exits.items()))


class BlockBuilder:
    """Makes the blocks of one graph. The first block is the entry."""

    def __init__(self) -> None:
        self._values = 0
        self._blocks: list[OpenBlock] = []
        self._ids: dict[object, str] = {}
        self._numbers: Counter[str] = Counter()
        self._copies: Counter[str] = Counter()

    def value(self, prefix: str) -> ValueId:
        self._values += 1
        return ValueId(f"{prefix}{self._values}")

    def block(self, worlds: list[ValueId], name: str | None = None) -> OpenBlock:
        """Add a block that takes worlds of the same number and sorts as these."""
        name = name or f"b{len(self._blocks)}"
        made = OpenBlock(name, tuple(self.value(sort(world)) for world in worlds))
        self._blocks.append(made)
        return made

    def jump(self, source: OpenBlock, target: OpenBlock) -> None:
        """Let `target` follow `source`. It gets as many worlds as it takes; later ones must have ended."""
        source.exits[target.name] = tuple(source.worlds[: len(target.params)])
        target.entered = True

    def op_id(self, stem: str, key: object) -> OpId:
        """Return the id for a key, marked as a copy from the second time on."""
        if key not in self._ids:
            self._numbers[stem] += 1
            self._ids[key] = f"{stem}.{self._numbers[stem]}"
        return self.copy_of(self._ids[key])

    def copy_of(self, name: str) -> OpId:
        """Return this id, marked as a copy from the second time on."""
        self._copies[name] += 1
        copy = self._copies[name]
        return OpId(name if copy == 1 else f"{name}{COPY}{copy}")

    def add(
        self,
        block: OpenBlock,
        op_id: OpId,
        kind: OpKind,
        on: tuple[int, ...] = (),
        *,
        site: Site | None = None,
        step: str | None = None,
        attrs: Mapping[str, Any] | None = None,
    ) -> Operation:
        """Append an operation on the open worlds at the positions `on`.

        ENTER opens the first world, FORK opens one more, and RELEASE closes the last. Any other operation makes the
        next version of each world.
        """
        inputs = tuple(block.worlds[place] for place in on)
        if kind is OpKind.RELEASE:
            block.worlds.pop()
            outputs: tuple[ValueId, ...] = ()
        else:
            outputs = tuple(self.value(sort(world)) for world in inputs)
            for place, made in zip(on, outputs, strict=True):
                block.worlds[place] = made
            if kind in (OpKind.ENTER, OpKind.FORK):
                fresh = self.value(WORLD if kind is OpKind.ENTER else FAMILY)
                block.worlds.append(fresh)
                outputs += (fresh,)
        op = Operation(op_id, kind, inputs, outputs, site, step, attrs or {})
        block.ops.append(op)
        return op

    def freeze(self) -> tuple[Block, ...]:
        """Return the entry, and the blocks that some block leads to."""
        return tuple(block.freeze() for i, block in enumerate(self._blocks) if i == 0 or block.entered)
