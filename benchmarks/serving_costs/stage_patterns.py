"""Measure the pattern graphs of the request analyzer: cost of a match, error of the predicted share of a stage."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import rows as rows_
from benchmarks.replay.errors import BadTrace
from benchmarks.replay.inputs.traces import MISSHAPEN, files_of, load
from benchmarks.rows import Row, not_measured
from benchmarks.serving_costs.synthetic_lengths import research
from ramify.serving.lengths.pattern_graph import Kind, Node, PatternGraph, encode, linked, profiles
from ramify.serving.lengths.pattern_library import Library, Matching
from ramify.serving.lengths.types import Split


def row(
    name: str,
    ours: float,
    unit: str,
    target: str,
    met: bool | None,
    note: str,
    peer: str = "",
    other: float | None = None,
) -> Row:
    return rows_.row(
        name, ours, unit, target=target, met=met, peer=peer, peer_value=other, times_faster=True, note=note
    )


def pattern_rows(data: Path | None) -> list[Row]:
    sets = {"made-up research": [(str(i % 20), research(i)) for i in range(120)]}
    if data is not None:
        sets = {"agent sessions": list(sessions(data)), "tool trajectories": list(trajectories(data))}
    sets = {name: graphs for name, graphs in sets.items() if graphs}
    if not sets:
        return [not_measured("pattern match", "ms", f"{data} has no agent sessions or tool trajectories")]
    out = [_match_row([graph for graphs in sets.values() for _, graph in graphs])]
    return out + [_error_row(name, graphs) for name, graphs in sets.items()]


def _match_row(graphs: list[PatternGraph]) -> Row:
    library = Library()
    for i in range(500):
        library.add(graphs[i % len(graphs)], 0.0)
    took = []
    for graph in graphs[:60]:
        matching = Matching(library)
        for stage in profiles(graph)[:30]:
            began = time.perf_counter()
            matching.extend(stage)
            matching.estimate()
            took.append((time.perf_counter() - began) * 1e3)
    median, high = np.percentile(took, [50, 95]).tolist()
    sizes = np.percentile([len(encode(graph, library.names)) for graph in graphs], [50, 100]).tolist()
    note = f"95th percentile {high:.2f} ms over {len(took)} stages; bytes: {sizes[0]:.0f}, at most {sizes[1]:.0f}"
    name = f"pattern match over {len(library)} graphs"
    return row(name, round(median, 3), "ms", "<= 1 ms", median <= 1, note, "thesis, §4.1", 5.0)


def _error_row(name: str, graphs: list[tuple[str, PatternGraph]]) -> Row:
    """Return the relative error of φ at the next stage: five folds by session or task, among requests with as many
    stages."""
    stages = int(np.clip(np.median([graph.stages for _, graph in graphs]), 4, 10))
    errors: dict[Split, list[list[float]]] = {split: [[] for _ in range(stages)] for split in Split}
    keys = sorted({key for key, _ in graphs})
    for fold in range(5):
        held = set(keys[fold::5])
        library = Library()
        for key, graph in graphs:
            if key not in held:
                library.add(graph, 0.0)
        for key, graph in graphs:
            if key in held and graph.stages >= stages:
                _judge(library, graph, errors)
    title = f"next-stage error of {name}, later half of {stages} stages (peer: first half)"
    if not errors[Split.ACCUMULATED][0]:
        return not_measured(title, "share", f"no request of {len(graphs)} has as many, with others to learn from")
    curve = {split: [statistics.median(e) for e in at] for split, at in errors.items()}
    ours = curve[Split.ACCUMULATED]
    alternatives = ", ".join(
        f"{s.value} {statistics.fmean(curve[s]):.2f}" for s in Split if s is not Split.ACCUMULATED
    )
    note = (
        f"by stages seen: {' '.join(f'{e:.2f}' for e in ours)}; "
        f"mean by φ {statistics.fmean(ours):.2f}, {alternatives}; "
        f"{len(errors[Split.ACCUMULATED][0])} requests"
    )
    half = stages // 2
    first, later = statistics.fmean(ours[:half]), statistics.fmean(ours[half:])
    return row(title, round(later, 3), "share", "falls", later < first, note, "first half", round(first, 3))


def _judge(library: Library, graph: PatternGraph, errors: dict[Split, list[list[float]]]) -> None:
    stages = profiles(graph)
    done = np.cumsum([stage.seconds for stage in stages])
    if done[-1] <= 0:
        return
    matching = Matching(library)
    for s in range(len(errors[Split.ACCUMULATED])):
        own, before = stages[s].seconds, float(done[s] - stages[s].seconds)
        true = {
            Split.ACCUMULATED: done[s] / done[-1],
            Split.SHARE: own / done[-1],
            Split.REMAINING: own / max(1e-9, done[-1] - before),
        }
        ours = matching.estimate()
        if ours is None:  # nothing to learn from
            return
        for split, actual in true.items():
            errors[split][s].append(abs(ours.share(s, split) - actual) / max(1e-3, actual))
        matching.extend(stages[s])


def sessions(data: Path) -> Iterator[tuple[str, PatternGraph]]:
    """A person's request to a coding agent is one compound request, from its text to the end of the agent's turn."""
    for path in files_of(data / "agent_sessions", ".json"):
        raw = load(path)
        try:
            yield from [(path.name, graph) for graph in _of_session(raw)]
        except MISSHAPEN as error:
            raise BadTrace(path, f"not an agent session: {error!r}") from error


def _of_session(raw: Any) -> Iterator[PatternGraph]:
    turn: list[list[Node]] = []
    for call in raw["requests"]:
        if call.get("type") == "subagent" or call.get("in") is None or call.get("out") is None:
            continue
        gap = [Node(Kind.TOOL, "tool", 0, seconds=call.get("think_time") or 0.0)] if turn else []
        seconds = call.get("api_time") or call.get("ttft") or 0.0
        turn.append([*gap, Node(Kind.LLM, call.get("model") or "model", 0, call["in"], call["out"], seconds)])
        if call.get("stop") == "end_turn":
            yield linked(turn)
            turn = []
    if turn:
        yield linked(turn)


def trajectories(data: Path) -> Iterator[tuple[str, PatternGraph]]:
    """Calls and tools by name. The trace has no times, so a call takes .3 s plus 20 ms per token, and a tool half a
    second."""
    for path in files_of(data / "tool_trajectories", ".json"):
        raw = load(path)
        try:
            yield from list(_of_trajectories(raw))
        except MISSHAPEN as error:
            raise BadTrace(path, f"not tool trajectories: {error!r}") from error


def _of_trajectories(runs: Any) -> Iterator[tuple[str, PatternGraph]]:
    for run in filter(None, runs):
        stages: list[list[Node]] = []
        waiting: list[Node] = []
        context = 0
        for turn in run.get("traj") or ():
            tokens = (len(turn.get("content") or "") + len(json.dumps(turn.get("tool_calls") or ""))) // 4
            if turn.get("role") == "assistant":
                call = Node(Kind.LLM, "agent", 0, context, tokens, 0.3 + 0.02 * tokens + 2e-5 * context)
                stages.append([*waiting, call])
                waiting = []
            elif turn.get("role") == "tool":
                waiting.append(Node(Kind.TOOL, turn.get("name") or "tool", 0, seconds=0.5))
            context += tokens
        if stages:
            yield str(run.get("task_id")), linked(stages)
