"""Worlds are forked while the model thinks, and what it is asked first is read while steps run (prefixes.py).

Where a model call, or a pure step that makes one, stands before a FORK, and nothing else can happen to the world in
between, the branches' worlds can be made in the meantime: PREFORK in front of the call. A way that leads to the end
without a fork does no harm (the worlds are dropped), so it does not count; a way on which the world changes first
would waste them each time, so there it is left out. A superstep of LangGraph forks only what its nodes ask for.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from ramify.compiler.estimates import Estimates
from ramify.compiler.ir import analysis
from ramify.compiler.ir.graph import NO_WORLD, Block, Graph, Operation, base_id
from ramify.compiler.ir.ops import sort
from ramify.compiler.ir.rewrite import marked, renumber, swap_values, with_values
from ramify.compiler.plan import PREFIX, OpId, OpKind, ValueId
from ramify.compiler.spec import CallLlm, Machine, Prefix, Spec, walk

LEAST_CHARS = 400  # some hundred tokens: 0.3 s of a small model on two cores


def prefixes(graph: Graph, spec: Spec) -> Graph:
    if isinstance(spec.body, Machine):
        return graph
    at = {item.site: item.prefix for item in walk(spec.body) if isinstance(item, CallLlm)}
    of = {step.name: step.prefix for step in spec.steps if step.calls_llm}

    def prefix(op: Operation) -> Prefix | None:
        return at.get(op.site) if op.site is not None and op.kind is OpKind.CALL_LLM else of.get(op.step or "")

    first = next((op for op in _awaited_first(graph, of) if _is_long(prefix(op))), None)
    if first is None or (found := prefix(first)) is None:
        return graph
    name = base_id(first.id)
    mark: dict[OpId, object] = {op.id: found.attrs() for op in graph.ops() if base_id(op.id) == name}
    return marked(graph, PREFIX, mark)


def _is_long(prefix: Prefix | None) -> bool:
    return prefix is not None and sum(text.chars for text in prefix.messages) >= LEAST_CHARS


def _awaited_first(graph: Graph, asking: Collection[str]) -> list[Operation]:
    """Calls, and steps that make some, which on some way from the start stand behind a step and behind no call."""
    found: set[OpId] = set()
    begun: dict[str, set[bool]] = {graph.blocks[0].id: {False}}  # of each block: whether a step has run before it
    todo = [graph.blocks[0]]
    while todo:
        block = todo.pop(0)
        ways = set(begun[block.id])
        for op in block.ops:
            if op.kind is OpKind.CALL_LLM or (op.runs and op.step in asking):
                if True in ways:
                    found.add(op.id)
                ways = set()
            elif op.kind is OpKind.BREAK:
                ways = set()  # it may ask the model
            elif op.runs and ways:
                ways = {True}
        for to, _ in block.exits:
            if not ways <= begun.setdefault(to, set()):
                begun[to] |= ways
                todo.append(graph.by_id[to])
    return [op for op in graph.ops() if op.id in found]


MOST_READY = 16  # worlds of one PREFORK
GUESS = 4  # branches of a fork that nobody has seen yet


def lookahead(graph: Graph, spec: Spec, estimates: Estimates) -> Graph:
    return prefixes(_worlds(graph, spec, estimates), spec)


def _worlds(graph: Graph, spec: Spec, estimates: Estimates) -> Graph:
    forks = {op.id for op in graph.ops() if op.kind is OpKind.FORK and not op.attrs.get("superstep")}
    if not forks:
        return graph
    uses = analysis.next_uses(graph)
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
            ops.append(with_values(prefork, (stands,), (now[value],)))
        ops.append(with_values(op, swap_values(op.inputs, now), op.outputs))
    exits = tuple((to, swap_values(worlds, now)) for to, worlds in block.exits)
    return Block(block.id, block.params, tuple(ops), exits)
