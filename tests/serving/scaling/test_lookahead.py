"""Our controller, and the forecast that it looks ahead with."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramify.serving.errors import BadPool, NoRoom
from ramify.serving.policy.types import StageEstimate
from ramify.serving.scaling.lookahead import LiveWorkflow, Lookahead, PlannedStage, future_calls, planned
from ramify.serving.scaling.pools import FutureCalls, PoolLimits, PoolLoad

LIMITS = PoolLimits(1, 16, start_s=2.0)


def pool(name: str, *, rate: float = 0.0, replicas: int = 1, queue: int = 0, width: float = 1.0) -> PoolLoad:
    return PoolLoad(name, rate, 1.0, replicas, queue=queue, width=width, limits=LIMITS)


def test_replicas_start_before_a_queue_forms() -> None:
    pools = [pool("plan"), pool("draft")]
    announced = [FutureCalls("draft", 16, after_s=4.0, service_s=1.0)]
    assert Lookahead(12).decide(pools, (), 0.0).replicas == {"plan": 1, "draft": 1}
    decided = Lookahead(12).decide(pools, announced, 0.0)
    assert decided.replicas["draft"] >= 8 and decided.key == ("draft",)


def test_calls_beyond_the_horizon_move_nothing() -> None:
    announced = [FutureCalls("draft", 16, after_s=400.0, service_s=1.0)]
    assert Lookahead(12).decide([pool("draft")], announced, 0.0).replicas == {"draft": 1}


def test_a_queue_of_now_comes_before_calls_of_later() -> None:
    pools = [pool("plan", queue=6), pool("draft")]
    announced = [FutureCalls("draft", 12, after_s=6.0, service_s=1.0)]
    assert Lookahead(8).decide(pools, announced, 0.0).replicas == {"plan": 6, "draft": 2}


def test_where_all_are_short_workflows_near_their_end_weigh_more() -> None:
    pools = [pool("plan", queue=16), pool("draft", queue=16, width=4), pool("write", queue=16)]
    decided = Lookahead(12).decide(pools, (), 0.0).replicas
    assert decided["write"] > decided["draft"] >= decided["plan"] > 1


def test_where_a_start_costs_next_to_nothing_the_last_pools_get_all_that_they_need() -> None:
    def quick(name: str, start_s: float) -> PoolLoad:
        return PoolLoad(name, 0.0, 0.5, 1, queue=8, limits=PoolLimits(1, 16, start_s))

    strict = [quick(name, 0.19) for name in ("plan", "draft", "write")]
    assert Lookahead(12).decide(strict, (), 0.0).replicas == {"plan": 1, "draft": 3, "write": 8}
    slow = [*strict[:2], quick("write", 0.21)]  # a tenth of its calls, which take 2 s
    assert Lookahead(12).decide(slow, (), 0.0).replicas["write"] < 8


def test_a_pool_that_nobody_needs_shrinks_to_its_least_after_a_while() -> None:
    looks = Lookahead(8)
    assert looks.decide([pool("a", queue=5)], (), 0.0).replicas == {"a": 5}
    assert looks.decide([pool("a", replicas=5)], (), 30.0).replicas == {"a": 5}
    assert looks.decide([pool("a", replicas=5)], (), 61.0).replicas == {"a": 1}


@given(
    st.lists(st.tuples(st.floats(0, 4), st.integers(1, 6), st.integers(0, 30)), min_size=1, max_size=5),
    st.integers(0, 24),
)
def test_the_budget_holds_and_nobody_is_below_its_least(loads: list[tuple[float, int, int]], budget: int) -> None:
    pools = [pool(str(i), rate=r, replicas=n, queue=q) for i, (r, n, q) in enumerate(loads)]
    if budget < len(pools):
        with pytest.raises(NoRoom):
            Lookahead(budget).decide(pools, (), 0.0)
        return
    decided = Lookahead(budget).decide(pools, (), 0.0).replicas
    assert sum(decided.values()) <= budget and all(1 <= n <= 16 for n in decided.values())


def test_a_forecast_waits_for_tools_and_for_the_queue_before_it() -> None:
    pools = {"a": pool("a", queue=4, replicas=2), "b": pool("b")}
    rest = (PlannedStage("b", 3, 1.0, tool_s=5.0), PlannedStage("elsewhere", 1, 2.0), PlannedStage("a", 1, 1.0))
    found = list(future_calls([LiveWorkflow("a", 1.0, 0.5, rest)], pools))
    assert [(one.pool, one.calls, one.after_s) for one in found] == [
        ("b", 3, 2.5 + 5.0),  # 1 s and a queue of 2 s, of which .5 s have passed; then the tools
        ("a", 1, 7.5 + 1.0 + 2.0),  # a pool that is not ours still takes its time
    ]


def test_a_workflow_among_its_tools_has_no_call_to_wait_for() -> None:
    live = LiveWorkflow("a", 1.0, 3.0, (PlannedStage("b", 1, 1.0, tool_s=5.0),), tools=True)
    assert [one.after_s for one in future_calls([live], {"b": pool("b")})] == [2.0]
    gone = replace(live, since_s=36.0)
    assert not list(future_calls([gone], {"b": pool("b")}))


def test_a_plan_becomes_seconds_of_a_replica() -> None:
    (stage,) = planned((StageEstimate(4, 100, 50, 2.0),), "a", token_s=0.02, prefill_s=0.001)
    assert stage == PlannedStage("a", 4, 1.1, 2.0)


def test_senseless_pools_are_refused() -> None:
    with pytest.raises(BadPool, match="service rate"):
        PoolLoad("a", 1.0, 0.0, 1)
    with pytest.raises(BadPool, match="between"):
        PoolLimits(3, 2)
