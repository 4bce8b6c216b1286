"""The verifier: one table of rules (`RULES`), checked after lowering and after every pass.

It proves that:

- each world is made once, used once on every path, and ended on every path; the same for the chain of effects
- branches are merged and released by the fork that made them, over a known base
- a forked world is sealed
- an irreversible step stands behind a barrier, and is in a branch only if that is declared
- worlds are prepared only for forks

A rule may hold only after a certain pass, which its `since` names.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from ramify.compiler.errors import VerifyError
from ramify.compiler.ir.analysis import bases, forks, next_uses, unsealed
from ramify.compiler.ir.graph import FAMILY, Block, Graph, Operation, fits, sort
from ramify.compiler.plan import Effect, OpKind


@dataclass(frozen=True, slots=True)
class Finding:
    """A broken rule: what is wrong, where, and how to correct it."""

    what: str
    where: str
    mend: str = "this is a bug in the compiler, or in a graph written by hand: please report it with the graph"


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule: `check` yields what breaks it. `since` is the pass after which it holds, or "lowering"."""

    name: str
    check: Callable[[Graph], Iterator[Finding]]
    since: str = "lowering"


def verify(graph: Graph, done: frozenset[str] = frozenset()) -> None:
    """Check the rules that hold by now.

    Args:
        graph: The graph.
        done: The names of the passes that have run.

    Raises:
        VerifyError: A rule is broken. Only the first one is reported, since later rules rely on it.
    """
    for rule in RULES:
        if rule.since == "lowering" or rule.since in done:
            _check(rule, graph)


def verify_since(graph: Graph, name: str) -> None:
    """Check a graph that the pass `name` left unchanged: only the rules that hold since that pass.

    Raises:
        VerifyError: A rule is broken.
    """
    for rule in RULES:
        if rule.since == name:
            _check(rule, graph)


def _check(rule: Rule, graph: Graph) -> None:
    for found in rule.check(graph):
        raise VerifyError(rule.name, found.what, where=found.where, mend=found.mend)


def _names_once(graph: Graph) -> Iterator[Finding]:
    for what, names in (("block", [b.id for b in graph.blocks]), ("operation", [op.id for op in graph.ops()])):
        for name, count in Counter(names).items():
            if count > 1:
                yield Finding(f"{count} {what}s have this name", str(name))


def _made_once(graph: Graph) -> Iterator[Finding]:
    made = Counter(value for block in graph.blocks for value in block.params)
    made.update(value for op in graph.ops() for value in op.outputs)
    for value, count in made.items():
        if count > 1:
            yield Finding(f"world {value} is made {count} times", _block_of(graph, value))


def _block_of(graph: Graph, value: str) -> str:
    return next(b.id for b in graph.blocks if value in b.params or any(value in op.outputs for op in b.ops))


def _exits_fit(graph: Graph) -> Iterator[Finding]:
    for block in graph.blocks:
        for to, worlds in block.exits:
            if to not in graph.by_id:
                yield Finding(f"leads to {to!r}, which is no block", block.id)
            elif list(map(sort, worlds)) != list(map(sort, graph.by_id[to].params)):
                yield Finding(f"passes ({', '.join(worlds)}) to {to}({', '.join(graph.by_id[to].params)})", block.id)


def _signatures(graph: Graph) -> Iterator[Finding]:
    for op in graph.ops():
        if not fits(op.kind, op.inputs, op.outputs):
            yield Finding(
                f"{op.kind} cannot take ({', '.join(op.inputs)}) and make ({', '.join(op.outputs)})", op.place
            )


def _entered_once(graph: Graph) -> Iterator[Finding]:
    if not graph.blocks:
        yield Finding("there is no block", graph.name)
        return
    entry = graph.blocks[0]
    enters = [op for op in graph.ops() if op.kind is OpKind.ENTER]
    if entry.params or not entry.ops or entry.ops[0].kind is not OpKind.ENTER or len(enters) != 1:
        yield Finding("the first block must begin with the only ENTER and take no world", entry.id)
    seen, todo = {entry.id}, deque([entry])
    while todo:
        for to, _ in todo.popleft().exits:
            if to not in seen:
                seen.add(to)
                todo.append(graph.by_id[to])
    for block in graph.blocks:
        if block.id not in seen:
            yield Finding("no path leads here", block.id)


def _used_once(graph: Graph) -> Iterator[Finding]:
    """Worlds are used in the block that has them, so each block shows by itself whether it is linear."""
    for block in graph.blocks:
        alive = set(block.params)
        for op in block.ops:
            for value in op.inputs:
                if value not in alive:
                    yield Finding(f"world {value} is not available here: used before, or never made", op.place)
                alive.discard(value)
            alive.update(op.outputs)
        for to, worlds in block.exits:
            if alive.issuperset(worlds) and len(set(worlds)) == len(worlds):
                continue
            for value, count in Counter(worlds).items():
                if value not in alive or count > 1:
                    yield Finding(f"world {value} is passed to {to} but is used already", block.id)


def _ended(graph: Graph) -> Iterator[Finding]:
    for block in graph.blocks:
        alive = [*block.params, *(value for op in block.ops for value in op.outputs)]
        used = {value for op in block.ops for value in op.inputs}
        for to, worlds in block.exits or (("the end", ()),):
            for value in alive:
                if value not in used and value not in worlds:
                    yield Finding(f"on the way to {to} world {value} is never ended", block.id)


def _branches_of_their_fork(graph: Graph) -> Iterator[Finding]:
    made_by = forks(graph)
    for op in graph.ops():
        branches = [value for value in op.inputs if sort(value) == FAMILY][-1:]
        named = op.fork
        if op.kind is OpKind.MERGE or (op.kind is OpKind.RELEASE and branches):
            found = made_by.get(branches[0], frozenset()) if branches else frozenset()
            if named is None or found != {named}:
                yield Finding(
                    f"names the fork {named}; its branches are of {', '.join(sorted(found)) or 'none'}", op.place
                )


def _steps_known(graph: Graph) -> Iterator[Finding]:
    for op in graph.ops():
        if op.runs and op.step not in graph.by_step:
            yield Finding(f"step {op.step!r} is not in the table of steps", op.place)


def _pure_holds_no_world(graph: Graph) -> Iterator[Finding]:
    for op in graph.ops():
        if op.runs and (graph.by_step[op.step or ""].effect is Effect.PURE) == bool(op.worlds):
            yield Finding(f"step {op.step} must take a world if, and only if, it is not pure", op.place)


def _nothing_irreversible_in_a_branch(graph: Graph) -> Iterator[Finding]:
    """A superstep of LangGraph joins every branch, so its branches are never dropped."""
    made_by = forks(graph)
    ops: dict[str, Operation] = {op.id: op for op in graph.ops()}
    for op in graph.ops():
        step = graph.by_step.get(op.step or "") if op.runs else None
        fenced = step is not None and step.effect is Effect.IRREVERSIBLE and not step.in_fork
        for fork in sorted(made_by.get(op.inputs[0], ())) if fenced and op.inputs else ():
            if not ops[fork].attrs.get("superstep"):
                yield Finding(
                    f"irreversible step {op.step} would run in every branch of a fork: {_path(graph, ops[fork], op)}",
                    op.place,
                    "run it after the winner is adopted, declare with in_fork= what it does in a branch, or "
                    "declare it as revertible",
                )


def _behind_a_barrier(graph: Graph) -> Iterator[Finding]:
    for block in graph.blocks:
        fenced: set[str] = set()
        for op in block.ops:
            if op.kind is OpKind.BARRIER:
                fenced.update(op.outputs)
            step = graph.by_step.get(op.step or "") if op.runs else None
            if step is not None and step.effect is Effect.IRREVERSIBLE and fenced.isdisjoint(op.inputs):
                yield Finding(f"irreversible step {op.step} takes no chain of effects from a BARRIER", op.place)


def _merged_over_a_base(graph: Graph) -> Iterator[Finding]:
    """The base of a merge is what its fork stood on: the fork names exactly what may have recorded that."""
    recorded = bases(graph)
    for op in graph.ops():
        if op.kind is OpKind.FORK:
            named, found = set(op.attrs.get("base") or ()), recorded.get(op.inputs[0], frozenset())
            if not named or named != found:
                stands, says = (", ".join(sorted(each)) or "nothing" for each in (found, named))
                yield Finding(f"its world was recorded by {stands}, but it names {says} as its base", op.place)


def _ready_for_forks(graph: Graph) -> Iterator[Finding]:
    uses = next_uses(graph)
    for block in graph.blocks:
        later = {op.id for op in block.ops}
        for op in block.ops:
            later.discard(op.id)
            if op.kind is not OpKind.PREFORK:
                continue
            if op.attrs.get("during") not in later:
                yield Finding(f"must be performed during {op.attrs.get('during')}, which does not follow", op.place)
            found = uses.get(op.outputs[0], frozenset()) - {OpKind.RELEASE.value}
            if not found or not found <= set(op.attrs.get("forks") or ()):
                yield Finding(f"prepares worlds that {', '.join(sorted(found)) or 'nothing'} would take", op.place)


def _path(graph: Graph, start: Operation, end: Operation) -> str:
    """Return the operations on a shortest path from one operation to another, as text."""
    home = {op.id: block for block in graph.blocks for op in block.ops}
    todo: deque[tuple[Block, tuple[Block, ...]]] = deque([(home[start.id], ())])
    seen = {home[start.id].id}
    path: tuple[Block, ...] = ()
    while todo:
        block, before = todo.popleft()
        path = (*before, block)
        if block is home[end.id]:
            break
        for to, _ in block.exits:
            if to not in seen:
                seen.add(to)
                todo.append((graph.by_id[to], path))
    ops = [op for block in path for op in block.ops]
    ops = ops[ops.index(start) : ops.index(end) + 1]
    return " -> ".join(f"{op.step or op.kind} at {op.site or op.id}" for op in ops if op.kind is not OpKind.SEAL)


def _forked_sealed(graph: Graph) -> Iterator[Finding]:
    changed_by = unsealed(graph)
    for op in graph.ops():
        if op.kind is OpKind.FORK:
            since = sorted(changed_by.get(op.inputs[0], ()))
            if since:
                yield Finding(f"forks a world that {', '.join(since)} may have changed since it was sealed", op.place)


RULES = (
    Rule("names are unique", _names_once),
    Rule("a world is made once", _made_once),
    Rule("exits fit their targets", _exits_fit),
    Rule("operations fit their signatures", _signatures),
    Rule("entered once, every block reachable", _entered_once),
    Rule("a world is used once", _used_once),
    Rule("a world is ended on every path", _ended),
    Rule("branches belong to their fork", _branches_of_their_fork),
    Rule("steps are in the table", _steps_known),
    Rule("a pure step holds no world", _pure_holds_no_world, since="effects"),
    Rule("no irreversible step in a branch", _nothing_irreversible_in_a_branch, since="effects"),
    Rule("an irreversible step is behind a barrier", _behind_a_barrier, since="effects"),
    Rule("a forked world is sealed", _forked_sealed, since="fork_points"),
    Rule("a merge has its base", _merged_over_a_base, since="fork_points"),
    Rule("worlds are prepared for forks", _ready_for_forks, since="lookahead"),
)
