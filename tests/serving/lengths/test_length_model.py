"""The length model on synthetic traffic: its bounds hold, and it is careful where little is known."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.serving_costs.synthetic_lengths import sample_of, traffic
from ramify.serving.lengths.length_model import LengthModel, fit, strangeness
from ramify.serving.lengths.types import Basis


def test_bounds_hold_on_unseen_prompts_while_answers_grow(model: LengthModel) -> None:
    asks = traffic(600, seed=99)
    sample = sample_of(asks)
    sketches = [f.sketch for f in model.sketches(sample.rows, sample.keys, [8_192.0] * len(asks))]
    for generated in (0, 10, 50, 200, 500, 800):
        held = [s.quantile(0.95, generated) >= n for s, (_, n) in zip(sketches, asks, strict=True) if n > generated]
        assert len(held) >= 50
        assert np.mean(held) >= 0.93, (generated, len(held))


def test_bounds_differ_by_call(model: LengthModel) -> None:
    sample = sample_of(traffic(200, seed=98))
    medians = np.array([f.sketch.quantile(0.5) for f in model.sketches(sample.rows, sample.keys, [8_192.0] * 200)])
    short, long = medians[sample.lengths < 20], medians[sample.lengths > 500]
    assert np.median(short) * 8 < np.median(long)


def test_unseen_model_gets_its_limit(model: LengthModel) -> None:
    sample = sample_of(traffic(3, seed=5))
    for forecast in model.sketches(sample.rows, ["another"] * 3, [512.0] * 3):
        assert forecast.basis is Basis.COLD
        assert forecast.sketch.quantile(0.95) == pytest.approx(512)


def test_rarely_seen_model_gets_a_wider_bound(model: LengthModel) -> None:
    sample = sample_of(traffic(20, seed=5))
    known = model.sketches(sample.rows, sample.keys, [8_192.0] * 20)
    thin = replace(model, corrections={"small": replace(model.corrections["small"], seen=3)})
    less = thin.sketches(sample.rows, sample.keys, [8_192.0] * 20)
    assert {f.basis for f in known} == {Basis.LEARNT}
    assert {f.basis for f in less} == {Basis.THIN}
    assert all(a.sketch.quantile(0.95) < b.sketch.quantile(0.95) for a, b in zip(known, less, strict=True))


def test_no_bound_exceeds_the_limit(model: LengthModel) -> None:
    sample = sample_of(traffic(50, seed=6))
    assert all(f.sketch.quantile(1) <= 64 for f in model.sketches(sample.rows, sample.keys, [64.0] * 50))


def test_uncertainty_fades_with_observations() -> None:
    weights = [strangeness(n) for n in (0, 2, 8, 100)]
    assert weights == sorted(weights, reverse=True)
    assert weights[:2] == [1.0, 0.25]
    assert weights[3] < 0.001


def test_traffic_of_a_single_prompt_is_learnt() -> None:
    sample = sample_of([traffic(1, seed=1)[0]] * 80)
    lengths = np.linspace(50, 150, 80)
    one = replace(sample, lengths=lengths, groups=np.full(80, 7, dtype=np.int32))
    (forecast,) = fit(one, trees=5).sketches(sample.rows[:1], ["small"], [4_096.0])
    assert 80 < forecast.sketch.quantile(0.5) < 120


def test_answers_of_equal_length_are_learnt() -> None:
    sample = sample_of(traffic(70, seed=1))
    (forecast,) = fit(replace(sample, lengths=np.full(70, 40.0)), trees=5).sketches(
        sample.rows[:1], ["small"], [4_096.0]
    )
    assert forecast.sketch.quantile(0.5) == pytest.approx(40, abs=2)
