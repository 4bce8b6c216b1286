"""Analyses of a System State Graph that the verifier and the passes share: data flow, loops, reachability.

`propagate` and `propagate_back` solve a data-flow problem: which facts hold for each world. Facts are sets of
strings, mostly ids of operations. The functions after them are the questions that are asked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import wraps
from typing import TypeAlias

from ramify.compiler.ir.graph import FAMILY, NO_WORLD, Graph, Operation, sort
from ramify.compiler.plan import Effect, OpKind, ValueId

Facts: TypeAlias = frozenset[str]
Transfer: TypeAlias = Callable[[Operation, tuple[Facts, ...]], tuple[Facts, ...]]
BackTransfer: TypeAlias = Callable[[Operation, Mapping[ValueId, Facts]], Mapping[ValueId, Facts]]
Question: TypeAlias = Callable[[Graph], dict[ValueId, Facts]]

_NONE: Facts = frozenset()
_UNCHANGING = (OpKind.PREFORK, OpKind.BARRIER)  # do not change the world that they take


def propagate(graph: Graph, transfer: Transfer) -> dict[ValueId, Facts]:
    """Return the facts of each world that hold on some path to it.

    Args:
        graph: The graph.
        transfer: The facts of an operation's outputs, from the facts of its inputs. The parameter of a block has the
            facts of all values that predecessors pass to it. Channels and effects have none.
    """
    facts: dict[ValueId, Facts] = {}
    passed: dict[ValueId, set[str]] = {}  # changed in place: many blocks may lead to one
    stale = {block.id for block in graph.blocks}
    while stale:  # blocks are in reading order: one sweep, and one more for each nesting of loops
        for block in graph.blocks:
            if block.id not in stale:
                continue
            stale.discard(block.id)
            facts.update((param, frozenset(passed[param])) for param in block.params if param in passed)
            for op in block.ops:
                given = tuple([facts.get(value, _NONE) for value in op.inputs])
                facts.update(zip(op.outputs, transfer(op, given), strict=True))
            for to, worlds in block.exits:
                for param, value in zip(graph.by_id[to].params, worlds, strict=True):
                    if value[0] in NO_WORLD:
                        continue
                    more = facts.get(value, _NONE)
                    if more and not more <= passed.setdefault(param, set()):
                        passed[param] |= more
                        stale.add(to)
    return facts


def propagate_back(graph: Graph, transfer: BackTransfer) -> dict[ValueId, Facts]:
    """Return the facts of each value that hold on some path from it.

    Args:
        graph: The graph.
        transfer: The facts of an operation's inputs, from the facts of the values after it.
    """
    found: dict[ValueId, Facts] = {}
    stale = dict.fromkeys(block.id for block in reversed(graph.blocks))
    while stale:
        block = graph.by_id[next(iter(stale))]
        del stale[block.id]
        before = [found.get(param) for param in block.params]
        for to, worlds in block.exits:
            for param, value in zip(graph.by_id[to].params, worlds, strict=True):
                found[value] = found.get(value, _NONE) | found.get(param, _NONE)
        for op in reversed(block.ops):
            found.update(transfer(op, found))
        if [found.get(param) for param in block.params] != before:
            stale.update(dict.fromkeys(graph.predecessors.get(block.id, ())))
    return found


# Questions


def _cached(question: Question) -> Question:
    """Keep the answer on the graph, which is immutable: several rules and passes ask the same."""
    name = f"_facts_{question.__name__}"

    @wraps(question)
    def ask(graph: Graph) -> dict[ValueId, Facts]:
        answer: dict[ValueId, Facts] | None = graph.__dict__.get(name)
        if answer is None:
            answer = graph.__dict__[name] = question(graph)
        return answer

    return ask


@_cached
def forks(graph: Graph) -> dict[ValueId, Facts]:
    """Return, for each family of branches, the FORKs that may have made it."""

    def transfer(op: Operation, given: tuple[Facts, ...]) -> tuple[Facts, ...]:
        return (*given, frozenset({op.id})) if op.kind is OpKind.FORK else _same(op, given)

    return {value: found for value, found in propagate(graph, transfer).items() if sort(value) == FAMILY}


@_cached
def unsealed(graph: Graph) -> dict[ValueId, Facts]:
    """Return, for each world, the operations that may have changed it since it was last sealed.

    A graph break counts: its steps seal, but other code in it may write as well.
    """

    def transfer(op: Operation, given: tuple[Facts, ...]) -> tuple[Facts, ...]:
        step = graph.by_step.get(op.step or "") if op.runs else None
        if op.kind in _UNCHANGING or (step is not None and step.effect is Effect.READONLY):
            return _same(op, given)
        if op.runs or op.kind is OpKind.BREAK:
            return tuple(before | {op.id} for before in given)
        return tuple(_NONE for _ in op.outputs)

    return propagate(graph, transfer)


@_cached
def bases(graph: Graph) -> dict[ValueId, Facts]:
    """Return, for each world, the operations that may have recorded the snapshot under it.

    For a branch this is its FORK, which names its own base.
    """

    def transfer(op: Operation, given: tuple[Facts, ...]) -> tuple[Facts, ...]:
        if op.runs or op.kind in _UNCHANGING:
            return _same(op, given)
        return tuple(frozenset({op.id}) for _ in op.outputs)

    return propagate(graph, transfer)


NEEDS_SEALED = "a step that is reused, behind a barrier, or caught"


@_cached
def next_uses(graph: Graph) -> dict[ValueId, Facts]:
    """Return, for each value, what may take it next, as `use_of` names it."""

    def transfer(op: Operation, after: Mapping[ValueId, Facts]) -> Mapping[ValueId, Facts]:
        found = {}
        for place, value in enumerate(op.inputs):
            through = op.kind in _UNCHANGING and place < len(op.outputs)
            found[value] = after.get(op.outputs[place], _NONE) if through else frozenset({use_of(graph, op)})
        return found

    return propagate_back(graph, transfer)


def use_of(graph: Graph, op: Operation) -> str:
    """Return how an operation uses its world.

    A FORK is named by its id, and other operations by their kind. NEEDS_SEALED stands for a step that needs a sealed
    world: for its reuse key, for its barrier, or because the workflow may continue from there after a failure.
    """
    if op.kind is OpKind.FORK and not op.attrs.get("superstep"):
        return op.id
    step = graph.by_step.get(op.step or "") if op.runs else None
    if step is None:
        return op.kind
    needs_sealed = step.reuse or step.effect is Effect.IRREVERSIBLE or bool(op.attrs.get("caught"))
    return NEEDS_SEALED if needs_sealed else op.kind


def _same(op: Operation, given: tuple[Facts, ...]) -> tuple[Facts, ...]:
    """Return for each output the facts of the input at the same position, or none."""
    return (*given, *(_NONE for _ in op.outputs))[: len(op.outputs)]


# Loops and reachability.


def blocks_in_loops(graph: Graph) -> set[str]:
    """Return the blocks that lead back to themselves, in linear time: those of a strongly connected component of
    several blocks, and those that lead to themselves directly.

    The components are found as by Tarjan (1972), without recursion: `low` is the least number of an open block that
    is reached from there, and a block whose `low` is its own number closes a component.
    """
    onward = {block.id: [to for to, _ in block.exits] for block in graph.blocks}
    found = {name for name, targets in onward.items() if name in targets}
    numbers: dict[str, int] = {}
    low: dict[str, int] = {}
    opened: list[str] = []  # blocks whose component is not closed, in the order of their numbers
    closed = set[str]()
    for start in onward:
        path = [] if start in numbers else [(start, iter(onward[start]))]
        while path:
            block, targets = path[-1]
            if block not in numbers:
                numbers[block] = low[block] = len(numbers)
                opened.append(block)
            target = next((to for to in targets if to not in closed), None)
            if target is None:
                path.pop()
                if path:
                    before = path[-1][0]
                    low[before] = min(low[before], low[block])
                if low[block] == numbers[block]:
                    part = [opened.pop()]
                    while part[-1] != block:
                        part.append(opened.pop())
                    closed.update(part)
                    if len(part) > 1:
                        found.update(part)
            elif target in numbers:
                low[block] = min(low[block], numbers[target])
            else:
                path.append((target, iter(onward.get(target, ()))))
    return found


def reachable(start: Iterable[str], onward: Mapping[str, Iterable[str]]) -> set[str]:
    """Return `start` and all that can be reached from there along the edges of `onward`."""
    found = set(start)
    left = list(found)
    while left:
        for target in onward.get(left.pop(), ()):
            if target not in found:
                found.add(target)
                left.append(target)
    return found
