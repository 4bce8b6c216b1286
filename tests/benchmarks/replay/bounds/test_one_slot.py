"""The thesis's appendix D on one slot: what it proves and what it does not, beside the optimum."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from benchmarks.replay.baselines.single_key import edf, srpt
from benchmarks.replay.bounds.one_slot import Job, Spread, calm, earned, optimum, ratios
from ramify.serving.policy.concord.policy import Concord
from ramify.serving.policy.types import Policy
from tests.samples import sample


def sjf() -> Policy:
    return srpt(refuse=False, displace=0.0)


POLICIES: dict[str, Callable[[], Policy]] = {
    "calm": calm,
    "concord": Concord,
    "edf": lambda: edf(displace=True),
    "sjf": sjf,
}

jobs = st.lists(
    st.builds(
        lambda at, length, spare, worth: Job(at, length, at + length + spare, worth),
        st.integers(0, 30),
        st.integers(1, 30),
        st.integers(0, 40),
        st.integers(1, 100),
    ),
    min_size=1,
    max_size=6,
)


@given(jobs)
@settings(max_examples=sample(10, 25))
@pytest.mark.parametrize("name", POLICIES)
def test_no_policy_is_better_than_the_optimum(name: str, work: list[Job]) -> None:
    assert earned(POLICIES[name](), work) <= optimum(work) + 1e-6


@given(jobs)
@settings(max_examples=sample(15, 40))
def test_jobs_that_fit_are_all_met(work: list[Job]) -> None:
    assert earned(Concord(), work[:1]) == work[0].worth
    if optimum(work) == sum(job.worth for job in work):
        assert earned(edf(displace=True), work) == optimum(work), "EDF meets what can be met (Liu and Layland)"


def test_the_optimum_by_hand() -> None:
    assert optimum([Job(0, 10, 10, 5.0), Job(2, 3, 5, 3.0), Job(5, 4, 9, 3.0)]) == 6.0
    assert optimum([Job(0, 10, 9, 5.0)]) == 0.0


def test_theorem_4_1_does_not_hold() -> None:
    """D.16 to D.18 drop a factor t_U / t_V below 1. B is denser and is served; A, worth a hundred times as much, is
    late. So no constant holds. Concord also asks what else could fill the time (docs/decisions/050)."""
    for worth in (100, 1000):
        counterexample = [Job(0, 2 * worth, 2 * worth, worth), Job(0, 1, 1, 1.0)]
        assert optimum(counterexample) == worth
        assert earned(calm(), counterexample) == 1.0
        assert earned(Concord(), counterexample) == worth


def stream(count: int, slack: int, worth: float) -> list[Job]:
    """D.1 and D.2: A needs all of T; N short jobs of worth 1 arrive one after the other. δ is `slack` units."""
    delta = 10
    whole = delta * (count + 1)
    return [Job(0, whole, whole, worth)] + [Job(i * delta, delta, i * delta + slack, 1.0) for i in range(count)]


@pytest.mark.parametrize("name", ["edf", "sjf"])
@pytest.mark.parametrize("count", [5, 20])
def test_edf_and_sjf_are_not_competitive(name: str, count: int) -> None:
    """Theorems D.1 and D.2, with SLO δ for the B_i and M > N + 1: more of them make it worse."""
    worth = 10.0 * (count + 2)
    work = stream(count, 10, worth)
    assert earned(POLICIES[name](), work) == count
    assert worth / count > 10


def test_edf_withstands_the_stream_as_it_is_printed() -> None:
    """With SLO T + δ for the B_i, as the list before D.1's proof has it, A is due first and EDF keeps it."""
    assert earned(edf(displace=True), stream(5, 70, 100.0)) >= 100.0


@pytest.mark.parametrize("count", [5, 20])
@pytest.mark.parametrize("factor", [1.01, 1.5, 10.0])
def test_the_same_streams_do_not_break_concord(count: int, factor: float) -> None:
    """M > N + 1 makes A denser than any B, so it is kept."""
    worth = factor * (count + 1)
    work = stream(count, 10, worth)
    assert earned(Concord(), work) == earned(calm(), work) == worth


@st.composite
def spread(draw: st.DrawFn, of: Spread) -> list[Job]:
    """Jobs as `one_slot.draw` makes them, drawn by hypothesis."""
    found = []
    for _ in range(draw(st.integers(2, 6))):
        at, length = draw(st.integers(0, 40)), draw(st.integers(1, 40))
        due = at + int(length * draw(st.floats(1.0, of.slack)))
        found.append(Job(at, length, due, length * of.density ** draw(st.floats(0.0, 1.0))))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("density", [1.0, 10.0])
@pytest.mark.parametrize("slack", [1.0, 3.0])
def test_concord_is_never_the_worst_policy(density: float, slack: float) -> None:
    """The same cases for all policies, up to 500 for each spread of density and slack."""
    policies = {"concord": Concord, "calm-thesis": calm, "srpt": lambda: srpt(displace=0.0)}
    worst = dict.fromkeys(policies, 1.0)

    @settings(max_examples=sample(120, 500), derandomize=True, database=None, phases=[Phase.generate])
    @given(spread(Spread(density, slack)))
    def each(work: list[Job]) -> None:
        best = optimum(work)
        for name, policy in policies.items():
            worst[name] = min(worst[name], earned(policy(), work) / best)

    each()
    assert worst["concord"] >= max(worst["calm-thesis"], worst["srpt"])


@pytest.mark.parametrize("density", [1.0, 100.0])
@pytest.mark.parametrize("slack", [1.0, 2.0])
def test_concords_worst_case_is_no_worse_than_calms(density: float, slack: float) -> None:
    """The same seeded cases for all policies; benchmarks/single_slot_ratios.py runs thousands."""
    found = ratios(Spread(density, slack), 60)
    assert found["concord"].worst >= found["calm-thesis"].worst
    assert found["concord"].mean >= max(of.mean for of in found.values())
    assert found["concord"].worst > 0.25, "where it stood at .00 to .19 before it looked at what else there is"
