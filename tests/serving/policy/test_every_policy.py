"""What each policy of the registry has to keep, and their names."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings

from ramify.cli.commands.serving import serve_command
from ramify.serving.policy.registry import POLICIES, OptionValue, UnknownPolicy, make_policy
from ramify.serving.policy.stream_lending import StreamLending
from ramify.serving.policy.types import RequestId, RequestView, SloClass, State, View
from tests.samples import sample
from tests.serving.policy.views import NOW, capacity, situations


@pytest.mark.parametrize(
    ("name", "options"), [*((name, {}) for name in sorted(POLICIES)), ("concord", {"goodput": "token"})]
)
@given(situations())
@settings(max_examples=sample(20, 60), deadline=None)
def test_every_verdict_keeps_its_invariants(name: str, options: dict[str, OptionValue], seen: View) -> None:
    policy = make_policy(name, **options)
    verdict = policy.decide(seen, NOW)
    waiting, ran = {c.id for c in seen.waiting}, {c.id for c in seen.running}
    dropped = {refusal.id for refusal in verdict.drop}
    assert sorted([*verdict.order, *dropped]) == sorted(waiting)
    assert verdict.order[: len(verdict.admit)] == verdict.admit
    moved = [*verdict.preempt, *verdict.pause]
    assert len(set(moved)) == len(moved)
    paused = {c.id for c in seen.paused}
    assert set(verdict.pause) <= ran
    assert set(verdict.preempt) <= ran | paused
    assert set(verdict.resume) <= paused - set(moved)
    assert len(verdict.admit) + len(verdict.resume) <= seen.capacity.free + len(ran.intersection(moved))
    assert seen.capacity.can_preempt or not verdict.preempt
    assert seen.capacity.can_pause or not verdict.pause
    assert verdict.wake_at is None or verdict.wake_at > NOW
    assert not any(
        c.slo_class is SloClass.BEST_EFFORT and c.admit_by is None and c.id in dropped for c in seen.waiting
    )
    assert verdict == make_policy(name, **options).decide(seen, NOW)


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_a_preempted_call_that_has_answered_is_not_refused_for_its_start(name: str) -> None:
    """Its first token came in time, and it was admitted: refusing it would end an answer half way."""
    limits = {"ttft": NOW - 5, "admit_by": NOW - 5}
    begun = RequestView(
        RequestId(1), NOW - 9, SloClass.LATENCY, state=State.PREEMPTED, generated=20, tbt=1.0, **limits
    )
    assert make_policy(name).decide(View(capacity(1, 0), [begun]), NOW).drop == ()


def test_an_unknown_policy_or_option_lists_what_there_is() -> None:
    assert isinstance(make_policy(), StreamLending)
    with pytest.raises(UnknownPolicy, match=f"no policy is called 'fifo': there are {', '.join(POLICIES)}"):
        make_policy("fifo")
    with pytest.raises(UnknownPolicy, match=r"policy concord: .*wait"):
        make_policy("concord", wait=3)


@pytest.mark.parametrize(
    ("name", "option", "value", "said"),
    [
        ("edf", "best_effort_s", "soon", "'soon': it must be a number"),
        ("edf", "best_effort_s", -1, "it must not be below 0"),
        ("edf", "foresee", False, "there is no option foresee: there are best_effort_s"),
        ("calm-thesis", "quantile", "high", "it must be a number"),
        ("calm-thesis", "quantile", 1.5, "it must be from 0 to 1"),
        ("calm-thesis", "frame_steps", 0, "it must be at least 1"),
        ("calm-thesis", "cutoff", float("nan"), "it must be a number"),
        ("calm-thesis", "fair", 1, "there is no option fair"),
        ("calm-thesis", "appendix", "no", "it must be true or false"),
        ("andes", "batch_sizes", 1.5, "it must be a whole number"),
        ("andes", "horizon_s", "long", "it must be a number"),
        ("concord", "goodput", "worst", "it must be one of"),
        ("concord", "lend_s", "long", "it must be a number"),
        ("concord", "refuse", "no", "it must be true or false"),
        ("concord", "tuning", 3, "there is no option tuning"),
        ("concord", "floors", 3, "it must be a JSON object"),
        ("concord", "floors", {"latency": "x"}, "floors.latency is 'x': it must be a number"),
        ("concord", "floors", {"fast": 0.5}, "it must be one of"),
    ],
)
def test_an_option_that_is_not_there_or_has_a_bad_value_is_refused_before_the_first_verdict(
    name: str, option: str, value: OptionValue, said: str
) -> None:
    with pytest.raises(UnknownPolicy, match=re.escape(said)) as raised:
        make_policy(name, **{option: value})
    assert f"policy {name}: " in str(raised.value) and option in str(raised.value)


def test_options_may_be_left_out_or_have_none_where_that_has_a_meaning() -> None:
    make_policy("calm-thesis", waiting_s=None, goodput="request", preempt_margin=float("inf"))
    make_policy("concord", floors={"latency": 1}, lend_s=2, foresee=True)


def test_the_help_of_serve_names_every_policy() -> None:
    (option,) = (one for one in serve_command.params if one.name == "policy")
    said = str(option.to_info_dict()["help"])
    named = said.removeprefix("The scheduling policy: ").removesuffix(".").split("; ")
    assert {one.partition(",")[0] for one in named} == set(POLICIES)
