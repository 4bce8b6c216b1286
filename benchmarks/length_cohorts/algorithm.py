"""Cohorts of applications whose answers are alike: Auxo's algorithm 2 (thesis chapter 3), corrected.

An application takes part in a round (a refit) with a vector: how far its answers were from what its cohort's model
foresaw (`residual`), a few dozen numbers and no text. A cohort is split where that makes its members so much more
alike that each part learns better from fewer of them (lemma 1). An application that is new explores.

Corrected: algorithm 2 explores when a random number is *above* ε^r, so for ever; here it is below. The text compares
by cosine and the algorithm by L2: vectors are normalised first, where both are one. Children get their parent's
reward, and .1 more where the member's cluster became that child. The reward of a cohort that was not explored moves
with γ, too: added whole, as printed, it would pass that of the cohort which earned it. Vectors of
different rounds are not compared, since the model has changed between them: the centre of a cluster in a round is the
mean of its known members then.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import sqrt
from random import Random

import numpy as np
import numpy.typing as npt

Vector = npt.NDArray[np.float64]
Path = tuple[int, ...]  # from the root, by child; the root is ()

_HINT = 0.1  # the reward of the child that a member's cluster became
_ROUNDS = 12  # of K-means


@dataclass(frozen=True, slots=True)
class CohortOptions:
    """parts: children of a split. most: cohorts. fewest: applications that each child needs.

    alpha: of lemma 1. steady: rounds in a row in which a split has to pay. decay: γ of the rewards. epsilon: the
    chance to explore is ε^r in an application's r-th round.
    """

    parts: int = 2
    most: int = 4
    fewest: int = 20
    alpha: float = 1.0
    steady: int = 2
    decay: float = 0.2
    epsilon: float = 0.8


@dataclass(slots=True)
class Affinity:
    """What is known of one application. By cohort: reward, and cluster."""

    rounds: int = 0
    rewards: dict[Path, float] = field(default_factory=dict)
    clusters: dict[Path, int] = field(default_factory=dict)
    explored: set[Path] = field(default_factory=set)


@dataclass(slots=True)
class _Cohort:
    pays: int = 0  # rounds in a row in which a split would have paid
    known: set[str] = field(default_factory=set)


def residual(levels: Sequence[float], foreseen: Sequence[Sequence[float]], lengths: Sequence[float]) -> Vector:
    """The gradient of the pinball loss at each level, 1{y < q_τ} - τ, averaged over answers; 0 for a model that is
    calibrated for this application. Raises ValueError without an answer."""
    if not lengths:
        raise ValueError("an application without an answer has no residual")
    below = np.asarray(lengths)[:, None] < np.asarray(foreseen)
    return np.asarray(below.mean(axis=0) - np.asarray(levels), dtype=np.float64)


def divergence(vectors: npt.NDArray[np.float64]) -> float:
    """J of a group: the root mean square distance from its mean."""
    return float(sqrt(((vectors - vectors.mean(axis=0)) ** 2).sum(axis=1).mean()))


class Cohorts:
    """The tree of cohorts and the affinities of applications. Deterministic for a seed and a sequence of rounds."""

    def __init__(self, options: CohortOptions | None = None, *, seed: int = 0) -> None:
        self._options = options or CohortOptions()
        self._seed = seed
        self._leaves: dict[Path, _Cohort] = {(): _Cohort()}
        self._apps: dict[str, Affinity] = {}

    @property
    def leaves(self) -> tuple[Path, ...]:
        return tuple(self._leaves)

    def affinity(self, app: str) -> Affinity:
        return self._apps.setdefault(app, Affinity())

    def best(self, app: str) -> Path:
        """The cohort that suits the application best, by what is known; the first of equal ones."""
        rewards = self.affinity(app).rewards
        return max(self._leaves, key=lambda leaf: rewards.get(leaf, 0.0))

    def choose(self, app: str) -> Path:
        """The cohort that the application takes part in next: with a chance of ε^r any one, else the best."""
        affinity = self.affinity(app)
        chance = Random(f"{self._seed}/{app}/{affinity.rounds}")
        explores = chance.random() < self._options.epsilon ** (affinity.rounds + 1)
        return chance.choice(self.leaves) if explores else self.best(app)

    def learn(self, cohort: Path, vectors: Mapping[str, Vector]) -> tuple[Path, ...]:
        """One round of one cohort: the vectors of the applications that took part. Those that another cohort suits
        better have explored; the others are its members, which may split.

        Returns the children if it is split, else nothing. Raises KeyError for a cohort that is not a leaf.
        """
        here = self._leaves[cohort]
        names = sorted(vectors)
        if not names:
            return ()
        all_ = np.stack([_normalised(vectors[name]) for name in names])
        self._reward(cohort, names, all_)
        inside = [i for i, name in enumerate(names) if self.best(name) == cohort]
        here.known -= set(names)
        if not inside:  # all that came explored
            return ()
        names, all_ = [names[i] for i in inside], all_[inside]
        here.known |= set(names)
        labels = self._labels(cohort, names, all_)
        for name, label in zip(names, labels, strict=True):
            self.affinity(name).clusters[cohort] = int(label)
        here.pays = here.pays + 1 if self._split_pays(all_, labels) else 0
        if here.pays < self._options.steady or not self._room(cohort):
            return ()
        return self._split(cohort)

    def _labels(self, cohort: Path, names: Sequence[str], vectors: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
        """A cluster for each: nearest to the means of the round's known members, or by K-means."""
        parts = self._options.parts
        before = np.array([self.affinity(name).clusters.get(cohort, -1) for name in names])
        if all((before == part).any() for part in range(parts)):
            centres = np.stack([vectors[before == part].mean(axis=0) for part in range(parts)])
            return _nearest(vectors, centres)
        return k_means_labels(vectors, parts)

    def _reward(self, cohort: Path, names: Sequence[str], vectors: npt.NDArray[np.float64]) -> None:
        known = [i for i, name in enumerate(names) if name in self._leaves[cohort].known] or range(len(names))
        distance = np.sqrt(((vectors - vectors[list(known)].mean(axis=0)) ** 2).sum(axis=1))
        limit = float(distance.mean() + distance.std())
        for name, apart in zip(names, distance, strict=True):
            gained = 1.0 - float(apart) / limit if limit else 1.0
            affinity, decay = self.affinity(name), self._options.decay
            affinity.rounds += 1
            affinity.rewards[cohort] = decay * gained + (1 - decay) * affinity.rewards.get(cohort, 0.0)
            affinity.explored.add(cohort)
            for other in self._leaves:
                if other not in affinity.explored:
                    spread = gained / (_distance(cohort, other) + 1)
                    affinity.rewards[other] = decay * spread + (1 - decay) * affinity.rewards.get(other, 0.0)

    def _split_pays(self, vectors: npt.NDArray[np.float64], labels: npt.NDArray[np.int64]) -> bool:
        """Lemma 1: the parts are more alike by √K, and there are enough applications."""
        parts, whole = self._options.parts, divergence(vectors)
        if whole == 0 or len(set(labels.tolist())) < parts:
            return False
        groups = [vectors[labels == part] for part in range(parts)]
        within = sqrt(sum(len(group) * divergence(group) ** 2 for group in groups) / len(vectors))
        enough = len(vectors) > self._options.alpha * sqrt(len(vectors)) / whole
        return within <= whole / sqrt(parts) and enough

    def _room(self, cohort: Path) -> bool:
        options = self._options
        if len(self._leaves) + options.parts - 1 > options.most:
            return False
        clusters = [self.affinity(name).clusters.get(cohort) for name in self._leaves[cohort].known]
        return all(clusters.count(part) >= options.fewest for part in range(options.parts))

    def _split(self, cohort: Path) -> tuple[Path, ...]:
        parent = self._leaves.pop(cohort)
        children = tuple((*cohort, part) for part in range(self._options.parts))
        for part, child in enumerate(children):
            members = {name for name in parent.known if self.affinity(name).clusters.get(cohort) == part}
            self._leaves[child] = _Cohort(known=members)
        for affinity in self._apps.values():
            reward, mine = affinity.rewards.pop(cohort, None), affinity.clusters.pop(cohort, None)
            for part, child in enumerate(children):
                if reward is not None:
                    affinity.rewards[child] = reward + (_HINT if part == mine else 0.0)
        return children


def _normalised(vector: Vector) -> Vector:
    length = float(np.linalg.norm(vector))
    return vector / length if length else vector


def _distance(cohort: Path, other: Path) -> int:
    """Steps from a cohort up to its lowest common ancestor with another."""
    common = 0
    for a, b in zip(cohort, other, strict=False):
        if a != b:
            break
        common += 1
    return len(cohort) - common


def _nearest(vectors: npt.NDArray[np.float64], centres: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    apart = ((vectors[:, None] - centres[None]) ** 2).sum(axis=2)
    return np.asarray(apart.argmin(axis=1), dtype=np.int64)


def k_means_labels(vectors: npt.NDArray[np.float64], parts: int) -> npt.NDArray[np.int64]:
    """Clusters from centres that are far apart: the one farthest from the mean, then each farthest from those."""
    centres = [vectors[((vectors - vectors.mean(axis=0)) ** 2).sum(axis=1).argmax()]]
    while len(centres) < parts:
        apart = ((vectors[:, None] - np.stack(centres)[None]) ** 2).sum(axis=2).min(axis=1)
        centres.append(vectors[apart.argmax()])
    middle = np.stack(centres)
    for _ in range(_ROUNDS):
        labels = _nearest(vectors, middle)
        middle = np.stack(
            [vectors[labels == p].mean(axis=0) if (labels == p).any() else middle[p] for p in range(parts)]
        )
    return _nearest(vectors, middle)
