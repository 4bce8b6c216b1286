"""benchmarks/length_ranker.py: the gradient of its loss, and that it finds an existing order."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest

from benchmarks import held_out_prompts as split

_PATH = Path(__file__).parents[2] / "benchmarks" / "length_ranker.py"
_SPEC = importlib.util.spec_from_file_location("ranker", _PATH)
assert _SPEC is not None and _SPEC.loader is not None
ranker = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(ranker)


def loss(scores: np.ndarray) -> float:
    """Plackett-Luce: each place is drawn from the remaining ones."""
    return -sum(scores[i] - np.log(np.exp(scores[i:]).sum()) for i in range(len(scores)))


def test_the_gradient_is_that_of_the_loss() -> None:
    scores = np.array([0.3, -1.2, 2.0, 0.0])
    step = 1e-6
    measured = [(loss(scores + step * row) - loss(scores - step * row)) / (2 * step) for row in np.eye(4)]
    assert ranker.list_mle_slope(scores) == pytest.approx(measured, abs=1e-6)


def test_held_out_prompts_are_those_of_the_analyzer() -> None:
    """Two in five prompts are held out, whatever their order and number: all rows of one prompt are on one side."""
    groups = [split.group(f"prompt {i}") for i in range(100)]
    held = set(split.held_out(groups).tolist())
    assert len(held) == 40 and held < set(groups)
    assert set(split.held_out([*groups[::-1], *groups]).tolist()) == held
    rows = {"m": [(f"prompt {i}", "x" * (10 + i % 7)) for i in range(100)]}
    assert len(ranker.analyzer(rows, held)["m"]) == 40


def test_it_ranks_held_out_rows_by_the_feature_that_decides_length() -> None:
    chance = np.random.default_rng(1)
    x = chance.normal(size=(200, 6))
    lengths = np.exp(x[:, 2] - 0.5 * x[:, 4] + 0.1 * chance.normal(size=200))
    head = ranker.fit(x[:150], lengths[:150])
    assert ranker.spearman(head(x[150:]), lengths[150:]) > 0.9
    noise = ranker.fit(x[:150], chance.permutation(lengths[:150]))
    assert ranker.spearman(noise(x[150:]), lengths[150:]) < 0.5
