"""What holds of a world on some way to it, as sets of operations: the questions that verifier and passes share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import wraps

from ramify.compiler.ir.graph import Facts, Graph, Operation, propagate
from ramify.compiler.ir.ops import FAMILY, sort
from ramify.compiler.plan import Effect, OpKind, ValueId

_NONE: Facts = frozenset()
_ASIDE = (OpKind.PREFORK, OpKind.BARRIER)  # leave the world that they stand at as it is
Question = Callable[[Graph], dict[ValueId, Facts]]


def _once(question: Question) -> Question:
    """Graphs are immutable, and several rules and passes ask the same of one: the answer is kept on it."""
    name = f"_facts_{question.__name__}"

    @wraps(question)
    def ask(graph: Graph) -> dict[ValueId, Facts]:
        answer: dict[ValueId, Facts] | None = graph.__dict__.get(name)
        if answer is None:
            answer = graph.__dict__[name] = question(graph)
        return answer

    return ask


@_once
def forks(graph: Graph) -> dict[ValueId, Facts]:
    """The FORKs whose branches a family may be."""

    def transfer(op: Operation, given: tuple[Facts, ...]) -> tuple[Facts, ...]:
        return (*given, frozenset({op.id})) if op.kind is OpKind.FORK else _same(op, given)

    return {value: found for value, found in propagate(graph, transfer).items() if sort(value) == FAMILY}


@_once
def unsealed(graph: Graph) -> dict[ValueId, Facts]:
    """The operations that may have changed a world since it was last sealed. A graph break counts: its steps seal,
    but other code in it may have written as well."""

    def transfer(op: Operation, given: tuple[Facts, ...]) -> tuple[Facts, ...]:
        step = graph.by_step.get(op.step or "") if op.runs else None
        if op.kind in _ASIDE or (step is not None and step.effect is Effect.READONLY):
            return _same(op, given)
        if op.runs or op.kind is OpKind.BREAK:
            return tuple(before | {op.id} for before in given)
        return tuple(_NONE for _ in op.outputs)

    return propagate(graph, transfer)


@_once
def bases(graph: Graph) -> dict[ValueId, Facts]:
    """The operations that may have recorded the snapshot which a world stands on. After a FORK that is the FORK: what
    it stands on itself is for it to say."""

    def transfer(op: Operation, given: tuple[Facts, ...]) -> tuple[Facts, ...]:
        if op.runs or op.kind in _ASIDE:
            return _same(op, given)
        return tuple(frozenset({op.id}) for _ in op.outputs)

    return propagate(graph, transfer)


@_once
def next_uses(graph: Graph) -> dict[ValueId, Facts]:
    """What takes a world next, on each way on from there, as `use` names it."""
    found: dict[ValueId, Facts] = {}
    leading: dict[str, list[str]] = {}
    for block in graph.blocks:
        for to, _ in block.exits:
            leading.setdefault(to, []).append(block.id)
    stale = dict.fromkeys(block.id for block in reversed(graph.blocks))
    while stale:
        block = graph.by_id[next(iter(stale))]
        del stale[block.id]
        before = [found.get(param) for param in block.params]
        for to, worlds in block.exits:
            for param, value in zip(graph.by_id[to].params, worlds, strict=True):
                found[value] = found.get(value, _NONE) | found.get(param, _NONE)
        for op in reversed(block.ops):
            for place, value in enumerate(op.inputs):
                through = op.kind in _ASIDE and place < len(op.outputs)
                found[value] = found.get(op.outputs[place], _NONE) if through else frozenset({use(graph, op)})
        if [found.get(param) for param in block.params] != before:
            stale.update(dict.fromkeys(leading.get(block.id, ())))
    return found


NEEDS_SEALED = "a step that is reused, fenced or caught"


def use(graph: Graph, op: Operation) -> str:
    """A FORK by its name; a step that rests on a sealed state, by its key, its fence, or since the workflow may go on
    from there after it failed; else the kind of operation."""
    if op.kind is OpKind.FORK and not op.attrs.get("superstep"):
        return op.id
    step = graph.by_step.get(op.step or "") if op.runs else None
    rests = step is not None and (step.reuse or step.effect is Effect.IRREVERSIBLE or bool(op.attrs.get("caught")))
    return NEEDS_SEALED if rests else op.kind


def _same(op: Operation, given: tuple[Facts, ...]) -> tuple[Facts, ...]:
    """Each output holds what the input at its place held; an output without one holds nothing."""
    return (*given, *(_NONE for _ in op.outputs))[: len(op.outputs)]


def blocks_in_loops(graph: Graph) -> set[str]:
    """The blocks that lead back to themselves. Linear in blocks and exits."""
    import networkx

    flow = networkx.DiGraph({block.id: [to for to, _ in block.exits] for block in graph.blocks})
    found = set(networkx.nodes_with_selfloops(flow))
    for part in networkx.strongly_connected_components(flow):
        if len(part) > 1:
            found |= part
    return found


def reached(start: Iterable[str], onward: Mapping[str, Iterable[str]]) -> set[str]:
    """`start`, and all that can be come to from there."""
    import networkx

    flow, seen = networkx.DiGraph({name: list(targets) for name, targets in onward.items()}), set(start)
    flow.add_nodes_from(seen)
    seen.update(to for _, to in networkx.edge_bfs(flow, list(seen)))
    return seen
