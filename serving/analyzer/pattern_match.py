"""Which past requests an unfolding one is like, and what they say is still to come (thesis §4.1).

A `Matching` follows one request. Each finished stage drops the patterns whose prefix is another one (other models or
tools) and adds the stage's kernel to the similarity of the rest: one operation over all patterns, however many stages
came before. Where no pattern with this prefix is left, the ones of another shape come back, without credit for the
stages in which they differ.

The thesis takes the one most similar pattern (`nearest`). Here (`estimate`) it is, of the few most similar, the one
whose remaining time is the median: what is to come is then still a request that happened, and one odd neighbour does
not decide. On recorded agent sessions that errs less; on tool trajectories it errs more.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ramify.serving.analyzer.estimates import Estimates
from ramify.serving.analyzer.pattern_graph import StageProfile
from ramify.serving.analyzer.pattern_library import Columns, Library, kernel, weigh
from ramify.serving.policy.types import StageEstimate

_NEIGHBOURS = 5


class Matching:
    """One compound request, as far as it has come. Begun without any stage."""

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
        """A further stage is done."""
        self._seen.append(stage)
        columns = self._library.columns
        if self._version == self._library.version:
            self._add(columns, len(self._seen) - 1)

    def estimate(self) -> Estimates | None:
        """What is still to come, None where there is no history."""
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

    def nearest(self) -> Estimates | None:
        """The thesis's rule: the one most similar pattern, with its own times also for the stages that are done."""
        found = self._candidates()
        if found is None:
            return None
        best = int(found[np.argmax(self._score[found] if self._seen else self._library.mass[found])])
        stages, seen = self._library.profiles(best), len(self._seen)
        times = tuple(stage.seconds for stage in stages)
        return Estimates(seen, times, _rest(stages[seen:]), self._similarity(best))

    def _similarity(self, index: int) -> float:
        return min(1.0, float(self._score[index]) / len(self._seen)) if self._seen else 0.0

    def _candidates(self) -> npt.NDArray[np.intp] | None:
        """The patterns that go on as far as this, of the same prefix where there are any; None without history."""
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
        """The library has changed: its indexes are new."""
        self._version = self._library.version
        self._exact = np.ones(len(columns.stages), dtype=np.bool_)
        self._score = np.zeros(len(columns.stages))
        for s in range(len(self._seen)):
            self._add(columns, s)

    def _add(self, columns: Columns, s: int) -> None:
        """Count stage `s` in: patterns of another identity are out, others gain their likeness."""
        if s >= columns.shape.shape[1]:
            self._exact[:] = False
            return
        stage = self._seen[s]
        same = columns.shape[:, s] == self._library.shape(stage)
        self._exact &= same
        self._score += kernel(columns.weights[:, s], np.array(weigh(stage))) * same


def _rest(stages: Sequence[StageProfile]) -> tuple[StageEstimate, ...]:
    return tuple(StageEstimate(stage.calls, stage.input, stage.output, stage.tool_s) for stage in stages)
