"""Learning from traffic: first cold, then learnt; the ring forgets; two refits never run at once."""

from __future__ import annotations

import threading
from dataclasses import replace

import numpy as np
import pytest

from benchmarks.serving_costs.synthetic_lengths import traffic
from ramify.serving.lengths import learner as learner_module
from ramify.serving.lengths.learner import MOST_APPS, AppCoverages, Coverage, Learner, wilson_lower
from ramify.serving.lengths.length_model import LengthModel, ObservationRing, Sample, fit
from ramify.serving.lengths.types import Ask, Basis, Ended
from ramify.serving.protocol.length_sketch import LengthSketch


@pytest.fixture
def small_forests(monkeypatch: pytest.MonkeyPatch) -> None:
    def fit_small(sample: Sample, *, seed: int = 0) -> LengthModel:
        return fit(sample, seed=seed, trees=10)

    monkeypatch.setattr(learner_module, "fit", fit_small)


@pytest.mark.usefixtures("small_forests")
def test_starts_with_the_limit_and_learns() -> None:
    learner = Learner(salt=1)
    asks = traffic(300, seed=2)
    before = learner.predict([ask for ask, _ in asks[:20]])
    assert {forecast.basis for forecast in before} == {Basis.COLD}
    assert not learner.due()
    for ask, length in asks:
        learner.observe(Ended(ask, length))
    assert learner.due()
    assert learner.refit()
    assert not learner.due()
    after = learner.predict([ask for ask, _ in asks[:20]])
    assert {forecast.basis for forecast in after} == {Basis.LEARNT}
    assert np.mean([f.sketch.quantile(0.95) for f in after]) < 0.5 * np.mean(
        [f.sketch.quantile(0.95) for f in before]
    )


@pytest.mark.usefixtures("small_forests")
def test_text_so_far_narrows_the_bound() -> None:
    """Half of the answers write THE END at their 50th token and stop at the 60th, the others go on to 500."""
    learner = Learner(salt=1)
    for i in range(600):
        ask = Ask(model="m", prompt=f"Tell me a story, number {i}.", limit=2_000, call=str(i))
        ends = i % 2 == 0
        text = "A tale. " * 20 + ("In conclusion, all was well." if ends else "And then he went on to the river")
        learner.predict([replace(ask, generated=50, text=text)])
        learner.observe(Ended(ask, 55 + i % 10 if ends else 480 + i % 40))
    learner.refit()
    ask = Ask(model="m", prompt="Tell me a story, please.", limit=2_000, call="new", generated=50)
    ending = replace(ask, text="A tale. " * 20 + "In conclusion, all was well.")
    going_on = replace(ask, text="A tale. " * 20 + "And then he went on to the river")
    short, long = learner.predict([ending, going_on])
    assert short.basis is long.basis is Basis.LEARNT
    assert short.sketch.quantile(0.5) < 100
    assert long.sketch.quantile(0.5) > 400
    assert short.sketch.quantile(0) >= 50


def test_two_refits_never_run_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    learner = Learner(salt=1)
    for ask, length in traffic(80, seed=2):
        learner.observe(Ended(ask, length))
    inside, leave = threading.Event(), threading.Event()

    def slow(sample: Sample, *, seed: int = 0) -> LengthModel:
        inside.set()
        assert leave.wait(30)
        return fit(sample, seed=seed, trees=2)

    monkeypatch.setattr(learner_module, "fit", slow)
    first = threading.Thread(target=learner.refit)
    first.start()
    assert inside.wait(30)
    assert learner.refit() is False
    leave.set()
    first.join()
    assert learner.models.version == 1


def test_ring_keeps_the_latest_and_survives_a_round_trip() -> None:
    ring = ObservationRing(4, 2)
    for i in range(6):
        ring.add(np.full(2, i, dtype=np.float32), float(i), cut=i == 5, group=-i, key=f"k{i % 2}")
    sample = ring.sample()
    assert sorted(sample.lengths.tolist()) == [2, 3, 4, 5]
    assert sample.cut.sum() == 1
    assert sample.groups.min() >= 0
    again = ObservationRing(4, 2)
    again.restore(ring.arrays())
    assert again.total == 6
    assert again.sample().keys == sample.keys
    with pytest.raises(ValueError, match="do not fit"):
        ObservationRing(2, 2).restore(ring.arrays())


def test_unused_names_are_forgotten() -> None:
    ring = ObservationRing(4, 2)
    for i in range(100):
        ring.add(np.zeros(2, dtype=np.float32), float(i), cut=False, group=i, key=f"app {i}")
    assert dict(zip(ring.sample().lengths.tolist(), ring.sample().keys, strict=True)) == {
        float(i): f"app {i}" for i in range(96, 100)
    }
    assert len(ring.arrays()["names"]) <= 9


def test_prompt_with_half_a_surrogate_pair() -> None:
    ask = Ask(model="m\ud800", prompt="\ud800 who?", limit=100, app="\udfff")
    learner = Learner(salt=1)
    learner.predict([ask])
    learner.observe(Ended(ask, 3))
    assert learner.first.total == 1


def test_coverage_counts_calls_still_running() -> None:
    coverage = Coverage()
    for length in (30, 60, 120, 5_000):
        coverage.add(LengthSketch((0.0, 1.0), (0.0, 1_000.0)), length, cut=False)
    bins = {b.generated: b for b in coverage}
    assert bins[0].survivors == pytest.approx(4, rel=0.01)
    assert bins[0].covered == pytest.approx(0.75, rel=0.01)
    assert bins[50].survivors == pytest.approx(3, rel=0.01)
    assert bins[50].covered == pytest.approx(2 / 3, rel=0.01)
    assert bins[0].lower < bins[0].covered
    assert 8_000 not in bins


def test_coverage_judges_the_latest_prediction() -> None:
    coverage = Coverage()
    sketch = LengthSketch((0.0, 1.0), (0.0, 1_000.0))
    coverage.add(sketch, 900, cut=False, asked=[(60, 300.0), (90, 2_000.0), (110, 950.0)])
    bins = {b.generated: b for b in coverage}
    assert [bins[g].covered for g in (0, 50, 100, 150)] == [1, 0, 1, 1]
    assert bins[50].reserved == pytest.approx((300 - 60) / (900 - 60))
    assert bins[150].reserved == pytest.approx((sketch.quantile(0.95, 150) - 150) / (900 - 150))


def test_every_moment_is_judged_and_every_other_one_learnt() -> None:
    learner = Learner(salt=1)
    ask = Ask(model="m", prompt="Tell me.", limit=2_000, call="c")
    for generated in range(50, 500, 50):
        learner.predict([replace(ask, generated=generated, text="word " * generated)])
    learner.observe(Ended(ask, 420, bound=LengthSketch.cold(2_000)))
    rest = learner.later.sample().lengths.tolist()
    assert rest in ([370, 270, 170, 70], [320, 220, 120, 20])
    assert [b.generated for b in learner.coverage] == [0, 50, 100, 150, 200, 300, 400]


def test_cut_answer_within_its_bound_is_not_counted() -> None:
    coverage = Coverage()
    coverage.add(LengthSketch.cold(100), 100, cut=True)
    assert list(coverage) == []


def test_wilson_limit_equals_the_textbook() -> None:
    assert wilson_lower(0.95, 100) == pytest.approx(0.9007, abs=2e-3)
    assert wilson_lower(1.0, 50) == pytest.approx(50 / (50 + 1.6449**2), rel=1e-6)


def test_coverage_of_each_application() -> None:
    """An answer that was cut below its bound does not say whether the bound held."""
    counted = AppCoverages()
    for length in range(1, 101):
        counted.add("a", LengthSketch.cold(80), length, cut=False)
    counted.add("b", LengthSketch.cold(80), 40, cut=True)
    counted.add("b", None, 40, cut=False)
    a, b = AppCoverages(counted.counts())
    bound = LengthSketch.cold(80).quantile(0.95)
    assert (a.app, a.answers) == ("a", 100) and a.covered == pytest.approx(int(bound) / 100, abs=0.05)
    assert a.lower < a.covered and a.reserved == pytest.approx(100 * bound / sum(range(1, 101)), rel=0.05)
    assert (b.app, b.answers, b.judged) == ("b", 2, 0)
    for n in range(MOST_APPS):
        counted.add(f"new {n}", None, 1, cut=False)
    assert len(list(counted)) == MOST_APPS and "a" not in counted.counts()
    with pytest.raises(ValueError, match="counts of an application"):
        AppCoverages({"a": [1.0]})
