"""Compare ways to share pattern libraries between applications: its own, one for all, or one for each cohort.

An application is a session of `agent_sessions/`, or a task of `tool_trajectories/`; its workflows are those that the
gateway would see under one `app_id`. Each workflow is foreseen stage by stage from the workflows of all other
applications and the earlier ones of its own. Alone: `python -m benchmarks.serving_costs.pattern_cohorts DIR`.

| way | the library |
|---|---|
| own | the application's own workflows, as in the product; nothing at its first |
| all | the workflows of all applications |
| cohorts | of the application's cohort: Auxo's algorithm 2 on residuals, and K-means on features |
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import log1p
from pathlib import Path

import numpy as np

from benchmarks.length_cohorts.algorithm import CohortOptions, Cohorts, Vector, k_means_labels
from benchmarks.rows import Row, not_measured, row, show
from benchmarks.serving_costs.stage_patterns import sessions, trajectories
from ramify.serving.lengths.pattern_graph import PatternGraph, StageProfile, profiles
from ramify.serving.lengths.pattern_library import Library, Matching, weigh

_MOST_STAGES = 20  # of a workflow that are judged
_ROUNDS = 6
_FEWEST = 8  # applications: up to four cohorts of the others
Streams = Mapping[str, Sequence[PatternGraph]]  # workflows by application
Mates = frozenset[str]  # the other applications whose workflows are in a library


@dataclass(frozen=True, slots=True)
class Errors:
    """Mean over the stages of one workflow: of the seconds still to come and of the next stage's tokens, in natural
    logarithms; of the share of the deadline, relative."""

    left: float
    tokens: float
    share: float


Found = dict[tuple[str, int], Errors | None]  # by application and the number of its workflow


def library(graphs: Sequence[PatternGraph]) -> Library:
    made = Library()
    for graph in graphs:
        made.add(graph, 0.0)
    return made


def judged(known: Library, graph: PatternGraph) -> Errors | None:
    """How far the estimates of a workflow's stages are off; None without a pattern."""
    stages = profiles(graph)
    ends = np.cumsum([stage.seconds for stage in stages]).tolist()
    matching, found = Matching(known), []
    for at, stage in enumerate(stages[:_MOST_STAGES]):
        estimate = matching.estimate()
        if estimate is None:
            return None
        left = sum(estimate.times[at:])
        tokens = estimate.rest[0].output_median if estimate.rest else 0.0
        true = ends[at] / ends[-1] if ends[-1] else 1.0
        found.append(
            (
                abs(log1p(left) - log1p(ends[-1] - ends[at] + stage.seconds)),
                abs(log1p(tokens) - log1p(stage.output)),
                abs(estimate.share(at) - true) / max(1e-3, true),
            )
        )
        matching.extend(stage)
    return Errors(*np.mean(found, axis=0).tolist())


def features(graphs: Sequence[PatternGraph]) -> Vector:
    """What is known of an application without its texts: the mean of its stages' attributes, and how many it has."""
    stages = [stage for graph in graphs for stage in profiles(graph)]
    return np.array([*np.mean([weigh(stage) for stage in stages], axis=0), log1p(len(stages) / len(graphs))])


def residuals(known: Library, graphs: Sequence[PatternGraph]) -> Vector:
    """How far an application's next stages were from what a library foresaw, by attribute."""
    apart = []
    for graph in graphs:
        matching = Matching(known)
        for stage in profiles(graph)[:_MOST_STAGES]:
            estimate = matching.estimate()
            if estimate is not None and estimate.rest:
                first = estimate.rest[0]
                foreseen = StageProfile((), first.calls, first.prefill, first.output_median, 0.0, first.tool_s_before)
                apart.append(np.array(weigh(stage)) - np.array(weigh(foreseen)))
            matching.extend(stage)
    return np.mean(apart, axis=0) if apart else np.zeros(4)


def auxo(streams: Streams) -> dict[str, object]:
    """The cohort of each application after some rounds of Auxo's algorithm."""
    cohorts = Cohorts(CohortOptions(fewest=max(4, len(streams) // 8)))
    for _ in range(_ROUNDS):
        inside: dict[object, list[PatternGraph]] = defaultdict(list)
        taking: dict[tuple[int, ...], list[str]] = defaultdict(list)
        for app, graphs in streams.items():
            inside[cohorts.best(app)] += graphs
            taking[cohorts.choose(app)].append(app)
        for cohort, apps in taking.items():
            known = library(inside[cohort])
            cohorts.learn(cohort, {app: residuals(known, streams[app]) for app in apps})
    return {app: cohorts.best(app) for app in streams}


def k_means(streams: Streams, app: str, parts: int) -> Callable[[Sequence[PatternGraph]], Mates]:
    """Cohorts of the other applications by the features of their stages: the one that is nearest to the application's
    workflows so far, or all before its first."""
    others = [other for other in streams if other != app]
    seen = np.stack([features(streams[other]) for other in others])
    middle, spread = seen.mean(axis=0), np.maximum(1e-9, seen.std(axis=0))
    scaled = (seen - middle) / spread
    labels = k_means_labels(scaled, parts)
    centres = np.stack([scaled[labels == part].mean(axis=0) for part in sorted(set(labels.tolist()))])

    def mates(done: Sequence[PatternGraph]) -> Mates:
        if not done:
            return frozenset(others)
        mine = int(((centres - (features(done) - middle) / spread) ** 2).sum(axis=1).argmin())
        nearest = ((scaled[:, None] - centres[None]) ** 2).sum(axis=2).argmin(axis=1)
        return frozenset(other for other, part in zip(others, nearest.tolist(), strict=True) if part == mine)

    return mates


def foreseen(streams: Streams, choose: Callable[[str], Callable[[Sequence[PatternGraph]], Mates]]) -> Found:
    """The errors of each workflow, from its application's earlier ones and those of the applications that `choose`
    names for it."""
    found: Found = {}
    for app, graphs in streams.items():
        mates, known, inside = choose(app), Library(), None
        for at, graph in enumerate(graphs):
            wanted = mates(graphs[:at])
            if wanted != inside:
                known = library([*(one for other in sorted(wanted) for one in streams[other]), *graphs[:at]])
                inside = wanted
            found[app, at] = judged(known, graph)
            known.add(graph, 0.0)
    return found


def ways(streams: Streams) -> dict[str, Found]:
    cohort = auxo(streams)

    def of_auxo(app: str) -> Mates:
        return frozenset(other for other in streams if other != app and cohort[other] == cohort[app])

    found = {
        "own": foreseen(streams, lambda _: lambda _: frozenset()),
        "all": foreseen(streams, lambda app: lambda _: frozenset(streams) - {app}),
        f"Auxo ({len(set(cohort.values()))} cohorts)": foreseen(streams, lambda app: lambda _: of_auxo(app)),
    }
    for parts in (2, 4):
        found[f"K-means, {parts}"] = foreseen(streams, partial(k_means, streams, parts=parts))
    return found


def rows(data: Path) -> Iterator[Row]:
    """Yield the rows of each kind of trace: the errors of a library for all, and of the others beside it."""
    for name, graphs in (("agent sessions", sessions(data)), ("tool trajectories", trajectories(data))):
        streams: dict[str, list[PatternGraph]] = defaultdict(list)
        for app, graph in graphs:
            streams[app].append(graph)
        if len(streams) < _FEWEST:
            few = f"{len(streams)} applications, at least {_FEWEST} are needed"
            yield not_measured(f"cohorts of {name}", "", few)
            continue
        found = ways(streams)
        for first in (True, False):
            at = [key for key in found["all"] if (key[1] == 0) == first]
            yield _row(name, "first" if first else "later", at, found)


def _row(name: str, which: str, at: Sequence[tuple[str, int]], found: Mapping[str, Found]) -> Row:
    said = {}
    for way, errors in found.items():
        known = [error for key in at if (error := errors[key]) is not None]
        if known:
            left, tokens, share = np.mean([(one.left, one.tokens, one.share) for one in known], axis=0).tolist()
            said[way] = (left, f"{left:.2f}, {tokens:.2f}, {share:.2f}")
    note = "; ".join(f"{way} {figures}" for way, (_, figures) in said.items())
    title = f"seconds still to come, {which} workflows of {name}: one library for all"
    best = min((way for way in said if way != "all"), key=lambda way: said[way][0], default=None)
    if best is None or "all" not in said:
        return not_measured(title, "error of ln", "no such workflow could be foreseen")
    return row(
        f"{title} (peer: {best})",
        round(said["all"][0], 3),
        "error of ln",
        peer=best,
        peer_value=round(said[best][0], 3),
        note=f"{len(at)} workflows; seconds to come, next tokens (of ln), share of the deadline: {note}",
    )


if __name__ == "__main__":
    show(rows(Path(sys.argv[1])), as_json=False)
