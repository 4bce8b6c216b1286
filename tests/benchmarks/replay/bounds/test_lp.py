"""The LP bound is above every schedule, and no higher than necessary."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.replay.bounds.lp import Item, Piece, chosen, request_bound, solve, token_bound
from benchmarks.replay.bounds.one_slot import UNIT, Job, optimum
from benchmarks.replay.bounds.shares import brought
from benchmarks.replay.errors import NoBound
from benchmarks.replay.types import Call, Program, ProgramId, Setting, Stage
from ramify.serving.policy.types import SloClass
from tests.samples import sample

ONE_SLOT = Setting(step=UNIT, slots=1, seconds=100.0, warm=0.0, cool=0.0)


def due(id_: int, at: float, length: int, deadline_s: float, *more: Stage) -> Program:
    first = Stage((Call(1, length),))
    return Program(ProgramId(id_), at, SloClass.DEADLINE, (first, *more), deadline_s=deadline_s)


jobs = st.lists(
    st.builds(
        lambda at, length, spare: Job(at, length, at + length + spare),
        st.integers(0, 20),
        st.integers(1, 20),
        st.integers(0, 30),
    ),
    min_size=1,
    max_size=6,
)


@given(jobs, st.sampled_from([0.5, 1.0, 7.0]))
@settings(max_examples=sample(10, 30), deadline=None)
def test_no_schedule_exceeds_the_bound(work: list[Job], bin_s: float) -> None:
    programs = [due(i, float(job.at), job.length, float(job.due - job.at)) for i, job in enumerate(work)]
    bound = request_bound(programs, ONE_SLOT, bin_s)
    assert optimum(work) - 1e-6 <= bound.value <= bound.total == len(work)


def test_the_bound_is_reached_with_whole_shares() -> None:
    """Three programs of 10 s each until 20 s: two fit. Bins of half a second add what two windows' ends touch."""
    programs = [due(i, 0.0, 10, 20.0) for i in range(3)]
    assert 2.0 <= request_bound(programs, ONE_SLOT, 0.5).value <= 2.1
    assert request_bound(programs[:2], ONE_SLOT, 0.5).share == 1.0


def test_a_program_that_cannot_be_met_alone_does_not_count() -> None:
    bound = request_bound([due(0, 0.0, 10, 9.0)], ONE_SLOT)
    assert (bound.value, bound.total, bound.share) == (0.0, 1.0, 0.0)


def test_later_stages_take_their_time_and_their_tools() -> None:
    def two(tool_s: float) -> Program:
        return due(0, 0.0, 5, 12.0, Stage((Call(1, 5),), tool_s))

    assert request_bound([two(2.0)], ONE_SLOT).value == 1.0
    assert request_bound([two(2.5)], ONE_SLOT).value == 0.0
    rival = due(1, 0.0, 5, 5.0)  # the first stage must lie before 5 or so, and there is room for one of them alone
    assert request_bound([two(2.0), rival], ONE_SLOT, 0.25).value < 1.2


def test_more_replicas_and_shorter_bins() -> None:
    programs = [due(i, 0.0, 10, 20.0) for i in range(8)]
    one = request_bound(programs, ONE_SLOT).value
    two = request_bound(programs, Setting(UNIT, 1, seconds=100.0, warm=0.0, cool=0.0, replicas=2)).value
    assert two == pytest.approx(2 * one)
    assert request_bound(programs, ONE_SLOT, 0.1).value <= one <= request_bound(programs, ONE_SLOT, 9.0).value


def test_only_the_window_counts() -> None:
    setting = Setting(step=UNIT, slots=1, seconds=100.0)
    assert request_bound([due(0, 5.0, 1, 9.0), due(1, 50.0, 1, 9.0), due(2, 95.0, 1, 9.0)], setting).total == 1.0


def stream(id_: int, output: int) -> Program:
    stages = (Stage((Call(1, output),)),)
    return Program(ProgramId(id_), 0.0, SloClass.LATENCY, stages, ttft_s=2.0, tbt_s=1.0)


def test_each_token_of_a_stream_counts_and_other_programs_count_as_a_whole() -> None:
    """Two streams of ten tokens, one a second: their last tokens are due at 11 and bins round that up to 12."""
    assert token_bound([stream(0, 10)], ONE_SLOT).share == 1.0
    both = token_bound([stream(0, 10), stream(1, 10)], ONE_SLOT)
    assert both.total == 20.0
    assert both.value == pytest.approx(12.0)
    assert token_bound([due(0, 0.0, 10, 9.0)], ONE_SLOT).value == 0.0


def test_a_repeated_prefix_of_a_program_is_free() -> None:
    costly = Setting(slots=1, seconds=100.0, warm=0.0, cool=0.0)
    shared, other = tuple(range(100)), tuple(range(100, 200))

    def twice(blocks: tuple[int, ...]) -> Program:
        stages = tuple(Stage((Call(51_200, 100, names),)) for names in (shared, blocks))
        return Program(ProgramId(0), 0.0, SloClass.COMPOUND, stages, deadline_s=4.0)

    again = [twice(shared) for _ in range(4)]
    anew = [twice(other) for _ in range(4)]
    assert request_bound(again, costly).value > request_bound(anew, costly).value


@pytest.mark.parametrize("at", [5.0, 95.0])
def test_a_prefix_from_outside_the_window_is_free_in_it(at: float) -> None:
    """One program outside the window, and some in it with the same prompt, due before it could be computed."""
    setting = Setting(slots=1, seconds=100.0)
    stages = (Stage((Call(51_200, 10, tuple(range(100))),)),)
    outside = Program(ProgramId(0), at, SloClass.DEADLINE, stages, deadline_s=30.0)
    within = replace(outside, id=ProgramId(1), at=50.0)
    tight = [replace(within, id=ProgramId(n), deadline_s=0.5) for n in range(1, 4)]
    around = brought([outside, *tight], setting)
    assert around is not None
    anew, cached = request_bound(tight, setting, 0.1), request_bound([around, *tight], setting, 0.1)
    assert cached.value == 3.0 > anew.value
    assert brought(tight, setting) is None
    assert brought([due(0, 5.0, 1, 9.0)], setting) is None


def test_an_unsolved_programme_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    unsolved = SimpleNamespace(status=4, message="numerical difficulties")
    monkeypatch.setattr("scipy.optimize.linprog", lambda *_, **__: unsolved)
    with pytest.raises(NoBound, match="numerical difficulties"):
        solve([Item(1.0, (Piece(1.0, 0.0, 2.0),))], 1.0, 1.0)


def test_the_clairvoyants_choice_fits_and_shrinks_with_less_time() -> None:
    work = [due(i, 0.0, 10, 20.0) for i in range(2)] + [due(2, 0.0, 15, 20.0), due(3, 0.0, 10, 9.0)]
    assert [one.id for one in chosen(work, ONE_SLOT, 1.0, 0.5)] == [0, 1]
    assert len(chosen(work, ONE_SLOT, 0.6, 0.5)) == 1
    assert chosen([], ONE_SLOT, 1.0) == []
