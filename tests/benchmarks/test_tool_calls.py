"""The programs of `benchmarks/tool_calls.py`, and the published ways to treat KV during tool calls."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.replay.baselines.tool_gaps import Continuum, InferCept, ThunderAgent
from benchmarks.replay.errors import TooMany
from benchmarks.replay.inputs.agent_programs import least_prefill, programs, sessions
from benchmarks.replay.inputs.stream_loads import beside
from benchmarks.replay.inputs.traces import Session, Turn
from benchmarks.replay.types import Call
from benchmarks.tool_calls import OURS_TIERED, TIERED, WRONG, Measured, hint_of, rows_of
from ramify.serving.policy.kv_retention import IdleContext, Room
from ramify.serving.policy.types import SloClass, StepModel
from ramify.serving.protocol.tags import SLOTags

STEP = StepModel(base_ms=10, per_prefill_ms=0.02)
SHORT = Room(free=0, growth=0, wanted=1_000, running=2, step=STEP, context=10_000, idle_share=0.0)


def test_programs_are_the_same_for_a_seed_and_share_no_block() -> None:
    made = programs(sessions(None, 3), 1.1, 120.0, 3)
    assert made == programs(sessions(None, 3), 1.1, 120.0, 3)
    blocks = [{b for call in one.calls for b in call.blocks} for one in made]
    assert sum(map(len, blocks)) == len(set().union(*blocks))
    assert all(len(one.stages) >= 4 and one.stages[0].tool_s == 0 for one in made)


def test_programs_of_almost_empty_calls_are_too_many() -> None:
    tiny = Session(tuple([Turn((Call(1, 1),), 1.0)] * 5))
    with pytest.raises(TooMany, match="fewer --seconds"):
        programs([tiny], 1.1, 900.0, 1)


def test_readers_beside_agents_come_by_arrival() -> None:
    agents = programs(sessions(None, 3), 1.1, 60.0, 3)
    both = beside(agents, 2.0, 60.0, seed=1)
    assert [one.id for one in both] == list(range(len(both)))
    assert [one.at for one in both] == sorted(one.at for one in both)
    assert [one.stages for one in both if one.kind is SloClass.COMPOUND] == [one.stages for one in agents]
    assert sum(one.kind is SloClass.STREAM for one in both) == len(both) - len(agents) > 60


def test_the_least_prefill_counts_each_block_of_a_program_once() -> None:
    made = programs(sessions(None, 3), 1.1, 60.0, 3)
    assert least_prefill(made) == sum(len({b for call in one.calls for b in call.blocks}) * 64 for one in made)


def test_continuum_keeps_a_context_for_the_time_that_tools_take() -> None:
    continuum = Continuum(delay_s=10.0)
    for gap in [5.0] * 9 + [500.0]:
        continuum.returned("any", gap)
    there = IdleContext("there", 50_000, since=0.0)
    assert continuum.release([there], SHORT, 4.0) == []
    assert continuum.release([there], SHORT, 6.0) == ["there"]


def test_continuum_learns_from_the_latest_gaps_of_any_length() -> None:
    """Each gap in the middle of those seen was forgotten first, until only the shortest and longest were left."""
    continuum = Continuum(delay_s=10.0)
    for gap in [1.0, 5.0, 500.0] * 400:
        continuum.returned("any", gap)
    assert [continuum._gaps.count(gap) for gap in (1.0, 5.0, 500.0)] == [170, 171, 171]
    for _ in range(600):
        continuum.returned("any", 7.0)
    assert set(continuum._gaps) == {7.0}


def test_infercept_gives_up_what_was_away_for_longer_than_its_prefill_is_worth() -> None:
    there = IdleContext("there", 50_000, since=0.0)  # its prefill takes 1 s, and the waste of it half as much
    assert InferCept().release([there], SHORT, 0.5) == []
    assert InferCept().release([there], SHORT, 2.0) == ["there"]


def test_infercept_swaps_sooner_than_it_discards() -> None:
    """On an engine with a CPU tier, the price of a token is that of its copy: here an eighth."""
    there = IdleContext("7", 50_000, since=0.0)
    assert InferCept().release([there], SHORT, 0.2) == []
    assert InferCept().release([there], replace(SHORT, copy_ms=0.0025), 0.2) == ["7"]


def test_lies_are_tags_that_our_scheduler_reads() -> None:
    (one, *_) = programs(sessions(None, 3), 1.1, 60.0, 3)
    for how in (hint_of, *WRONG.values()):
        for stage in range(len(one.stages)):
            assert SLOTags.from_xargs(how(one, stage, stage)).compound_id is not None


def test_thunderagent_admits_programs_that_fit_together() -> None:
    gate = ThunderAgent(100_000, half_life_s=10.0)
    assert gate.enters(0, 60_000, 0.0)
    assert not gate.enters(1, 60_000, 0.0)
    gate.acts(0, 60_000, 1.0)
    assert not gate.enters(1, 60_000, 2.0)
    assert gate.enters(1, 60_000, 12.0), "half of what waits for a tool counts after its half-life"
    assert gate.enters(1, 95_000, 13.0), "an admitted program goes on"
    assert not gate.enters(0, 61_000, 13.0), "the one that waited for a tool was put back"
    gate.ends(1)
    assert gate.enters(0, 61_000, 14.0)


def test_with_a_tier_the_peers_are_those_with_a_tier() -> None:
    """Stock vLLM is one of them: a tier alone may do as much."""
    plain, infercept = TIERED
    found = {("vLLM", 0): Measured(500.0, 900.0, 50, 10), (plain, 0): Measured(220.0, 400.0, 1, 10)}
    found |= {(infercept, 0): Measured(223.0, 400.0, 1, 10), (OURS_TIERED, 0): Measured(221.0, 400.0, 1, 10)}
    took, again = rows_of(OURS_TIERED, found, range(1))
    assert (took["peer"], took["peer_value"], took["met"]) == (plain, 220.0, False)
    assert (again["peer"], again["ours"], again["peer_value"]) == (plain, 0.1, 0.1)
    found[OURS_TIERED, 0] = Measured(219.0, 400.0, 1, 10)
    assert rows_of(OURS_TIERED, found, range(1))[0]["met"]


def test_the_spread_is_over_the_seeds_and_one_seed_has_none() -> None:
    found = {
        (name, seed): Measured(took, took, 5, 10) for name, took in (("vLLM", 300.0), ("a", 200.0)) for seed in (0, 1)
    }
    found["a", 1] = Measured(100.0, 100.0, 5, 10)
    took, _ = rows_of("a", found, range(2))
    assert (took["ours"], took["spread"], took["ratio"]) == (150.0, [100.0, 200.0], 2.0)
    assert "by seed 1.50 to 3.00; seeds: 2" in took["note"]
    (took, _) = rows_of("a", found, range(1))
    assert "spread" not in took and "by seed" not in took["note"]
