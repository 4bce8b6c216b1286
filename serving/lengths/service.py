"""The analyzer without its process: messages in, replies out. For one thread; `learner.refit` may run in another.

A process that has just started can answer every request, because the client sends all stages of a compound request.
So a restart loses only what was learnt since the last checkpoint.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from ramify.serving.errors import BadFrame
from ramify.serving.lengths import frames
from ramify.serving.lengths.frames import Json
from ramify.serving.lengths.learner import AppCoverage, BinCoverage, Learner
from ramify.serving.lengths.pattern_graph import Kind, Node, linked, profile
from ramify.serving.lengths.pattern_library import Library, Matching
from ramify.serving.lengths.types import Ask, Estimates, Forecast
from ramify.serving.policy.types import StageEstimate

_APPS = 64
_OPEN = 4_096


@dataclass(frozen=True, slots=True)
class Stats:
    """The analyzer's statistics, for metrics."""

    version: int  # of the length models; 0: none yet
    observations: int  # answers learnt from so far
    patterns: int
    coverage: tuple[BinCoverage, ...]
    apps: tuple[AppCoverage, ...]
    app_patterns: Mapping[str, int]  # by application
    saved_at: float  # Unix time of the last checkpoint; 0: none
    restored_at: float  # Unix time of the checkpoint that it started from; 0: none


class Service:
    """Predicts lengths and matches patterns."""

    def __init__(self, learner: Learner | None = None) -> None:
        self.learner = learner or Learner()
        self.libraries: OrderedDict[str, Library] = OrderedDict()  # by application
        self.saved_at = 0.0
        self.restored_at = 0.0
        self._open: OrderedDict[str, Matching] = OrderedDict()

    def predict(self, asks: Sequence[Ask]) -> list[Forecast]:
        return self.learner.predict(asks)

    def observe(self, message: Json) -> None:
        self.learner.observe(frames.ended_from_json(message.get("ended")))

    def match(self, message: Json) -> Json:
        """The stages still to come of a compound request, given its finished ones; `null` without history."""
        if (library := self.libraries.get(frames.text(message, "app"))) is None:
            return {"estimates": None}  # no library is made: asking for unknown names must not evict another one
        self.libraries.move_to_end(frames.text(message, "app"))
        key = f"{frames.text(message, 'app')}\x1f{frames.text(message, 'compound')}"
        seen = tuple(profile(stage) for stage in stages_from_json(message.get("stages")))
        matching = self._open.pop(key, None)
        if matching is None or matching.seen != seen[: len(matching.seen)]:
            matching = Matching(library)
        for stage in seen[len(matching.seen) :]:
            matching.extend(stage)
        self._open[key] = matching
        while len(self._open) > _OPEN:
            self._open.popitem(last=False)
        found = matching.estimate()
        return {"estimates": None if found is None else estimates_to_json(found)}

    def record(self, message: Json) -> None:
        """Learn from a compound request that has ended."""
        app = frames.text(message, "app")
        try:
            graph = linked(stages_from_json(message.get("stages")))
        except ValueError as error:
            raise BadFrame(f"stages: {error}") from error
        self._library(app).add(graph, time.time())
        self._open.pop(f"{app}\x1f{frames.text(message, 'compound')}", None)

    def stats(self) -> Stats:
        return Stats(
            version=self.learner.models.version,
            observations=self.learner.first.total,
            patterns=sum(map(len, self.libraries.values())),
            coverage=tuple(self.learner.coverage),
            apps=tuple(self.learner.apps),
            app_patterns={app: len(library) for app, library in self.libraries.items()},
            saved_at=self.saved_at,
            restored_at=self.restored_at,
        )

    def _library(self, app: str) -> Library:
        library = self.libraries.pop(app, None) or Library()
        self.libraries[app] = library
        while len(self.libraries) > _APPS:
            self.libraries.popitem(last=False)
        return library


def stages_to_json(stages: Sequence[Sequence[Node]]) -> list[object]:
    return [[[int(n.kind), n.name, n.input, n.output, round(n.seconds, 6)] for n in stage] for stage in stages]


def stages_from_json(value: object) -> tuple[tuple[Node, ...], ...]:
    """Raises BadFrame."""
    return tuple(
        tuple(_node(frames.items(node), s) for node in frames.items(stage))
        for s, stage in enumerate(frames.items(value))
    )


def _node(value: list[object], stage: int) -> Node:
    try:
        kind, name, size_in, size_out, seconds = value
    except ValueError as error:
        raise BadFrame(f"a node needs kind, name, input, output and seconds, got {len(value)} values") from error
    from_: Json = {"kind": kind, "name": name, "input": size_in, "output": size_out, "seconds": seconds}
    took = frames.real(from_, "seconds")
    if not 0 <= took < 1e9:
        raise BadFrame(f"a node that took {took} seconds")
    try:
        known = Kind(frames.count(from_, "kind"))
    except ValueError as error:
        raise BadFrame(str(error)) from error
    return Node(
        known, frames.text(from_, "name"), stage, frames.count(from_, "input"), frames.count(from_, "output"), took
    )


def estimates_to_json(estimates: Estimates) -> Json:
    return {
        "seen": estimates.seen,
        "times": list(estimates.times),
        "rest": list(estimates.to_plan_rest()),
        "similarity": estimates.similarity,
    }


def estimates_from_json(value: object) -> Estimates:
    """Raises BadFrame."""
    from_ = frames.obj(value)
    rest = [frames.number(v) for v in frames.items(from_.get("rest"))]
    if len(rest) % 4:
        raise BadFrame(f"rest: four numbers a stage were expected, got {len(rest)}")
    return Estimates(
        seen=frames.count(from_, "seen"),
        times=tuple(frames.number(v) for v in frames.items(from_.get("times"))),
        rest=tuple(StageEstimate(*rest[i : i + 4]) for i in range(0, len(rest), 4)),
        similarity=frames.real(from_, "similarity"),
    )


def stats_to_json(stats: Stats) -> Json:
    return asdict(stats)


def stats_from_json(value: object) -> Stats:
    """Raises BadFrame."""
    from_ = frames.obj(value)
    patterns = frames.obj(from_.get("app_patterns"))
    bins = [frames.obj(b) for b in frames.items(from_.get("coverage"))]
    return Stats(
        version=frames.count(from_, "version"),
        observations=frames.count(from_, "observations"),
        patterns=frames.count(from_, "patterns"),
        coverage=tuple(
            BinCoverage(
                generated=frames.count(b, "generated"),
                survivors=frames.real(b, "survivors"),
                covered=frames.real(b, "covered"),
                lower=frames.real(b, "lower"),
                reserved=frames.real(b, "reserved"),
            )
            for b in bins
        ),
        apps=tuple(
            AppCoverage(
                app=frames.text(a, "app"),
                answers=frames.count(a, "answers"),
                judged=frames.real(a, "judged"),
                covered=frames.real(a, "covered"),
                lower=frames.real(a, "lower"),
                reserved=frames.real(a, "reserved"),
            )
            for a in map(frames.obj, frames.items(from_.get("apps")))
        ),
        app_patterns={app: frames.count(patterns, app) for app in patterns},
        saved_at=frames.real(from_, "saved_at"),
        restored_at=frames.real(from_, "restored_at"),
    )
