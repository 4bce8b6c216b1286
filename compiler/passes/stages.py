"""The pass `stages`: the stages of model calls that a run is expected to have, and when each is due.

A stage is the calls that are made at the same time. The pass changes no operation. `emit` writes its result into the
plan, and only if the pass is chosen.

Along each path through the graph, steps and calls take time. Of several paths the longest counts, since a deadline
must be kept on that one too (the critical path). The share of a stage is the thesis's φ (§4.1): the time up to its
end, over the time of the whole path. If a path has a call in a loop, or a graph break, the stages of recorded runs
are expected, in their order. If nothing was recorded, no stages are expected.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ramify.compiler.estimates import CallEstimate, Estimates
from ramify.compiler.ir.analysis import blocks_in_loops
from ramify.compiler.ir.graph import Block, Graph, Operation, base_id
from ramify.compiler.plan import OpId, OpKind, StagePlan
from ramify.compiler.spec import CallLlm, Machine, Spec, walk

MOST_STAGES = 64  # a path with more stages goes round a loop


def stages(graph: Graph, spec: Spec, estimates: Estimates) -> Graph:
    """Return the graph unchanged: the stages are no part of it."""
    return graph


def stage_count(graph: Graph, spec: Spec) -> int | None:
    """Return how many stages of model calls every path has; None if that is not known.

    It is not known if paths differ or have calls in a loop, if a step calls the model itself, if there is a graph
    break, or in a LangGraph graph, whose nodes are opaque.
    """
    unseen = any(op.kind is OpKind.BREAK for op in graph.ops()) or any(step.calls_llm for step in spec.steps)
    if unseen or isinstance(spec.body, Machine) or not any(isinstance(item, CallLlm) for item in walk(spec.body)):
        return None
    counts: dict[str, set[int]] = {graph.blocks[0].id: {0}}
    todo, ends = [graph.blocks[0]], set[int]()
    while todo:
        block = todo.pop()
        own = sum(op.kind is OpKind.CALL_LLM for op in block.ops)
        after = {count + own for count in counts[block.id]}
        if max(after) > MOST_STAGES:
            return None
        if not block.exits:
            ends |= after
        for to, _ in block.exits:
            if not after <= counts.setdefault(to, set()):
                counts[to] |= after
                todo.append(graph.by_id[to])
    return ends.pop() if len(ends) == 1 else None


class _NotKnown(Exception):
    pass


@dataclass(frozen=True, slots=True)
class _Path:
    """The longest path to a point: its stages and its time in seconds."""

    stages: tuple[StagePlan, ...] = ()
    since_s: float = 0.0  # since the last stage
    total_s: float = 0.0


def expected_stages(graph: Graph, spec: Spec, estimates: Estimates) -> tuple[StagePlan, ...]:
    """Return the expected stages in the order of a run; none if they are not known."""
    callers = {step.name for step in spec.steps if step.calls_llm}
    if not any(_calls_model(op, callers) for op in graph.ops()):
        return ()
    try:
        end = _longest_path(graph, callers, estimates)
    except _NotKnown:
        ops = {base_id(op.id) for op in graph.ops() if _calls_model(op, callers)}
        return _with_operation(estimates.stages(), ops)
    elapsed, found = 0.0, []
    for stage in end.stages:
        elapsed += stage.tools_s + stage.seconds
        found.append(replace(stage, share=elapsed / end.total_s if end.total_s > 0 else 1.0))
    return tuple(found)


def _with_operation(found: tuple[StagePlan, ...], callers: set[OpId]) -> tuple[StagePlan, ...]:
    """Fill in the operation of stages from a gateway's history, which does not know it, if only one makes calls."""
    only = next(iter(callers)) if len(callers) == 1 else OpId("")
    return tuple(stage if stage.op else replace(stage, op=only) for stage in found)


def _calls_model(op: Operation, callers: set[str]) -> bool:
    return op.kind is OpKind.CALL_LLM or (op.runs and op.step in callers)


def _longest_path(graph: Graph, callers: set[str], estimates: Estimates) -> _Path:
    loops = blocks_in_loops(graph)
    into: dict[str, _Path] = {graph.blocks[0].id: _Path()}
    ends: list[_Path] = []
    for block in graph.blocks:  # in reading order: predecessors come first, except in loops
        path = into.get(block.id)
        if path is None:
            continue
        path = _through(block, path, callers, estimates, looped=block.id in loops)
        for to, _ in block.exits:
            known = into.get(to)
            if known is None or (path.total_s, len(path.stages)) > (known.total_s, len(known.stages)):
                into[to] = path
        if not block.exits:
            ends.append(path)
    if not ends:
        raise _NotKnown
    return max(ends, key=lambda path: (path.total_s, len(path.stages)))


def _through(block: Block, path: _Path, callers: set[str], estimates: Estimates, *, looped: bool) -> _Path:
    for op in block.ops:
        if op.kind is OpKind.BREAK:
            raise _NotKnown
        if _calls_model(op, callers):
            calls = estimates.calls(base_id(op.id))
            if looped or calls is None:
                raise _NotKnown
            path = _after(path, op, calls)
        elif op.runs:
            seconds = estimates.step_s(op.step or "")
            if seconds is None:
                raise _NotKnown
            path = replace(path, since_s=path.since_s + seconds, total_s=path.total_s + seconds)
    return path


def _after(path: _Path, op: Operation, calls: CallEstimate) -> _Path:
    stage = StagePlan(base_id(op.id), calls.calls, calls.prefill, calls.output, path.since_s, calls.seconds, 1.0)
    return _Path((*path.stages, stage), 0.0, path.total_s + calls.seconds)
