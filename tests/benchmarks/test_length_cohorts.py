"""Cohorts split where it pays, and new applications find theirs."""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping
from pathlib import Path as FilePath

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks import cohorts as comparison
from benchmarks.length_cohorts.algorithm import CohortOptions, Cohorts, Path, Vector, residual
from benchmarks.replay.errors import BadTrace
from tests.samples import sample

WAYS = (np.array([1.0, 0.2, 0.0]), np.array([-1.0, 0.1, 0.3]))


def vectors(rng: np.random.Generator, apps: range, apart: float = 1.0) -> dict[str, Vector]:
    """Even applications are of one way, odd ones of the other."""
    return {str(app): apart * WAYS[app % 2] + rng.normal(0, 0.15, 3) + np.array([0, 0, 1.0]) for app in apps}


def rounds(cohorts: Cohorts, rng: np.random.Generator, times: int, apart: float = 1.0, apps: int = 60) -> None:
    """Each application takes part in the cohort that it chooses."""
    for _ in range(times):
        here: dict[Path, dict[str, Vector]] = {}
        for app, vector in vectors(rng, range(apps), apart).items():
            here.setdefault(cohorts.choose(app), {})[app] = vector
        for cohort, found in here.items():
            cohorts.learn(cohort, found)


def members(cohorts: Cohorts, apps: int = 60) -> Mapping[Path, set[int]]:
    out: dict[Path, set[int]] = {}
    for app in range(apps):
        out.setdefault(cohorts.best(str(app)), set()).add(app % 2)
    return out


def test_two_ways_become_two_cohorts() -> None:
    cohorts = Cohorts()
    rounds(cohorts, np.random.default_rng(0), 4)
    assert cohorts.leaves == ((0,), (1,))
    assert sorted(map(sorted, members(cohorts).values())) == [[0], [1]]


def test_one_way_stays_one_cohort() -> None:
    cohorts = Cohorts()
    rounds(cohorts, np.random.default_rng(0), 8, apart=0.0)
    assert cohorts.leaves == ((),), "declining to split is a result"


def test_too_few_applications_stay_together() -> None:
    cohorts = Cohorts()
    rounds(cohorts, np.random.default_rng(0), 8, apps=30)
    assert cohorts.leaves == ((),), "15 a child, and 20 are needed"


def test_a_split_is_not_made_in_the_first_round() -> None:
    cohorts = Cohorts()
    rounds(cohorts, np.random.default_rng(0), 1)
    assert cohorts.leaves == ((),)


@pytest.mark.parametrize("seed", range(4))
def test_a_new_application_finds_its_cohort_by_exploring(seed: int) -> None:
    rng = np.random.default_rng(seed)
    cohorts = Cohorts(seed=seed)
    rounds(cohorts, rng, 4)
    rounds(cohorts, rng, 10, apps=64)  # four new ones
    assert sorted(map(sorted, members(cohorts, 64).values())) == [[0], [1]]


def test_exploring_ends() -> None:
    """Algorithm 2 prints the comparison the other way round: it would explore ever more."""
    cohorts = Cohorts(CohortOptions(epsilon=0.8))
    rounds(cohorts, np.random.default_rng(1), 30)
    assert all(cohorts.choose(str(app)) == cohorts.best(str(app)) for app in range(60))


@settings(max_examples=sample(10, 25), deadline=None)
@given(st.integers(0, 1000), st.floats(0, 3), st.integers(2, 4))
def test_there_are_never_too_many_nor_too_small_cohorts(seed: int, apart: float, most: int) -> None:
    cohorts = Cohorts(CohortOptions(most=most, fewest=10), seed=seed)
    rounds(cohorts, np.random.default_rng(seed), 8, apart)
    assert 1 <= len(cohorts.leaves) <= most
    assert all(cohorts.choose(str(app)) in cohorts.leaves for app in range(60))


def test_the_same_rounds_give_the_same_cohorts() -> None:
    twins = [Cohorts(seed=3) for _ in range(2)]
    for one in twins:
        rounds(one, np.random.default_rng(3), 6)
    assert twins[0].leaves == twins[1].leaves
    assert all(twins[0].affinity(str(app)) == twins[1].affinity(str(app)) for app in range(60))


def test_a_calibrated_model_leaves_no_residual() -> None:
    levels, lengths = (0.25, 0.5, 0.75), list(range(100))
    exact = [[25, 50, 75]] * 100
    assert residual(levels, exact, lengths) == pytest.approx([0, 0, 0])
    assert residual(levels, [[50, 100, 150]] * 100, lengths) == pytest.approx([0.25, 0.5, 0.25]), "too long"
    with pytest.raises(ValueError, match="without an answer"):
        residual(levels, [], [])


@pytest.mark.parametrize(("answers", "prompts"), [(55, 55), (200, 1)])
def test_answers_of_which_none_can_be_judged_are_refused(tmp_path: FilePath, answers: int, prompts: int) -> None:
    """Too few of one application, or all of one prompt, which is learnt or held out as a whole."""
    pairs = [{"prompt": f"question {n % prompts}", "dataset": "d", "response": "w " * n} for n in range(answers)]
    (tmp_path / "responses").mkdir()
    with gzip.open(tmp_path / "responses" / "model.jsonl.gz", "wt", encoding="utf-8") as file:
        file.writelines(json.dumps(pair) + "\n" for pair in pairs)
    with pytest.raises(BadTrace, match=f"none of its {answers} answers"):
        next(comparison.rows(tmp_path, quick=True))
