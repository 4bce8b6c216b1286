"""Pattern graphs (thesis §4.1, figure 4.2): what a compound request did, without a word of what it said.

A node is one model or tool invocation with its identity, lengths and time; its parents are the edges. Stages are
those of the compound tags: one round of model calls each. A tool belongs to the stage whose calls come after it, so
that a stage's time is its tools' and then its calls'. The graph as it is matched is its row of stage profiles.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum


class Kind(IntEnum):
    LLM = 0
    TOOL = 1


@dataclass(frozen=True, slots=True)
class Node:
    """One invocation. Lengths in tokens, of model calls only; `seconds` it took; `parents` index earlier nodes."""

    kind: Kind
    name: str  # the model or the tool
    stage: int
    input: int = 0
    output: int = 0
    seconds: float = 0.0
    parents: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class PatternGraph:
    """Nodes in an order in which parents come first. Raises ValueError where it is no such graph."""

    nodes: tuple[Node, ...]

    def __post_init__(self) -> None:
        for i, node in enumerate(self.nodes):
            if min(node.stage, node.input, node.output) < 0 or not node.seconds >= 0:
                raise ValueError(f"node {i} of a pattern graph has a negative stage, length or time: {node}")
            for parent in node.parents:
                if not 0 <= parent < i:
                    raise ValueError(f"node {i} of a pattern graph names parent {parent}: parents come first")
                if self.nodes[parent].stage > node.stage:
                    raise ValueError(f"node {i} of a pattern graph is of an earlier stage than its parent {parent}")

    @property
    def stages(self) -> int:
        return 1 + max((node.stage for node in self.nodes), default=-1)


@dataclass(frozen=True, slots=True)
class StageProfile:
    """One stage as far as matching and estimates look at it."""

    identities: tuple[tuple[Kind, str], ...]  # distinct, sorted: what must agree with a pattern's prefix
    calls: int  # of models
    input: float  # tokens a call, mean: the weight of the edges into the stage
    output: float  # tokens a call, mean: the weight of its nodes
    llm_s: float  # of its slowest call
    tool_s: float  # of its slowest tool, before the calls

    @property
    def seconds(self) -> float:
        return self.tool_s + self.llm_s


def linked(stages: Sequence[Sequence[Node]]) -> PatternGraph:
    """The graph of stages seen from outside, as a gateway sees them: each call waits for its stage's tools, where
    there are any, and those for all calls of the stage before. Stages are numbered and edges set here."""
    nodes: list[Node] = []
    before: tuple[int, ...] = ()
    for s, stage in enumerate(stages):
        for kind in (Kind.TOOL, Kind.LLM):
            first = len(nodes)
            nodes += [replace(node, stage=s, parents=before) for node in stage if node.kind is kind]
            before = tuple(range(first, len(nodes))) or before
    return PatternGraph(tuple(nodes))


def profiles(graph: PatternGraph) -> tuple[StageProfile, ...]:
    """A profile for each stage, from the first to the last; a stage in which nothing ran has an empty one."""
    by_stage: list[list[Node]] = [[] for _ in range(graph.stages)]
    for node in graph.nodes:
        by_stage[node.stage].append(node)
    return tuple(profile(nodes) for nodes in by_stage)


def profile(nodes: Iterable[Node]) -> StageProfile:
    """The profile of one stage's nodes."""
    nodes = tuple(nodes)
    calls = [node for node in nodes if node.kind is Kind.LLM]
    return StageProfile(
        identities=tuple(sorted({(node.kind, node.name) for node in nodes})),
        calls=len(calls),
        input=sum(node.input for node in calls) / max(1, len(calls)),
        output=sum(node.output for node in calls) / max(1, len(calls)),
        llm_s=max((node.seconds for node in calls), default=0.0),
        tool_s=max((node.seconds for node in nodes if node.kind is Kind.TOOL), default=0.0),
    )
