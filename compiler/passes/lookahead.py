"""The pass `lookahead`: worlds are forked while the model thinks, and its first prompt is sent while steps run.

Worlds. If a model call, or a pure step that makes one, comes before a FORK, and nothing else can happen to the world
in between, the worlds of the branches can be made during the call: a PREFORK is placed in front of it. A path to the
end without a fork does no harm, since the worlds are dropped. A path on which the world changes first would waste
them every time, so no PREFORK is placed then. In LangGraph, a superstep forks only what its nodes ask for.

Prompts. If the prompt of the first model call is known ahead, long enough to be worth a request, and a step runs
before the call, the call gets the attribute `prefix`: a run sends it as a hint when it begins. Only the first call
gets one: a later call comes when others should have the engine, and the engine's cache keeps its prefix.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from ramify.compiler.estimates import Estimates
from ramify.compiler.ir.analysis import next_uses
from ramify.compiler.ir.graph import NO_WORLD, Block, Graph, Operation, base_id, sort
from ramify.compiler.ir.rewrite import marked, renumber, swap_values, with_values
from ramify.compiler.plan import PREFIX, OpId, OpKind, ValueId
from ramify.compiler.spec import CallLlm, Machine, Prefix, Spec, walk

MOST_READY = 16  # worlds of one PREFORK
GUESS = 4  # branches of a fork that was never recorded
LEAST_CHARS = 400  # some hundred tokens: 0.3 s for a small model on two cores


def lookahead(graph: Graph, spec: Spec, estimates: Estimates) -> Graph:
    return _with_prefixes(_with_preforks(graph, spec, estimates), spec)


# Worlds


def _with_preforks(graph: Graph, spec: Spec, estimates: Estimates) -> Graph:
    forks = {op.id for op in graph.ops() if op.kind is OpKind.FORK and not op.attrs.get("superstep")}
    if not forks:
        return graph
    uses = next_uses(graph)
    callers = {step.name for step in spec.steps if step.calls_llm}
    found: dict[OpId, tuple[ValueId, Operation]] = {}
    for block in graph.blocks:
        alive = list(block.params)
        for op in block.ops:
            calls = op.kind is OpKind.CALL_LLM or (op.runs and op.step in callers and not op.worlds)
            for value in reversed(alive) if calls else ():
                taken = uses.get(value, frozenset()) - {OpKind.RELEASE.value}
                if sort(value) not in NO_WORLD and taken and taken <= forks:
                    found[op.id] = value, _prefork(op, value, sorted(taken), estimates)
                    break
            alive = [*(value for value in alive if value not in op.inputs), *op.outputs]
    if not found:
        return graph
    return replace(graph, blocks=renumber(_insert_preforks(block, found) for block in graph.blocks))


def _prefork(op: Operation, value: ValueId, forks: list[str], estimates: Estimates) -> Operation:
    stated = [int(op.attrs["n"])] if "n" in op.attrs else []
    recorded = [width for fork in forks if (width := estimates.width(base_id(fork))) is not None]
    width = min(MOST_READY, max(recorded or stated or [GUESS]))
    attrs = {"during": op.id, "forks": forks, "width": width}
    return Operation(
        OpId(f"prefork.{op.id}"), OpKind.PREFORK, (value,), (ValueId(f"{value}!"),), op.site, None, attrs
    )


def _insert_preforks(block: Block, found: dict[OpId, tuple[ValueId, Operation]]) -> Block:
    now: dict[ValueId, ValueId] = {}
    ops: list[Operation] = []
    for op in block.ops:
        if op.id in found:
            value, prefork = found[op.id]
            current = now.get(value, value)
            now[value] = ValueId(f"{current}!")
            ops.append(with_values(prefork, (current,), (now[value],)))
        ops.append(with_values(op, swap_values(op.inputs, now), op.outputs))
    exits = tuple((to, swap_values(worlds, now)) for to, worlds in block.exits)
    return Block(block.id, block.params, tuple(ops), exits)


# Prompts


def _with_prefixes(graph: Graph, spec: Spec) -> Graph:
    if isinstance(spec.body, Machine):
        return graph
    by_site = {item.site: item.prefix for item in walk(spec.body) if isinstance(item, CallLlm)}
    by_step = {step.name: step.prefix for step in spec.steps if step.calls_llm}

    def prefix(op: Operation) -> Prefix | None:
        if op.site is not None and op.kind is OpKind.CALL_LLM:
            return by_site.get(op.site)
        return by_step.get(op.step or "")

    first = next((op for op in _first_calls_after_a_step(graph, by_step) if _is_long(prefix(op))), None)
    if first is None or (found := prefix(first)) is None:
        return graph
    name = base_id(first.id)
    marks: dict[OpId, object] = {op.id: found.attrs() for op in graph.ops() if base_id(op.id) == name}
    return marked(graph, PREFIX, marks)


def _is_long(prefix: Prefix | None) -> bool:
    return prefix is not None and sum(text.chars for text in prefix.messages) >= LEAST_CHARS


def _first_calls_after_a_step(graph: Graph, callers: Collection[str]) -> list[Operation]:
    """Return the model calls that are, on some path, the first call and come after a step.

    `callers` are the steps that make model calls: they count as calls.
    """
    found: set[OpId] = set()
    started: dict[str, set[bool]] = {graph.blocks[0].id: {False}}  # for each block: whether a step ran before it
    todo = [graph.blocks[0]]
    while todo:
        block = todo.pop(0)
        paths = set(started[block.id])
        for op in block.ops:
            if op.kind is OpKind.CALL_LLM or (op.runs and op.step in callers):
                if True in paths:
                    found.add(op.id)
                paths = set()
            elif op.kind is OpKind.BREAK:
                paths = set()  # it may call the model
            elif op.runs and paths:
                paths = {True}
        for to, _ in block.exits:
            if not paths <= started.setdefault(to, set()):
                started[to] |= paths
                todo.append(graph.by_id[to])
    return [op for op in graph.ops() if op.id in found]
