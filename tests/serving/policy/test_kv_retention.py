"""What `CostAware` keeps of programs that wait for tools, and what it gives up."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from ramify.serving.policy.kv_retention import CostAware, IdleContext, Room
from ramify.serving.policy.types import StepModel

STEP = StepModel(base_ms=10, per_seq_ms=0.1, per_kctx_ms=0.1, per_prefill_ms=0.02)
FULL = Room(free=0, growth=0, wanted=50_000, running=4, step=STEP, context=400_000, idle_share=0.0)
SOON = IdleContext("soon", 100_000, since=95.0)
LATE = IdleContext("late", 100_000, since=99.0, expected_s=300.0)
NOW = 100.0


def taught(seconds: float = 10.0) -> CostAware:
    retention = CostAware()
    for number in range(20):
        retention.left(f"any {number}", 0.0)
        retention.returned(f"any {number}", seconds)
    return retention


def test_nothing_is_given_up_while_there_is_room() -> None:
    assert taught().release([SOON, LATE], replace(FULL, free=50_000), NOW) == []


def test_running_calls_get_their_memory_from_who_returns_last() -> None:
    assert taught().release([SOON, LATE], replace(FULL, wanted=0, growth=1_000), NOW) == ["late"]


def test_a_busy_engine_gives_up_nobody_who_is_back_soon() -> None:
    """The prefill of 100,000 tokens takes 2 s. In 5 s an engine with four calls gains less by a fifth."""
    assert taught().release([SOON], FULL, NOW) == []


def test_an_engine_that_mostly_reads_prompts_gains_nothing_by_one_call_more() -> None:
    """Two calls share the fixed part of a step. A prompt takes time for each of its tokens."""
    away = replace(SOON, since=NOW, expected_s=10.0)
    alone = replace(FULL, running=1, context=0)
    assert taught().release([away], alone, NOW) == ["soon"]
    assert taught().release([away], replace(alone, prefill=2_000.0), NOW) == []


def test_an_engine_that_is_mostly_idle_takes_the_waiting_call() -> None:
    assert taught().release([SOON], replace(FULL, idle_share=0.9), NOW) == ["soon"]


def test_who_stays_away_for_long_makes_room() -> None:
    assert taught().release([SOON, LATE], FULL, NOW) == ["late"]


def test_with_a_tier_who_returns_later_than_a_copy_takes_makes_room() -> None:
    """A copy holds up the one call that needs it, as a lack of memory does: the engine's own work does not count."""
    away = replace(SOON, since=NOW, expected_s=5.0)
    busy = replace(FULL, running=40, prefill=8_000.0)
    assert taught().release([away], busy, NOW) == []
    assert taught().release([away], replace(busy, copy_ms=0.003), NOW) == ["soon"]  # copied in 0.3 s
    assert taught().release([away], replace(busy, copy_ms=0.1), NOW) == []  # in 10 s
    assert taught().release([replace(away, expected_s=0.2)], replace(busy, copy_ms=0.003), NOW) == []


def test_a_call_that_waits_for_its_slot_keeps_its_context() -> None:
    back = replace(SOON, waits=True)
    assert taught().release([back], replace(FULL, idle_share=1.0), NOW) == []


def test_an_engine_with_nothing_to_run_never_stands_still() -> None:
    back = replace(SOON, waits=True)
    assert taught().release([back], replace(FULL, running=0), NOW) == ["soon"]


def test_nothing_is_given_up_in_vain() -> None:
    """All contexts together would not make room enough."""
    assert taught().release([LATE], replace(FULL, wanted=300_000), NOW) == []


def test_who_is_said_to_stay_away_makes_room_first() -> None:
    over = IdleContext("over", 100_000, since=95.0, until=99.0)
    assert taught().release([SOON, over], FULL, NOW) == ["over"]


def test_little_is_kept_for_programs_that_never_come_back() -> None:
    """Whatever the plan or a hint says of them."""
    retention = CostAware()
    for number in range(100):
        retention.left(f"p{number}", float(number) / 10)
    waits = [replace(SOON, program="p99"), replace(SOON, program="p98", expected_s=6.0)]
    assert set(retention.release(waits, replace(FULL, wanted=200_000), NOW)) == {"p98", "p99"}


def test_the_context_of_who_never_comes_back_is_not_held() -> None:
    retention = CostAware()
    assert retention.hopeless([SOON], NOW) == []
    for number in range(100):
        retention.left(f"p{number}", float(number) / 10)
    waits = replace(SOON, program="back", waits=True)
    assert retention.hopeless([SOON, waits, replace(LATE, until=NOW)], NOW + 2) == ["soon", "late"]


def test_an_expected_time_that_nobody_ever_took_holds_nothing_for_longer() -> None:
    for expected_s in (1e-9, 39.0, 41.0, 1e9):
        assert taught().hopeless([replace(SOON, expected_s=expected_s)], NOW + 60) == ["soon"]
    assert taught().hopeless([replace(SOON, expected_s=39.0)], NOW + 30) == []


@given(
    st.lists(st.tuples(st.integers(1, 200_000), st.floats(0, 100), st.booleans()), max_size=8),
    st.integers(0, 200_000),
    st.integers(0, 50_000),
    st.integers(0, 200_000),
    st.integers(0, 8),
    st.floats(0, 1),
)
def test_growth_is_always_met_if_it_can_be(
    idle: list[tuple[int, float, bool]], free: int, growth: int, wanted: int, running: int, idle_share: float
) -> None:
    contexts = [IdleContext(str(i), tokens, since, waits=waits) for i, (tokens, since, waits) in enumerate(idle)]
    room = Room(free, growth, wanted, running, STEP, 0, idle_share)
    given_up = taught().release(contexts, room, NOW)
    freed = sum(one.tokens for one in contexts if one.program in given_up)
    assert len(set(given_up)) == len(given_up)
    assert free + freed >= min(growth, free + sum(one.tokens for one in contexts))
    if free >= growth + wanted:
        assert not given_up


def test_an_engine_whose_model_says_that_a_step_takes_no_time_gives_up_nobody() -> None:
    free_steps = StepModel(base_ms=0.0, per_seq_ms=0.0, per_kctx_ms=0.1, per_prefill_ms=0.0185)
    room = replace(FULL, step=free_steps, context=0)
    assert not taught().release([IdleContext("a", 50_000, 0.0)], room, 1.0)
