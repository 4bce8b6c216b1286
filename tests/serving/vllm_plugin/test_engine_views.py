"""vLLM's requests as the policy sees them.

The step model follows the time that steps really take.
"""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramify.serving.policy.types import SloClass, State, StepModel
from ramify.serving.protocol.length_sketch import LEVELS, LengthSketch
from ramify.serving.vllm_plugin.engine_views import RequestViews, StepCalibrator


class Fake(SimpleNamespace):
    @property
    def num_output_tokens(self) -> int:
        return int(self.made)


def fake(name: str = "r", arrived: float = 100.0, **tags: object) -> Any:
    return Fake(
        request_id=name,
        arrival_time=arrived,
        num_prompt_tokens=40,
        num_computed_tokens=0,
        num_preemptions=0,
        max_tokens=64,
        made=0,
        sampling_params=SimpleNamespace(extra_args=tags or None),
    )


def views() -> RequestViews:
    return RequestViews(lambda request: 16, refresh_tokens=8)


def test_seconds_left_become_times_on_the_engines_clock() -> None:
    view = (
        views()
        .add(
            fake(
                slo_ttft_s=2.0,
                slo_tbt_s=0.1,
                slo_waiting_s=5.0,
                goodput_weight=3.0,
                length_quantiles=[9.0] * len(LEVELS),
            )
        )
        .view
    )
    assert (view.ttft, view.tbt, view.admit_by, view.deadline) == (102.0, 0.1, 105.0, None)
    assert (view.slo_class, view.weight, view.prompt_tokens, view.cached_tokens) == (SloClass.LATENCY, 3.0, 40, 16)
    assert view.sketch is not None
    assert view.sketch.quantile(0.5) == 9.0


def test_a_workflow_counts_from_its_first_request_and_carries_its_plan() -> None:
    seen = views()
    tags = {"compound_id": "run", "compound_deadline_s": 60.0, "plan_rest": [2.0, 300.0, 50.0, 0.5]}
    seen.add(fake("a", 100.0, **tags))
    later = seen.add(fake("b", 130.0, compound_stage=1, slo_deadline_s=10.0, **tags)).view
    assert later.compound is not None
    assert (later.compound.deadline, later.deadline, later.slo_class) == (160.0, 140.0, SloClass.COMPOUND)
    (stage,) = later.compound.rest
    assert (stage.calls, stage.prefill, stage.output_median, stage.tool_s_before) == (2.0, 300.0, 50.0, 0.5)


def test_a_view_is_the_same_object_until_it_changes() -> None:
    seen, request = views(), fake()
    waiting = seen.add(request).view
    assert seen.view_of(request, State.WAITING) is waiting
    request.made, request.num_computed_tokens = 1, 41
    started = seen.view_of(request, State.RUNNING)
    assert (started.computed, started.generated) == (41, 1)
    request.made = 8
    assert seen.view_of(request, State.RUNNING) is started
    request.made = 9
    assert seen.view_of(request, State.RUNNING).generated == 9
    assert seen.view_of(request, State.PREEMPTED).computed == 0


@given(st.integers(0, 1 << 32))
def test_waiting_views_equal_single_views(seed: int) -> None:
    """Started and preempted between two views, or a session that waits for more input, with or without outputs."""
    chance, together, one_by_one = random.Random(seed), views(), views()
    requests = [fake(f"r{i}", **({"fork_group": "g", "fork_size": 2} if i % 2 else {})) for i in range(4)]
    for request in requests:
        together.add(request)
        one_by_one.add(request)
    for _ in range(12):
        for request in requests:
            request.made = chance.choice([request.made, request.made, 0, 3, 30])
            request.num_preemptions += chance.random() < 0.1
        if chance.random() < 0.3:
            sketch = LengthSketch.known(chance.random())
            assert together.refine("r1", sketch) == one_by_one.refine("r1", sketch)
        if chance.random() < 0.2:  # one of them runs for a while
            for seen in (together, one_by_one):
                seen.view_of(requests[0], State.RUNNING)
        now = together.waiting(requests)
        alone = [
            one_by_one.view_of(request, State.PREEMPTED if request.num_preemptions else State.WAITING)
            for request in requests
        ]
        assert now == alone
        assert together.requests([view.id for view in now]) == requests


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("chatcmpl-8d0fe1a2b3c4d5e6-0a1b2c3d", "chatcmpl-8d0fe1a2b3c4d5e6"),
        ("cmpl-8d0fe1a2b3c4d5e6-0-0a1b2c3d", "cmpl-8d0fe1a2b3c4d5e6"),
        ("resp_8d0fe1a2b3c4d5e6_0-0a1b2c3d", "resp_8d0fe1a2b3c4d5e6"),
        ("chatcmpl-theirs-7-0a1b2c3d", "chatcmpl-theirs-7"),
        ("chatcmpl-8d0fe1a2b3c4d5e6", "chatcmpl-8d0fe1a2b3c4d5e6"),
    ],
)
def test_a_new_sketch_finds_its_request_by_the_client_id(name: str, answer: str) -> None:
    seen, sketch = views(), LengthSketch.known(9.0)
    one = seen.add(fake(name))
    seen.add(fake("chatcmpl-another-0a1b2c3e"))
    assert seen.refine(answer, sketch)
    assert one.view.sketch is sketch
    seen.remove(name)
    assert not seen.refine(answer, sketch)


@pytest.mark.parametrize(
    ("name", "other", "answer"),
    [
        ("chatcmpl-job-0a1b2c3d", "chatcmpl-job-2-0a1b2c3e", "chatcmpl-job"),
        ("cmpl-job-0-0a1b2c3d", "cmpl-job-0-0-0a1b2c3e", "cmpl-job"),
        ("cmpl-job-0-0-0a1b2c3d", "cmpl-job-0-0a1b2c3e", "cmpl-job-0"),
    ],
)
def test_a_new_sketch_reaches_no_other_request(name: str, other: str, answer: str) -> None:
    seen, sketch = views(), LengthSketch.known(9.0)
    one, two = seen.add(fake(name)), seen.add(fake(other))
    assert seen.refine(answer, sketch)
    assert (one.view.sketch is sketch, two.view.sketch is sketch) == (True, False)
    seen.remove(other)
    assert seen.refine(answer, LengthSketch.known(11.0))


@pytest.mark.parametrize(
    ("tags", "said"),
    [
        ({"slo_deadline_s": "soon"}, "slo_deadline_s"),
        ({"slo_dedline_s": 3}, "slo_dedline_s"),
        ({"length_quantiles": [1.0, 2.0]}, "length_quantiles"),
    ],
)
def test_tags_that_cannot_be_read_are_a_problem_that_names_the_field(tags: dict[str, object], said: str) -> None:
    seen = views().add(fake(**tags))
    assert seen.problem is not None
    assert said in seen.problem
    assert seen.view.slo_class is SloClass.BEST_EFFORT


def test_a_streams_reader_is_followed_token_by_token_and_its_view_every_few() -> None:
    seen = views()
    request = fake(slo_class="stream", slo_ttft_s=1.0, slo_tbt_s=0.5)
    first = seen.add(request).view
    assert (first.slo_class, first.ttft, first.tbt) == (SloClass.STREAM, None, None)
    begun = []
    for at in range(1, 7):
        seen.delivered({"r": 0}, [[7]], 100.0 + at)
        request.made = at
        begun.append(seen.view_of(request, State.RUNNING).reading)
    assert [one.tokens for one in begun if one is not None] == [1, 1, 1, 1, 5, 5]
    left = seen.remove("r")
    assert left is not None and left[0].reading is not None
    assert (left[0].reading.tokens, left[0].reading.read_at, left[1]) == (6, 106.0, 0)


def test_siblings_are_asked_for_their_prefix_only_when_it_has_changed() -> None:
    """Each look costs time for a whole prompt, and a client may say that a thousand calls are siblings."""
    asked, cached = list[str](), 0

    def look(request: Any) -> int:
        asked.append(request.request_id)
        return cached

    seen = RequestViews(look, refresh_tokens=8)
    for number in range(30):
        seen.add(fake(f"r{number}", fork_group="g", fork_size=30))
    cached = 32
    assert seen.reprice_group("g")
    asked.clear()
    assert not seen.reprice_group("g")
    assert len(asked) == 1


def test_what_a_call_is_due_by_is_its_earliest_limit() -> None:
    seen = views()
    for name, tags in {
        "none": {},
        "whole": {"slo_deadline_s": 9.0},
        "both": {"slo_deadline_s": 9.0, "slo_ttft_s": 2.0},
    }.items():
        seen.add(fake(name, **tags))
    assert [seen.due_of(name) for name in ("none", "whole", "both", "gone")] == [None, 109.0, 102.0, None]


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


def test_a_stream_that_waits_for_memory_is_due_when_its_reader_wants_text() -> None:
    seen = views()
    seen.add(fake(slo_class="stream", slo_ttft_s=1.0, slo_tbt_s=0.5))
    assert seen.due_of("r") == 101.0
    seen.delivered({"r": 0}, [[7, 7]], 101.0)
    assert seen.due_of("r") == 102.0
