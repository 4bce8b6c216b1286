"""What an application's own answers change about the forecasts of its next ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from benchmarks.serving_costs.synthetic_lengths import sample_of, traffic
from ramify.serving.lengths import checkpoint, corrections
from ramify.serving.lengths.calibration import ALPHA
from ramify.serving.lengths.corrections import Correction
from ramify.serving.lengths.forest import Floats
from ramify.serving.lengths.learner import Learner, Models, key_of
from ramify.serving.lengths.length_model import LengthModel, Sample
from ramify.serving.lengths.service import Service
from ramify.serving.lengths.types import Ask, Basis, Ended


def answers(count: int, seed: int, change: Callable[[Floats], Floats]) -> Sample:
    """Answers of an application that the forest does not know."""
    sample = sample_of(traffic(count, seed=seed))
    return replace(sample, lengths=np.maximum(1.0, change(sample.lengths)), keys=("new",) * count)


def bounds(model: LengthModel, asked: Sample, since: dict[str, Correction]) -> Floats:
    found = model.sketches(asked.rows, asked.keys, [100_000.0] * len(asked.keys), since)
    return np.array([forecast.sketch.quantile(0.95) for forecast in found])


@pytest.mark.parametrize("factor", [0.25, 1.0, 4.0])
def test_twelve_answers_make_a_bound_that_holds_and_is_narrow(model: LengthModel, factor: float) -> None:
    """Also of an application whose answers are far longer, or shorter, than those that the forest knows."""
    asked = answers(300, 50, lambda lengths: lengths * factor)
    known = bounds(model, replace(asked, keys=("small",) * 300), {}) * factor
    shares, widths = [], []
    for seed in range(60, 66):
        since: dict[str, Correction] = {}
        model.learn(answers(12, seed, lambda lengths: lengths * factor), since)
        now = bounds(model, asked, since)
        shares.append(float((asked.lengths <= now).mean()))
        widths.append(float(now.sum() / known.sum()))
        assert since["new"].factor == pytest.approx(factor, rel=0.5)
    assert np.mean(shares) >= 0.93
    assert np.mean(widths) <= 2.0


def test_bounds_hold_in_the_long_run_where_no_hypothesis_is_right(model: LengthModel) -> None:
    """Two thirds of the answers are very short, whatever the prompt."""
    rng = np.random.default_rng(3)
    seen = answers(400, 70, lambda lengths: np.where(rng.random(len(lengths)) < 0.66, 3.0, lengths * 3))
    since: dict[str, Correction] = {}
    held = []
    for i in range(400):
        one = Sample(
            seen.rows[i : i + 1], seen.lengths[i : i + 1], seen.cut[i : i + 1], seen.groups[i : i + 1], seen.keys[:1]
        )
        held.append(float(bounds(model, one, since)[0] >= one.lengths[0]))
        model.learn(one, since)
    assert np.mean(held[100:]) >= 0.93


@pytest.mark.parametrize("times", [4.0, 20.0, 100.0])
def test_bounds_hold_for_answers_longer_than_any_that_the_forest_knows(model: LengthModel, times: float) -> None:
    """Also where no factor is large enough: then the limit is the bound of some answers."""
    longest = model.forest.grid[-1] / 4
    rng = np.random.default_rng(5)
    seen = answers(60, 71, lambda lengths: longest * times * np.exp(0.3 * rng.standard_normal(len(lengths))))
    since: dict[str, Correction] = {}
    held = []
    for i in range(60):
        one = Sample(*(each[i : i + 1] for each in (seen.rows, seen.lengths, seen.cut, seen.groups, seen.keys)))
        (found,) = model.sketches(one.rows, one.keys, [longest * times * 4], since)
        held.append(found.sketch.quantile(0.95) >= one.lengths[0])
        model.learn(one, since)
    assert np.mean(held[8:]) >= 0.93


@pytest.mark.parametrize("factor", [4.0, 0.25])
def test_an_application_that_changes_is_followed(model: LengthModel, factor: float) -> None:
    since: dict[str, Correction] = {}
    model.learn(answers(600, 72, lambda lengths: lengths), since)
    model.learn(answers(250, 73, lambda lengths: lengths * factor), since)
    assert abs(np.log(since["new"].factor / factor)) <= 0.5
    asked = answers(200, 74, lambda lengths: lengths * factor)
    now = bounds(model, asked, since)
    known = bounds(model, replace(asked, keys=("small",) * 200), {}) * factor
    assert np.mean(asked.lengths <= now) >= 0.93
    assert now.sum() <= 2.0 * known.sum()


def test_if_the_lowest_level_is_missed_there_is_no_bound_until_others_hold() -> None:
    nothing, one = Correction.none().odds, Correction.none()
    while one.has_bound:
        one = one.after(nothing, 0.0, cut=False)
    assert one.seen >= 4, "not after the first misses"
    answers_without = 0
    while not one.has_bound:
        one = one.after(nothing, 0.0, cut=False)  # no miss, since its bound was the limit
        answers_without += 1
    assert answers_without >= 10
    assert 1 / answers_without < ALPHA * 2


def test_a_miss_lowers_the_level_and_hits_raise_it_again() -> None:
    nothing = Correction.none().odds
    missed = Correction.none().after(nothing, 0.01, cut=False)
    assert missed.level < ALPHA and missed.seen == 1
    levels = [missed.level]
    for _ in range(200):
        missed = missed.after(nothing, 0.6, cut=False)
        levels.append(missed.level)
    assert levels == sorted(levels) and levels[-1] == pytest.approx(ALPHA), "and never above the nominal one"


def test_an_answer_that_was_cut_says_only_that_it_was_longer(model: LengthModel) -> None:
    cut = replace(answers(12, 80, lambda lengths: lengths), cut=np.ones(12, dtype=np.bool_))
    whole, longer = {}, {}  # type: dict[str, Correction], dict[str, Correction]
    model.learn(cut, longer)
    model.learn(replace(cut, cut=np.zeros(12, dtype=np.bool_)), whole)
    assert longer["new"].factor > whole["new"].factor
    assert Correction.none().after(Correction.none().odds, 0.3, cut=True).level == ALPHA


def test_shifted_curves_are_those_of_longer_answers() -> None:
    grid = np.array([0.0, 10.0, 20.0, 40.0, 80.0])
    curve = np.array([[1.0, 0.8, 0.5, 0.1, 0.0]])
    one = np.zeros((1, len(corrections.SHIFTS)))
    one[0, np.argmin(abs(corrections.SHIFTS - 0.7))] = 1  # almost twice as long
    assert corrections.shifted(curve, grid, one)[0] == pytest.approx([1.0, 0.9, 0.8, 0.5, 0.1], abs=0.02)
    assert corrections.widened(curve, np.array([ALPHA])) == pytest.approx(curve, abs=1e-8)
    wide = corrections.widened(curve, np.array([0.01]))
    assert np.interp(0.01, curve[0][::-1], grid[::-1]) == pytest.approx(
        np.interp(ALPHA, wide[0][::-1], grid[::-1]), rel=0.1
    )


def test_a_new_application_is_foreseen_without_a_refit_and_after_a_restart(model: LengthModel) -> None:
    learner = Learner(salt=7)
    learner.models = Models(model, None, 1)
    asks = [replace(ask, app="new", model="small") for ask, _ in traffic(30, seed=90)]
    assert learner.predict(asks[:1])[0].basis is Basis.COLD
    for ask, (_, length) in zip(asks, traffic(30, seed=90), strict=True):
        learner.observe(Ended(ask, length))
    (found,) = learner.predict(asks[:1])
    assert found.basis is Basis.LEARNT and learner.models.version == 1
    again = checkpoint._restored(checkpoint.snapshot(Service(learner)))
    assert again.learner.predict(asks[:1])[0].sketch.values == pytest.approx(found.sketch.values)


def test_a_state_of_an_earlier_version_is_corrected_and_refitted(model: LengthModel) -> None:
    learner = Learner(salt=7)
    for ask, length in traffic(70, seed=91):
        learner.observe(Ended(ask, length))
    learner.install(Models(model, None, 1), 70)
    state = {name: array for name, array in checkpoint.snapshot(Service(learner)).items() if "correct" not in name}
    again = checkpoint._restored(state).learner
    assert again.due()
    ask: Ask = traffic(1, seed=91)[0][0]
    assert again.predict([ask])[0].basis is Basis.LEARNT


def test_corrections_with_other_hypotheses_are_refused(model: LengthModel) -> None:
    learner = Learner(salt=7)
    learner.models = Models(model, None, 1)
    state = checkpoint.snapshot(Service(learner))
    state["model_first.corrections"] = state["model_first.corrections"][:, :-1]
    with pytest.raises(ValueError, match="numbers of a correction"):
        checkpoint._restored(state)


def test_the_applications_heard_of_last_are_corrected(model: LengthModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ramify.serving.lengths.learner._CORRECTED", 3)
    learner = Learner(salt=7)
    learner.models = Models(model, None, 1)
    for number in range(5):
        learner.observe(Ended(Ask(model="m", prompt="hello", limit=100, app=f"a{number}"), 10))
    assert list(learner.models.since) == [f"a{number}\x1fm" for number in (2, 3, 4)]


def test_names_of_models_that_no_checkpoint_keeps_are_told_apart_and_cost_little(model: LengthModel) -> None:
    """Clients name models as they like: with control characters, or a megabyte long."""
    names = ["m", "m\0", "m\0\0", "\ud800", "x" * 1_000_000, "x" * 1_000_001, ""]
    learner = Learner(salt=7)
    learner.models = Models(model, None, 1)
    for number, name in enumerate(names):
        for _ in range(number + 1):
            learner.observe(Ended(Ask(model=name, prompt="hello", limit=100, app="a"), 10))
    arrays = checkpoint.snapshot(Service(learner))
    assert sum(one.nbytes for name, one in arrays.items() if name.startswith("first.names")) < 100_000
    again = checkpoint._restored(arrays).learner
    assert [again.models.since[key_of(Ask(name, "", 1, "a"))].seen for name in names] == [1, 2, 3, 4, 5, 6, 7]
