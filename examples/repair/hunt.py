"""The account of a search: what was spent and found, and which edits fix a part of the failures."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from .ranking import Candidate
from .suite import Suite, Trial

BATCH = 4  # worlds at a time; the search waits for a whole batch, so the result does not depend on timing
PAIRS = 4  # merges of two partial edits that are tried at a time


@dataclass
class Hunt:
    """What the search for one program has spent and found."""

    budget: int
    forks: int = 0
    edits: list[str] = field(default_factory=list)
    pool: int = 0  # distinct candidates
    place: int = 0  # of the winning edit, in the order in which edits were tried
    prior_place: int = 0  # of the winning edit, in the order without the model
    fixing: int = 0  # edits that fixed everything, in the batch that ended the search
    ranked_by: str = "prior"
    refused: str = ""  # why the model gave no votes, if it did not

    @property
    def left(self) -> int:
        return self.budget - self.forks

    def won(self, ranking: Ranking, edits: list[Candidate], fixing: int) -> None:
        """Record that these edits pass together. `fixing` edits of the last batch would pass."""
        self.edits += [edit.shown for edit in edits]
        self.fixing = fixing
        self.place = 1 + max(ranking.order.index(edit) for edit in edits)
        self.prior_place = 1 + max(ranking.prior.index(edit) for edit in edits)


@dataclass(frozen=True)
class Ranking:
    """The candidates in the order in which they are tried, and in the order without the model's votes."""

    order: list[Candidate]
    prior: list[Candidate]


@dataclass(frozen=True)
class Half:
    """An edit that fixes some tests and breaks none."""

    candidate: Candidate
    fixed: frozenset[str]


def half_way(trials: Iterable[tuple[Candidate, Trial]]) -> list[Half]:
    return [Half(one, frozenset(trial.fixed)) for one, trial in trials if trial.fixed and not trial.broke]


def batches(order: Sequence[Candidate]) -> Iterator[list[Candidate]]:
    for start in range(0, len(order), BATCH):
        yield list(order[start : start + BATCH])


def pairs(old: list[Half], new: list[Half], suite: Suite) -> list[tuple[Half, Half]]:
    """Return pairs that together fix every failing test: one of a kind, those that share least first."""
    wanted = frozenset(suite.failing)
    best: dict[tuple[frozenset[str], frozenset[str]], tuple[Half, Half]] = {}
    for place, two in enumerate(new):
        for one in [*old, *new[:place]]:
            if one.fixed | two.fixed == wanted and wanted not in (one.fixed, two.fixed):
                best.setdefault((one.fixed, two.fixed), (one, two))
    return sorted(best.values(), key=lambda pair: len(pair[0].fixed & pair[1].fixed))[:PAIRS]
