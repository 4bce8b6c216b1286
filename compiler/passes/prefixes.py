"""What the first model call of a run begins with is read while steps still run before it.

Where that is known ahead, long enough to be worth a request, and a step comes first, the call is marked with it: a
run sends it as a hint when it begins. Only the first call: a later one comes after others, which are to have the
engine, and whose prefix its cache keeps.
"""

from __future__ import annotations

from collections.abc import Collection

from ramify.compiler.ir.graph import Graph, Operation, base_id
from ramify.compiler.passes.marks import marked
from ramify.compiler.plan import PREFIX, OpId, OpKind
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
