"""Worlds are forked while the model thinks, and what it is asked first is read while steps run (prefixes.py).

Where a model call, or a pure step that makes one, stands before a FORK, and nothing else can happen to the world in
between, the branches' worlds can be made in the meantime: PREFORK in front of the call. A way that leads to the end
without a fork does no harm (the worlds are dropped), so it does not count; a way on which the world changes first
would waste them each time, so there it is left out. A superstep of LangGraph forks only what its nodes ask for.
"""

from __future__ import annotations

from dataclasses import replace

from ramify.compiler.estimates import Estimates
from ramify.compiler.ir import facts
from ramify.compiler.ir.graph import NO_WORLD, Block, Graph, Operation, base_id
from ramify.compiler.ir.ops import sort
from ramify.compiler.ir.tidy import renumber, rewired, swap_values
from ramify.compiler.passes.prefixes import prefixes
from ramify.compiler.plan import OpId, OpKind, ValueId
from ramify.compiler.spec import Spec

MOST_READY = 16  # worlds of one PREFORK
GUESS = 4  # branches of a fork that nobody has seen yet


def lookahead(graph: Graph, spec: Spec, estimates: Estimates) -> Graph:
    return prefixes(_worlds(graph, spec, estimates), spec)


def _worlds(graph: Graph, spec: Spec, estimates: Estimates) -> Graph:
    forks = {op.id for op in graph.ops() if op.kind is OpKind.FORK and not op.attrs.get("superstep")}
    if not forks:
        return graph
    uses = facts.next_uses(graph)
    thinking = {step.name for step in spec.steps if step.calls_llm}
    found: dict[OpId, tuple[ValueId, Operation]] = {}
    for block in graph.blocks:
        alive = list(block.params)
        for op in block.ops:
            calls = op.kind is OpKind.CALL_LLM or (op.runs and op.step in thinking and not op.worlds)
            for value in reversed(alive) if calls else ():
                taken = uses.get(value, frozenset()) - {OpKind.RELEASE.value}
                if sort(value) not in NO_WORLD and taken and taken <= forks:
                    found[op.id] = value, _prefork(op, value, sorted(taken), estimates)
                    break
            alive = [*(value for value in alive if value not in op.inputs), *op.outputs]
    if not found:
        return graph
    return replace(graph, blocks=renumber(_with(block, found) for block in graph.blocks))


def _prefork(op: Operation, value: ValueId, forks: list[str], estimates: Estimates) -> Operation:
    said = [int(op.attrs["n"])] if "n" in op.attrs else []
    seen = [width for fork in forks if (width := estimates.width(base_id(fork))) is not None]
    width = min(MOST_READY, max(seen or said or [GUESS]))
    attrs = {"during": op.id, "forks": forks, "width": width}
    return Operation(
        OpId(f"prefork.{op.id}"), OpKind.PREFORK, (value,), (ValueId(f"{value}!"),), op.site, None, attrs
    )


def _with(block: Block, found: dict[OpId, tuple[ValueId, Operation]]) -> Block:
    now: dict[ValueId, ValueId] = {}
    ops: list[Operation] = []
    for op in block.ops:
        if op.id in found:
            value, prefork = found[op.id]
            stands = now.get(value, value)
            now[value] = ValueId(f"{stands}!")
            ops.append(rewired(prefork, (stands,), (now[value],)))
        ops.append(rewired(op, swap_values(op.inputs, now), op.outputs))
    exits = tuple((to, swap_values(worlds, now)) for to, worlds in block.exits)
    return Block(block.id, block.params, tuple(ops), exits)
