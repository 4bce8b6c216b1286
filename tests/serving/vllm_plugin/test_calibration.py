"""The step model follows the time that steps really take."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest

from ramify.serving.policy.types import StepModel
from ramify.serving.vllm_plugin.engine_views import StepCalibrator


class Steps:
    """An engine with step times of `model`, with or without a step in flight while the next is scheduled."""

    def __init__(self, model: StepModel, pace: StepCalibrator, overlap: bool) -> None:
        self.model, self.pace, self.overlap, self.now = model, pace, overlap, 0.0
        self._flying: list[tuple[Any, float]] = []

    def step(self, sequences: int, prompt_tokens: int) -> None:
        scheduled = dict.fromkeys(range(sequences), 1)
        output = SimpleNamespace(total_num_scheduled_tokens=sequences + prompt_tokens, num_scheduled_tokens=scheduled)
        self.pace.scheduled(output, self.now, 0)
        self._flying.append((output, self.model.step_ms(sequences, 0, prompt_tokens) / 1000))
        if not self.overlap or len(self._flying) > 1:
            output, seconds = self._flying.pop(0)
            self.now += seconds
            self.pace.landed(output, self.now)


@pytest.mark.parametrize("overlap", [False, True])
def test_the_step_model_follows_what_steps_really_take(overlap: bool) -> None:
    start = StepModel(10, 0.1, 0, 0.02)
    pace = StepCalibrator(start, calibrate=True)
    engine = Steps(start.scaled(3), pace, overlap)
    for i in range(200):
        engine.step(4, 8000 if i % 7 == 0 else 0)
    assert pace.model.base_ms == pytest.approx(30, rel=0.2)
    settled = pace.model
    engine.now += 60.0  # nobody asked for anything for a minute
    engine.step(4, 0)
    assert pace.model is settled


@pytest.mark.parametrize("overlap", [False, True])
def test_long_prompts_among_short_steps_do_not_make_an_engine_seem_slower(overlap: bool) -> None:
    pace = StepCalibrator(StepModel(), calibrate=True)
    engine, chance = Steps(StepModel(), pace, overlap), random.Random(1)
    for _ in range(2000):
        engine.step(64, chance.choice([0, 0, 0, 500, 8000]))
    assert pace.model == StepModel()


@pytest.mark.parametrize("start", [StepModel(0, 2, 0, 0.02), StepModel(0, 0, 0, 0)])
def test_models_without_a_fixed_part_converge(start: StepModel) -> None:
    pace = StepCalibrator(start, calibrate=True)
    engine = Steps(StepModel(0, 6, 0, 0.06), pace, overlap=True)
    models = []
    for _ in range(200):
        engine.step(4, 100)
        models.append(pace.model)
    assert pace.model.per_seq_ms == pytest.approx(3 * start.per_seq_ms, rel=0.2)
    assert all(model is models[100] for model in models[100:])


def test_an_empty_step_keeps_the_order_of_ends() -> None:
    """It ends after the next was scheduled, which is still in flight."""
    pace, model, now = StepCalibrator(StepModel(10, 0, 0, 0), calibrate=True), StepModel(30, 0, 0, 0), 0.0
    for _ in range(50):
        empty = SimpleNamespace(total_num_scheduled_tokens=0, num_scheduled_tokens={})
        full = SimpleNamespace(total_num_scheduled_tokens=4, num_scheduled_tokens=dict.fromkeys(range(4), 1))
        pace.scheduled(empty, now, 0)
        pace.scheduled(full, now, 0)
        pace.landed(empty, now)
        now += model.step_ms(4, 0) / 1000
        pace.landed(full, now)
    assert pace.model.base_ms == pytest.approx(30, rel=0.2)


def test_without_calibration_the_model_stays() -> None:
    pace = StepCalibrator(StepModel(), calibrate=False)
    engine = Steps(StepModel().scaled(5), pace, overlap=False)
    for _ in range(50):
        engine.step(4, 0)
    assert pace.model == StepModel()
