"""The plug-in's parts that need no vLLM."""

from __future__ import annotations

import json
import random
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramify.serving.policy.types import SloClass, State, StepModel
from ramify.serving.protocol.length_sketch import LEVELS, LengthSketch
from ramify.serving.protocol.wire import refusal_from_line, refusal_to_line
from ramify.serving.vllm_plugin.calibration import Pace
from ramify.serving.vllm_plugin.errors import BadOptions, UnsupportedVllm
from ramify.serving.vllm_plugin.length_updates import LengthUpdates
from ramify.serving.vllm_plugin.options import PluginOptions
from ramify.serving.vllm_plugin.reports import Costs, Totals
from ramify.serving.vllm_plugin.request_views import Views
from ramify.serving.vllm_plugin.version_adapters import adapter_for


@given(st.text(max_size=60), st.none() | st.floats(0, 1e6).map(lambda x: round(x, 3)))
def test_a_refusal_survives_its_way_to_the_client(reason: str, least: float | None) -> None:
    told = refusal_from_line(refusal_to_line(reason, least))
    assert told is not None
    if "[earliest_feasible_s=" not in reason:
        assert told[0] == reason
        assert least is None or told[1] == pytest.approx(least)


@pytest.mark.parametrize("other", [None, 3, "", "stop", "the deadline_infeasible: word"])
def test_any_other_stop_reason_is_no_refusal(other: object) -> None:
    assert refusal_from_line(other) is None


def test_options_are_read_and_wrong_ones_name_themselves() -> None:
    assert PluginOptions.of({}) == PluginOptions.of(None) == PluginOptions()
    read = PluginOptions.of({"ramify": {"policy": "edf", "step": {"base_ms": 2}}, "another": 1})
    assert (read.policy, read.step) == ("edf", StepModel(base_ms=2))
    wrong: dict[str, dict[str, Any]] = {
        "polcy": {"polcy": "edf"},
        "calibrate": {"calibrate": "yes"},
        "refresh_steps": {"refresh_steps": 0},
        "socket": {"socket": 3},
        "step": {"step": {"base_ms": -1}},
        "policy_options": {"policy_options": []},
    }
    for name, given_options in wrong.items():
        with pytest.raises(BadOptions, match=name):
            PluginOptions.of({"ramify": given_options})


def test_each_known_version_has_its_adapter_and_no_other() -> None:
    assert (adapter_for("0.32.0").version, adapter_for("0.33.1").version) == ("0.32", "0.33")
    with pytest.raises(UnsupportedVllm, match=r"vLLM 0\.31\.0.*0\.32 and 0\.33"):
        adapter_for("0.31.0")


class Steps:
    """An engine whose steps take what `model` says, one of them in flight while the next is scheduled, or none."""

    def __init__(self, model: StepModel, pace: Pace, overlap: bool) -> None:
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
    pace = Pace(start, calibrate=True)
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
    pace = Pace(StepModel(), calibrate=True)
    engine, chance = Steps(StepModel(), pace, overlap), random.Random(1)
    for _ in range(2000):
        engine.step(64, chance.choice([0, 0, 0, 500, 8000]))
    assert pace.model == StepModel()


@pytest.mark.parametrize("start", [StepModel(0, 2, 0, 0.02), StepModel(0, 0, 0, 0)])
def test_a_model_without_a_fixed_part_settles_and_one_without_any_stays(start: StepModel) -> None:
    pace = Pace(start, calibrate=True)
    engine = Steps(StepModel(0, 6, 0, 0.06), pace, overlap=True)
    models = []
    for _ in range(200):
        engine.step(4, 100)
        models.append(pace.model)
    assert pace.model.per_seq_ms == pytest.approx(3 * start.per_seq_ms, rel=0.2)
    assert all(model is models[100] for model in models[100:])


def test_a_step_with_nothing_in_it_takes_no_other_steps_place() -> None:
    """It lands after the next was scheduled, which is still in flight."""
    pace, model, now = Pace(StepModel(10, 0, 0, 0), calibrate=True), StepModel(30, 0, 0, 0), 0.0
    for _ in range(50):
        empty = SimpleNamespace(total_num_scheduled_tokens=0, num_scheduled_tokens={})
        full = SimpleNamespace(total_num_scheduled_tokens=4, num_scheduled_tokens=dict.fromkeys(range(4), 1))
        pace.scheduled(empty, now, 0)
        pace.scheduled(full, now, 0)
        pace.landed(empty, now)
        now += model.step_ms(4, 0) / 1000
        pace.landed(full, now)
    assert pace.model.base_ms == pytest.approx(30, rel=0.2)


def test_an_uncalibrated_pace_stays() -> None:
    pace = Pace(StepModel(), calibrate=False)
    engine = Steps(StepModel().scaled(5), pace, overlap=False)
    for _ in range(50):
        engine.step(4, 0)
    assert pace.model == StepModel()


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


def views() -> Views:
    return Views(lambda request: 16, refresh_tokens=8)


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


def test_a_view_is_the_same_object_until_it_has_moved_on() -> None:
    seen, request = views(), fake()
    waiting = seen.add(request).view
    assert seen.of(request, State.WAITING) is waiting
    request.made, request.num_computed_tokens = 1, 41
    started = seen.of(request, State.RUNNING)
    assert (started.computed, started.generated) == (41, 1)
    request.made = 8
    assert seen.of(request, State.RUNNING) is started
    request.made = 9
    assert seen.of(request, State.RUNNING).generated == 9
    assert seen.of(request, State.PREEMPTED).computed == 0


@given(st.integers(0, 1 << 32))
def test_what_waits_is_seen_as_each_by_itself(seed: int) -> None:
    """Begun and preempted between two looks, or a session that waits for more input, with outputs or without."""
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
                seen.of(requests[0], State.RUNNING)
        now = together.waiting(requests)
        alone = [
            one_by_one.of(request, State.PREEMPTED if request.num_preemptions else State.WAITING)
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
def test_a_new_sketch_finds_its_request_by_the_answers_name(name: str, answer: str) -> None:
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
def test_a_new_sketch_is_for_no_other_whose_name_ends_in_a_number(name: str, other: str, answer: str) -> None:
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


def test_sketches_come_by_the_socket_a_bounded_number_a_step(tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    refinements = LengthUpdates(path)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as out:
        out.sendto(json.dumps({"request_id": "a", "length_quantiles": [5.0] * len(LEVELS)}).encode(), path)
        for bad in (b"", b"[]", b'{"request_id": "a"}', b'{"request_id": "a", "length_quantiles": [1]}'):
            out.sendto(bad, path)
    (one,) = refinements.take()
    assert (one[0], one[1].quantile(0.9)) == ("a", 5.0)
    assert refinements.unreadable == 4
    assert list(refinements.take()) == []
    refinements.close()
    assert not Path(path).exists()


def test_what_was_taken_and_what_it_cost_adds_up(tmp_path: Path) -> None:
    told = tmp_path / "report.json"
    costs = Costs(str(told))
    costs.preempted("a", 300, 10.0)
    costs.scheduled({"b": 5}, {"a": 0}, 11.0)  # a step without it
    assert costs.waiting_again == ("a",)
    costs.scheduled({"a": 100}, {"a": 292}, 12.5)  # 192 of its tokens were still in the prefix cache
    costs.paused("b", 12.5)
    costs.resumed("b", 13.0)
    costs.paused("c", 13.0)
    costs.left("c", 14.0)
    costs.left("never paused", 14.0)
    costs.refused(running=False)
    costs.refused(running=True)
    expected = Totals(1, 108, 2.5, 2, 1.5, 2, 1)
    assert costs.totals == expected
    costs.tell(20.0)
    assert Totals(**json.loads(told.read_text())) == expected
    costs.refused(running=True)
    costs.tell(20.5)
    assert json.loads(told.read_text())["refusals"] == 2, "no more than once a second"
    costs.tell(20.5, at_once=True)
    assert json.loads(told.read_text())["refusals"] == 3
