"""The stages of model calls that a run is expected to have, and when each is due.

A stage is the calls that are made at once. Along each way through the graph, time goes by in steps and in calls; of
several ways the longest counts, since a deadline must be kept on that one too (the critical path). The share of a
stage is the thesis's φ (§4.1): the time up to its end, over the whole time. Where a way goes round a loop with a call
in it, or through what the compiler did not see, the recorded runs' own stages are expected, in their order; where
something was never recorded, nothing is.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ramify.compiler.estimates import CallEstimate, Estimates
from ramify.compiler.ir.analysis import blocks_in_loops
from ramify.compiler.ir.graph import Block, Graph, Operation, base_id
from ramify.compiler.plan import OpId, OpKind, StagePlan
from ramify.compiler.spec import Spec


class _Unknown(Exception):
    pass


@dataclass(frozen=True, slots=True)
class _Way:
    """What has gone by on the longest way to a point."""

    stages: tuple[StagePlan, ...] = ()
    since_s: float = 0.0  # after the last stage
    total_s: float = 0.0


def expected_stages(graph: Graph, spec: Spec, estimates: Estimates) -> tuple[StagePlan, ...]:
    """In the order of a run; empty where they cannot be told."""
    thinking = {step.name for step in spec.steps if step.calls_llm}
    if not any(_calls(op, thinking) for op in graph.ops()):
        return ()
    try:
        end = _longest(graph, thinking, estimates)
    except _Unknown:
        return _placed(estimates.stages(), {base_id(op.id) for op in graph.ops() if _calls(op, thinking)})
    done, stages = 0.0, []
    for stage in end.stages:
        done += stage.tools_s + stage.seconds
        stages.append(replace(stage, share=done / end.total_s if end.total_s > 0 else 1.0))
    return tuple(stages)


def _placed(stages: tuple[StagePlan, ...], asking: set[OpId]) -> tuple[StagePlan, ...]:
    """A gateway's history does not know whose calls a stage's are; it need not where one operation makes them all."""
    only = next(iter(asking)) if len(asking) == 1 else OpId("")
    return tuple(stage if stage.op else replace(stage, op=only) for stage in stages)


def _calls(op: Operation, thinking: set[str]) -> bool:
    return op.kind is OpKind.CALL_LLM or (op.runs and op.step in thinking)


def _longest(graph: Graph, thinking: set[str], estimates: Estimates) -> _Way:
    loops = blocks_in_loops(graph)
    into: dict[str, _Way] = {graph.blocks[0].id: _Way()}
    ends: list[_Way] = []
    for block in graph.blocks:  # in reading order: what leads to a block stands before it, loops aside
        way = into.get(block.id)
        if way is None:
            continue
        way = _through(block, way, thinking, estimates, looped=block.id in loops)
        for to, _ in block.exits:
            known = into.get(to)
            if known is None or (way.total_s, len(way.stages)) > (known.total_s, len(known.stages)):
                into[to] = way
        if not block.exits:
            ends.append(way)
    if not ends:
        raise _Unknown
    return max(ends, key=lambda way: (way.total_s, len(way.stages)))


def _through(block: Block, way: _Way, thinking: set[str], estimates: Estimates, *, looped: bool) -> _Way:
    for op in block.ops:
        if op.kind is OpKind.BREAK:
            raise _Unknown
        if _calls(op, thinking):
            calls = estimates.calls(base_id(op.id))
            if looped or calls is None:
                raise _Unknown
            way = _after(way, op, calls)
        elif op.runs:
            seconds = estimates.step_s(op.step or "")
            if seconds is None:
                raise _Unknown
            way = replace(way, since_s=way.since_s + seconds, total_s=way.total_s + seconds)
    return way


def _after(way: _Way, op: Operation, calls: CallEstimate) -> _Way:
    stage = StagePlan(base_id(op.id), calls.calls, calls.prefill, calls.output, way.since_s, calls.seconds, 1.0)
    return _Way((*way.stages, stage), 0.0, way.total_s + calls.seconds)
