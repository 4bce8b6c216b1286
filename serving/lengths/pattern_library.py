"""The library of patterns, and the match of an unfolding compound request against it (thesis §4.1).

A library keeps at most `CAPACITY` patterns: similar ones as one, and the least used are dropped. Columns over all
patterns make matching a few array operations. A pattern's use fades by .9 an hour. What exceeds the capacity is
clustered (K-medoids): each medoid stays, with the use of its cluster. Times are passed in, in seconds on any clock
that does not go back.

A `Matching` follows one request. Each finished stage drops the patterns with another prefix (other models or tools),
and adds the stage's kernel to the similarity of the others: one operation over all patterns, however many stages came
before. If no pattern with this prefix is left, the others come back, without credit for the stages that differ.

The thesis takes the one most similar pattern. `estimate` takes, of the few most similar, the one whose remaining
time is the median. That is still a request that happened, and one odd neighbour does not decide
(docs/decisions/053).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ramify.serving.lengths.pattern_graph import Kind, Names, PatternGraph, StageProfile, decode, encode
from ramify.serving.lengths.types import Estimates
from ramify.serving.policy.types import StageEstimate

CAPACITY = 500
DECAY_AN_HOUR = 0.9
_SPARE = 64  # patterns beyond the capacity before the next clustering
_FORGOTTEN = 0.05  # a pattern with less use is dropped: one use, 28 hours ago
_ROUNDS = 20
# Widths of the Gaussian kernels, in natural logarithms: lengths that differ by a factor of e have a similarity of .6.
# Half and twice these widths estimated the next stages of recorded agent sessions and tool trajectories no better.
_WIDTHS = np.array([1.0, 1.0, 2.0, 1.0])

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Columns:
    """All patterns side by side. `shape[i, s]` numbers the identities of stage s; -1 after a pattern's end."""

    shape: npt.NDArray[np.int32]
    weights: Floats  # (patterns, stages, 4): log of output, input, tool seconds, calls
    seconds: Floats  # (patterns, stages)
    stages: npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Dump:
    """The saved form of a library."""

    names: tuple[str, ...]
    codes: tuple[bytes, ...]
    use: tuple[float, ...]
    mass: tuple[float, ...]
    faded_at: float  # 0: never


def weigh(stage: StageProfile) -> tuple[float, float, float, float]:
    """The attributes that kernels compare: output (nodes), input (edges), tool time, and number of calls."""
    return (
        float(np.log1p(stage.output)),
        float(np.log1p(stage.input)),
        float(np.log1p(stage.tool_s)),
        float(np.log1p(stage.calls)),
    )


def kernel(a: Floats, b: Floats) -> Floats:
    """The product of Gaussian kernels over the last axis: 1 for equals, towards 0 as they differ."""
    return np.asarray(np.exp(-(((a - b) / _WIDTHS) ** 2).sum(axis=-1) / 2))


class Library:
    """The patterns of one application. Not thread-safe."""

    def __init__(self, capacity: int = CAPACITY) -> None:
        self.names = Names()
        self.version = 0  # of `columns`: whoever holds indexes into them compares it
        self._capacity = capacity
        self._codes: list[bytes] = []
        self._use: list[float] = []  # for eviction: how often a pattern was recently recorded or used as an estimate
        self._mass: list[float] = []  # its weight: how many requests it stands for, with recent ones counting most
        self._profiles: list[tuple[StageProfile, ...]] = []
        self._rows: list[tuple[npt.NDArray[np.int32], Floats, Floats]] = []  # of `columns`, one for each pattern
        self._shapes: dict[tuple[tuple[Kind, str], ...], int] = {}
        self._faded_at: float | None = None
        self._columns: Columns | None = None

    def __len__(self) -> int:
        return len(self._codes)

    def add(self, graph: PatternGraph, now: float) -> None:
        """Record a compound request that has ended."""
        if graph.nodes:
            self.fade(now)
            self._take(encode(graph, self.names), use=1.0, mass=1.0)
            if len(self) > self._capacity + _SPARE:
                self.cluster(self._capacity)

    def fade(self, now: float) -> None:
        """Let uses fade up to now, and drop forgotten patterns."""
        if self._faded_at is None:
            self._faded_at = now
        if (hours := (now - self._faded_at) / 3600) < 1 / 60:
            return
        self._faded_at = now
        self._use = [use * DECAY_AN_HOUR**hours for use in self._use]
        self._mass = [mass * DECAY_AN_HOUR**hours for mass in self._mass]
        self._keep([i for i, use in enumerate(self._use) if use >= _FORGOTTEN])

    def used(self, index: int) -> None:
        """The pattern was used as an estimate."""
        self._use[index] += 1.0

    @property
    def mass(self) -> Floats:
        """How many requests each pattern stands for."""
        return np.array(self._mass)

    def profiles(self, index: int) -> tuple[StageProfile, ...]:
        return self._profiles[index]

    def shape(self, stage: StageProfile) -> int:
        """The number of a stage's identities; -2 if no pattern has them."""
        return self._shapes.get(stage.identities, -2)

    @property
    def columns(self) -> Columns:
        if self._columns is None:
            self._columns = self._built()
        return self._columns

    def cluster(self, medoids: int) -> None:
        """K-medoids: keep `medoids` patterns, each with the use of those that it stands for."""
        if len(self) <= medoids:
            return
        near = similarities(self.columns)
        chosen = k_medoids(1 - near, np.array(self._use), medoids)
        belongs = chosen[np.argmax(near[:, chosen], axis=1)]
        self._use = np.bincount(belongs, weights=self._use, minlength=len(self)).tolist()
        self._mass = np.bincount(belongs, weights=self._mass, minlength=len(self)).tolist()
        self._keep(sorted(chosen.tolist()))

    def dump(self) -> Dump:
        """The state, to be saved."""
        return Dump(tuple(self.names), tuple(self._codes), tuple(self._use), tuple(self._mass), self._faded_at or 0.0)

    def restore(self, dump: Dump) -> None:
        """Take in the result of `dump`. Raises ValueError if it cannot be read."""
        self.names = Names(dump.names)
        self._codes, self._use, self._mass, self._profiles, self._rows, self._shapes = [], [], [], [], [], {}
        for code, use, mass in zip(dump.codes, dump.use, dump.mass, strict=True):
            self._take(code, use, mass)
        self._faded_at = dump.faded_at or None

    def _take(self, code: bytes, use: float, mass: float) -> None:
        profiles = decode(code, self.names)
        for stage in profiles:
            self._shapes.setdefault(stage.identities, len(self._shapes))
        self._codes.append(code)
        self._use.append(use)
        self._mass.append(mass)
        self._profiles.append(profiles)
        shape = np.array([self._shapes[stage.identities] for stage in profiles], dtype=np.int32)
        weights = np.array([weigh(stage) for stage in profiles])
        self._rows.append((shape, weights, np.array([stage.seconds for stage in profiles])))
        self._changed()

    def _keep(self, indexes: list[int]) -> None:
        if len(indexes) < len(self):
            self._codes = [self._codes[i] for i in indexes]
            self._use = [self._use[i] for i in indexes]
            self._mass = [self._mass[i] for i in indexes]
            self._profiles = [self._profiles[i] for i in indexes]
            self._rows = [self._rows[i] for i in indexes]
            self._changed()

    def _changed(self) -> None:
        self._columns = None
        self.version += 1

    def _built(self) -> Columns:
        longest = max(map(len, self._profiles), default=0)
        shape = np.full((len(self), longest), -1, dtype=np.int32)
        weights = np.zeros((len(self), longest, 4))
        seconds = np.zeros((len(self), longest))
        for i, (shapes, attributes, times) in enumerate(self._rows):
            shape[i, : len(times)], weights[i, : len(times)], seconds[i, : len(times)] = shapes, attributes, times
        return Columns(shape, weights, seconds, np.array([len(times) for *_, times in self._rows], dtype=np.int32))


def similarities(columns: Columns) -> Floats:
    """The similarity of each two patterns: the mean over stages, 0 where shapes differ or one has ended."""
    count = len(columns.stages)
    out = np.zeros((count, count))
    for i in range(count):
        length = int(columns.stages[i])
        same = columns.shape[:, :length] == columns.shape[i, :length]
        alike = (kernel(columns.weights[:, :length], columns.weights[i, :length]) * same).sum(axis=1)
        out[i] = alike / np.maximum(columns.stages, length)
    return (out + out.T) / 2


def k_medoids(distance: Floats, use: Floats, count: int) -> npt.NDArray[np.int64]:
    """The indexes of `count` medoids. Seeds farthest-first from the most used, then alternates assignment and update
    until nothing moves. Distances are weighted by use."""
    chosen = [int(np.argmax(use))]
    nearest = distance[:, chosen[0]].copy()
    while len(chosen) < count:
        score = nearest * use
        score[chosen] = -1.0
        chosen.append(int(np.argmax(score)))
        nearest = np.minimum(nearest, distance[:, chosen[-1]])
    medoids = np.array(chosen)
    for _ in range(_ROUNDS):
        cluster = np.argmin(distance[:, medoids], axis=1)
        cluster[medoids] = np.arange(count)
        moved = medoids.copy()
        for k in range(count):
            members = np.flatnonzero(cluster == k)
            if len(members) > 1:
                cost = (distance[np.ix_(members, members)] * use[members]).sum(axis=1)
                moved[k] = members[int(np.argmin(cost))]
        if (moved == medoids).all():
            break
        medoids = moved
    return medoids


_NEIGHBOURS = 5


class Matching:
    """One compound request, as far as it has come. It starts without any stage."""

    def __init__(self, library: Library) -> None:
        self._library = library
        self._seen: list[StageProfile] = []
        self._version = -1
        self._exact = np.ones(0, dtype=np.bool_)
        self._score = np.zeros(0)

    @property
    def seen(self) -> tuple[StageProfile, ...]:
        return tuple(self._seen)

    def extend(self, stage: StageProfile) -> None:
        """Add a further stage that is done."""
        self._seen.append(stage)
        columns = self._library.columns
        if self._version == self._library.version:
            self._add(columns, len(self._seen) - 1)

    def estimate(self) -> Estimates | None:
        """The stages still to come; None without history."""
        found = self._candidates()
        if found is None:
            return None
        near = found[np.argsort(self._score[found], kind="stable")[-_NEIGHBOURS:]] if self._seen else found
        columns, seen = self._library.columns, len(self._seen)
        left = columns.seconds[near, seen:].sum(axis=1)
        order = np.argsort(left, kind="stable")
        said = np.cumsum(self._library.mass[near][order])
        middle = int(near[order[int(np.searchsorted(said, said[-1] / 2))]])
        self._library.used(middle)
        later = self._library.profiles(middle)[seen:]
        times = tuple(stage.seconds for stage in (*self._seen, *later))
        return Estimates(seen, times, _rest(later), self._similarity(middle))

    def _similarity(self, index: int) -> float:
        return min(1.0, float(self._score[index]) / len(self._seen)) if self._seen else 0.0

    def _candidates(self) -> npt.NDArray[np.intp] | None:
        """The patterns that go on as far as this request, with the same prefix if there are any; None without
        history."""
        columns = self._library.columns
        if not len(columns.stages):
            return None
        if self._version != self._library.version:
            self._start(columns)
        goes_on = columns.stages >= max(1, len(self._seen))
        for which in (self._exact & goes_on, goes_on):
            if which.any():
                return np.flatnonzero(which)
        return np.arange(len(columns.stages))

    def _start(self, columns: Columns) -> None:
        """Start over after the library has changed, because its indexes are new."""
        self._version = self._library.version
        self._exact = np.ones(len(columns.stages), dtype=np.bool_)
        self._score = np.zeros(len(columns.stages))
        for s in range(len(self._seen)):
            self._add(columns, s)

    def _add(self, columns: Columns, s: int) -> None:
        """Count stage `s`: patterns with other identities are out, the others gain similarity."""
        if s >= columns.shape.shape[1]:
            self._exact[:] = False
            return
        stage = self._seen[s]
        same = columns.shape[:, s] == self._library.shape(stage)
        self._exact &= same
        self._score += kernel(columns.weights[:, s], np.array(weigh(stage))) * same


def _rest(stages: Sequence[StageProfile]) -> tuple[StageEstimate, ...]:
    return tuple(StageEstimate(stage.calls, stage.input, stage.output, stage.tool_s) for stage in stages)
