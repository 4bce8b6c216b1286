"""The pass `conflicts`: which paths both sides of a merge write.

What a step writes is known from its syntax and from recorded runs. A path that both sides may have written since
their fork is named on the MERGE (attribute `conflicts`), for `ramify explain`.

A workflow is refused if both sides certainly write a path that did not exist before, with different contents, and no
strategy handles the conflict. If the file existed, one side may leave it unchanged, or each may change other lines.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations

from ramify.compiler.errors import WorkflowError
from ramify.compiler.estimates import Estimates
from ramify.compiler.ir.analysis import Facts, propagate
from ramify.compiler.ir.graph import FAMILY, Graph, Operation, base_id, sort
from ramify.compiler.ir.rewrite import marked
from ramify.compiler.plan import OpId, OpKind, ValueId
from ramify.compiler.spec import Machine, Spec

WROTE = "wrote"
CONFLICTS = "conflicts"
_NONE: Facts = frozenset()
_ANY = "*"  # any path


def conflicts(graph: Graph, spec: Spec, estimates: Estimates) -> Graph:
    """Set `wrote` on steps and `conflicts` on merges.

    Raises:
        WorkflowError: A merge must conflict.
    """
    graph = marked(graph, WROTE, _recorded(graph, estimates))
    written = {op.step or "": _writes(op) for op in graph.ops() if op.runs}
    if not any(written.values()):
        return graph
    if isinstance(spec.body, Machine):
        return marked(graph, CONFLICTS, _of_supersteps(graph, spec.body, written))
    _refuse_certain_conflicts(graph, estimates)
    return marked(graph, CONFLICTS, _of_merges(graph))


def _recorded(graph: Graph, estimates: Estimates) -> dict[OpId, object]:
    found: dict[OpId, object] = {}
    for op in graph.ops():
        if op.runs and op.step is not None and (wrote := estimates.wrote(op.step)):
            found[op.id] = {**{kind: list(names) for kind, names in wrote.items()}, "by": "recorded"}
    return found


def _writes(op: Operation) -> Facts:
    """Return the paths that a step is known to write."""
    files, wrote = op.attrs.get("files", {}), op.attrs.get(WROTE, {})
    return frozenset((*files.get("writes", ()), *wrote.get("files", ())))


def _of_supersteps(graph: Graph, machine: Machine, written: Mapping[str, Facts]) -> dict[OpId, object]:
    pairs = (pair for group in machine.together for pair in combinations(group, 2))
    both = {path for one, other in pairs for path in written.get(one, _NONE) & written.get(other, _NONE)}
    return {op.id: sorted(both) for op in graph.ops() if op.kind is OpKind.MERGE} if both else {}


def _of_merges(graph: Graph) -> dict[OpId, object]:
    """Return the paths by merge.

    What a merged branch wrote counts for its fork's world, so a second branch meets it.
    """

    def transfer(op: Operation, given: tuple[Facts, ...]) -> tuple[Facts, ...]:
        if op.kind is OpKind.MERGE:
            return (given[0] | given[1], given[1])
        if op.kind is OpKind.FORK:
            return (_NONE,) * len(op.outputs)
        more = _writes(op) if op.runs else _NONE
        return tuple(before | more for before in given[: len(op.outputs)]) or (_NONE,) * len(op.outputs)

    wrote = propagate(graph, transfer)
    found: dict[OpId, set[str]] = {}
    for op in graph.ops():
        if op.kind is OpKind.MERGE and not op.attrs.get("settled"):
            ours, theirs = (wrote.get(value, _NONE) for value in op.inputs[:2])
            found.setdefault(base_id(op.id), set()).update(ours & theirs)
    merges = (op for op in graph.ops() if op.kind is OpKind.MERGE)
    return {op.id: sorted(paths) for op in merges if (paths := found.get(base_id(op.id)))}


def _refuse_certain_conflicts(graph: Graph, estimates: Estimates) -> None:
    """Refuse merges whose sides certainly write different contents.

    The facts are what may *not* hold: (path, contents) that some path through the graph did not write.
    """
    every = {(path, digest) for op in graph.ops() for path, digest in _always(op).items()}
    if len(every) < 2:
        return
    unsure = frozenset(map("\0".join, every))

    def transfer(op: Operation, given: tuple[Facts, ...]) -> tuple[Facts, ...]:
        if not op.runs:
            unchanging = op.kind in (OpKind.SEAL, OpKind.PREFORK)
            return given if unchanging else (unsure,) * len(op.outputs)
        certain, writes = _always(op), op.attrs.get("files", {}).get("writes")
        overwritten = frozenset(one for one in unsure if writes is None or one.partition("\0")[0] in writes)
        written = frozenset("\0".join(pair) for pair in certain.items())
        return tuple((before | overwritten) - written for before in given[: len(op.outputs)])

    missing, before = propagate(graph, transfer), _before(graph)
    bases = {base_id(op.id): before.get(op.inputs[0], _NONE) for op in graph.ops() if op.kind is OpKind.FORK}
    for op in graph.ops():
        if op.kind is not OpKind.MERGE or op.attrs.get("settled"):
            continue
        base = bases[base_id(op.attrs["fork"])]
        ours, theirs = (
            dict(one.split("\0") for one in unsure - missing.get(value, _NONE)) for value in op.inputs[:2]
        )
        for path in sorted(ours.keys() & theirs.keys()):
            new = path not in base and _ANY not in base and estimates.begins_without(path)
            if new and ours[path] != theirs[path]:
                raise WorkflowError(
                    f"this merge must conflict: both sides always write {path}, with different contents",
                    where=op.place,
                    mend="write different files, or give a strategy: `adopt(strategy=...)`",
                )


def _before(graph: Graph) -> dict[ValueId, Facts]:
    """Return, for each world, the paths that may have been written since the run began; `*`: any."""

    def transfer(op: Operation, given: tuple[Facts, ...]) -> tuple[Facts, ...]:
        every = _NONE.union(*given)
        if op.kind is OpKind.BREAK:
            every |= {_ANY}
        elif op.runs:
            writes = op.attrs.get("files", {}).get("writes")
            every |= {_ANY} if writes is None else frozenset(writes)
        return (every,) * len(op.outputs)

    return propagate(graph, transfer)


def _always(op: Operation) -> Mapping[str, str]:
    """Return the paths, with digests of the contents, that certainly exist in every world after the operation."""
    if not op.runs or not op.worlds or op.attrs.get("caught"):
        return {}
    found: Mapping[str, str] = op.attrs.get("files", {}).get("always", {})
    return found if sort(op.worlds[0]) != FAMILY or op.attrs.get("every") else {}
